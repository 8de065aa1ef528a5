"""Helpers of the rules: paths of models, tables, features and records, by what they are of."""


def methods_at(temperature):
    """Method ids that run at a temperature (text), in the config's order."""
    return [spec.method_id for spec, found in RUNS if found == temperature]


# Paths instead of outputs by name, since the config decides whether a model is trained or converted.
TOKENIZER = stage("tokenizer", "model.safetensors")


def target_of(training_seed):
    """Target model of a training seed."""
    return stage("target", f"s{training_seed}", "model.safetensors")


def drafter_of(training_seed, num_steps=None):
    """Draft model of a training seed; with a number of training steps, the one of an ablation."""
    return stage("drafter", f"s{training_seed}" + (f"-{num_steps}steps" if num_steps else ""), "model.safetensors")


def drafter_seed(wildcards):
    """Training seed of a drafter, from a name such as s0 or s0-40steps."""
    return int(wildcards.drafter.partition("-")[0].removeprefix("s"))


def drafter_settings(wildcards):
    """Config section `drafter` of a drafter; an ablation's has a number of training steps of its own."""
    steps = wildcards.drafter.partition("-")[2].removesuffix("steps")
    return {**config["drafter"], "num_steps": int(steps), "num_epochs": None} if steps else config["drafter"]


def table_of(spec, training_seed):
    """Table of nearest codes that a method reads; no file for an exact method."""
    if spec.neighbours is None:
        return []
    return stage("codebook", table_file(spec.neighbours, training_seed))


def tables_of(specs, training_seed):
    """Tables of nearest codes that some methods read."""
    return sorted({table_of(spec, training_seed) for spec in specs if spec.neighbours})


def steps_of(ablation):
    """Numbers of training steps of the draft models that an ablation needs; None is the run's own."""
    return list(dict.fromkeys(point.drafter_steps for point in ABLATIONS[ablation]))


def text_features_of(*prompt_sets):
    """Stored text features of prompt sets; no file where words are embedded on the fly."""
    if config["text"]["encoder"] == "words":
        return []
    return [
        file
        for prompt_set in prompt_sets
        for file in gather.text_shards(stage("text", prompt_set, "features-{scatteritem}.safetensors"))
    ]


def caption_features_of(split):
    """Stored text features of the training captions of a split; no file where words are embedded on the fly."""
    if config["text"]["encoder"] == "words":
        return []
    return gather.image_shards(stage("captions", split, "features-{scatteritem}.safetensors"))


def codes_of(split):
    """Codes of the source's images of a split, train or val."""
    return gather.image_shards(stage("codes", split + "-{scatteritem}.safetensors"))


def drafter_codes_of(split, training_seed):
    """Codes that a draft model learns from: the source's images, or images that its target drew."""
    if config["drafter"]["codes"] == "images":
        return codes_of(split)
    return gather.image_shards(stage("samples", f"s{training_seed}", split + "-{scatteritem}.safetensors"))


def shards_of(prompt_set, temperature, repeat, methods=None):
    """Record files of all methods (or of some) of a prompt set at a temperature, of one repeat."""
    return [
        file
        for method in methods or methods_at(temperature)
        for file in gather.shards(
            stage("generation", method, prompt_set, f"T{temperature}", repeat, "{scatteritem}.safetensors")
        )
    ]


def headline_records():
    """Record files behind the headline numbers' pictures: the first repeat's."""
    return shards_of(**HEADLINE, repeat=REPEATS[0])


def quality_tables(ending):
    """Quality tables of all prompt sets, temperatures and repeats: "csv" (one row a method), "images.csv", ..."""
    return [
        stage("quality", f"{name}.T{temperature}.{repeat}.{ending}")
        for name in PROMPT_SETS
        for temperature in TEMPERATURES
        for repeat in REPEATS
    ]


def model_files():
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


def files_from_elsewhere():
    """Files from elsewhere that the run used: manifests, or the user's own copies."""
    sections = ["tokenizer", "target", "drafter"] + ["text"] * (config["text"]["encoder"] != "words")
    values = [config[section]["checkpoint"] for section in sections]
    values += [config["prompts"][name].get("file") for name in PROMPT_SETS]
    found = [resource_of(value, RESOURCES) for value in values if value]
    return list(dict.fromkeys([*found, *METRIC_FILES.values()]))


def figure_files():
    """All figures, each as PNG and as PDF."""
    return expand(stage("figures", "{figure}.{ending}"), figure=FIGURES, ending=["png", "pdf"])


def finding_numbers(wildcards, input):
    """Numbers that the captions interpolate: name -> text. Snakemake shows TBD while the file is still to be made."""
    return json.loads(Path(input.verdict).read_text())["numbers"]
