"""Captions of the images that models learn from, and their text features where T5 reads them. Both are written once."""


rule write_captions:
    input:
        file=resource_of(config["data"]["captions"]["file"], RESOURCES) if SOURCE == "captions" else [],
    output:
        train=stage("captions", "train.jsonl"),
        val=stage("captions", "val.jsonl"),
    log:
        log_of("write_captions"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(30),
    params:
        code=code("write_captions.py"),
        num_val=config["target"]["num_eval"],
        source=DATA,
        captions=config["data"]["captions"],
        seed=SEED,
    message:
        "Writing the captions of the training images"
    script:
        "../scripts/write_captions.py"


use rule encode_prompts as encode_captions with:
    input:
        prompts=stage("captions", "{split}.jsonl"),
        t5=resource_of(config["text"]["checkpoint"], RESOURCES),
    output:
        stage("captions", "{split}", "features-{scatteritem}.safetensors"),
    log:
        log_of("encode_captions", "{split}", "{scatteritem}"),
    message:
        "Encoding the captions of {wildcards.split}, shard {wildcards.scatteritem}"


rule sample_codes:
    input:
        captions=rules.write_captions.output.train,
        val_captions=rules.write_captions.output.val,
        text=caption_features_of("train"),
        val_text=caption_features_of("val"),
        target=lambda wildcards: target_of(wildcards.training_seed),
    output:
        train=stage("samples", "s{training_seed}", "train-{scatteritem}.safetensors"),
        val=stage("samples", "s{training_seed}", "val-{scatteritem}.safetensors"),
    log:
        log_of("sample_codes", "s{training_seed}", "{scatteritem}"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=SIZES.decoding_mb(),
        disk_mb=SIZES.codes_disk_mb(config["drafter"]["num_samples"]),
        runtime=growing(720),
        gpu=GPU,
    params:
        code=code("sample_codes.py"),
        method=asdict(SPECS["autoregressive"]),
        sampling=config["sampling"],
        settings=config["generation"],
        num_samples=config["drafter"]["num_samples"],
        text=config["text"],
        source=SOURCE,
        seed=SEED,
        training_seed=lambda wildcards: int(wildcards.training_seed),
        device=DEVICE,
    message:
        "Drawing the draft model's training images, seed {wildcards.training_seed}, shard {wildcards.scatteritem}"
    script:
        "../scripts/sample_codes.py"
