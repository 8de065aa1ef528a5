"""Quality of the generated images, and how ambiguous the target's next token is."""


rule measure_quality:
    input:
        **metric_inputs(config["metrics"]),
        rulers=stage("reference", "metric_weights.json") if METRIC_FILES else [],
        records=lambda wildcards: shards_of(
            wildcards.prompt_set, wildcards.temperature, f"s{wildcards.training_seed}n{wildcards.noise_seed}"
        ),
        prompts=rules.write_prompts.output[0],
        text=lambda wildcards: text_features_of(wildcards.prompt_set),
        tokenizer=TOKENIZER,
        target=lambda wildcards: target_of(wildcards.training_seed),
    output:
        table=stage("quality", "{prompt_set}.T{temperature}.s{training_seed}n{noise_seed}.csv"),
        images=stage("quality", "{prompt_set}.T{temperature}.s{training_seed}n{noise_seed}.images.csv"),
        tokens=stage("quality", "{prompt_set}.T{temperature}.s{training_seed}n{noise_seed}.tokens.safetensors"),
    log:
        log_of("measure_quality", "{prompt_set}", "T{temperature}", "s{training_seed}n{noise_seed}"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        # On a CPU the published rulers lie in the same memory.
        mem_mb=SIZES.scoring_mb(10000 if METRIC_FILES and not GPU else 0),
        disk_mb=lambda wildcards: SIZES.records_disk_mb(num_measured(wildcards)),
        runtime=lambda wildcards, attempt: SIZES.scoring_minutes(num_measured(wildcards))(wildcards, attempt),
        gpu=GPU,
    params:
        code=code("measure_quality.py"),
        settings=config["metrics"],
        repeat="s{training_seed}n{noise_seed}",
        split=lambda wildcards: config["prompts"][wildcards.prompt_set].get("split") or "val",
        text=config["text"],
        # Published text features know the prompts only: no ceilings of held-out images then.
        source=DATA if HAS_HELD_OUT else {"data": {**config["data"], "source": "none"}},
        seed=SEED,
        device=DEVICE,
    message:
        "Measuring quality: prompts {wildcards.prompt_set}, temperature {wildcards.temperature}"
    script:
        "../scripts/measure_quality.py"


rule measure_ambiguity:
    input:
        # Held-out images; where a run has none, the autoregressive ones of the headline prompt set.
        codes=codes_of("val") if HAS_HELD_OUT else [],
        captions=rules.write_captions.output.val if HAS_HELD_OUT else [],
        records=[] if HAS_HELD_OUT else shards_of(**LAW, repeat=REPEATS[0], methods=["autoregressive"]),
        prompts=stage("prompts", f"{LAW['prompt_set']}.jsonl"),
        text=text_features_of(LAW["prompt_set"]),
        target=target_of(FIRST["training_seed"]),
    output:
        stage("quality", "ambiguity.csv"),
    log:
        log_of("measure_ambiguity"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=SIZES.scoring_mb(),
        runtime=growing(30),
        gpu=GPU,
    params:
        code=code("measure_ambiguity.py"),
        settings=config["metrics"],
        cfg_scale=config["sampling"]["cfg_scale"],
        text=config["text"],
        source=SOURCE,
        seed=SEED,
        device=DEVICE,
    message:
        "Measuring the ambiguity of the target's next token"
    script:
        "../scripts/measure_ambiguity.py"
