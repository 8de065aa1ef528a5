"""Models that are trained or, where the config names a `checkpoint`, converted: what measures images, image tokenizer,
target, draft model. Weights and real images from elsewhere are looked at here, too."""

from lantern_pipeline.measure.registry import TRAINED

TARGET_SIZES = asdict(SIZES.sizes)
NO_TRAINING = ("name", "checkpoint", "size", *TARGET_KEYS)  # keys of config section `target`


rule convert_measuring_model:
    input:
        checkpoint=lambda wildcards: resource_of(config[wildcards.model]["checkpoint"], RESOURCES),
    output:
        model="<results>/{model}/model.safetensors",
        report="<results>/{model}/report.json",
    log:
        "<logs>/convert_measuring_model.{model}.log",
    wildcard_constraints:
        model="|".join(name for name in TRAINED if config[name]["checkpoint"]) or "none",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(2000),
    params:
        code=code("convert_measuring_model.py"),
        sizes=lambda wildcards: {
            "data.image_size": config["data"]["image_size"],
            **{f"{wildcards.model}.{key}": value for key, value in config[wildcards.model].items()},
        },
    script:
        "../scripts/convert_measuring_model.py"


if config["attribute_classifier"]["checkpoint"] is None:

    rule train_attribute_classifier:
        output:
            model="<results>/attribute_classifier/model.safetensors",
            report="<results>/attribute_classifier/report.json",
        log:
            "<logs>/train_attribute_classifier.log",
        conda:
            ENVIRONMENT
        resources:
            mem_mb=growing(2000),
            runtime=growing(60),
        params:
            code=code("train_attribute_classifier.py"),
            settings=config["attribute_classifier"],
            data={key: config["data"][key] for key in ("image_size", "num_train")},
            seed=SEED,
        script:
            "../scripts/train_attribute_classifier.py"


if config["clip"]["checkpoint"] is None:

    rule train_clip:
        output:
            model="<results>/clip/model.safetensors",
            report="<results>/clip/report.json",
        log:
            "<logs>/train_clip.log",
        conda:
            ENVIRONMENT
        resources:
            mem_mb=growing(2000),
            runtime=growing(60),
            gpu=GPU,
        params:
            code=code("train_clip.py"),
            settings=config["clip"],
            source=DATA,
            seed=SEED,
        script:
            "../scripts/train_clip.py"


# Features of the real images behind FID, KID, precision and recall; only where metrics.fidelity is inception.
rule measure_reference:
    input:
        images=resource_of(config["metrics"]["published"]["reference"]["images"], RESOURCES),
        inception_weights=resource_of(config["metrics"]["published"]["inception"], RESOURCES),
        vgg16_weights=resource_of(config["metrics"]["published"]["vgg16"], RESOURCES),
    output:
        "<results>/reference/features.safetensors",
    log:
        "<logs>/measure_reference.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(6000),
        # 25 KB an image: Inception's and VGG16's features in float32, of COCO's 40,504 validation images.
        runtime=growing(240),
        gpu=GPU,
    params:
        code=code("measure_reference.py"),
        settings={key: config["metrics"]["published"][key] for key in ("reference", "preprocessing", "vgg16_layer")},
    script:
        "../scripts/measure_reference.py"


if METRIC_FILES:

    # Ahead of all generation by its priority, not as an input of it: another weight file must not generate everything again.
    # (As an `ancient` input, Snakemake 9 would end a run after this rule whenever it is the one that has to run again.)
    rule check_metric_weights:
        input:
            **METRIC_FILES,
        output:
            "<results>/reference/metric_weights.json",
        log:
            "<logs>/check_metric_weights.log",
        priority: 100
        conda:
            ENVIRONMENT
        resources:
            mem_mb=growing(12000 if config["metrics"]["hps"] else 3000),
        params:
            code=code("check_metric_weights.py", *loading_modules(config["metrics"])),
            settings=MEASURED_WITH,
        script:
            "../scripts/check_metric_weights.py"


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
        codes=drafter_codes_of("train"),
        val_codes=drafter_codes_of("val"),
        captions=rules.write_captions.output.train,
        val_captions=rules.write_captions.output.val,
        features=caption_features_of("train"),
        val_features=caption_features_of("val"),
        target=target_of("{training_seed}"),
    output:
        model="<results>/drafter/s{training_seed}{steps}/model.safetensors",
        report="<results>/drafter/s{training_seed}{steps}/report.json",
    log:
        "<logs>/train_drafter.s{training_seed}{steps}.log",
    wildcard_constraints:
        steps=r"(-\d+steps)" + ("" if config["drafter"]["checkpoint"] else "?"),
    conda:
        ENVIRONMENT
    # An ablation's short training leaves the other core to generation.
    threads: lambda wildcards: 1 if wildcards.steps else TRAINING_THREADS
    resources:
        mem_mb=SIZES.training_mb(),
        runtime=growing(1440 if SIZES.is_large else 120, MOST_MINUTES),
        gpu=GPU,
    params:
        **TEXT_PARAMS,
        code=code("train_drafter.py"),
        settings=lambda wildcards: drafter_settings(wildcards.steps, config["drafter"]),
        cfg_scale=config["sampling"]["cfg_scale"],
    script:
        "../scripts/train_drafter.py"
