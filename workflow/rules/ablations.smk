"""Ablations: one job per grid, which draws and measures all its points."""


rule run_ablation:
    input:
        # The few images of an ablation's point are no set to compare with another.
        **metric_inputs({**config["metrics"], "fidelity": None}),
        prompts=stage("prompts", f"{HEADLINE['prompt_set']}.jsonl"),
        text=text_features_of(HEADLINE["prompt_set"]),
        target=target_of(FIRST["training_seed"]),
        drafters=lambda wildcards: [drafter_of(FIRST["training_seed"], steps) for steps in steps_of(wildcards.ablation)],
        nearest_codes=lambda wildcards: tables_of(
            [point.spec for point in ABLATIONS[wildcards.ablation]], FIRST["training_seed"]
        ),
        tokenizer=TOKENIZER,
    output:
        table=report(stage("ablations", "{ablation}.csv"), caption="../report/ablations.rst", category="Ablations"),
        images=stage("ablations", "{ablation}.images.csv"),
    log:
        log_of("run_ablation", "{ablation}"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=SIZES.scoring_mb(),
        runtime=growing(120),
        gpu=GPU,
    params:
        code=code("run_ablation.py"),
        points=lambda wildcards: [
            (asdict(point.spec), point.temperature, point.sampling, point.drafter_steps)
            for point in ABLATIONS[wildcards.ablation]
        ],
        steps=lambda wildcards: steps_of(wildcards.ablation),
        num_prompts=lambda wildcards: config["ablations"]["grids"][wildcards.ablation].get(
            "num_prompts", config["ablations"]["num_prompts"]
        ),
        generation=config["generation"],
        metrics=config["metrics"],
        text=config["text"],
        source=config["data"]["source"],
        seed=SEED,
        noise_seed=FIRST["noise_seed"],
        device=DEVICE,
    message:
        "Ablation: {wildcards.ablation}"
    script:
        "../scripts/run_ablation.py"
