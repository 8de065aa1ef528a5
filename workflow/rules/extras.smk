"""Rules that rule `all` does not need: they write results into the repository, or belong to the preference study."""

from lantern_pipeline.config.paths import answer_files

PUBLISHED_FIGURES = {
    "results": "abl",
    "fashion": "",
    "papers": "",
    "fashion_papers": "",
    "peers": "q",
    "fashion_peers": "",
    "mixing": "",
    "fashion_mixing": "",
    "generality": "r",
    "targets": "",
    "nodes": "s",
    "grid_sizes": "t",
}

if CONFIG.publish:

    # `make readme` runs this rule.
    rule publish_readme:
        input:
            claims=rules.summarise.output.claims,
            table=GENERALITY if CONFIG.variants else rules.summarise.output.summary,
            pictures=[
                *(
                    file
                    for file in figure_files(["png"])
                    for letter in PUBLISHED_FIGURES[CONFIG.publish]
                    if f"fig_{letter}_" in file
                ),
                *([rules.build_race.output.picture] if CONFIG.publish == "results" else []),
            ],
        output:
            touch("<results>/readme.published"),
        log:
            "<logs>/publish_readme.log",
        conda:
            ENVIRONMENT
        params:
            code=code("publish_readme.py"),
            root=HERE,
            settings=TABLE_SETTINGS,
            section=lambda wildcards: CONFIG.publish,
        script:
            "../scripts/publish_readme.py"


# `make train` runs this rule.
rule publish_weights:
    input:
        tokenizer=TOKENIZER,
        target=target_of(PLAN.first["training_seed"]),
        drafter=drafter_of(PLAN.first["training_seed"]),
        attribute_classifier=model_of("attribute_classifier"),
        clip=model_of("clip"),
    output:
        touch("<results>/weights.published"),
    log:
        "<logs>/publish_weights.log",
    conda:
        ENVIRONMENT
    threads: 2
    resources:
        mem_mb=growing(4000),
    params:
        code=code("publish_weights.py"),
        models=["tokenizer", "target", "drafter", "attribute_classifier", "clip"],
        folder=f"models/{CONFIG.experiment.removesuffix('_training')}",
    script:
        "../scripts/publish_weights.py"


# The preference study: a page on which readers choose between two images, and the analysis of their answers.
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
