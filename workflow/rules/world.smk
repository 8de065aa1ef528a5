"""What images are measured with: the attribute classifier and the CLIP model."""


rule train_attribute_classifier:
    output:
        model=stage("attribute_classifier", "model.safetensors"),
        report=stage("attribute_classifier", "report.json"),
    log:
        log_of("train_attribute_classifier"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(60),
    params:
        code=code("train_attribute_classifier.py"),
        settings=config["attribute_classifier"],
        data={key: config["data"][key] for key in ("image_size", "num_train")},
        seed=SEED,
    message:
        "Training the attribute classifier"
    script:
        "../scripts/train_attribute_classifier.py"


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
