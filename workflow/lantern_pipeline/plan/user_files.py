"""Checks, before the first job starts, that the files and devices named in the config exist and fit the config.

Otherwise a missing file would stop a job after minutes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError, safe_open

from lantern_models.cards.card import ModelCard
from lantern_models.sizes import COMPARED_SIZES, shape_of, sides_of
from lantern_pipeline.data.fashion_files import find_fashion
from lantern_pipeline.data.model_cards import sides_in_config
from lantern_pipeline.fetch.entries import Resource
from lantern_pipeline.plan.cross_checks import metric_checkpoints
from lantern_pipeline.plan.validate import has_gpu
from lantern_pipeline.schema.run_config import PromptSet, RunConfig

MAX_BYTES = 10**7  # largest prompt file that is checked here; a larger one is checked by its job


def check_user_files(
    config: RunConfig, card: ModelCard, resources: Mapping[str, Resource], is_local: bool = True
) -> None:
    """Raise a ValueError if a device is missing, or a file is missing or does not fit the config.

    Args:
        resources: name -> entry of config section `resources`.
        is_local: whether jobs run on this machine, which must then have the device.
    """
    if is_local and config.device == "cuda" and not has_gpu():
        raise ValueError("config key device must be auto or cpu on this machine, got 'cuda': it has no GPU")
    if config.data.source == "folder" and not Path(config.data.folder or "").is_dir():
        raise ValueError(
            f"config key data.folder: {config.data.folder} is not a folder; give one that holds images and, beside "
            "each, its caption, such as cat.png and cat.txt"
        )
    if config.data.source == "fashion":
        find_fashion(config.data.folder)
    checkpoints = {"tokenizer": config.tokenizer.checkpoint, "target": config.target.checkpoint}
    for section, checkpoint in {**checkpoints, **metric_checkpoints(config)}.items():
        _check_weights(section, _local_path(checkpoint, resources), config, card)
    for name, entry in config.prompt_sets.items():
        path = _local_path(entry.file, resources)
        if path is None or entry.member or Path(path).stat().st_size > MAX_BYTES:
            continue  # nothing to check, or only its job can check it
        try:
            _check_prompts(Path(path), entry, config)
        except (ValueError, OSError) as error:
            raise ValueError(f"config key prompts.{name}.file: {error}") from error


def _local_path(value: str | None, resources: Mapping[str, Resource]) -> Path | str | None:
    """Return the path of a file that a config value names; None if there is none on this machine yet."""
    resource = resources.get(value or "")
    return value if resource is None else resource.path


def _check_weights(section: str, path: Path | str | None, config: RunConfig, card: ModelCard) -> None:
    """Raise a ValueError if a size in the header of a weights file differs from the config."""
    wanted = {**asdict(card.images), "image_size": config.data.image_size}
    if section == "target":
        target = card.target_config()
        wanted = {name: getattr(target, name) for name in COMPARED_SIZES}
    wanted["grid"] = config.tokenizer.grid  # in the form that `_header_sizes` gives to a header's grid
    # Sizes of other layouts are not known here. The job that uses such a file compares them.
    for name, found in _header_sizes(path).items():
        if name in wanted and found != wanted[name]:
            raise ValueError(
                f"config key {_config_key(name, config)} must be {found} with the weights {path}, got {wanted[name]}; "
                f"set it so, or set {section}.checkpoint to null to train others"
            )


def _config_key(name: str, config: RunConfig) -> str:
    """Return the config key of a size in a header: "num_layers" gives "target.num_layers"."""
    name = {"vocab_size": "codebook_size", "num_text_tokens": "max_tokens"}.get(name, name)
    sections = ("data", "tokenizer", "text", "target")
    return next(f"{section}.{name}" for section in sections if hasattr(getattr(config, section), name))


def _header_sizes(path: Path | str | None) -> dict[str, object]:
    """Return the sizes in the header of a file in Lantern's layout; an empty dict for any other file."""
    if path is None or not Path(path).is_file():
        return {}
    try:
        with safe_open(path, framework="numpy") as file:
            sizes = json.loads((file.metadata() or {})["lantern"])["config"]
    except (SafetensorError, OSError, ValueError, LookupError):
        return {}
    if "grid" in sizes:
        height, width = shape_of(sizes["grid"])
        shape = height, sizes.get("columns") or width  # a target states its width in a separate field
        sizes["grid"] = sides_in_config(sides_of(shape))  # in the form of the config
    return sizes


def _check_prompts(path: Path, entry: PromptSet, config: RunConfig) -> None:
    """Raise a ValueError if a prompt file cannot be read, or if the text encoder refuses a prompt."""
    # These modules import torch, which takes a second. Only runs with prompt files of the user need them.
    from lantern_pipeline.data.prompt_files import load_prompt_set
    from lantern_pipeline.data.text_encoders import make_text_encoder

    prompts = load_prompt_set(path, entry, config.seed)
    # Other encoders accept every word and truncate long prompts.
    if config.text.encoder in ("words", "word_ids", "classes"):
        encoder = make_text_encoder(config.text_settings, config.data.source)
        for prompt in prompts:
            encoder.encode([prompt.text])
