"""The preference study: a page on which readers choose between two images, and the analysis of their answers."""

from lantern_pipeline.plan.paths import answer_files


rule build_study:
    input:
        records=shards_of(PLAN.records_of(**PLAN.headline, repeat=PLAN.repeats[0])),
        prompts=f"<results>/prompts/{PLAN.headline['prompt_set']}.jsonl",
        tokenizer=TOKENIZER,
    output:
        page="<results>/study/study.html",
        key="<results>/study/key.json",
    log:
        "<logs>/build_study.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(3500),
        runtime=growing(90),
    params:
        code=code("build_study.py", *page_templates("study.html")),
        settings=CONFIG.study.model_dump(include={"methods", "num_trials", "num_checks", "seed", "question"}),
    script:
        "../scripts/build_study.py"


rule analyse_study:
    input:
        answers=lambda wildcards: answer_files(
            CONFIG.study.answers or f"results/{CONFIG.experiment}/study/answers",
            f"results/{CONFIG.experiment}/study/study.html",
        ),
        # The content of the key, and not its date, shows whether it belongs to the page.
        key=ancient(rules.build_study.output.key),
    output:
        table="<results>/study/preferences.csv",
        readers="<results>/study/readers.json",
    log:
        "<logs>/analyse_study.log",
    conda:
        ENVIRONMENT
    params:
        code=code("analyse_study.py"),
        min_checks=CONFIG.study.min_checks,
    script:
        "../scripts/analyse_study.py"
