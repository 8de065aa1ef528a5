"""Quality of the generated images, and how ambiguous the target's next token is."""


rule measure_quality:
    input:
        records=lambda wildcards: shards_of(
            wildcards.prompt_set, wildcards.temperature, f"s{wildcards.training_seed}n{wildcards.noise_seed}"
        ),
        prompts=rules.write_prompts.output[0],
        tokenizer=rules.train_tokenizer.output.model,
        recogniser=rules.train_recogniser.output.model,
        clip=rules.train_clip.output.model,
        target=rules.train_target.output.model,
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
        mem_mb=3000,
        runtime=120,
        gpu=GPU,
    params:
        code=code("measure_quality.py"),
        settings=config["metrics"],
        repeat="s{training_seed}n{noise_seed}",
        split=lambda wildcards: config["prompts"][wildcards.prompt_set].get("split") or "val",
        text=config["text"],
        source=DATA,
        seed=SEED,
        device=DEVICE,
    message:
        "Measuring quality: prompts {wildcards.prompt_set}, temperature {wildcards.temperature}"
    script:
        "../scripts/measure_quality.py"


rule measure_ambiguity:
    input:
        tokenizer=rules.train_tokenizer.output.model,
        target=target_of(FIRST["training_seed"]),
    output:
        stage("quality", "ambiguity.csv"),
    log:
        log_of("measure_ambiguity"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
        gpu=GPU,
    params:
        code=code("measure_ambiguity.py"),
        settings=config["metrics"],
        cfg_scale=config["sampling"]["cfg_scale"],
        text=config["text"],
        source=DATA,
        seed=SEED,
        device=DEVICE,
    message:
        "Measuring the ambiguity of the target's next token"
    script:
        "../scripts/measure_ambiguity.py"
