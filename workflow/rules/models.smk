"""Image tokenizer, target and draft model: trained or, where the config names a `checkpoint`, converted."""

from lantern_pipeline.settings.run_config import TargetTraining

TARGET_SIZES = asdict(SIZES.sizes)

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
        conda:
            ENVIRONMENT
        threads: RUN.training_threads
        resources:
            mem_mb=SIZES.training_mb(),
            runtime=growing(120),
            gpu=GPU,
        params:
            **TEXT_PARAMS,
            code=code("train_target.py"),
            sizes=TARGET_SIZES,
            settings=CONFIG.target.keys_of(TargetTraining),
            training_seed=lambda wildcards: int(wildcards.training_seed),
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
        drafter=r"s\d+(-\d+steps)" + ("" if CONFIG.drafter.checkpoint else "?"),
    conda:
        ENVIRONMENT
    # An ablation's short training leaves the other core to generation.
    threads: lambda wildcards: 1 if "-" in wildcards.drafter else RUN.training_threads
    resources:
        mem_mb=SIZES.training_mb(),
        runtime=growing(1440 if SIZES.is_large else 120, MOST_MINUTES),
        gpu=GPU,
    params:
        **TEXT_PARAMS,
        code=code("train_drafter.py"),
        settings=lambda wildcards: drafter_settings(wildcards.drafter, CONFIG.drafter),
        cfg_scale=CONFIG.sampling.cfg_scale,
        training_seed=lambda wildcards: drafter_seed(wildcards.drafter),
    script:
        "../scripts/train_drafter.py"
