"""Checks whether config keys fit together, and whether they fit Lantern's methods and the files in `resources`.

Each generator is a check, which yields one sentence per error. A sentence begins with the key.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

from lantern.models.config import OVERSHOOT
from lantern.registry import RESIDUALS
from lantern.tree_shapes import DynamicTreeOptions, JointTree, check_choices, is_dynamic, tree_choices
from lantern_models.families import FAMILIES
from lantern_models.sizes import shape_of
from lantern_pipeline.data.model_cards import ENCODERS, FROM_FILES, target_fields
from lantern_pipeline.fetch.entries import check_reference, parse_entries
from lantern_pipeline.measure.registry import TRAINED, trained_models
from lantern_pipeline.plan.methods import Expansion, expand
from lantern_pipeline.schema.key_types import closest
from lantern_pipeline.schema.run_config import check_prompt_count

if TYPE_CHECKING:
    from lantern.methods import MethodSpec
    from lantern_pipeline.plan.methods import MethodRun
    from lantern_pipeline.schema.methods import AblationPoint
    from lantern_pipeline.schema.run_config import PromptSet, RunConfig

# Classes of heads -> heads.kind that trains them.
HEADS = {"lantern_methods.shift_heads:ShiftHeads": "shift", "lantern_methods.state_head:StateHead": "state"}


def check_between_keys(config: RunConfig) -> Expansion:
    """Return the methods. Raise a ValueError about the first key that does not fit other keys, methods or resources."""
    # The checks are generators, so none runs after the first error, and each may rely on those before it.
    for rule in (_resources, _prompts, _sizes, _trees):
        _refuse(rule(config))
    methods = expand(config)
    _refuse(_methods(config, *methods))
    ablated = [point.spec for points in methods.ablations.values() for point in points]
    _refuse(_source(config, [run.spec for run in methods.runs], ablated))
    _refuse(_stepping(config))
    return methods


def _refuse(problems: Iterator[str]) -> None:
    for problem in problems:
        raise ValueError(f"config key {problem}")


def _prompts(config: RunConfig) -> Iterator[str]:
    sets = config.prompt_sets
    for name, entry in sets.items():
        yield from _prompt_set(name, entry, config)
    for key, names in {
        "metrics.headline_prompt_set": [config.metrics.headline_prompt_set],
        "latency.prompt_sets": config.latency.prompt_sets,
    }.items():
        for name in names:
            if name not in sets:
                yield f"{key} names no prompt set, got {name!r}; {closest(name, list(sets))}"


def _prompt_set(name: str, entry: PromptSet, config: RunConfig) -> Iterator[str]:
    if entry.num is None:  # all prompts of a file, which the job that reads it counts
        return
    num_prompts = entry.num * (entry.copies or 1)
    check_prompt_count(name, num_prompts, config)
    # Each shard must have at least one prompt. Only T5's features are stored in shards.
    shards = {"generation": config.generation.num_shards}
    if config.text.encoder == "t5":
        shards["text"] = config.text.num_shards
    for section, num_shards in shards.items():
        if num_shards > num_prompts:
            yield f"{section}.num_shards must be at most {num_prompts}, the prompts of set {name}, got {num_shards}"


def _resources(config: RunConfig) -> Iterator[str]:
    """Check section `resources`, the keys that name its entries, and the keys that finished weights determine."""
    # `parse_entries` and `check_reference` raise their ValueError themselves.
    resources = parse_entries(config.resource_entries)
    checkpoints = {
        "tokenizer": config.tokenizer.checkpoint,
        "target": config.target.checkpoint,
        "drafter": config.drafter.checkpoint,
    }
    for section, checkpoint in {**checkpoints, "text": config.text.checkpoint, **metric_checkpoints(config)}.items():
        check_reference(f"{section}.checkpoint", checkpoint, resources)
    for name, entry in config.prompt_sets.items():
        check_reference(f"prompts.{name}.file", entry.file, resources)
    if config.data.captions:
        check_reference("data.captions.file", config.data.captions.file, resources)
    encoder = config.text.encoder
    num_seeds = len(config.repeats.training_seeds)
    if encoder not in ENCODERS:
        yield f"text.encoder must be one of {', '.join(ENCODERS)}, got {encoder!r}; {closest(encoder, list(ENCODERS))}"
    if encoder in FROM_FILES and config.text.checkpoint is None:
        what = "T5's weights" if encoder == "t5" else "the target's tokenizer.json"
        yield f"text.checkpoint must name {what} if text.encoder is {encoder}"
    for section in ("target", "drafter"):
        if checkpoints[section] and num_seeds > 1:
            yield (
                f"repeats.training_seeds must be one seed if {section}.checkpoint is set: a finished model has one "
                f"training, got {num_seeds} seeds"
            )
    if checkpoints["target"] and not checkpoints["tokenizer"]:
        yield "tokenizer.checkpoint is missing: a finished target needs its tokenizer"
    if checkpoints["drafter"] and not checkpoints["target"]:
        yield "target.checkpoint is missing: a finished drafter fits only its own target"


def metric_checkpoints(config: RunConfig) -> dict[str, str | None]:
    """Return the weights file (config key `checkpoint`) of each metric model that the run needs, by config section.

    The value is None if the run trains the model.
    """
    needed = set(trained_models(config.metrics))
    # The perceptual loss of the image tokenizer reads the features of the attribute classifier.
    if not config.tokenizer.checkpoint:
        needed.add("attribute_classifier")
    return {name: getattr(config, name).checkpoint for name in TRAINED if name in needed}


def _source(config: RunConfig, specs: list[MethodSpec], ablated: list[MethodSpec]) -> Iterator[str]:
    """Check that the images and captions of a run suffice for its training, metrics and prompt sets.

    `specs` are the methods of config key `methods`, `ablated` those of ablations.
    """
    source = config.data.source
    encoder = config.text.encoder
    # Whether the encoder reads the words of captions: "classes" does so only for the shapes dataset.
    reads_captions = encoder in ("words", "word_ids") or (encoder == "classes" and source == "scenes")
    if not reads_captions and config.metrics.fidelity == "attribute_classifier":
        yield (
            f"metrics.fidelity must be inception or null if text.encoder is {encoder}: the attribute classifier "
            "compares with held-out images of the shapes dataset or of a folder whose captions are read word by word"
        )
    if not reads_captions and config.metrics.efficientnet:
        yield (
            f"metrics.efficientnet must be false where text.encoder is {encoder}: it compares with held-out images, "
            "whose captions must be read word by word"
        )
    if config.premise.ks and (source in ("captions", "none") or not reads_captions):
        yield (
            f"premise.ks must be null where data.source is {source} and text.encoder is {encoder}: codes of held-out "
            "images are replaced, whose captions must be read word by word"
        )
    if config.premise.ks and not any(spec.needs_draft_model for spec in specs):
        yield "premise.ks must be null where no method has a draft model; add preset eagle1 to methods"
    for name, entry in config.prompt_sets.items():
        if source == "folder" and entry.split == "unseen":
            yield (
                f"prompts.{name}.split must be seen if data.source is folder, got 'unseen': a folder has no "
                f"combinations held out of training; set prompts.{name} to null"
            )
    if source in ("captions", "none"):
        yield from _without_images(config, source, [*specs, *ablated])


def _without_images(config: RunConfig, source: str, specs: list[MethodSpec]) -> Iterator[str]:
    # Images that the target generated for captions can train a draft model, but neither target nor tokenizer.
    has_samples = source == "captions" and config.drafter.codes == "samples"
    checkpoints = {"tokenizer": config.tokenizer.checkpoint, "target": config.target.checkpoint}
    if not has_samples and any(spec.needs_draft_model for spec in specs):
        checkpoints["drafter"] = config.drafter.checkpoint
    for section, checkpoint in checkpoints.items():
        if checkpoint is None:
            yield (
                f"{section}.checkpoint must be set: with data.source {source} there are no images to train on"
                + ("; drafter.codes samples needs captions only" if section == "drafter" else "")
            )
    if source == "none" and any("heads" in spec.drafts_row.trained for spec in specs):
        yield (
            "data.source must not be none if a method needs heads: the target generates their training images from "
            "captions; set it to captions, and data.captions to a file"
        )
    for name, entry in config.prompt_sets.items():
        if entry.split:
            yield f"prompts.{name}.split needs images; with data.source {source}, give a file"


def _sizes(config: RunConfig) -> Iterator[str]:
    source = config.data.source
    codebook_size = config.tokenizer.codebook_size
    target = target_fields(config)
    upper_bounds = {
        "codebook.num_neighbours": ("tokenizer.codebook_size - 1", codebook_size - 1),
        "total_variation.k": ("codebook.num_neighbours", config.codebook.num_neighbours),
        "drafter.num_eval": ("target.num_eval", config.target.num_eval),  # so many held-out images are encoded
    }
    if source != "none":  # each shard must have at least one held-out image
        upper_bounds["data.num_shards"] = ("target.num_eval", config.target.num_eval)
    for key, (name, bound) in upper_bounds.items():
        value = attrgetter(key)(config)
        if value > bound:
            yield f"{key} must be at most {name} = {bound}, got {value}"
    for k in config.premise.ks or ():
        if k > config.codebook.num_neighbours:
            yield f"premise.ks must be at most codebook.num_neighbours = {config.codebook.num_neighbours}, got {k}"
    yield from _shape(config)
    dim, num_heads, num_kv_heads = (target[name] for name in ("dim", "num_heads", "num_kv_heads"))
    # 0 key/value heads mean num_heads of them.
    if num_heads % (num_kv_heads or 1):
        yield f"target.num_kv_heads must be a divisor of target.num_heads = {num_heads}, or 0, got {num_kv_heads}"
    if dim % num_heads:
        yield f"target.num_heads must be a divisor of target.dim = {dim}, got {num_heads}"
    if config.text.encoder == "word_ids" and source not in ("scenes", "fashion"):
        yield (
            "data.source must be scenes or fashion if text.encoder is word_ids: only the words of these datasets "
            f"have numbers, got {source!r}"
        )


def _shape(config: RunConfig) -> Iterator[str]:
    """Check the height and width of images, in codes and in pixels."""
    grid, image_size = config.tokenizer.grid, config.data.image_size
    shape, pixels = shape_of(grid), shape_of(image_size)
    if shape[0] * pixels[1] != shape[1] * pixels[0]:
        yield (
            f"data.image_size must have the proportions of tokenizer.grid = {grid}, because codes are square, got "
            f"{image_size}; set both"
        )
    # The finer of the image tokenizer's two resolutions has 2 x 2 positions per code.
    if pixels[0] % (2 * shape[0]):
        twice = 2 * grid if isinstance(grid, int) else [2 * side for side in grid]
        yield f"data.image_size must be a multiple of 2 * tokenizer.grid = {twice}, got {image_size}"
    # Only published models generate other shapes: all models that the workflow trains see squares.
    if isinstance(grid, int):
        return
    if config.text.encoder not in FAMILIES:
        yield (
            f"tokenizer.grid must be an integer if text.encoder is {config.text.encoder}, got {grid}: its targets "
            "generate squares"
        )
    if config.data.source not in ("captions", "none"):
        yield (
            f"tokenizer.grid must be an integer if data.source is {config.data.source}, got {grid}: training images "
            "are squares; set data.source to captions or none"
        )
    if models := trained_models(config.metrics):
        yield (
            f"tokenizer.grid must be an integer if metrics use {' or '.join(models)}, got {grid}: these models read "
            "squares; set metrics.prompt_accuracy to false and metrics.clip to openai or null"
        )


def _stepping(config: RunConfig) -> Iterator[str]:
    if config.generation.stepping == "graph" and config.device == "cpu":
        yield "generation.stepping must be auto or eager if device is cpu, got 'graph': CUDA graphs need a GPU"


def _trees(config: RunConfig) -> Iterator[str]:
    for name, choices in config.trees.items():
        if _is_known_tree(name):
            yield f"trees.{name}: Lantern has another tree of this name; choose a new name"
        try:
            check_choices(choices)
        except ValueError as error:
            yield f"trees.{name}: {error}"


def _is_known_tree(name: str) -> bool:
    try:
        tree_choices(name)
    except ValueError:
        # words that stand for a tree but have no choices
        return name == "static" or is_dynamic(name)
    return True


def _methods(config: RunConfig, runs: list[MethodRun], ablations: dict[str, list[AblationPoint]]) -> Iterator[str]:
    """Check all methods, and keys that name a method or a temperature."""
    yield from _requirements("methods", [run.spec for run in runs], config)
    for name, points in ablations.items():
        yield from _requirements(f"ablations.grids.{name}", [point.spec for point in points], config)
    temperatures = sorted({run.temperature for run in runs})
    for temperature in temperatures:
        if ("autoregressive", temperature) not in {(run.spec.method_id, run.temperature) for run in runs}:
            yield (
                f"methods must hold the preset autoregressive at temperature {temperature:g}: every other method is "
                "compared with it"
            )
    if temperatures == [0]:
        yield (
            "methods must hold a method at a temperature above 0: the distribution of the emitted token is measured "
            "where tokens are sampled"
        )
    headline = config.metrics.headline_temperature
    if headline not in temperatures:
        yield f"metrics.headline_temperature must be one of {temperatures}, got {headline}"
    known = [run.spec.method_id for run in runs if run.temperature == headline]
    for key in ("figures.sample_methods", "study.methods"):
        # A study compares every method with autoregressive decoding, which is therefore not listed.
        shown = [name for name in known if key != "study.methods" or name != "autoregressive"]
        for name in attrgetter(key)(config) or []:
            if name not in shown:
                yield f"{key} names no method that runs, got {name!r}; {closest(name, shown)}"


def _requirements(key: str, specs: list[MethodSpec], config: RunConfig) -> Iterator[str]:
    """Check that methods fit the run's heads, nearest codes and rotary table. `key` is the methods' config key."""
    columns = config.codebook.num_neighbours
    for spec in specs:
        for name, path in spec.drafts_row.trained.items():
            kind = HEADS.get(path) if name == "heads" else None
            if kind is None:
                yield f"{key}: {spec.method_id} needs {path}, which no rule trains; generate its images in Python"
            elif config.heads.kind != kind:
                yield (
                    f"heads.kind must be {kind} for the drafts {spec.drafts} of {spec.method_id}, got "
                    f"{config.heads.kind}; methods of the two kinds need two runs"
                )
        if spec.needs_draft_model and config.target.small_grid:
            yield (
                f"{key}: {spec.method_id} needs a draft model, for which target.small_grid must be 0, got "
                f"{config.target.small_grid}; use drafts jacobi"
            )
        # Near the end of an image, drafts lie beyond its last position. The rotary table has OVERSHOOT rows there.
        if (depth := _depth(spec)) > OVERSHOOT:
            yield (
                f"{key}: tree of {spec.method_id} must be at most {OVERSHOOT} drafts deep, got {depth}; choose a "
                "shallower tree or a shorter chain"
            )
        more = RESIDUALS[spec.residual].extra_codes
        k = spec.get("k")
        if k is not None and k + more > columns:
            yield (
                f"{key}: k of {spec.method_id} must be at most codebook.num_neighbours{f' - {more}' * (more > 0)} = "
                f"{columns - more}, got {k}; raise it where the codebook is large enough"
            )


def _depth(spec: MethodSpec) -> int:
    """Return the number of drafts on the longest path of a method's draft tree; 0 if it has no tree."""
    shape = spec.tree_shape
    if isinstance(shape, DynamicTreeOptions):
        return shape.depth + 1  # the draft model runs once before `depth` further passes
    if isinstance(shape, JointTree):
        return max(map(len, (*shape.jacobi, *shape.drafter)))
    return max(map(len, shape)) if isinstance(shape, tuple) else 0
