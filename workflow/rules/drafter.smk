"""Draft model: the EAGLE head that proposes what the target then verifies."""


rule train_drafter:
    input:
        train=lambda wildcards: drafter_codes_of("train", drafter_seed(wildcards)),
        val=lambda wildcards: drafter_codes_of("val", drafter_seed(wildcards)),
        captions=rules.write_captions.output.train,
        val_captions=rules.write_captions.output.val,
        text=caption_features_of("train"),
        val_text=caption_features_of("val"),
        target=lambda wildcards: target_of(drafter_seed(wildcards)),
    output:
        model=stage("drafter", "{drafter}", "model.safetensors"),
        report=stage("drafter", "{drafter}", "report.json"),
    log:
        log_of("train_drafter", "{drafter}"),
    conda:
        ENVIRONMENT
    # An ablation's short training leaves the other core to generation.
    threads: lambda wildcards: 1 if "-" in wildcards.drafter else 2
    resources:
        mem_mb=SIZES.training_mb(),
        disk_mb=SIZES.drafter_disk_mb(is_trained=True),
        runtime=growing(1440 if config["target"]["checkpoint"] else 120),
        gpu=GPU,
    params:
        code=code("train_drafter.py"),
        settings=drafter_settings,
        cfg_scale=config["sampling"]["cfg_scale"],
        text=config["text"],
        source=SOURCE,
        seed=SEED,
        training_seed=drafter_seed,
        device=DEVICE,
    message:
        "Training the draft model {wildcards.drafter}"
    script:
        "../scripts/train_drafter.py"
