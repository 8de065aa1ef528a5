"""Rules that make models: metric models, image tokenizer, target, draft model and heads.

A model is trained or, if the config names a `checkpoint`, converted. Two further rules check published metric weights
and measure the real images with which FID compares.
"""

from dataclasses import asdict

from lantern_pipeline.plan.paths import drafter_settings
from lantern_pipeline.measure.registry import TRAINED, loading_modules
from lantern_pipeline.schema.run_config import MetricChoices, TargetTraining

TARGET_SIZES = asdict(SIZES.sizes)
METRIC_MODELS = {name: getattr(CONFIG, name) for name in TRAINED}


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
            data=CONFIG.data.model_dump(include={"source", "folder", "image_size", "num_train"}),
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


# Features of the real images for FID, KID, precision and recall, if metrics.fidelity is inception.
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
        # Features of Inception and VGG16 in float32 take 25 KB per image; COCO has 40,504 validation images.
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

    # Its priority makes Snakemake run it before images are generated. It is not an input of that rule, because a change
    # of the weights must not generate all images again. (With an `ancient` input, Snakemake 9 would end the run after
    # this rule if no other rule has to run again.)
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


if CONFIG.tokenizer.checkpoint:

    rule convert_tokenizer:
        input:
            checkpoint=RUN.input_of(CONFIG.tokenizer.checkpoint),
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
                **CONFIG.tokenizer.model_dump(include={"grid", "codebook_size", "code_dim"}),
                "size": CONFIG.data.image_size,
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
        threads: RUN.training_threads
        resources:
            mem_mb=growing(3000),
            runtime=growing(60),
        params:
            code=code("train_tokenizer.py"),
            settings=CONFIG.tokenizer.model_dump(),
            source=DATA,
            seed=SEED,
        script:
            "../scripts/train_tokenizer.py"


if CONFIG.target.checkpoint:

    rule convert_target:
        input:
            checkpoint=RUN.input_of(CONFIG.target.checkpoint),
            tokenizer=RUN.prompt_tokenizer,
        output:
            model="<results>/target/s{training_seed}/model.safetensors",
            report="<results>/target/s{training_seed}/report.json",
        log:
            "<logs>/convert_target.s{training_seed}.log",
        benchmark:
            "<logs>/convert_target.s{training_seed}.tsv"
        conda:
            ENVIRONMENT
        resources:
            mem_mb=SIZES.converting_mb(),
        params:
            code=code("convert_target.py"),
            sizes=TARGET_SIZES,
            text=TEXT,
            dtype=CONFIG.generation.dtype,
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
        benchmark:
            "<logs>/train_target.s{training_seed}.tsv"
        conda:
            ENVIRONMENT
        threads: RUN.training_threads
        resources:
            mem_mb=SIZES.target_training_mb(),
            runtime=growing(120),
            gpu=GPU,
        params:
            **TEXT_PARAMS,
            code=code("train_target.py"),
            sizes=TARGET_SIZES,
            settings=CONFIG.target.keys_of(TargetTraining),
        script:
            "../scripts/train_target.py"


if CONFIG.drafter.checkpoint:

    rule convert_drafter:
        input:
            checkpoint=RUN.input_of(CONFIG.drafter.checkpoint),
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
            dtype=CONFIG.generation.dtype,
        script:
            "../scripts/convert_drafter.py"


# Ablations over training steps train further draft models (s0-40steps), even if the run uses a published one.
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
    benchmark:
        "<logs>/train_drafter.s{training_seed}{steps}.tsv"
    wildcard_constraints:
        steps=r"(-\d+steps)" + ("" if CONFIG.drafter.checkpoint else "?"),
    conda:
        ENVIRONMENT
    # The short training of an ablation leaves the other core to generation.
    threads: lambda wildcards: 1 if wildcards.steps else RUN.training_threads
    resources:
        mem_mb=SIZES.training_mb(),
        runtime=growing(1440 if SIZES.is_large else 120, MOST_MINUTES),
        gpu=GPU,
    params:
        **TEXT_PARAMS,
        code=code("train_drafter.py"),
        settings=lambda wildcards: drafter_settings(wildcards.steps, CONFIG.drafter),
        cfg_scale=CONFIG.sampling.cfg_scale,
    script:
        "../scripts/train_drafter.py"


if CONFIG.heads.kind == "shift":

    # Runs only if a method needs shift heads.
    rule train_heads:
        input:
            codes=samples_of("train"),
            val_codes=samples_of("val"),
            captions=rules.write_captions.output.train,
            val_captions=rules.write_captions.output.val,
            features=caption_features_of("train"),
            val_features=caption_features_of("val"),
            target=target_of("{training_seed}"),
        output:
            model="<results>/heads/s{training_seed}/model.safetensors",
            report="<results>/heads/s{training_seed}/report.json",
        log:
            "<logs>/train_heads.s{training_seed}.log",
        benchmark:
            "<logs>/train_heads.s{training_seed}.tsv"
        conda:
            ENVIRONMENT
        threads: RUN.training_threads
        resources:
            mem_mb=SIZES.training_mb(),
            runtime=growing(1440 if SIZES.is_large else 120, MOST_MINUTES),
            gpu=GPU,
        params:
            **TEXT_PARAMS,
            code=code("train_heads.py"),
            settings=CONFIG.heads.model_dump(),
            cfg_scale=CONFIG.sampling.cfg_scale,
        script:
            "../scripts/train_heads.py"

else:

    # Runs only if a method needs a state head. It generates its images itself, because it reads every decoding step.
    rule train_state_head:
        input:
            captions=rules.write_captions.output.train,
            val_captions=rules.write_captions.output.val,
            features=caption_features_of("train"),
            val_features=caption_features_of("val"),
            target=target_of("{training_seed}"),
        output:
            model="<results>/heads/s{training_seed}/model.safetensors",
            report="<results>/heads/s{training_seed}/report.json",
        log:
            "<logs>/train_heads.s{training_seed}.log",
        benchmark:
            "<logs>/train_heads.s{training_seed}.tsv"
        conda:
            ENVIRONMENT
        threads: RUN.training_threads
        resources:
            mem_mb=SIZES.training_mb(),
            runtime=growing(1440 if SIZES.is_large else 120, MOST_MINUTES),
            gpu=GPU,
        params:
            **DECODING_PARAMS,
            code=code("train_state_head.py"),
            settings=CONFIG.heads.model_dump(),
            num_samples=CONFIG.data.num_samples,
        script:
            "../scripts/train_state_head.py"
