"""Target model: the visual autoregressive transformer whose images everything else is compared with."""


rule train_target:
    input:
        train=codes_of("train"),
        val=codes_of("val"),
        captions=rules.write_captions.output.train,
        val_captions=rules.write_captions.output.val,
        text=caption_features_of("train") + caption_features_of("val"),
    output:
        model=stage("target", "s{training_seed}", "model.safetensors"),
        report=stage("target", "s{training_seed}", "report.json"),
    log:
        log_of("train_target", "s{training_seed}"),
    conda:
        ENVIRONMENT
    threads: 2
    resources:
        mem_mb=SIZES.training_mb(),
        disk_mb=SIZES.target_disk_mb(is_trained=True),
        runtime=growing(120),
        gpu=GPU,
    params:
        code=code("train_target.py"),
        settings=config["target"],
        codes={"vocab_size": config["tokenizer"]["codebook_size"], "grid": config["tokenizer"]["grid"]},
        text=config["text"],
        source=SOURCE,
        seed=SEED,
        training_seed=lambda wildcards: int(wildcards.training_seed),
        device=DEVICE,
    message:
        "Training the target model, seed {wildcards.training_seed}"
    script:
        "../scripts/train_target.py"
