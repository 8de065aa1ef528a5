"""Figures (a) to (c). Figures read stored results only, so that `make figures` redraws without generating.

Their inputs are paths and not outputs of rules: a rule that is named there may run where only drawing is allowed.
"""


rule draw_samples:
    input:
        records=headline_records(),
        prompts=stage("prompts", f"{config['metrics']['headline_prompt_set']}.jsonl"),
        tokenizer=TOKENIZER,
        verdict=stage("findings.json"),
    output:
        png=report(stage("figures", "fig_a_samples.png"), caption="../report/fig_a_samples.rst", category="Figures"),
        pdf=stage("figures", "fig_a_samples.pdf"),
    log:
        log_of("draw_samples"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(3500),
        runtime=growing(45),
    params:
        code=code("draw_samples.py"),
        settings=config["figures"],
        numbers=finding_numbers,
    message:
        "Drawing the sample grid"
    script:
        "../scripts/draw_samples.py"


# The figures of evidence_figures.smk inherit this rule; `params.script` tells their scripts apart.
rule draw_tradeoff:
    input:
        summary=stage("summary.csv"),
        verdict=stage("findings.json"),
    output:
        png=report(stage("figures", "fig_b_tradeoff.png"), caption="../report/fig_b_tradeoff.rst", category="Figures"),
        pdf=stage("figures", "fig_b_tradeoff.pdf"),
    log:
        log_of("draw_tradeoff"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(1500),
        runtime=growing(10),
    params:
        code=code("draw_tradeoff.py"),
        script="draw_tradeoff.py",
        settings=config["figures"],
        metrics=config["metrics"],
        numbers=finding_numbers,
    message:
        "Drawing the trade-off of speed and quality"
    script:
        "../scripts/{params.script}"


rule draw_ambiguity:
    input:
        ambiguity=stage("quality", "ambiguity.csv"),
        verdict=stage("findings.json"),
    output:
        png=report(stage("figures", "fig_c_ambiguity.png"), caption="../report/fig_c_ambiguity.rst", category="Figures"),
        pdf=stage("figures", "fig_c_ambiguity.pdf"),
    log:
        log_of("draw_ambiguity"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(1500),
        runtime=growing(10),
    params:
        code=code("draw_ambiguity.py"),
        settings=config["figures"],
        numbers=finding_numbers,
    message:
        "Drawing the histograms of ambiguity"
    script:
        "../scripts/draw_ambiguity.py"
