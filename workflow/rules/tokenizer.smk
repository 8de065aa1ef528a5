"""Image tokenizer: training, then the codes of the training images."""


rule train_tokenizer:
    input:
        attribute_classifier=rules.train_attribute_classifier.output.model,
    output:
        model=stage("tokenizer", "model.safetensors"),
        report=stage("tokenizer", "report.json"),
    log:
        log_of("train_tokenizer"),
    conda:
        ENVIRONMENT
    threads: 2
    resources:
        mem_mb=growing(3000),
        disk_mb=disk_mb(3e7),
        runtime=growing(60),
    params:
        code=code("train_tokenizer.py"),
        settings=config["tokenizer"],
        source=DATA,
        seed=SEED,
    message:
        "Training the image tokenizer"
    script:
        "../scripts/train_tokenizer.py"


rule encode_images:
    input:
        tokenizer=TOKENIZER,
        train_captions=rules.write_captions.output.train,
        val_captions=rules.write_captions.output.val,
    output:
        train=stage("codes", "train-{scatteritem}.safetensors"),
        val=stage("codes", "val-{scatteritem}.safetensors"),
    log:
        log_of("encode_images", "{scatteritem}"),
    conda:
        ENVIRONMENT
    threads: 2
    resources:
        mem_mb=growing(3000),
        disk_mb=SIZES.codes_disk_mb(config["data"]["num_train"] if SOURCE == "scenes" else None),
        runtime=growing(240),
        gpu=GPU,
    params:
        code=code("encode_images.py"),
        source=DATA,
        seed=SEED,
        device=DEVICE,
    message:
        "Encoding the training images, shard {wildcards.scatteritem}"
    script:
        "../scripts/encode_images.py"
