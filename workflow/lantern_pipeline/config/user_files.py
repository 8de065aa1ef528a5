"""What a run finds on this machine, looked at before any job: a GPU, weights, a folder of images, prompt files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError, safe_open

from lantern.models.config import COMPARED_SIZES
from lantern_pipeline.config.cross_checks import metric_models_of
from lantern_pipeline.config.validate import has_gpu
from lantern_pipeline.data.model_cards import card_of
from lantern_pipeline.fetch.entries import Resource
from lantern_pipeline.settings.run_config import PromptSet, RunConfig

MAX_BYTES = 10**7  # of a prompt file that is read at once; a larger one is left to its job


def check_user_files(config: RunConfig, resources: Mapping[str, Resource], is_local: bool = True) -> None:
    """Check what would otherwise stop a job after minutes.

    Args:
        config: the checked config.
        resources: its resources, by name.
        is_local: whether jobs run on this machine.

    Raises:
        ValueError: a file or a device is wrong; names the config key.
    """
    if is_local and config.device == "cuda" and not has_gpu():
        raise ValueError("config key device must be auto or cpu on this machine, got 'cuda': it shows no GPU")
    if config.data.source == "folder" and not Path(config.data.folder or "").is_dir():
        raise ValueError(
            f"config key data.folder: {config.data.folder} is not a folder; give one of name.png and name.txt files"
        )
    checkpoints = {"tokenizer": config.tokenizer.checkpoint, "target": config.target.checkpoint}
    metric_models = {name: model.checkpoint for name, model in metric_models_of(config).items()}
    for section, checkpoint in {**checkpoints, **metric_models}.items():
        _check_weights(section, _local_path(checkpoint, resources), config)
    for name, entry in config.prompt_sets.items():
        path = _local_path(entry.file, resources)
        if path is None or entry.member or Path(path).stat().st_size > MAX_BYTES:
            continue  # no file, one to be fetched, or a published collection
        try:
            _check_prompts(Path(path), entry, config)
        except (ValueError, OSError) as error:
            raise ValueError(f"config key prompts.{name}.file: {error}") from error


def _local_path(value: str | None, resources: Mapping[str, Resource]) -> Path | str | None:
    """Return the path of a file that a config value names; None if there is none, or if it is fetched later."""
    resource = resources.get(value or "")
    return value if resource is None else resource.path


def _check_weights(section: str, path: Path | str | None, config: RunConfig) -> None:
    """Compare the sizes in the header of a file in Lantern's layout with the config's; the job compares all of them."""
    card = card_of(config)
    wanted = {**asdict(card.images), "image_size": card.images.size}
    if section == "target":
        target = card.target_config()
        wanted = {name: getattr(target, name) for name in COMPARED_SIZES}
    for name, found in _header_sizes(path).items():
        if name in wanted and found != wanted[name]:
            raise ValueError(
                f"config key {_config_key(name, config)} must be {found} with the weights {path}, got {wanted[name]}; "
                f"set it so, or set {section}.checkpoint to null to train others"
            )


def _config_key(name: str, config: RunConfig) -> str:
    """Return the config key of a size, which most often has the size's own name."""
    name = {"vocab_size": "codebook_size", "num_text_tokens": "max_tokens"}.get(name, name)
    sections = ("data", "tokenizer", "text", "target")
    return next(f"{section}.{name}" for section in sections if hasattr(getattr(config, section), name))


def _header_sizes(path: Path | str | None) -> dict[str, object]:
    """The model's config in the header of a file in our own layout; empty for other files, which their jobs look at."""
    if path is None or not Path(path).is_file():
        return {}
    try:
        with safe_open(path, framework="numpy") as file:
            return json.loads((file.metadata() or {})["lantern"])["config"]
    except (SafetensorError, OSError, ValueError, LookupError):
        return {}


def _check_prompts(path: Path, entry: PromptSet, config: RunConfig) -> None:
    """Check the prompts of a file. Importing torch takes a second, which only runs with custom prompt files spend."""
    from lantern_pipeline.data.prompt_files import load_prompt_set
    from lantern_pipeline.data.text_encoders import make_text_encoder

    prompts = load_prompt_set(path, entry, config.seed)
    if config.text.encoder in ("words", "word_ids", "classes"):  # others know every word, and cut long prompts
        encoder = make_text_encoder(config.text_settings, config.data.source)
        for prompt in prompts:
            encoder.encode([prompt.text])
