"""Nearest codes of each code, one table per way of measuring distance."""


rule build_co_varying_codes:
    input:
        codes=codes_of("val"),
        captions=rules.write_captions.output.val,
        text=caption_features_of("val"),
        target=lambda wildcards: target_of(wildcards.training_seed),
    output:
        stage("codebook", "probability.s{training_seed}.safetensors"),
    log:
        log_of("build_co_varying_codes", "s{training_seed}"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=SIZES.scoring_mb(),
        disk_mb=SIZES.table_disk_mb(),
        runtime=growing(30),
        gpu=GPU,
    params:
        code=code("build_co_varying_codes.py"),
        settings=config["codebook"],
        num_images=config["metrics"]["num_ambiguity"],
        cfg_scale=config["sampling"]["cfg_scale"],
        text=config["text"],
        source=SOURCE,
        seed=SEED,
        device=DEVICE,
    message:
        "Building the table of codes whose probabilities co-vary"
    script:
        "../scripts/build_co_varying_codes.py"


rule build_nearest_codes:
    input:
        tokenizer=TOKENIZER,
    output:
        stage("codebook", "{neighbours}.safetensors"),
    log:
        log_of("build_nearest_codes", "{neighbours}"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(2000),
        disk_mb=SIZES.table_disk_mb(),
        runtime=growing(10),
    params:
        code=code("build_nearest_codes.py"),
        settings=config["codebook"],
        seed=SEED,
    message:
        "Building the table of nearest codes ({wildcards.neighbours})"
    script:
        "../scripts/build_nearest_codes.py"
