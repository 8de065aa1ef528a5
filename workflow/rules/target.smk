"""Target model: the visual autoregressive transformer whose images everything else is compared with."""


rule train_target:
    input:
        codes=rules.encode_images.output.codes,
    output:
        model=stage("target", "model.safetensors"),
        report=stage("target", "report.json"),
    log:
        log_of("train_target"),
    conda:
        ENVIRONMENT
    threads: 2
    resources:
        mem_mb=3000,
        runtime=120,
        gpu=GPU,
    params:
        code=code("train_target.py"),
        settings=config["target"],
        text=config["text"],
        source=DATA,
        seed=SEED,
        device=DEVICE,
    message:
        "Training the target model"
    script:
        "../scripts/train_target.py"
