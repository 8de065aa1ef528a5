"""What images are measured with: the recogniser of attributes and the CLIP model."""


rule train_recogniser:
    output:
        model=stage("recogniser", "model.safetensors"),
        report=stage("recogniser", "report.json"),
    log:
        log_of("train_recogniser"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(60),
    params:
        code=code("train_recogniser.py"),
        settings=config["recogniser"],
        data={key: config["data"][key] for key in ("image_size", "num_train")},
        seed=SEED,
    message:
        "Training the recogniser"
    script:
        "../scripts/train_recogniser.py"


rule train_clip:
    output:
        model=stage("clip", "model.safetensors"),
        report=stage("clip", "report.json"),
    log:
        log_of("train_clip"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(60),
        gpu=GPU,
    params:
        code=code("train_clip.py"),
        settings=config["clip"],
        source=DATA,
        seed=SEED,
        device=DEVICE,
    message:
        "Training the CLIP model"
    script:
        "../scripts/train_clip.py"
