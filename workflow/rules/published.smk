"""Published checkpoints in place of trained models: what has a `checkpoint` in the config is converted, not trained."""

if config["tokenizer"]["checkpoint"]:

    ruleorder: convert_tokenizer > train_tokenizer

    rule convert_tokenizer:
        input:
            checkpoint=resource_of(config["tokenizer"]["checkpoint"], RESOURCES),
        output:
            model=rules.train_tokenizer.output.model,
            report=rules.train_tokenizer.output.report,
        log:
            log_of("convert_tokenizer"),
        conda:
            ENVIRONMENT
        threads: 1
        resources:
            mem_mb=growing(3000),
            # VQ-16 has 72 million parameters.
            disk_mb=disk_mb(3e8),
            runtime=growing(15),
        params:
            code=code("convert_tokenizer.py"),
            settings=config["tokenizer"],
            image_size=config["data"]["image_size"],
        message:
            "Converting the published image tokenizer"
        script:
            "../scripts/convert_tokenizer.py"


if config["target"]["checkpoint"]:

    ruleorder: convert_target > train_target

    rule convert_target:
        input:
            checkpoint=resource_of(config["target"]["checkpoint"], RESOURCES),
        output:
            model=rules.train_target.output.model,
            report=rules.train_target.output.report,
        log:
            log_of("convert_target", "s{training_seed}"),
        conda:
            ENVIRONMENT
        threads: 1
        resources:
            mem_mb=growing(16000),
            disk_mb=SIZES.target_disk_mb(is_trained=False),
            runtime=growing(30),
        params:
            code=code("convert_target.py"),
            settings=config["target"],
            codes={"vocab_size": config["tokenizer"]["codebook_size"], "grid": config["tokenizer"]["grid"]},
            text=config["text"],
        message:
            "Converting the published target model"
        script:
            "../scripts/convert_target.py"


if config["drafter"]["checkpoint"]:

    ruleorder: convert_drafter > train_drafter

    rule convert_drafter:
        input:
            checkpoint=resource_of(config["drafter"]["checkpoint"], RESOURCES),
            target=lambda wildcards: target_of(drafter_seed(wildcards)),
        output:
            model=rules.train_drafter.output.model,
            report=rules.train_drafter.output.report,
        log:
            log_of("convert_drafter", "{drafter}"),
        # An ablation over training steps trains drafters of its own, s0-40steps.
        wildcard_constraints:
            drafter=r"s\d+",
        conda:
            ENVIRONMENT
        threads: 1
        resources:
            mem_mb=growing(4000),
            disk_mb=SIZES.drafter_disk_mb(is_trained=False),
            runtime=growing(15),
        params:
            code=code("convert_drafter.py"),
        message:
            "Converting the published draft model"
        script:
            "../scripts/convert_drafter.py"
