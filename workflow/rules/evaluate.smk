"""Evaluation: quality, ambiguity, output distributions, ablations."""

from lantern.methods import make_method
from lantern_pipeline.plan.figures import PREMISE
from lantern_pipeline.plan.paths import nearest_codes_of
from lantern_pipeline.measure.registry import loading_modules
from lantern_pipeline.schema.run_config import FidelitySettings, MetricChoices, TotalVariationNodes

# An ablation has too few images per method for metrics of sets of images, such as FID.
ABLATION_METRICS = CONFIG.metrics.model_copy(update={"fidelity": None, "efficientnet": False})


METRIC_INPUTS = PLAN.metric_inputs(CONFIG.metrics)
# On a CPU, the published metric models are in host memory, too.
SCORING_MB = SIZES.scoring_mb(10000 if RUN.metric_files and not GPU else 0)
# File with the codes and statistics of the images of a method, prompt set, temperature and repeat.
RECORDS = rules.generate_images.output[0]


# A job for several methods loads the metric models once. It evaluates single images, so it does not read the real images
# with which FID compares sets of images.
rule score_images:
    input:
        **{name: file for name, file in METRIC_INPUTS.items() if not name.startswith("reference")},
        checked="<results>/reference/metric_weights.json" if RUN.metric_files else [],
        records=lambda wildcards: expand(
            gather.shards(RECORDS, allow_missing=True), method=scored_methods(wildcards), **wildcards
        ),
        baseline=gather.shards(RECORDS, method="autoregressive", allow_missing=True),
        prompts=rules.write_prompts.output[0],
        text=text_features_of("{prompt_set}"),
        tokenizer=TOKENIZER,
        target=target_of("{training_seed}"),
    output:
        # Kept until the new scores are there, since the job copies the scores of methods whose inputs are the same.
        update(
            "<results>/quality/scores/{prompt_set}.T{temperature}.s{training_seed}n{noise_seed}.{scatteritem}.safetensors"
        ),
    log:
        "<logs>/score_images.{prompt_set}.T{temperature}.s{training_seed}n{noise_seed}.{scatteritem}.log",
    benchmark:
        "<logs>/score_images.{prompt_set}.T{temperature}.s{training_seed}n{noise_seed}.{scatteritem}.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=SCORING_MB,
        runtime=lambda wildcards, attempt: scoring_minutes(wildcards, attempt, len(scored_methods(wildcards))),
        gpu=GPU,
    params:
        **TEXT_PARAMS,
        code=code("score_images.py", *loading_modules(CONFIG.metrics)),
        metrics=CONFIG.metrics.keys_of(MetricChoices),
    script:
        "../scripts/score_images.py"


# Join the scores of all methods, and compare their sets of images with real images.
rule measure_quality:
    input:
        **METRIC_INPUTS,
        scores=gather.score_shards(rules.score_images.output[0], allow_missing=True),
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
    benchmark:
        "<logs>/measure_quality.{prompt_set}.T{temperature}.s{training_seed}n{noise_seed}.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=SCORING_MB,
        runtime=scoring_minutes,
        gpu=GPU,
    params:
        code=code("measure_quality.py", *loading_modules(CONFIG.metrics)),
        metrics=CONFIG.metrics.keys_of(MetricChoices),
        fidelity=CONFIG.metrics.keys_of(FidelitySettings),
        repeat="s{training_seed}n{noise_seed}",
        split=lambda wildcards: CONFIG.prompt_sets[wildcards.prompt_set].split or "val",
        text=TEXT,
        # Published text features exist for prompts only, so there are no upper limits from held-out images.
        source=DATA if RUN.has_held_out_images else {"data": {"source": "none"}},
        seed=SEED,
    script:
        "../scripts/measure_quality.py"


rule measure_ambiguity:
    input:
        # Held-out images, or the autoregressive images of the headline prompt set if there are none.
        codes=codes_of("val") if RUN.has_held_out_images else [],
        captions=rules.write_captions.output.val if RUN.has_held_out_images else [],
        records=(
            []
            if RUN.has_held_out_images
            else shards_of(PLAN.records_of(**PLAN.sampled, repeat=PLAN.repeats[0], methods=["autoregressive"]))
        ),
        prompts=f"<results>/prompts/{PLAN.sampled['prompt_set']}.jsonl",
        text=text_features_of(PLAN.sampled["prompt_set"]),
        target=target_of(PLAN.first["training_seed"]),
    output:
        "<results>/quality/ambiguity.csv",
    log:
        "<logs>/measure_ambiguity.log",
    benchmark:
        "<logs>/measure_ambiguity.tsv"
    priority: -1  # no long job waits for it
    conda:
        ENVIRONMENT
    resources:
        mem_mb=SIZES.scoring_mb(),
        gpu=GPU,
    params:
        **TEXT_PARAMS,
        code=code("measure_ambiguity.py"),
        num_images=CONFIG.metrics.num_ambiguity,
        cfg_scale=CONFIG.sampling.cfg_scale,
    script:
        "../scripts/measure_ambiguity.py"


