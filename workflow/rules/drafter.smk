"""Draft model: the EAGLE head that proposes what the target then verifies."""


rule train_drafter:
    input:
        train=rules.encode_images.output.train,
        target=rules.train_target.output.model,
    output:
        model=stage("drafter", "model.safetensors"),
        report=stage("drafter", "report.json"),
    log:
        log_of("train_drafter"),
    conda:
        ENVIRONMENT
    threads: 2
    resources:
        mem_mb=3000,
        runtime=120,
        gpu=GPU,
    params:
        code=code("train_drafter.py"),
        settings=config["drafter"],
        cfg_scale=config["sampling"]["cfg_scale"],
        text=config["text"],
        source=DATA,
        seed=SEED,
        device=DEVICE,
    message:
        "Training the draft model"
    script:
        "../scripts/train_drafter.py"
