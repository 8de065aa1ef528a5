"""Text features of the prompt sets, computed once. The only rule that loads T5; without it, words are embedded on the fly."""


rule encode_prompts:
    input:
        prompts=rules.write_prompts.output[0],
        t5=resource_of(config["text"]["checkpoint"], RESOURCES),
    output:
        stage("text", "{prompt_set}", "features-{scatteritem}.safetensors"),
    log:
        log_of("encode_prompts", "{prompt_set}", "{scatteritem}"),
    conda:
        ENVIRONMENT
    threads: 2
    resources:
        # flan-t5-xl: 2.3 GiB in bfloat16; the float32 file, mapped while it is read, makes it 7.6 at the peak.
        mem_mb=growing(10000),
        disk_mb=lambda wildcards: SIZES.text_disk_mb(num_texts(wildcards)),
        runtime=growing(120),
        gpu=GPU,
    params:
        code=code("encode_prompts.py"),
        settings=config["text"],
        device=DEVICE,
    message:
        "Encoding prompt set {wildcards.prompt_set}, shard {wildcards.scatteritem}"
    script:
        "../scripts/encode_prompts.py"
