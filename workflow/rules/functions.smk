"""Functions for rules: lists of input files, outputs that the report shows, captions, and the time limit of a job."""

import json


def shards_of(files):
    """Return the paths of all shards of some files. A shard has the part of the data that one job wrote.

    Args:
        files: paths that contain {scatteritem}, which Snakemake replaces by the number of a shard.
    """
    return [shard for file in files for shard in gather.shards(file)]


def text_features_of(*prompt_sets):
    """Return the files that a job needs to encode the prompts of some prompt sets.

    They are the stored text features or the tokenizer of prompts. If the encoder needs no file, the list is empty.
    """
    files = [f"<results>/text/{name}/features-{{scatteritem}}.safetensors" for name in prompt_sets if RUN.stores_text]
    return RUN.prompt_tokenizer + gather.text_shards(files, allow_missing=True)


def caption_features_of(split):
    """Return the files that a job needs to encode the captions of a split, "train" or "val".

    They are the stored text features or the tokenizer of prompts. If the encoder needs no file, the list is empty.
    """
    file = f"<results>/captions/{split}/features-{{scatteritem}}.safetensors"
    return gather.image_shards(file) if RUN.stores_text else RUN.prompt_tokenizer


def codes_of(split):
    """Return the files with the codes of the images of a split, "train" or "val"."""
    return gather.image_shards(f"<results>/codes/{split}-{{scatteritem}}.safetensors")


def drafter_codes_of(split):
    """Return the files with the codes that a draft model is trained on.

    They are codes of the images of a split, or of images that the target model generated for its captions.
    """
    return codes_of(split) if CONFIG.drafter.codes == "images" else samples_of(split)


def samples_of(split):
    """Return the files with the codes of images that the target generated for the captions of a split."""
    file = f"<results>/samples/s{{training_seed}}/{split}-{{scatteritem}}.safetensors"
    return gather.image_shards(file, allow_missing=True)


def methods_at(wildcards):
    """Return the ids of the methods that run at the temperature of a job, which its wildcards state."""
    return PLAN.methods_at(wildcards.temperature)


def scored_methods(wildcards):
    """Return the ids of the methods whose images a job of `score_images` evaluates: every n-th of them."""
    number, total = map(int, wildcards.scatteritem.split("-of-"))
    return methods_at(wildcards)[number - 1 :: total]


def scoring_minutes(wildcards, attempt, num_methods=1):
    """Return the time limit, in minutes, of a job that evaluates the images of a prompt set.

    The number of images is doubled, because real images are evaluated, too.
    """
    return SIZES.scoring_minutes(2 * num_methods * SIZES.images_of(wildcards.prompt_set))(wildcards, attempt)


def caption_values(figure):
    """Return a function that returns what the caption of a figure states about the run, as name -> text.

    If the figure reads the summary, this is "setting" in claims.json, else `prompt_set`, `temperature` and `cfg_scale`.
    Until a rule has written claims.json, Snakemake shows TBD.
    """
    setting = {**PLAN.headline, "cfg_scale": f"{CONFIG.sampling.cfg_scale:g}"}
    return lambda wildcards, input: json.loads(Path(input.claims).read_text())["setting"] if input.claims else setting


def figure_files(endings=("png", "pdf")):
    """Return the paths of all figures, each in every format."""
    names = [f"fig_{figure.letter}_{name}" for name, figure in RUN.figures.items()]
    return expand("<results>/figures/{name}.{ending}", name=names, ending=endings)


def page_templates(*names):
    """Return the templates of an HTML page, `names` and the base template, as arguments of `code`.

    They are no inputs of the rule. Inputs would have absolute paths, which the report would show. Snakemake would also
    run the rule again after the clone is moved.
    """
    return [f"pages/{name}" for name in (*names, "page_shell.html")]


def in_report(path, **entry):
    """Return an output of a rule, marked so that the report shows it.

    Outputs of variants (repetitions of the run with some config keys changed) are not shown.
    """
    return path if RUN.is_variant else report(path, **entry)


def result_table(path, caption, title):
    """Return an output of a rule that the report lists as a table under "Results".

    Args:
        path: the table.
        caption: name of the file in workflow/report/ with its caption.
        title: title of the table in the report.
    """
    return in_report(path, caption=f"../report/{caption}.rst", category="Results", labels={"table": title})
