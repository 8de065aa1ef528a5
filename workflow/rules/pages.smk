"""Pages for readers, made from records and claims."""


def page_templates(page):
    """Return the templates of a page, for `code`.

    As inputs they would have an absolute path, which the report shows and which makes the page again in a clone that
    was moved.
    """
    return [f"pages/{name}.html" for name in (page, "page_shell")]


# workflow/report/workflow.rst shows it.
rule write_front_page:
    input:
        claims="<results>/claims.json",
        records=shards_of(PLAN.records_of(**PLAN.headline, repeat=PLAN.repeats[0])),
        prompts=f"<results>/prompts/{PLAN.headline['prompt_set']}.jsonl",
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
        code=code("write_front_page.py", *page_templates("front_page")),
        num_prompts=CONFIG.figures.sample_prompts,
    script:
        "../scripts/write_front_page.py"


rule build_race:
    input:
        images=f"<results>/latency/{PLAN.repeats[0]}.images.safetensors",
        prompts=[f"<results>/prompts/{name}.jsonl" for name in CONFIG.latency.prompt_sets],
        tokenizer=TOKENIZER,
    output:
        page=in_report(
            "<results>/race.html",
            caption="../report/race.rst",
            category="Overview",
            labels={"page": "Watch the methods draw"},
        ),
        picture="<results>/race.png",
    log:
        "<logs>/build_race.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(3500),
        runtime=growing(90),
    params:
        code=code("build_race.py", *page_templates("race")),
    script:
        "../scripts/build_race.py"
