"""What images are measured with: models that the run trains or, where the config names a `checkpoint`, converts; real
images and weights from elsewhere."""

from lantern_pipeline.measure.registry import TRAINED


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
