"""Rules that rule `all` does not need and that write results into the repository."""

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
