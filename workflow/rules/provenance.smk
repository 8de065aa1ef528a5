"""What a result was made with, and the hashes of its files. After the tables and figures, whose change makes it anew."""

from lantern_pipeline.archive.provenance import FILE_NAME, provenance_texts, publishable_config

# Read for the report's front page, as `numbers` is; a first run has none yet.
PROVENANCE = Path(stage(FILE_NAME))
config["provenance"] = provenance_texts(json.loads(PROVENANCE.read_text())) if PROVENANCE.is_file() else {}


rule write_provenance:
    input:
        models=model_files(),
        prompts=[stage("prompts", f"{name}.jsonl") for name in PROMPT_SETS],
        records=[
            file
            for name in PROMPT_SETS
            for temperature in TEMPERATURES
            for repeat in REPEATS
            for file in shards_of(name, temperature, repeat)
        ],
        tables=[
            *rules.summarise.output,
            *rules.compare_published.output,
            *rules.measure_total_variation.output,
            *rules.measure_divergence.output,
            *rules.measure_ambiguity.output,
            *rules.profile_steps.output,
            *quality_tables("csv"),
            *quality_tables("images.csv"),
            *[stage("latency", f"{repeat}.csv") for repeat in REPEATS],
            *[stage("ablations", f"{name}{ending}") for name in ABLATIONS for ending in (".csv", ".images.csv")],
        ],
        figures=figure_files(),
        resources=files_from_elsewhere(),
        # Beside the files of results/<experiment>/.
        published=rules.publish_tables.output,
    output:
        report(stage(FILE_NAME), caption="../report/provenance.rst", category="Results"),
    log:
        log_of("write_provenance"),
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(60),
    params:
        code=code("write_provenance.py"),
        config=publishable_config(config),
    message:
        "Writing down what made the results"
    script:
        "../scripts/write_provenance.py"
