"""Latency: a rule of its own that owns the machine, all methods interleaved image by image at batch 1."""


rule measure_latency:
    input:
        prompts=expand(rules.write_prompts.output, prompt_set=config["latency"]["prompt_sets"]),
        text=text_features_of(*config["latency"]["prompt_sets"]),
        target=lambda wildcards: target_of(wildcards.training_seed),
        drafter=lambda wildcards: drafter_of(wildcards.training_seed),
        nearest_codes=lambda wildcards: tables_of(SPECS.values(), wildcards.training_seed),
    output:
        stage("latency", "s{training_seed}n{noise_seed}.csv"),
    log:
        log_of("measure_latency", "s{training_seed}n{noise_seed}"),
    conda:
        ENVIRONMENT
    threads: workflow.cores
    resources:
        mem_mb=SIZES.decoding_mb(),
        runtime=SIZES.decoding_minutes(
            len(RUNS)
            * len(config["latency"]["prompt_sets"])
            * (config["latency"]["num_images"] + config["latency"]["num_warmup"]),
            1,
        ),
        gpu=GPU,
    params:
        code=code("measure_latency.py"),
        runs=[(asdict(spec), float(temperature)) for spec, temperature in RUNS],
        settings=config["latency"],
        sampling=config["sampling"],
        dtype=config["generation"]["dtype"],
        text=config["text"],
        source=config["data"]["source"],
        seed=SEED,
        noise_seed=lambda wildcards: int(wildcards.noise_seed),
        repeat="s{training_seed}n{noise_seed}",
        device=DEVICE,
    message:
        "Measuring latency, alone on the machine"
    script:
        "../scripts/measure_latency.py"


rule profile_steps:
    input:
        prompts=expand(rules.write_prompts.output, prompt_set=HEADLINE["prompt_set"]),
        text=text_features_of(HEADLINE["prompt_set"]),
        target=target_of(FIRST["training_seed"]),
        drafter=drafter_of(FIRST["training_seed"]),
        nearest_codes=tables_of(SPECS.values(), FIRST["training_seed"]),
    output:
        stage("latency", "steps.csv"),
    log:
        log_of("profile_steps"),
    conda:
        ENVIRONMENT
    threads: workflow.cores
    resources:
        mem_mb=SIZES.decoding_mb(),
        runtime=SIZES.decoding_minutes(len(RUNS) * config["latency"]["num_profiled"], 1),
        gpu=GPU,
    params:
        code=code("profile_steps.py"),
        runs=[
            (asdict(spec), float(temperature)) for spec, temperature in RUNS if temperature == HEADLINE["temperature"]
        ],
        settings=config["latency"],
        sampling=config["sampling"],
        dtype=config["generation"]["dtype"],
        text=config["text"],
        source=config["data"]["source"],
        seed=SEED,
        noise_seed=FIRST["noise_seed"],
        device=DEVICE,
    message:
        "Measuring where a step's time goes, alone on the machine"
    script:
        "../scripts/profile_steps.py"