if CONFIG.premise.ks:

    rule measure_premise:
        input:
            **METRIC_INPUTS,
            ambiguity=rules.measure_ambiguity.output[0],
            prompts=f"<results>/prompts/{PLAN.sampled['prompt_set']}.jsonl",
            tokenizer=TOKENIZER,
            target=target_of(PLAN.first["training_seed"]),
            drafter=drafter_of(PLAN.first["training_seed"]),
            nearest_codes=[nearest_codes_of(name) for name in ("l2_normalised", "random")],
        output:
            result_table(PREMISE, "premise", "LANTERN's premise: nearest codes in place of others"),
        log:
            "<logs>/measure_premise.log",
        benchmark:
            "<logs>/measure_premise.tsv"
        conda:
            ENVIRONMENT
        resources:
            mem_mb=SCORING_MB,
            runtime=growing(120),
            gpu=GPU,
        params:
            **DECODING_PARAMS,
            # It decodes as EAGLE-1 only, see `visit_exactly`.
            code=code(
                "measure_premise.py",
                *loading_modules(CONFIG.metrics),
                methods=lambda wildcards: [make_method("eagle1")],
            ),
            runs=PLAN.run_params(PLAN.sampled["temperature"])[:1],
            images=DATA,
            settings=CONFIG.premise.model_dump(),
            total_variation=CONFIG.total_variation.keys_of(TotalVariationNodes),
            metrics=CONFIG.metrics.keys_of(MetricChoices),
            fidelity=CONFIG.metrics.keys_of(FidelitySettings),
            bootstrap_resamples=CONFIG.metrics.bootstrap_resamples,
            noise_seed=PLAN.first["noise_seed"],
            seed=SEED,
        script:
            "../scripts/measure_premise.py"


# One job per ablation. It generates and measures the images of all points (method, sampling settings, draft model).
rule run_ablation:
    input:
        **PLAN.metric_inputs(ABLATION_METRICS),
        prompts=f"<results>/prompts/{PLAN.headline['prompt_set']}.jsonl",
        text=text_features_of(PLAN.headline["prompt_set"]),
        target=target_of(PLAN.first["training_seed"]),
        drafters=lambda wildcards: [*PLAN.drafters_of(wildcards.ablation).values()],
        heads=lambda wildcards: heads_for(
            (point.spec for point in PLAN.ablations[wildcards.ablation]), PLAN.first["training_seed"]
        ),
        nearest_codes=lambda wildcards: tables_of(point.spec for point in PLAN.ablations[wildcards.ablation]),
        tokenizer=TOKENIZER,
    output:
        table=in_report(
            "<results>/ablations/{ablation}.csv",
            caption="../report/ablations.rst",
            category="Ablations",
            labels={"ablation": "{ablation}"},
        ),
        images="<results>/ablations/{ablation}.images.csv",
    log:
        "<logs>/run_ablation.{ablation}.log",
    benchmark:
        "<logs>/run_ablation.{ablation}.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=SIZES.scoring_mb(),
        runtime=growing(120),
        gpu=GPU,
    params:
        **TEXT_PARAMS,
        code=code(
            "run_ablation.py",
            *loading_modules(ABLATION_METRICS),
            methods=lambda wildcards: [point.spec for point in PLAN.ablations[wildcards.ablation]],
        ),
        points=lambda wildcards: PLAN.ablations[wildcards.ablation],
        drafters=lambda wildcards: [*PLAN.drafters_of(wildcards.ablation)],
        num_prompts=lambda wildcards: CONFIG.grids[wildcards.ablation].num_prompts or CONFIG.ablations.num_prompts,
        dtype=CONFIG.generation.dtype,
        metrics=ABLATION_METRICS.keys_of(MetricChoices),
        bootstrap_resamples=CONFIG.metrics.bootstrap_resamples,
        total_variation=CONFIG.total_variation.keys_of(TotalVariationNodes),
        noise_seed=PLAN.first["noise_seed"],
    script:
        "../scripts/run_ablation.py"


rule measure_total_variation:
    input:
        records=shards_of(PLAN.records_of(**PLAN.sampled, repeat=PLAN.repeats[0])),
        prompts=f"<results>/prompts/{PLAN.sampled['prompt_set']}.jsonl",
        text=text_features_of(PLAN.sampled["prompt_set"]),
        tokenizer=TOKENIZER,
        target=target_of(PLAN.first["training_seed"]),
        drafter=drafter_for(PLAN.specs.values(), PLAN.first["training_seed"]),
        heads=heads_for(PLAN.specs.values(), PLAN.first["training_seed"]),
        nearest_codes=tables_of(PLAN.specs.values()),
        nearest=f"<results>/codebook/{CONFIG.codebook.neighbours}.safetensors",
    output:
        methods=result_table(
            "<results>/total_variation/methods.csv", "total_variation", "Total variation of every method"
        ),
        curves="<results>/total_variation/curves.csv",
    log:
        "<logs>/measure_total_variation.log",
    benchmark:
        "<logs>/measure_total_variation.tsv"
    priority: 10  # the longest job after decoding
    conda:
        ENVIRONMENT
    resources:
        mem_mb=SIZES.scoring_mb(1000),
        runtime=SIZES.decoding_minutes(
            len(PLAN.runs) * CONFIG.total_variation.num_images, CONFIG.generation.batch_size, 120
        ),
        gpu=GPU,
    params:
        **DECODING_PARAMS,
        # `visit_exactly` decodes as EAGLE-1.
        code=code(
            "measure_total_variation.py",
            methods=lambda wildcards: [make_method("eagle1"), *PLAN.specs.values()],
        ),
        runs=PLAN.run_params(PLAN.sampled["temperature"]),
        settings=CONFIG.total_variation.model_dump(),
        bootstrap_resamples=CONFIG.metrics.bootstrap_resamples,
        place={**PLAN.sampled, "temperature": float(PLAN.sampled["temperature"]), "repeat": PLAN.repeats[0]},
        noise_seed=PLAN.first["noise_seed"],
    script:
        "../scripts/measure_total_variation.py"
