"""Trees chosen for the run's models and machine, on prompts that no table reports."""


# Captions of the validation split (then of training) that no table reports; without those, what a prompt file holds more.
rule choose_tuning_prompts:
    input:
        captions=[*rules.write_captions.output] if SOURCE != "none" else [],
        file=lambda wildcards: (
            resource_of(config["prompts"][HEADLINE["prompt_set"]]["file"], RESOURCES) if SOURCE == "none" else []
        ),
        reported=expand(rules.write_prompts.output, prompt_set=PLAN.prompt_sets),
    output:
        "<results>/trees/prompts.jsonl",
    log:
        "<logs>/choose_tuning_prompts.log",
    priority: 10  # see write_captions
    conda:
        ENVIRONMENT
    params:
        code=code("choose_tuning_prompts.py"),
        entry=config["prompts"][HEADLINE["prompt_set"]],
        num=config["tree_tuning"]["num_prompts"],
        seed=SEED,
    script:
        "../scripts/choose_tuning_prompts.py"


use rule encode_prompts as encode_tuning_prompts with:
    input:
        prompts=rules.choose_tuning_prompts.output[0],
        t5=resource_of(config["text"]["checkpoint"], RESOURCES),
    output:
        "<results>/trees/features-{scatteritem}.safetensors",
    log:
        "<logs>/encode_tuning_prompts.{scatteritem}.log",


# Owns the machine like measure_latency: it times steps.
rule tune_tree:
    input:
        prompts=rules.choose_tuning_prompts.output,
        text=gather.text_shards(rules.encode_tuning_prompts.output[0]) if STORES_TEXT else PROMPT_TOKENIZER,
        target=lambda wildcards: target_of(wildcards.training_seed),
        drafter=lambda wildcards: drafter_for(PLAN.tuned_specs, wildcards.training_seed),
        nearest_codes=lambda wildcards: tables_of(PLAN.tuned_specs, wildcards.training_seed),
    output:
        "<results>/trees/s{training_seed}.json",
    log:
        "<logs>/tune_tree.s{training_seed}.log",
    conda:
        ENVIRONMENT
    threads: workflow.cores
    resources:
        mem_mb=SIZES.decoding_mb(),
        runtime=SIZES.decoding_minutes(
            sum(len(trees) for _, _, trees in PLAN.tuned_params()) * config["tree_tuning"]["num_prompts"], 1
        ),
        gpu=GPU,
    params:
        **DECODING_PARAMS,
        code=code("tune_tree.py"),
        runs=PLAN.tuned_params(),
        timed_threads=config["latency"]["threads"],
        training_seed=lambda wildcards: int(wildcards.training_seed),
    script:
        "../scripts/tune_tree.py"
