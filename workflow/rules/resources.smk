"""Files from elsewhere, such as published weights: fetched once, checked by hash ever after."""


rule fetch_resource:
    input:
        lambda wildcards: RESOURCES[wildcards.resource].inputs,
    output:
        # The files themselves are no output: Snakemake would delete gigabytes before it runs the rule again.
        "resources/{resource}.json",
    log:
        log_of("fetch_resource", "{resource}"),
    wildcard_constraints:
        resource="|".join(RESOURCES) or "none",
    # First of all, so that a missing file or network stops the run before anything is computed.
    priority: 100
    # Where jobs run elsewhere: the machine that starts Snakemake is the one with a network.
    localrule: True
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(1440),
    params:
        # No fingerprint of the code: an edit of it makes no other file.
        entry=lambda wildcards: config["resources"][wildcards.resource],
    message:
        "Fetching resource {wildcards.resource}"
    script:
        "../scripts/fetch_resource.py"
