"""What a result was made with, and the hashes of its files. After the tables and figures, whose change makes it anew."""

from lantern.provenance import FILE_NAME, provenance_texts, publishable_config

# Read for the report's front page, as `numbers` is; a first run has none yet.
PROVENANCE = Path(stage(FILE_NAME))
config["provenance"] = provenance_texts(json.loads(PROVENANCE.read_text())) if PROVENANCE.is_file() else {}


def provenance_models():
    """Weights and tables of codes that the run made or converted, and decodes or measures with."""
    specs = [*SPECS.values(), *(point.spec for points in ABLATIONS.values() for point in points)]
    files = [TOKENIZER, *(stage(name, "model.safetensors") for name in trained_models(config["metrics"]))]
    for seed in config["repeats"]["training_seeds"]:
        files.append(target_of(seed))
        files += [drafter_of(seed)] if any(spec.drafts for spec in SPECS.values()) else []
        files += tables_of(SPECS.values(), seed)
    first = FIRST["training_seed"]
    files += [drafter_of(first, steps) for name in ABLATIONS for steps in steps_of(name)]
    return list(dict.fromkeys([*files, *tables_of(specs, first)]))


def provenance_resources():
    """Files from elsewhere that the run used: manifests, or the user's own copies."""
    values = [config[section]["checkpoint"] for section in ("tokenizer", "target", "drafter", "text")]
    values += [config["prompts"][name].get("file") for name in PROMPT_SETS]
    found = [resource_of(value, RESOURCES) for value in values if value]
    return list(dict.fromkeys([*found, *RULER_FILES.values()]))


rule write_provenance:
    input:
        models=provenance_models(),
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
            *rules.measure_law.output,
            *rules.measure_divergence.output,
            *rules.measure_ambiguity.output,
            *rules.profile_steps.output,
            *quality_tables("csv"),
            *quality_tables("images.csv"),
            *[stage("latency", f"{repeat}.csv") for repeat in REPEATS],
            *[stage("ablations", f"{name}{ending}") for name in ABLATIONS for ending in (".csv", ".images.csv")],
        ],
        figures=figure_files(),
        resources=provenance_resources(),
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
        folder=stage(),
    message:
        "Writing down what made the results"
    script:
        "../scripts/write_provenance.py"
