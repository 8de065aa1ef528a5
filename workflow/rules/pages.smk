"""Pages for readers, made from records and claims."""


def page_templates(page):
    """Return the templates of a page, for `code`.

    As inputs they would have an absolute path, which the report shows and which makes the page again in a clone that
    was moved.
    """
    return [f"pages/{name}.html" for name in (page, "page_shell")]


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
