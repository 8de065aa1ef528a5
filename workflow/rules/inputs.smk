"""Functions for rules: inputs of many files, methods at a temperature, figures, and minutes of a job."""

import json


def shards_of(files):
    """Return the record files of all shards, for paths that hold {scatteritem}."""
    return [shard for file in files for shard in gather.shards(file)]


def text_features_of(*prompt_sets):
    """Return the stored text features of prompt sets, or the tokenizer's file; nothing if words are embedded."""
    files = [f"<results>/text/{name}/features-{{scatteritem}}.safetensors" for name in prompt_sets if RUN.stores_text]
    return RUN.prompt_tokenizer + gather.text_shards(files, allow_missing=True)


def caption_features_of(split):
    """Return the stored text features of the training captions of a split, or what `text_features_of` returns."""
    file = f"<results>/captions/{split}/features-{{scatteritem}}.safetensors"
    return gather.image_shards(file) if RUN.stores_text else RUN.prompt_tokenizer


def codes_of(split):
    """Return the codes of the source's images of a split, train or val."""
    return gather.image_shards(f"<results>/codes/{split}-{{scatteritem}}.safetensors")


def drafter_codes_of(split):
    """Return the codes that a draft model learns from: the source's images, or images that its target generated."""
    if CONFIG.drafter.codes == "images":
        return codes_of(split)
    file = f"<results>/samples/s{{training_seed}}/{split}-{{scatteritem}}.safetensors"
    return gather.image_shards(file, allow_missing=True)


def methods_at(wildcards):
    """Return the methods that run at a temperature."""
    return PLAN.methods_at(wildcards.temperature)


def scoring_minutes(wildcards, attempt):
    """Return the minutes of a job that scores the images of a prompt set once. The upper limits take the same time."""
    return SIZES.scoring_minutes(2 * SIZES.images_of(wildcards.prompt_set))(wildcards, attempt)


def caption_of(figure):
    """Return a function that fills in a figure's caption; Snakemake shows TBD while the claims are to be made."""
    setting = {**PLAN.headline, "cfg_scale": f"{CONFIG.sampling.cfg_scale:g}"}

    def fill(wildcards, input):
        numbers = json.loads(Path(input.claims).read_text())["setting"] if input.claims else setting
        return figure.caption.format(config=CONFIG, **numbers)

    return fill


def figure_files(endings=("png", "pdf")):
    """Return all figures, each in every format."""
    names = [f"fig_{figure.letter}_{name}" for name, figure in RUN.figures.items()]
    return expand("<results>/figures/{name}.{ending}", name=names, ending=endings)


def page_templates(page):
    """Return the templates of a page, for `code`.

    As inputs they would have an absolute path, which the report shows and which makes the page again in a clone that
    was moved.
    """
    return [f"pages/{name}.html" for name in (page, "page_shell")]
