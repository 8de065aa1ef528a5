"""Inputs of jobs that are many files: shards of records, of codes and of text features."""


def shards_of(files):
    """Return the record files of all shards, for paths that hold {scatteritem}."""
    return [shard for file in files for shard in gather.shards(file)]


def text_features_of(*prompt_sets):
    """Return the stored text features of prompt sets, or the tokenizer's file; nothing if words are embedded."""
    files = [f"<results>/text/{name}/features-{{scatteritem}}.safetensors" for name in prompt_sets if RUN.stores_text]
    return RUN.prompt_tokenizer + [shard for file in files for shard in gather.text_shards(file)]


def caption_features_of(split):
    """Return the stored text features of the training captions of a split; else as `text_features_of`."""
    file = f"<results>/captions/{split}/features-{{scatteritem}}.safetensors"
    return gather.image_shards(file) if RUN.stores_text else RUN.prompt_tokenizer


def codes_of(split):
    """Return the codes of the source's images of a split, train or val."""
    return gather.image_shards(f"<results>/codes/{split}-{{scatteritem}}.safetensors")


def drafter_codes_of(split, training_seed):
    """Return the codes that a draft model learns from: the source's images, or images that its target generated."""
    if CONFIG.drafter.codes == "images":
        return codes_of(split)
    return gather.image_shards(f"<results>/samples/s{training_seed}/{split}-{{scatteritem}}.safetensors")
