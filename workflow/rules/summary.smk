"""The table of results, in numbers and in words."""


rule summarise:
    input:
        **{name: stage(name, "report.json") for name in trained_models(config["metrics"])},
        quality=quality_tables("csv"),
        images=quality_tables("images.csv"),
        latency=[stage("latency", f"{repeat}.csv") for repeat in REPEATS],
        law=rules.measure_total_variation.output.law,
        curves=rules.measure_total_variation.output.curves,
        ablations=[stage("ablations", f"{name}.images.csv") for name in ABLATIONS],
        tokenizer=stage("tokenizer", "report.json"),
        target=[stage("target", f"s{seed}", "report.json") for seed in config["repeats"]["training_seeds"]],
    output:
        summary=stage("summary.csv"),
        paired=stage("paired.csv"),
        findings=stage("findings.json"),
        page=report(stage("findings.html"), caption="../report/findings.rst", category="Overview"),
    log:
        log_of("summarise"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(1500),
        runtime=growing(10),
    params:
        code=code("summarise.py"),
        settings=config["metrics"],
        training_seeds=config["repeats"]["training_seeds"],
        trained=trained_models(config["metrics"]),
        seed=SEED,
    message:
        "Summarising"
    script:
        "../scripts/summarise.py"


rule publish_tables:
    input:
        summary=rules.summarise.output.summary,
        paired=rules.summarise.output.paired,
        verdict=rules.summarise.output.findings,
    output:
        summary=report("results/summary.csv", caption="../report/summary.rst", category="Results"),
        paired=report("results/paired.csv", caption="../report/paired.rst", category="Results"),
    log:
        log_of("publish_tables"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    params:
        numbers=finding_numbers,
    message:
        "Writing {output}"
    shell:
        "(cp {input.summary} {output.summary} && cp {input.paired} {output.paired}) 2> {log}"


rule compare_published:
    input:
        published=PUBLISHED_RESULTS,
        summary=rules.summarise.output.summary,
    output:
        report(stage("published.csv"), caption="../report/published.rst", category="Results"),
    log:
        log_of("compare_published"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(5),
    params:
        code=code("compare_published.py"),
        settings=config["metrics"],
        model=config["target"]["name"],
    message:
        "Putting published numbers beside this run's"
    script:
        "../scripts/compare_published.py"


# Not part of `all`: it changes files under version control. `make readme`.
rule publish_readme:
    input:
        findings=rules.summarise.output.findings,
        summary=rules.summarise.output.summary,
        pictures=[stage("figures", f"{name}.png") for name in FIGURES[:2]],
    output:
        touch(stage("readme.published")),
    log:
        log_of("publish_readme"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    params:
        code=code("publish_readme.py"),
        root=workflow.basedir,
        settings=config["metrics"],
    message:
        "Writing the results into README.md and docs/"
    script:
        "../scripts/publish_readme.py"
