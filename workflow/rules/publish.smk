"""What a run writes into the repository. Not part of `all`: it changes files under version control."""

# What config key `publish` names -> what it is made from.
PUBLISHED = {
    "readme": {
        "findings": rules.summarise.output.findings,
        "summary": rules.summarise.output.summary,
        "targets": COMPARED,
        "pictures": [file for file in figure_files(["png"]) if re.search("fig_[abp]_", file)],
    },
    "short_target": {"summary": rules.summarise.output.summary, "paired": rules.summarise.output.paired},
    "target_steps": {"table": "<results>/ablations/target_steps.csv"},
    "generality": {"table": GENERALITY, "pictures": [file for file in figure_files(["png"]) if "fig_r_" in file]},
    "peers": {
        "findings": rules.summarise.output.findings,
        "summary": rules.summarise.output.summary,
        "pictures": [file for file in figure_files(["png"]) if "fig_q_" in file],
    },
}


# `make readme`.
rule publish_readme:
    input:
        **PUBLISHED[config["publish"]],
    output:
        touch("<results>/readme.published"),
    log:
        "<logs>/publish_readme.log",
    conda:
        ENVIRONMENT
    params:
        code=code("publish_readme.py"),
        root=workflow.basedir,
        settings=config["metrics"],
        what=config["publish"],
    message:
        "Writing results into the repository: {params.what}"
    script:
        "../scripts/publish_readme.py"


# `make train`.
rule publish_weights:
    input:
        tokenizer=TOKENIZER,
        target=target_of(FIRST["training_seed"]),
        drafter=drafter_of(FIRST["training_seed"]),
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
        folder="models/embedded",
    message:
        "Writing the trained weights into {params.folder}"
    script:
        "../scripts/publish_weights.py"
