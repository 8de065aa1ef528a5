"""Inputs of a run: downloaded files, prompt sets, captions of the training images, and their text features."""


rule fetch_resource:
    input:
        lambda wildcards: RUN.resources[wildcards.resource].inputs,
    output:
        # The files themselves are no output, because Snakemake would delete gigabytes before it runs the rule again.
        "resources/{resource}.json",
    log:
        "<logs>/fetch_resource.{resource}.log",
    wildcard_constraints:
        resource="|".join(RUN.resources) or "none",
    # Runs first, so that a missing file or network stops the run before anything is computed.
    priority: 100
    # On a cluster, only the machine that starts Snakemake has a network.
    localrule: True
    conda:
        ENVIRONMENT
    params:
        # No fingerprint of the code: an edit of it does not change the files.
        entry=lookup(within=config, dpath="resources/{resource}"),
    script:
        "../scripts/fetch_resource.py"


rule write_prompts:
    input:
        lambda wildcards: RUN.input_of(CONFIG.prompt_sets[wildcards.prompt_set].file),
        tokenizer=RUN.prompt_tokenizer,
    output:
        "<results>/prompts/{prompt_set}.jsonl",
    log:
        "<logs>/write_prompts.{prompt_set}.log",
    # Runs first, so that an unknown word or a missing file stops the run before any training.
    priority: 100
    conda:
        ENVIRONMENT
    params:
        code=code("write_prompts.py"),
        settings=lookup(within=config, dpath="prompts/{prompt_set}"),
        source=DATA,
        text=TEXT,
        seed=SEED,
    script:
        "../scripts/write_prompts.py"


rule write_captions:
    input:
        file=RUN.input_of(CONFIG.data.captions.file) if CONFIG.data.source == "captions" else [],
    output:
        train="<results>/captions/train.jsonl",
        val="<results>/captions/val.jsonl",
    log:
        "<logs>/write_captions.log",
    # Runs early, because the job that measures times reserves the whole machine and would wait for it.
    priority: 10
    conda:
        ENVIRONMENT
    params:
        code=code("write_captions.py"),
        num_val=CONFIG.target.num_eval,
        source=DATA,
        captions=CONFIG.data.captions and CONFIG.data.captions.model_dump(),
        seed=SEED,
    script:
        "../scripts/write_captions.py"


# The only rules that load T5. Other encoders embed words when they are needed.
rule encode_prompts:
    input:
        prompts="<results>/prompts/{prompt_set}.jsonl",
        t5=RUN.input_of(CONFIG.text.checkpoint),
    output:
        "<results>/text/{prompt_set}/features-{scatteritem}.safetensors",
    log:
        "<logs>/encode_prompts.{prompt_set}.{scatteritem}.log",
    conda:
        ENVIRONMENT
    threads: 2
    resources:
        # flan-t5-xl takes 2.3 GiB in bfloat16. While it is loaded, the memory-mapped float32 file makes it 7.6 GiB.
        mem_mb=growing(10000),
        runtime=growing(120),
        gpu=GPU,
    params:
        code=code("encode_prompts.py"),
        settings=CONFIG.text.model_dump(include={"caption_dim", "max_tokens"}),
    script:
        "../scripts/encode_prompts.py"


use rule encode_prompts as encode_captions with:
    input:
        prompts="<results>/captions/{split}.jsonl",
        t5=RUN.input_of(CONFIG.text.checkpoint),
    output:
        "<results>/captions/{split}/features-{scatteritem}.safetensors",
    log:
        "<logs>/encode_captions.{split}.{scatteritem}.log",


rule encode_images:
    input:
        tokenizer=TOKENIZER,
        captions="<results>/captions/{split}.jsonl",
    output:
        "<results>/codes/{split}-{scatteritem}.safetensors",
    log:
        "<logs>/encode_images.{split}.{scatteritem}.log",
    conda:
        ENVIRONMENT
    # There are few held-out images, so their job can run next to another one.
    threads: lambda wildcards: RUN.training_threads if wildcards.split == "train" else 1
    resources:
        mem_mb=growing(3000),
        runtime=growing(240),
        gpu=GPU,
    params:
        code=code("encode_images.py"),
        source=DATA,
        ends_lines=CONFIG.target.line_end is not None,
        seed=SEED,
    script:
        "../scripts/encode_images.py"
