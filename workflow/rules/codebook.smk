"""Nearest codes of each code, one table per way of measuring distance."""


rule build_nearest_codes:
    input:
        tokenizer=rules.train_tokenizer.output.model,
    output:
        stage("codebook", "{neighbours}.safetensors"),
    log:
        log_of("build_nearest_codes", "{neighbours}"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        code=code("build_nearest_codes.py"),
        settings=config["codebook"],
        seed=SEED,
    message:
        "Building the table of nearest codes ({wildcards.neighbours})"
    script:
        "../scripts/build_nearest_codes.py"
