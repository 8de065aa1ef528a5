"""Variants of the run: for each variant, the whole workflow runs again, with some config keys changed."""

from copy import deepcopy

from snakemake.utils import update_config

for variant, changes in CONFIG.variants.items():
    prefix = f"{variant}_"
    varied = deepcopy(config)
    update_config(varied, changes)
    varied["variants"], varied["variant"] = {}, variant

    module:
        name: variant
        pathvars:
            results=f"results/{CONFIG.experiment}/variants/{variant}",
        snakefile:
            f"{HERE}/Snakefile"
        config:
            varied

    use rule * from variant as prefix*


if CONFIG.variants:

    rule compare_variants:
        input:
            **PLAN.variant_tables(),
        output:
            table=result_table(GENERALITY, "generality", "Every method on many targets"),
            page=in_report(
                "<results>/generality.html",
                caption="../report/generality.rst",
                category="Overview",
                labels={"page": "Results on other targets"},
            ),
        log:
            "<logs>/compare_variants.log",
        conda:
            ENVIRONMENT
        params:
            code=code("compare_variants.py"),
            targets={"base": {}, **CONFIG.variants},
            grid=CONFIG.tokenizer.grid,
            settings=TABLE_SETTINGS,
            cfg_scale=CONFIG.sampling.cfg_scale,
            seed=SEED,
        script:
            "../scripts/compare_variants.py"
