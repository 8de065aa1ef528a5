"""Evaluation: quality, ambiguity, output distributions, ablations."""

METRIC_INPUTS = PLAN.metric_inputs(config["metrics"])
# On a CPU the published models lie in the same memory.
SCORING_MB = SIZES.scoring_mb(10000 if METRIC_FILES and not GPU else 0)
# Images of a method, prompt set, temperature and repeat.
RECORDS = rules.generate_images.output[0]


# One job per method, so that many GPUs have work. What sets of images are compared with is not read here.
rule score_images:
    input:
        **{name: file for name, file in METRIC_INPUTS.items() if not name.startswith("reference")},
        checked="<results>/reference/metric_weights.json" if METRIC_FILES else [],
        records=gather.shards(RECORDS, allow_missing=True),
        baseline=gather.shards(RECORDS, method="autoregressive", allow_missing=True),
        prompts=rules.write_prompts.output[0],
        text=text_features_of("{prompt_set}"),
        tokenizer=TOKENIZER,
        target=target_of("{training_seed}"),
    output:
        "<results>/quality/{method}/{prompt_set}/T{temperature}/s{training_seed}n{noise_seed}.safetensors",
    log:
        "<logs>/score_images.{method}.{prompt_set}.T{temperature}.s{training_seed}n{noise_seed}.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=SCORING_MB,
        runtime=scoring_minutes,
        gpu=GPU,
    params:
        **TEXT_PARAMS,
        code=code("score_images.py", *loading_modules(config["metrics"])),
        metrics=MEASURED_WITH,
    script:
        "../scripts/score_images.py"


# Joins the scores of all methods, and compares sets of images.
rule measure_quality:
    input:
        **METRIC_INPUTS,
        scores=expand(rules.score_images.output, method=methods_at, allow_missing=True),
        records=expand(gather.shards(RECORDS, allow_missing=True), method=methods_at, allow_missing=True),
        prompts=rules.write_prompts.output[0],
        text=text_features_of("{prompt_set}"),
        tokenizer=TOKENIZER,
        target=target_of("{training_seed}"),
    output:
        table="<results>/quality/{prompt_set}.T{temperature}.s{training_seed}n{noise_seed}.csv",
        images="<results>/quality/{prompt_set}.T{temperature}.s{training_seed}n{noise_seed}.images.csv",
    log:
        "<logs>/measure_quality.{prompt_set}.T{temperature}.s{training_seed}n{noise_seed}.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=SCORING_MB,
        runtime=scoring_minutes,
        gpu=GPU,
    params:
        code=code("measure_quality.py", *loading_modules(config["metrics"])),
        metrics={
            **MEASURED_WITH,
            **settings_of(
                "metrics", "num_reference", "kid_subset_size", "kid_subsets", "prc_neighbours", "fidelity_resamples"
            ),
        },
        repeat="s{training_seed}n{noise_seed}",
        split=lambda wildcards: config["prompts"][wildcards.prompt_set].get("split") or "val",
        text=TEXT,
        # Published text features know the prompts only: no ceilings of held-out images then.
        source=DATA if HAS_HELD_OUT else {"data": {"source": "none"}},
        seed=SEED,
    script:
        "../scripts/measure_quality.py"


rule measure_ambiguity:
    input:
        # Held-out images; where a run has none, the autoregressive ones of the headline prompt set.
        codes=codes_of("val") if HAS_HELD_OUT else [],
        captions=rules.write_captions.output.val if HAS_HELD_OUT else [],
        records=(
            []
            if HAS_HELD_OUT
            else shards_of(PLAN.records_of(**SAMPLED, repeat=PLAN.repeats[0], methods=["autoregressive"]))
        ),
        prompts=f"<results>/prompts/{SAMPLED['prompt_set']}.jsonl",
        text=text_features_of(SAMPLED["prompt_set"]),
        target=target_of(FIRST["training_seed"]),
    output:
        "<results>/quality/ambiguity.csv",
    log:
        "<logs>/measure_ambiguity.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=SIZES.scoring_mb(),
        gpu=GPU,
    params:
        **TEXT_PARAMS,
        code=code("measure_ambiguity.py"),
        num_images=config["metrics"]["num_ambiguity"],
        cfg_scale=config["sampling"]["cfg_scale"],
    script:
        "../scripts/measure_ambiguity.py"


