"""The law of the emitted token, and where relaxed images part from the autoregressive ones."""


rule measure_total_variation:
    input:
        records=shards_of(**LAW, repeat=REPEATS[0]),
        prompts=stage("prompts", f"{LAW['prompt_set']}.jsonl"),
        text=text_features_of(LAW["prompt_set"]),
        tokenizer=TOKENIZER,
        target=target_of(FIRST["training_seed"]),
        drafter=drafter_of(FIRST["training_seed"]),
        nearest_codes=tables_of(SPECS.values(), FIRST["training_seed"]),
        nearest=stage("codebook", f"{config['codebook']['neighbours']}.safetensors"),
        random=stage("codebook", "random.safetensors"),
    output:
        law=report(stage("total_variation", "methods.csv"), caption="../report/total_variation.rst", category="Results"),
        curves=stage("total_variation", "curves.csv"),
        acceptance=stage("total_variation", "acceptance.csv"),
    log:
        log_of("measure_total_variation"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=SIZES.scoring_mb(1000),
        runtime=SIZES.decoding_minutes(
            len(RUNS) * config["total_variation"]["num_images"], config["generation"]["batch_size"], 120
        ),
        gpu=GPU,
    params:
        code=code("measure_total_variation.py"),
        runs=[(asdict(spec), float(temperature)) for spec, temperature in RUNS if temperature == LAW["temperature"]],
        settings=config["total_variation"],
        metrics=config["metrics"],
        neighbours=config["codebook"]["neighbours"],
        place={**LAW, "temperature": float(LAW["temperature"]), "repeat": REPEATS[0]},
        sampling=config["sampling"],
        dtype=config["generation"]["dtype"],
        text=config["text"],
        source=config["data"]["source"],
        seed=SEED,
        noise_seed=FIRST["noise_seed"],
        device=DEVICE,
    message:
        "Measuring the law of the emitted token"
    script:
        "../scripts/measure_total_variation.py"


rule measure_divergence:
    input:
        images=quality_tables("images.csv"),
        tokens=quality_tables("tokens.safetensors"),
    output:
        stage("total_variation", "divergence.csv"),
    log:
        log_of("measure_divergence"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(30),
    params:
        code=code("measure_divergence.py"),
        settings=config["metrics"],
        seed=SEED,
    message:
        "Following the images away from the autoregressive ones"
    script:
        "../scripts/measure_divergence.py"
