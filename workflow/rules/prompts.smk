"""Prompt sets: from the image source's splits, or from a user's file."""


rule write_prompts:
    input:
        lambda wildcards: resource_of(config["prompts"][wildcards.prompt_set].get("file"), RESOURCES),
    output:
        stage("prompts", "{prompt_set}.jsonl"),
    log:
        log_of("write_prompts", "{prompt_set}"),
    # First of all, so that an unknown word or a missing file stops the run before any training.
    priority: 100
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(5),
    params:
        code=code("write_prompts.py"),
        settings=lambda wildcards: config["prompts"][wildcards.prompt_set],
        source=DATA,
        text=config["text"],
        seed=SEED,
    message:
        "Writing prompt set {wildcards.prompt_set}"
    script:
        "../scripts/write_prompts.py"
