"""Decoding: tables of nearest codes for relaxed methods, images of every method, and latency."""


rule build_nearest_codes:
    input:
        tokenizer=TOKENIZER,
    output:
        "<results>/codebook/{neighbours}.safetensors",
    log:
        "<logs>/build_nearest_codes.{neighbours}.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(2000),
    params:
        code=code("build_nearest_codes.py"),
        num_neighbours=CONFIG.codebook.num_neighbours,
        seed=SEED,
    script:
        "../scripts/build_nearest_codes.py"


# Runs only if the draft model or shift heads are trained on images that the target generates.
rule sample_codes:
    input:
        captions=rules.write_captions.output.train,
        val_captions=rules.write_captions.output.val,
        text=caption_features_of("train"),
        val_text=caption_features_of("val"),
        target=target_of("{training_seed}"),
    output:
        train="<results>/samples/s{training_seed}/train-{scatteritem}.safetensors",
        val="<results>/samples/s{training_seed}/val-{scatteritem}.safetensors",
    log:
        "<logs>/sample_codes.s{training_seed}.{scatteritem}.log",
    benchmark:
        "<logs>/sample_codes.s{training_seed}.{scatteritem}.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=SIZES.decoding_mb(),
        runtime=growing(720, MOST_MINUTES),
        gpu=GPU,
    params:
        **DECODING_PARAMS,
        code=code("sample_codes.py", methods=lambda wildcards: [PLAN.specs["autoregressive"]]),
        num_samples=CONFIG.data.num_samples,
    script:
        "../scripts/sample_codes.py"


rule generate_images:
    input:
        prompts=rules.write_prompts.output[0],
        text=text_features_of("{prompt_set}"),
        target=target_of("{training_seed}"),
        drafter=lambda wildcards: drafter_for([PLAN.specs[wildcards.method]], wildcards.training_seed),
        heads=lambda wildcards: heads_for([PLAN.specs[wildcards.method]], wildcards.training_seed),
        nearest_codes=lambda wildcards: table_of(PLAN.specs[wildcards.method]),
    output:
        "<results>/generation/{method}/{prompt_set}/T{temperature}/s{training_seed}n{noise_seed}/{scatteritem}.safetensors",
    log:
        "<logs>/generate_images.{method}.{prompt_set}.T{temperature}.s{training_seed}n{noise_seed}.{scatteritem}.log",
    benchmark:
        "<logs>/generate_images.{method}.{prompt_set}.T{temperature}.s{training_seed}n{noise_seed}.{scatteritem}.tsv"
    conda:
        ENVIRONMENT
    resources:
        mem_mb=SIZES.decoding_mb(),
        runtime=lambda wildcards, attempt: SIZES.decoding_minutes(
            SIZES.images_of(wildcards.prompt_set, CONFIG.generation.num_shards), CONFIG.generation.batch_size
        )(wildcards, attempt),
        gpu=GPU,
    params:
        **DECODING_PARAMS,
        code=code("generate_images.py", methods=lambda wildcards: [PLAN.specs[wildcards.method]]),
        methods=lambda wildcards: [PLAN.specs[wildcards.method]],
    script:
        "../scripts/generate_images.py"


# Reserves all cores, so that no other job affects the times. Methods take turns image by image, at batch size 1.
rule measure_latency:
    input:
        prompts=expand(rules.write_prompts.output, prompt_set=CONFIG.latency.prompt_sets),
        text=text_features_of(*CONFIG.latency.prompt_sets),
        target=target_of("{training_seed}"),
        drafter=drafter_for(PLAN.specs.values(), "{training_seed}"),
        heads=heads_for(PLAN.specs.values(), "{training_seed}"),
        nearest_codes=tables_of(PLAN.specs.values()),
    output:
        table="<results>/latency/s{training_seed}n{noise_seed}.csv",
        images="<results>/latency/s{training_seed}n{noise_seed}.images.safetensors",
    log:
        "<logs>/measure_latency.s{training_seed}n{noise_seed}.log",
    benchmark:
        "<logs>/measure_latency.s{training_seed}n{noise_seed}.tsv"
    conda:
        ENVIRONMENT
    threads: 1 if RUN.is_variant else workflow.cores  # times of variants are not compared
    resources:
        mem_mb=SIZES.decoding_mb(),
        runtime=SIZES.decoding_minutes(
            len(PLAN.runs)
            * len(CONFIG.latency.prompt_sets)
            * (CONFIG.latency.num_rounds * CONFIG.latency.num_images + CONFIG.latency.num_warmup),
            1,
        ),
        gpu=GPU,
    params:
        **DECODING_PARAMS,
        code=code("measure_latency.py", methods=lambda wildcards: PLAN.specs.values()),
        runs=PLAN.run_params(),
        settings=CONFIG.latency.model_dump(),
        temperature=float(PLAN.headline["temperature"]),
        repeat="s{training_seed}n{noise_seed}",
    script:
        "../scripts/measure_latency.py"
