"""What images are measured with: models that the run trains or, where the config names a `checkpoint`, converts; real
images and weights from elsewhere."""

from lantern_pipeline.settings.run_config import MetricChoices

METRIC_MODELS = {"attribute_classifier": CONFIG.attribute_classifier, "clip": CONFIG.clip}


rule convert_measuring_model:
    input:
        checkpoint=lambda wildcards: RUN.input_of(METRIC_MODELS[wildcards.model].checkpoint),
    output:
        model="<results>/{model}/model.safetensors",
        report="<results>/{model}/report.json",
    log:
        "<logs>/convert_measuring_model.{model}.log",
    wildcard_constraints:
        model="|".join(name for name, model in METRIC_MODELS.items() if model.checkpoint) or "none",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(2000),
    params:
        code=code("convert_measuring_model.py"),
        sizes=lambda wildcards: {
            "data.image_size": CONFIG.data.image_size,
            **{f"{wildcards.model}.{key}": value for key, value in METRIC_MODELS[wildcards.model]},
        },
    script:
        "../scripts/convert_measuring_model.py"


if CONFIG.attribute_classifier.checkpoint is None:

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
            settings=CONFIG.attribute_classifier.model_dump(),
            data=CONFIG.data.model_dump(include={"image_size", "num_train"}),
            seed=SEED,
        script:
            "../scripts/train_attribute_classifier.py"


if CONFIG.clip.checkpoint is None:

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
            settings=CONFIG.clip.model_dump(),
            source=DATA,
            seed=SEED,
        script:
            "../scripts/train_clip.py"


# Features of the real images behind FID, KID, precision and recall; only where metrics.fidelity is inception.
rule measure_reference:
    input:
        images=RUN.input_of(CONFIG.metrics.published.reference.images),
        inception_weights=RUN.input_of(CONFIG.metrics.published.inception),
        vgg16_weights=RUN.input_of(CONFIG.metrics.published.vgg16),
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
        reference_name=CONFIG.metrics.published.reference.name,
        preprocessing=CONFIG.metrics.published.preprocessing,
        vgg16_layer=CONFIG.metrics.published.vgg16_layer,
    script:
        "../scripts/measure_reference.py"


if RUN.metric_files:

    # Ahead of all generation by its priority, not as an input of it: another weight file must not generate everything again.
    # (As an `ancient` input, Snakemake 9 would end a run after this rule whenever it is the one that has to run again.)
    rule check_metric_weights:
        input:
            **RUN.metric_files,
        output:
            "<results>/reference/metric_weights.json",
        log:
            "<logs>/check_metric_weights.log",
        priority: 100
        conda:
            ENVIRONMENT
        resources:
            mem_mb=growing(12000 if CONFIG.metrics.hps else 3000),
        params:
            code=code("check_metric_weights.py", *loading_modules(CONFIG.metrics)),
            metrics=CONFIG.metrics.keys_of(MetricChoices),
        script:
            "../scripts/check_metric_weights.py"
