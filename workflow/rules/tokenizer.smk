"""Image tokenizer: training, then the codes of the training images."""


rule train_tokenizer:
    input:
        recogniser=rules.train_recogniser.output.model,
    output:
        model=stage("tokenizer", "model.safetensors"),
        report=stage("tokenizer", "report.json"),
    log:
        log_of("train_tokenizer"),
    conda:
        ENVIRONMENT
    threads: 2
    resources:
        mem_mb=3000,
        runtime=60,
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
    output:
        train=stage("codes", "train.safetensors"),
        val=stage("codes", "val.safetensors"),
    log:
        log_of("encode_images"),
    conda:
        ENVIRONMENT
    threads: 2
    resources:
        mem_mb=3000,
        runtime=60,
        gpu=GPU,
    params:
        code=code("encode_images.py"),
        num_val=config["target"]["num_eval"],
        source=DATA,
        seed=SEED,
        device=DEVICE,
    message:
        "Encoding the training images"
    script:
        "../scripts/encode_images.py"
