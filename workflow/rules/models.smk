"""Image tokenizer, target and draft model: trained or, where the config names a `checkpoint`, converted."""

TARGET_SIZES = asdict(SIZES.sizes)
NO_TRAINING = ("name", "checkpoint", "size", *TARGET_KEYS)  # keys of config section `target`

if config["tokenizer"]["checkpoint"]:

    rule convert_tokenizer:
        input:
            checkpoint=resource_of(config["tokenizer"]["checkpoint"], RESOURCES),
        output:
            model=TOKENIZER,
            report="<results>/tokenizer/report.json",
        log:
            "<logs>/convert_tokenizer.log",
        conda:
            ENVIRONMENT
        resources:
            mem_mb=growing(3000),
        params:
            code=code("convert_tokenizer.py"),
            sizes={
                **settings_of("tokenizer", "grid", "codebook_size", "code_dim"),
                "size": config["data"]["image_size"],
            },
        script:
            "../scripts/convert_tokenizer.py"

else:

    rule train_tokenizer:
        input:
            attribute_classifier=model_of("attribute_classifier"),
        output:
            model=TOKENIZER,
            report="<results>/tokenizer/report.json",
        log:
            "<logs>/train_tokenizer.log",
        conda:
            ENVIRONMENT
        threads: TRAINING_THREADS
        resources:
            mem_mb=growing(3000),
            runtime=growing(60),
        params:
            code=code("train_tokenizer.py"),
            settings=config["tokenizer"],
            source=DATA,
            seed=SEED,
        script:
            "../scripts/train_tokenizer.py"


if config["target"]["checkpoint"]:

    rule convert_target:
        input:
            checkpoint=resource_of(config["target"]["checkpoint"], RESOURCES),
            tokenizer=PROMPT_TOKENIZER,
        output:
            model="<results>/target/s{training_seed}/model.safetensors",
            report="<results>/target/s{training_seed}/report.json",
        log:
            "<logs>/convert_target.s{training_seed}.log",
        conda:
            ENVIRONMENT
        resources:
            mem_mb=SIZES.converting_mb(),
        params:
            code=code("convert_target.py"),
            sizes=TARGET_SIZES,
            text=TEXT,
            dtype=config["generation"]["dtype"],
        script:
            "../scripts/convert_target.py"

else:

    rule train_target:
        input:
            train=codes_of("train"),
            val=codes_of("val"),
            captions=rules.write_captions.output.train,
            val_captions=rules.write_captions.output.val,
            text=caption_features_of("train") + caption_features_of("val"),
        output:
            model="<results>/target/s{training_seed}/model.safetensors",
            report="<results>/target/s{training_seed}/report.json",
        log:
            "<logs>/train_target.s{training_seed}.log",
        conda:
            ENVIRONMENT
        threads: TRAINING_THREADS
        resources:
            mem_mb=SIZES.training_mb(),
            runtime=growing(120),
            gpu=GPU,
        params:
            **TEXT_PARAMS,
            code=code("train_target.py"),
            sizes=TARGET_SIZES,
            settings={key: value for key, value in config["target"].items() if key not in NO_TRAINING},
            training_seed=lambda wildcards: int(wildcards.training_seed),
        script:
            "../scripts/train_target.py"


if config["drafter"]["checkpoint"]:

    rule convert_drafter:
        input:
            checkpoint=resource_of(config["drafter"]["checkpoint"], RESOURCES),
            target="<results>/target/s{training_seed}/model.safetensors",
        output:
            model="<results>/drafter/s{training_seed}/model.safetensors",
            report="<results>/drafter/s{training_seed}/report.json",
        log:
            "<logs>/convert_drafter.s{training_seed}.log",
        conda:
            ENVIRONMENT
        resources:
            mem_mb=growing(4000),
        params:
            code=code("convert_drafter.py"),
            dtype=config["generation"]["dtype"],
        script:
            "../scripts/convert_drafter.py"


# Ablations over training steps train drafters of their own, also beside a published one: s0-40steps.
rule train_drafter:
    input:
        codes=lambda wildcards: drafter_codes_of("train", drafter_seed(wildcards.drafter)),
        val_codes=lambda wildcards: drafter_codes_of("val", drafter_seed(wildcards.drafter)),
        captions=rules.write_captions.output.train,
        val_captions=rules.write_captions.output.val,
        features=caption_features_of("train"),
        val_features=caption_features_of("val"),
        target=lambda wildcards: target_of(drafter_seed(wildcards.drafter)),
    output:
        model="<results>/drafter/{drafter}/model.safetensors",
        report="<results>/drafter/{drafter}/report.json",
    log:
        "<logs>/train_drafter.{drafter}.log",
    wildcard_constraints:
        drafter=r"s\d+(-\d+steps)" + ("" if config["drafter"]["checkpoint"] else "?"),
    conda:
        ENVIRONMENT
    # An ablation's short training leaves the other core to generation.
    threads: lambda wildcards: 1 if "-" in wildcards.drafter else TRAINING_THREADS
    resources:
        mem_mb=SIZES.training_mb(),
        runtime=growing(1440 if SIZES.is_large else 120, MOST_MINUTES),
        gpu=GPU,
    params:
        **TEXT_PARAMS,
        code=code("train_drafter.py"),
        settings=lambda wildcards: drafter_settings(wildcards.drafter, config["drafter"]),
        cfg_scale=config["sampling"]["cfg_scale"],
        training_seed=lambda wildcards: drafter_seed(wildcards.drafter),
    script:
        "../scripts/train_drafter.py"
