"""Results of a run: tables, figures, pages and provenance."""

from lantern_pipeline.archive.provenance import results_config
from lantern_pipeline.plan.figures import GENERALITY, PREMISE
from lantern_pipeline.data.model_cards import FROM_FILES
from lantern_pipeline.measure.registry import trained_models


rule summarise:
    input:
        **{name: f"<results>/{name}/report.json" for name in trained_models(CONFIG.metrics)},
        quality=PLAN.quality_tables("csv"),
        images=PLAN.quality_tables("images.csv"),
        latency=PLAN.latency_tables("csv"),
        total_variation=rules.measure_total_variation.output.methods,
        curves=rules.measure_total_variation.output.curves,
        ambiguity=rules.measure_ambiguity.output[0],
        tokenizer="<results>/tokenizer/report.json",
        target=[f"<results>/target/s{seed}/report.json" for seed in CONFIG.repeats.training_seeds],
    output:
        summary=result_table("<results>/summary.csv", "summary", "Every method: speed and quality"),
        paired=result_table("<results>/paired.csv", "paired", "Differences from autoregressive decoding"),
        claims="<results>/claims.json",
        page=in_report(
            "<results>/results.html",
            caption="../report/results.rst",
            category="Overview",
            labels={"page": "Main results"},
        ),
    log:
        "<logs>/summarise.log",
    conda:
        ENVIRONMENT
    params:
        code=code("summarise.py"),
        settings=TABLE_SETTINGS,
        training_seeds=CONFIG.repeats.training_seeds,
        trained=trained_models(CONFIG.metrics),
        seed=SEED,
    script:
        "../scripts/summarise.py"


rule compare_published:
    input:
        summary=rules.summarise.output.summary,
    output:
        result_table("<results>/published.csv", "published", "Published numbers next to this run's"),
    log:
        "<logs>/compare_published.log",
    conda:
        ENVIRONMENT
    params:
        code=code("compare_published.py", "tables/published_results.csv"),
        settings=TABLE_SETTINGS,
        model=CONFIG.target.name,
    script:
        "../scripts/compare_published.py"


# Figures read stored results only, so `make figures` redraws them without generating images. Their inputs are paths, not
# outputs of rules: Snakemake may run a rule that an input refers to, even if only drawing rules are allowed.
for name, figure in RUN.figures.items():

    rule:
        name:
            f"draw_{name}"
        input:
            **{key: shards_of(files) if key == "records" else files for key, files in figure.files.items()},
            # If a figure reads the summary, the numbers in its caption come from the claims, else from the config.
            claims="<results>/claims.json" if "summary" in figure.files else [],
        output:
            png=in_report(
                f"<results>/figures/fig_{figure.letter}_{name}.png",
                caption=f"../report/figures/{name}.rst",
                category="Figures",
                labels={"figure": f"({figure.letter}) {figure.title}"},
            ),
            pdf=f"<results>/figures/fig_{figure.letter}_{name}.pdf",
        log:
            f"<logs>/draw_{name}.log",
        priority: -1  # no job waits for it
        conda:
            ENVIRONMENT
        resources:
            mem_mb=growing(3500 if figure.draws_images else 1500),
            runtime=growing(45 if figure.draws_images else 10),
        params:
            code=code("draw_figure.py", f"figures/{name}.py", *figure.package_files),
            figure=name,
            dpi=CONFIG.figures.dpi,
            settings=figure.settings,
            caption=caption_values(figure),
        script:
            "../scripts/draw_figure.py"


rule build_race:
    input:
        images=f"<results>/latency/{PLAN.repeats[0]}.images.safetensors",
        prompts=[f"<results>/prompts/{name}.jsonl" for name in CONFIG.latency.prompt_sets],
        tokenizer=TOKENIZER,
    output:
        page=in_report(
            "<results>/race.html",
            caption="../report/race.rst",
            category="Overview",
            labels={"page": "Watch the methods generate images"},
        ),
        picture="<results>/race.png",
    log:
        "<logs>/build_race.log",
    conda:
        ENVIRONMENT
    resources:
        mem_mb=growing(3500),
        runtime=growing(90),
    params:
        code=code("build_race.py", *page_templates("race.html", "lanes.css")),
    script:
        "../scripts/build_race.py"


# Writes card.json, the file that `lantern.load` reads from a finished run.
rule write_card:
    input:
        target=target_of(PLAN.first["training_seed"]),
        drafter=drafter_of(PLAN.first["training_seed"]) if PLAN.needs_draft_model else [],
        heads=heads_for(PLAN.specs.values(), PLAN.first["training_seed"]),
        tokenizer=TOKENIZER,
        text=RUN.input_of(CONFIG.text.checkpoint) if CONFIG.text.encoder in FROM_FILES else [],
    output:
        card="<results>/card.json",
    log:
        "<logs>/write_card.log",
    conda:
        ENVIRONMENT
    params:
        **TEXT_PARAMS,
        code=code("write_card.py"),
        card=RUN.card.to_dict(),
    script:
        "../scripts/write_card.py"


rule write_provenance:
    input:
        models=[*PLAN.model_files(), *rules.write_card.output],
        prompts=[f"<results>/prompts/{name}.jsonl" for name in PLAN.prompt_sets],
        records=shards_of(PLAN.all_records()),
        tables=[
            *rules.summarise.output,
            *PLAN.report_files(),
            *rules.compare_published.output,
            *([GENERALITY] if CONFIG.variants else []),
            *rules.measure_total_variation.output,
            *rules.measure_ambiguity.output,
            *PLAN.quality_tables("csv"),
            *PLAN.quality_tables("images.csv"),
            *PLAN.latency_tables("csv"),
            *PLAN.latency_tables("images.safetensors"),
            *PLAN.ablation_tables("csv", "images.csv"),
            *([PREMISE] if CONFIG.premise.ks else []),
        ],
        figures=[*figure_files(), *rules.build_race.output],
        resources=PLAN.files_from_elsewhere(),
    output:
        provenance=result_table("<results>/provenance.json", "provenance", "Provenance, complete"),
        page=in_report(
            "<results>/provenance.html",
            caption="../report/provenance.rst",
            category="Overview",
            labels={"page": "Provenance"},
        ),
    log:
        "<logs>/write_provenance.log",
    conda:
        ENVIRONMENT
    resources:
        runtime=growing(60),
    params:
        code=code("write_provenance.py"),
        config=results_config(config),
    script:
        "../scripts/write_provenance.py"
