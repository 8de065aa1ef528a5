"""What a run finds on this machine, looked at before any job: a GPU, weights, a folder of images, prompt files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from lantern.models.config import COMPARED_SIZES
from lantern_pipeline.config.cross_checks import measuring_sections
from lantern_pipeline.config.validate import has_gpu
from lantern_pipeline.data.model_cards import card_of
from lantern_pipeline.fetch.entries import Resource

MAX_BYTES = 10**7  # of a prompt file that is read at once; a larger one is left to its job


def check_user_files(config: Mapping[str, Any], resources: Mapping[str, Resource], is_local: bool = True) -> None:
    """Checks what would otherwise stop a job after minutes; `is_local` says that jobs run on this machine."""
    data = config["data"]
    if is_local and config["device"] == "cuda" and not has_gpu():
        raise ValueError("config key device must be auto or cpu on this machine, got 'cuda': it shows no GPU")
    if data["source"] == "folder" and not Path(data["folder"]).is_dir():
        raise ValueError(
            f"config key data.folder: {data['folder']} is not a folder; give one of name.png and name.txt files"
        )
    for section in ("tokenizer", "target", *measuring_sections(config)):
        _check_weights(section, config, resources)
    for name, entry in config["prompts"].items():
        file = (entry or {}).get("file")
        path = resources[file].path if file in resources else file
        if path is None or entry.get("member") or Path(path).stat().st_size > MAX_BYTES:
            continue  # no file, one to be fetched, or a published collection
        try:
            _check_prompts(Path(path), entry, config)
        except (ValueError, OSError) as error:
            raise ValueError(f"config key prompts.{name}.file: {error}") from error


def _check_weights(section: str, config: Mapping[str, Any], resources: Mapping[str, Resource]) -> None:
    """Compare the sizes in the header of a file in our own layout with the config's; the job compares all of them."""
    checkpoint, card = config[section]["checkpoint"], card_of(config)
    path = resources[checkpoint].path if checkpoint in resources else checkpoint
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


def _config_key(name: str, config: Mapping[str, Any]) -> str:
    """Return the config key of a size, which most often has the size's own name."""
    name = {"vocab_size": "codebook_size", "num_text_tokens": "max_tokens"}.get(name, name)
    return next(f"{section}.{name}" for section in ("data", "tokenizer", "text", "target") if name in config[section])


def _header_sizes(path: Path | str | None) -> dict[str, Any]:
    """The model's config in the header of a file in our own layout; empty for other files, which their jobs look at."""
    if path is None or not Path(path).is_file():
        return {}
    try:
        with safe_open(path, framework="numpy") as file:
            return json.loads((file.metadata() or {})["lantern"])["config"]
    except (SafetensorError, OSError, ValueError, LookupError):
        return {}


def _check_prompts(path: Path, entry: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Imports torch, which takes a second that only runs with own prompt files spend."""
    from lantern_pipeline.data.prompt_files import load_prompt_set
    from lantern_pipeline.data.text_encoders import make_text_encoder

    prompts = load_prompt_set(path, entry, config["seed"])
    if config["text"]["encoder"] in ("words", "word_ids", "classes"):  # others know every word, and cut long prompts
        encoder = make_text_encoder(config["text"], config["data"]["source"])
        for prompt in prompts:
            encoder.check(prompt.text)
