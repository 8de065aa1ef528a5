"""Rules between the keys of a configuration, which a schema cannot say.

Read while Snakemake builds the workflow: no torch here.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from lantern.methods import OFFICIAL_RESIDUALS
from lantern.models.config import OVERSHOOT
from lantern.tree_shapes import DynamicTreeOptions, JointTree, check_choices, tree_choices
from lantern_pipeline.config.methods import expand_ablations, expand_methods
from lantern_pipeline.config.prompt_counts import check_prompt_count
from lantern_pipeline.data.model_sizes import FROM_FILES, resolve_size
from lantern_pipeline.fetch.entries import check_reference, parse_entries
from lantern_pipeline.measure.registry import trained_models

if TYPE_CHECKING:
    from lantern.methods import MethodSpec
    from lantern.tree_shapes import TreeShape


def check_between_keys(config: dict[str, Any]) -> None:
    """Rules that need two keys or the table of methods."""
    _check_resources(config)
    _check_prompts(config)
    _check_sizes(config)
    _check_trees(config)
    _check_methods(config)
    _check_kept_targets(config)
    _check_source(config)
    _check_stepping(config)


def _check_prompts(config: dict[str, Any]) -> None:
    sets = {name: entry for name, entry in config["prompts"].items() if entry is not None}
    if not sets:
        raise ValueError("config key prompts must hold at least one prompt set that is not null")
    for name, entry in sets.items():
        _check_prompt_set(name, entry, config)
    for key, names in {
        "metrics.headline_prompt_set": [config["metrics"]["headline_prompt_set"]],
        "latency.prompt_sets": config["latency"]["prompt_sets"],
    }.items():
        for name in names:
            if name not in sets:
                raise ValueError(f"config key {key} names no prompt set, got {name!r}; {closest(name, list(sets))}")


def _check_prompt_set(name: str, entry: dict[str, Any], config: dict[str, Any]) -> None:
    key = f"config key prompts.{name}"
    if (entry.get("split") is None) == (entry.get("file") is None):
        raise ValueError(f"{key} must have either split or file, got {show(entry)}")
    if entry.get("split") is not None and entry.get("num") is None:
        raise ValueError(f"{key}.num is missing: how many prompts of the split are wanted")
    for option in ("member", "draw", "copies"):
        if entry.get(option) is not None and entry.get("file") is None:
            raise ValueError(f"{key}.{option} goes with a file only, got {show(entry)}")
    if entry.get("num") is not None:
        check_prompt_count(name, entry["num"] * (entry.get("copies") or 1), config["metrics"], config["figures"])


def _check_resources(config: dict[str, Any]) -> None:
    """Entries of `resources`, and every key that names one."""
    resources = parse_entries(config["resources"])
    for section in ("tokenizer", "target", "drafter", "text", *measuring_sections(config)):
        check_reference(f"{section}.checkpoint", config[section]["checkpoint"], resources)
    for name, entry in config["prompts"].items():
        check_reference(f"prompts.{name}.file", (entry or {}).get("file"), resources)
    check_reference("data.captions.file", (config["data"]["captions"] or {}).get("file"), resources)
    encoder = config["text"]["encoder"]
    if encoder in FROM_FILES and config["text"]["checkpoint"] is None:
        what = "T5's weights" if encoder == "t5" else "the target's tokenizer.json"
        raise ValueError(f"config key text.checkpoint must name {what} where text.encoder is {encoder}")
    for section in ("target", "drafter"):
        if config[section]["checkpoint"] and len(config["repeats"]["training_seeds"]) > 1:
            raise ValueError(
                f"config key repeats.training_seeds must be one seed where {section}.checkpoint is set: a finished "
                f"model has one training, got {len(config['repeats']['training_seeds'])} seeds"
            )
    if config["target"]["checkpoint"] and not config["tokenizer"]["checkpoint"]:
        raise ValueError("config key tokenizer.checkpoint is missing: a finished target speaks its own codes")
    if config["drafter"]["checkpoint"] and not config["target"]["checkpoint"]:
        raise ValueError("config key target.checkpoint is missing: a finished drafter belongs to one target")


def measuring_sections(config: dict[str, Any]) -> list[str]:
    """Sections of the measuring models that the run has; a tokenizer is trained with the attribute classifier."""
    of_training = set() if config["tokenizer"]["checkpoint"] else {"attribute_classifier"}
    return sorted(of_training.union(trained_models(config["metrics"])))


def _check_source(config: dict[str, Any]) -> None:
    """What a run may train, and which prompts it has, with the images and captions that it has."""
    source, captions = config["data"]["source"], config["data"]["captions"]
    if (source == "captions") != (captions is not None):
        raise ValueError(
            f"config key data.captions goes with data.source captions and with nothing else, got {show(captions)} and "
            f"data.source {source}"
        )
    encoder = config["text"]["encoder"]
    reads_captions = encoder in ("words", "word_ids") or (encoder == "classes" and source == "scenes")
    if not reads_captions and config["metrics"]["fidelity"] == "attribute_classifier":
        raise ValueError(
            f"config key metrics.fidelity must be inception or null where text.encoder is {encoder}: the attribute "
            "classifier compares with held-out images of the embedded world or of a folder whose captions are "
            "read word by word"
        )
    for name, entry in config["prompts"].items():
        if source == "folder" and entry and entry.get("split") == "unseen":
            raise ValueError(
                f"config key prompts.{name}.split must be seen where data.source is folder, got 'unseen': a folder "
                f"knows no combinations held out of training; set prompts.{name} to null"
            )
    if source in ("captions", "none"):
        _check_without_images(config, source)


def _check_without_images(config: dict[str, Any], source: str) -> None:
    runs = [*expand_methods(config), *(point for points in expand_ablations(config).values() for point in points)]
    has_samples = source == "captions" and config["drafter"]["codes"] == "samples"
    needs_drafter = not has_samples and any(run.spec.needs_draft_model for run in runs)
    for section in ("tokenizer", "target", *(["drafter"] if needs_drafter else [])):
        if config[section]["checkpoint"] is None:
            raise ValueError(
                f"config key {section}.checkpoint must be set: with data.source {source} there are no images to train "
                "on"
                + ("; a drafter learns from captions alone with drafter.codes samples" if section == "drafter" else "")
            )
    for name, entry in config["prompts"].items():
        if entry and entry.get("split"):
            raise ValueError(f"config key prompts.{name}.split needs images; with data.source {source}, give a file")
    if any(run.spec.neighbours == "probability" for run in runs):
        raise ValueError(f"neighbours probability needs held-out images; data.source is {source}, choose another")


def _check_sizes(config: dict[str, Any]) -> None:
    if config["data"]["source"] == "folder" and not config["data"]["folder"]:
        raise ValueError(
            "config key data.folder must name a folder of name.png and name.txt when data.source is folder"
        )
    twice_grid, codebook_size = 2 * config["tokenizer"]["grid"], config["tokenizer"]["codebook_size"]
    target, dynamic = resolve_size(config["target"]), config["draft_tree"]["dynamic"]
    drafted = dynamic["top_k"] + dynamic["depth"] * dynamic["top_k"] ** 2
    upper_bounds = {
        "codebook.num_neighbours": ("tokenizer.codebook_size - 2", codebook_size - 2),
        "total_variation.k": ("codebook.num_neighbours", config["codebook"]["num_neighbours"]),
        "drafter.num_eval": ("target.num_eval", config["target"]["num_eval"]),
        "draft_tree.dynamic.num_nodes": ("top_k + depth * top_k ** 2", drafted),
    }
    for key, (name, bound) in upper_bounds.items():
        if _get(config, key) > bound:
            raise ValueError(f"config key {key} must be at most {name} = {bound}, got {_get(config, key)}")
    if config["data"]["image_size"] % twice_grid:
        raise ValueError(
            f"config key data.image_size must be a multiple of 2 * tokenizer.grid = {twice_grid}, "
            f"got {config['data']['image_size']}"
        )
    if target["num_heads"] % (target["num_kv_heads"] or 1):
        raise ValueError(
            f"config key target.num_kv_heads must be a divisor of target.num_heads = {target['num_heads']}, or 0, got "
            f"{target['num_kv_heads']}"
        )
    if config["text"]["encoder"] == "word_ids" and config["data"]["source"] != "scenes":
        raise ValueError(
            "config key data.source must be scenes where text.encoder is word_ids: only the embedded world's words "
            f"have numbers, got {config['data']['source']!r}"
        )
    if target["dim"] % target["num_heads"]:
        raise ValueError(
            f"config key target.num_heads must be a divisor of target.dim = {target['dim']}, got {target['num_heads']}"
        )


def _check_stepping(config: dict[str, Any]) -> None:
    if config["generation"]["stepping"] == "graph" and config["device"] == "cpu":
        raise ValueError(
            "config key generation.stepping must be auto or eager where device is cpu, got 'graph': CUDA "
            "graphs need a GPU"
        )


def _get(config: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        config = config[part]
    return config


def _check_trees(config: dict[str, Any]) -> None:
    for name, choices in config["trees"].items():
        key = f"config key trees.{name}"
        if _is_known_tree(name):
            raise ValueError(f"{key}: methods know another tree by that name; choose a new one")
        try:
            check_choices(choices)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error


def _is_known_tree(name: str) -> bool:
    try:
        tree_choices(name)
    except ValueError:
        return name in ("static", "dynamic", "tuned")
    return True


def _check_methods(config: dict[str, Any]) -> None:
    """Expands the methods, which checks each of them, and compares them with other keys."""
    runs = expand_methods(config)
    _check_sizes_of_methods("methods", [run.spec for run in runs], config)
    for name, points in expand_ablations(config).items():
        _check_sizes_of_methods(f"ablations.grids.{name}", [point.spec for point in points], config)
    temperatures = sorted({run.temperature for run in runs})
    for temperature in temperatures:
        if ("autoregressive", temperature) not in {(run.spec.method_id, run.temperature) for run in runs}:
            raise ValueError(
                f"config key methods must hold the preset autoregressive at temperature {temperature:g}: "
                "every other method is compared with it"
            )
    if temperatures == [0]:
        raise ValueError(
            "config key methods must hold a method at a temperature above 0: the distribution of the emitted token is "
            "measured where tokens are sampled"
        )
    headline = config["metrics"]["headline_temperature"]
    if headline not in temperatures:
        raise ValueError(f"config key metrics.headline_temperature must be one of {temperatures}, got {headline}")
    known = [run.spec.method_id for run in runs if run.temperature == headline]
    for key in ("figures.sample_methods", "study.methods"):
        shown = [name for name in known if key != "study.methods" or name != "autoregressive"]  # beside which they are
        for name in _get(config, key) or []:
            if name not in shown:
                raise ValueError(f"config key {key} names no method that runs, got {name!r}; {closest(name, shown)}")


def _check_sizes_of_methods(key: str, specs: list[MethodSpec], config: dict[str, Any]) -> None:
    """Neighbours against their table, siblings against the codebook, depth against the rotary table."""
    columns, codebook_size = config["codebook"]["num_neighbours"], config["tokenizer"]["codebook_size"]
    for spec in specs:
        depth, width = _depth_and_width(spec.tree_shape)
        if depth > OVERSHOOT:
            raise ValueError(
                f"config key {key}: tree of {spec.method_id} must be at most {OVERSHOOT} drafts deep, got {depth}; "
                "choose a shallower tree or a shorter chain"
            )
        if width > codebook_size:
            raise ValueError(
                f"config key {key}: tree of {spec.method_id} must have at most tokenizer.codebook_size = "
                f"{codebook_size} children of a node, got {width}"
            )
        more = spec.residual in OFFICIAL_RESIDUALS  # the authors' residuals reach one code further
        if spec.k is not None and spec.k + more > columns:
            raise ValueError(
                f"config key {key}: k of {spec.method_id} must be at most codebook.num_neighbours{' - 1' * more} = "
                f"{columns - more}, got {spec.k}; raise it where the codebook is large enough"
            )


def _check_kept_targets(config: dict[str, Any]) -> None:
    """Targets kept on the way through training, and the ablations that compare them."""
    kept, last = config["target"]["kept_steps"], config["target"]["num_steps"]
    if kept and max(kept) >= last:
        raise ValueError(f"config key target.kept_steps must be below target.num_steps = {last}, got {max(kept)}")
    ablations = expand_ablations(config)
    for name, points in ablations.items():
        key = f"config key ablations.grids.{name}.target_steps"
        wanted = [point for point in points if point.target_steps is not None]
        if wanted and (checkpoint := config["target"]["checkpoint"]):
            raise ValueError(f"{key} needs a target that this run trains, got target.checkpoint {show(checkpoint)}")
        if missing := sorted({point.target_steps for point in wanted} - set(kept)):
            raise ValueError(f"{key} must be of target.kept_steps = {kept} or null, got {missing[0]}; keep it there")
        if wanted and config["drafter"]["codes"] == "samples":
            raise ValueError(
                f"{key} needs drafter.codes images, got 'samples': those are drawn by the run's own target"
            )
        if any(point.spec.neighbours == "probability" for point in wanted):
            raise ValueError(f"{key}: neighbours probability are those of the run's own target; choose others")


def _depth_and_width(shape: TreeShape | None) -> tuple[int, int]:
    """Most drafts on a path of a tree, and most children of a node."""
    if shape is None:
        return 0, 0
    if isinstance(shape, DynamicTreeOptions):
        return shape.depth + 1, shape.top_k
    paths = (*shape.jacobi, *shape.drafter) if isinstance(shape, JointTree) else shape
    return max(map(len, paths)), 1 + max(map(max, paths))


def closest(word: str, known: list[str]) -> str:
    """Returns the part of a sentence that helps with a misspelt word: the nearest known one, or all of them."""
    near = difflib.get_close_matches(str(word), known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def show(value: Any) -> str:
    """Writes a value for an error sentence, shortened."""
    text = repr(value) if isinstance(value, str) else "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
