"""Generation: one job per method, prompt set, temperature and shard of the prompts."""


rule generate_images:
    input:
        prompts=rules.write_prompts.output[0],
        text=lambda wildcards: text_features_of(wildcards.prompt_set),
        target=lambda wildcards: target_of(wildcards.training_seed),
        drafter=lambda wildcards: drafter_of(wildcards.training_seed) if SPECS[wildcards.method].drafts else [],
        nearest_codes=lambda wildcards: table_of(SPECS[wildcards.method], wildcards.training_seed),
    output:
        stage(
            "generation",
            "{method}",
            "{prompt_set}",
            "T{temperature}",
            "s{training_seed}n{noise_seed}",
            "{scatteritem}.safetensors",
        ),
    log:
        log_of(
            "generate_images",
            "{method}",
            "{prompt_set}",
            "T{temperature}",
            "s{training_seed}n{noise_seed}",
            "{scatteritem}",
        ),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=SIZES.decoding_mb(),
        disk_mb=lambda wildcards: SIZES.records_disk_mb(num_drawn(wildcards)),
        runtime=lambda wildcards, attempt: SIZES.decoding_minutes(
            num_drawn(wildcards), config["generation"]["batch_size"]
        )(wildcards, attempt),
        gpu=GPU,
    params:
        code=code("generate_images.py"),
        method=lambda wildcards: asdict(SPECS[wildcards.method]),
        sampling=config["sampling"],
        settings=config["generation"],
        text=config["text"],
        source=config["data"]["source"],
        seed=SEED,
        noise_seed=lambda wildcards: int(wildcards.noise_seed),
        device=DEVICE,
    message:
        "Generating: {wildcards.method}, prompts {wildcards.prompt_set}, temperature {wildcards.temperature}, seeds {wildcards.training_seed} and {wildcards.noise_seed}, shard {wildcards.scatteritem}"
    script:
        "../scripts/generate_images.py"
