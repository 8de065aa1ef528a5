"""The perceptual study: a page that anyone can answer, and what came out. Not part of `all`: it needs people."""

from lantern_pipeline.study.folder import find_answers


rule build_study:
    input:
        records=headline_records(),
        prompts=stage("prompts", f"{HEADLINE['prompt_set']}.jsonl"),
        tokenizer=TOKENIZER,
        # The fingerprint of the code sees Python only.
        template=workflow.source_path("../lantern_pipeline/study/page.html"),
    output:
        page=stage("study", "study.html"),
        key=stage("study", "key.json"),
    log:
        log_of("build_study"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(3500),
        runtime=growing(90),
    params:
        code=code("build_study.py"),
        settings={name: config["study"][name] for name in ("methods", "num_trials", "num_checks", "seed", "question")},
    message:
        "Writing the page of the perceptual study"
    script:
        "../scripts/build_study.py"


rule analyse_study:
    input:
        answers=lambda wildcards: find_answers(
            config["study"]["answers"] or stage("study", "answers"), stage("study", "study.html")
        ),
        # Its content ties it to the page, whatever its date.
        key=ancient(rules.build_study.output.key),
    output:
        table=stage("study", "preferences.csv"),
        conclusion=stage("study", "conclusion.md"),
    log:
        log_of("analyse_study"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    params:
        code=code("analyse_study.py"),
        min_checks=config["study"]["min_checks"],
        num_resamples=config["metrics"]["bootstrap_resamples"],
        seed=SEED,
    message:
        "Analysing the answers of the perceptual study"
    script:
        "../scripts/analyse_study.py"
