"""Features of the real images behind FID, KID, precision and recall. Runs only where metrics.fidelity is inception."""


rule measure_reference:
    input:
        images=resource_of(config["metrics"]["published"]["reference"]["images"], RESOURCES),
        inception_weights=resource_of(config["metrics"]["published"]["inception"], RESOURCES),
        vgg16_weights=resource_of(config["metrics"]["published"]["vgg16"], RESOURCES),
    output:
        stage("reference", "features.safetensors"),
    log:
        log_of("measure_reference"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(6000),
        runtime=growing(240),
        gpu=GPU,
    params:
        code=code("measure_reference.py"),
        settings={key: config["metrics"]["published"][key] for key in ("reference", "preprocessing", "vgg16_layer")},
        batch_size=config["metrics"]["batch_size"],
        device=DEVICE,
    message:
        "Measuring the real images of {params.settings[reference][name]}"
    script:
        "../scripts/measure_reference.py"
