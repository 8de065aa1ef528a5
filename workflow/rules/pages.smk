"""Pages for readers, made from records and findings."""


# workflow/report/workflow.rst shows it.
rule write_front_page:
    input:
        findings="<results>/findings.json",
        records=shards_of(PLAN.records_of(**HEADLINE, repeat=PLAN.repeats[0])),
        prompts=f"<results>/prompts/{HEADLINE['prompt_set']}.jsonl",
        tokenizer=TOKENIZER,
    output:
        page="<results>/front.html",
    log:
        "<logs>/write_front_page.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(3500),
        runtime=growing(45),
    params:
        code=code("write_front_page.py"),
        num_prompts=config["figures"]["sample_prompts"],
    message:
        "Writing the report's first screen"
    script:
        "../scripts/write_front_page.py"
