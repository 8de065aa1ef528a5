"""Latency: a rule of its own that owns the machine, all methods interleaved image by image at batch 1."""


rule measure_latency:
    input:
        prompts=expand(rules.write_prompts.output, prompt_set=config["latency"]["prompt_sets"]),
        target=rules.train_target.output.model,
        drafter=rules.train_drafter.output.model,
        nearest_codes=all_tables(),
    output:
        stage("latency", "latency.csv"),
    log:
        log_of("measure_latency"),
    conda:
        ENVIRONMENT
    threads: workflow.cores
    resources:
        mem_mb=2000,
        runtime=60,
        gpu=GPU,
    params:
        code=code("measure_latency.py"),
        runs=[(spec.to_dict(), tree_settings(spec, config), float(temperature)) for spec, temperature in RUNS],
        settings=config["latency"],
        sampling=config["sampling"],
        text=config["text"],
        source=config["data"]["source"],
        seed=SEED,
        device=DEVICE,
    message:
        "Measuring latency, alone on the machine"
    script:
        "../scripts/measure_latency.py"