# One job per grid, which draws and measures all its points.
rule run_ablation:
    input:
        # The few images of an ablation's point are no set to compare with another.
        **PLAN.metric_inputs({**config["metrics"], "fidelity": None}),
        prompts=f"<results>/prompts/{HEADLINE['prompt_set']}.jsonl",
        text=text_features_of(HEADLINE["prompt_set"]),
        target=target_of(FIRST["training_seed"]),
        drafters=lambda wildcards: [*PLAN.drafters_of(wildcards.ablation).values()],
        nearest_codes=lambda wildcards: tables_of(point.spec for point in PLAN.ablations[wildcards.ablation]),
        tokenizer=TOKENIZER,
    output:
        table=report(
            "<results>/ablations/{ablation}.csv",
            caption="../report/ablations.rst",
            category="Ablations",
            labels={"ablation": "{ablation}"},
        ),
        images="<results>/ablations/{ablation}.images.csv",
    log:
        "<logs>/run_ablation.{ablation}.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=SIZES.scoring_mb(),
        runtime=growing(120),
        gpu=GPU,
    params:
        **TEXT_PARAMS,
        code=code("run_ablation.py", *loading_modules({**config["metrics"], "fidelity": None})),
        points=lambda wildcards: [
            (asdict(point.spec), point.temperature, point.sampling, point.drafter_steps)
            for point in PLAN.ablations[wildcards.ablation]
        ],
        drafters=lambda wildcards: [*PLAN.drafters_of(wildcards.ablation)],
        num_prompts=lambda wildcards: config["ablations"]["grids"][wildcards.ablation].get(
            "num_prompts", config["ablations"]["num_prompts"]
        ),
        dtype=config["generation"]["dtype"],
        metrics={**MEASURED_WITH, "fidelity": None, **settings_of("metrics", "bootstrap_resamples")},
        total_variation=settings_of("total_variation", "num_images", "max_nodes", "num_samples"),
        noise_seed=FIRST["noise_seed"],
    script:
        "../scripts/run_ablation.py"


rule measure_total_variation:
    input:
        records=shards_of(PLAN.records_of(**SAMPLED, repeat=PLAN.repeats[0])),
        prompts=f"<results>/prompts/{SAMPLED['prompt_set']}.jsonl",
        text=text_features_of(SAMPLED["prompt_set"]),
        tokenizer=TOKENIZER,
        target=target_of(FIRST["training_seed"]),
        drafter=drafter_for(PLAN.specs.values(), FIRST["training_seed"]),
        nearest_codes=tables_of(PLAN.specs.values()),
        nearest=f"<results>/codebook/{config['codebook']['neighbours']}.safetensors",
    output:
        methods=result_table(
            "<results>/total_variation/methods.csv", "total_variation", "Total variation of every method"
        ),
        curves="<results>/total_variation/curves.csv",
    log:
        "<logs>/measure_total_variation.log",
    priority: 10  # the longest job behind decoding
    conda:
        ENVIRONMENT
    resources:
        mem_mb=SIZES.scoring_mb(1000),
        runtime=SIZES.decoding_minutes(
            len(PLAN.runs) * config["total_variation"]["num_images"], config["generation"]["batch_size"], 120
        ),
        gpu=GPU,
    params:
        **DECODING_PARAMS,
        code=code("measure_total_variation.py"),
        runs=PLAN.run_params(SAMPLED["temperature"]),
        settings=config["total_variation"],
        bootstrap_resamples=config["metrics"]["bootstrap_resamples"],
        place={**SAMPLED, "temperature": float(SAMPLED["temperature"]), "repeat": PLAN.repeats[0]},
        noise_seed=FIRST["noise_seed"],
    script:
        "../scripts/measure_total_variation.py"
