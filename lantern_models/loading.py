"""`lantern.load`: models by name, from the folder of a finished run, or from that of a model of transformers.

A model has up to five files: "target", "drafter" (the draft model), "heads", "tokenizer" (the image tokenizer) and
"text" (the text encoder). A card lists them, and `_locate` fetches those that are not on this machine. A model in the
layout of transformers needs no card: its config states the sizes, its `generation_config` the sampling settings.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from lantern.api import Model, Variants
from lantern.caller import shut_out_settings
from lantern.models.draft import DraftModel
from lantern.models.target import Target
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern_models.cards.card import FILE_NAME, HubFiles, ModelCard, read_card
from lantern_models.cards.published import CARDS, HUB_FILES, published_shape
from lantern_models.checkpoints.decoding_models import load_heads
from lantern_models.checkpoints.drafter import read_draft
from lantern_models.checkpoints.image_tokenizers import make_image_tokenizer, make_tokenizer
from lantern_models.checkpoints.pretrained import open_pretrained, read_config
from lantern_models.checkpoints.target import make_target
from lantern_models.checkpoints.weight_files import PIPELINE_MODEL, find_weights, read_weights
from lantern_models.families import FAMILIES, family_of
from lantern_models.from_transformers import MAX_TOKENS, FamilyVariants, wrap
from lantern_models.sizes import sides_of
from lantern_models.text.encoders import compare_features, make_text_encoder

DTYPES = ("float32", "bfloat16", "float16")
SHIPPED = ("embedded", "fashion")  # models whose weights are shipped, in models/
# Folders in which the shipped files may be: the clone, and the folder of a wheel's data files.
HOMES = (Path(__file__).resolve().parents[1], Path(sys.prefix, "share", "lantern"))

log = logging.getLogger(__name__)


@shut_out_settings()
def load(
    source: str | Path = "embedded",
    *,
    target: str | Path | None = None,
    drafter: str | Path | None = None,
    tokenizer: str | Path | None = None,
    text: str | Path | None = None,
    device: str = "cpu",
    dtype: str = "float32",
) -> Model:
    """Load a model.

    Args:
        source: "embedded" or "fashion", the shipped models of the shapes dataset and of Fashion-MNIST. Or the name of a
            published model such as "llamagen_stage1", or the folder of a finished run of the workflow. Or the folder or
            hub id of a transformers model, such as "deepseek-community/Janus-Pro-1B".
        target: file or folder of weights that replaces the model's target.
        drafter: file or folder that replaces the draft model.
        tokenizer: file or folder that replaces the image tokenizer.
        text: folder of a T5, or a tokenizer.json, that replaces the model's text encoder.
        device: device on which to decode, "cpu" or "cuda".
        dtype: dtype of the weights, "float32", "bfloat16" or "float16". GPUs before Ampere, such as T4 and V100, have
            no bfloat16. An overflow in float16 raises a FloatingPointError in `generate`.

    Raises:
        ValueError: the name is unknown (the message lists the known ones), the device does not exist, the dtype is
            unknown, or a file is damaged or belongs to another model.
        FileNotFoundError: a file that the model needs is neither on this machine nor on the hub.
    """
    given = {"target": target, "drafter": drafter, "tokenizer": tokenizer, "text": text}
    given = {name: path for name, path in given.items() if path is not None}
    for name, path in {"source": source, **given}.items():
        if not isinstance(path, str | Path):
            raise ValueError(f"{name} must be a path, got {path!r}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    given = {name: Path(path) for name, path in given.items()}
    torch_device = _device_of(device)
    torch_dtype = getattr(torch, dtype)
    folder = Path(source)
    # A hub id, owner/name, looks like a path.
    if not folder.exists() and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(source)):
        folder = _fetch(_files_of_repository(str(source)))
    # In a diffusers pipeline, PIPELINE_MODEL is the folder of the transformers model.
    elif not any((folder / place / "config.json").is_file() for place in ("", PIPELINE_MODEL)):
        card, files = _find_card(source)
        return _build(card, _locate(str(source), card, files | given), torch_device, torch_dtype)
    return _load_pretrained(folder, given, torch_device, torch_dtype)


def find_shipped(name: str | Path) -> Path | None:
    """Return the path of a file or folder that is shipped with Lantern, such as "docs/results.csv", or None."""
    return next((home / name for home in HOMES if (home / name).exists()), None)


def _find_card(source: str | Path) -> tuple[ModelCard, dict[str, Path]]:
    """Return the card that a name or folder stands for, and the paths of those of its files that are in the folder."""
    folder = Path(source)
    if str(source) in SHIPPED:
        folder = find_shipped(Path("models", str(source))) or folder
    elif str(source) in CARDS:
        return CARDS[str(source)], {}
    if not (folder / FILE_NAME).is_file():
        raise ValueError(
            f"a model must be one of {', '.join((*SHIPPED, *CARDS))}, the folder of a finished run (with {FILE_NAME}), "
            f"or the folder or hub id of a model of transformers, got {str(source)!r}; to load your own weights, name "
            "the published model that they replace: lantern.load('llamagen_stage1', target=path, tokenizer=path)"
        )
    card = read_card(folder)
    files = {part: folder / file for part, file in card.files.items() if isinstance(file, str)}
    return card, {part: path for part, path in files.items() if path.exists()}


def _locate(source: str, card: ModelCard, files: dict[str, Path]) -> dict[str, Path]:
    """Return `files`, the paths by part, and those of the card's other files, which are downloaded."""
    found = dict(files)
    missing = {}
    for part, file in card.files.items():
        if part in files:
            continue
        try:
            # A path relative to the card names a file that is on no hub.
            if isinstance(file, str):
                raise FileNotFoundError(2, f"there is no file {file}")
            found[part] = _fetch(file)
        except FileNotFoundError as error:
            missing[part] = file
            log.warning("the %s of %s is missing: %s", part, source, error)
    # Methods that need neither a draft model nor heads work if these are missing.
    if missing.keys() - {"drafter", "heads"}:
        wanted = ", ".join(f"{part}=... ({_describe(file)})" for part, file in missing.items())
        raise FileNotFoundError(2, f"files of {source} are not here; give their paths: {wanted}")
    return found


def _files_of_repository(repo: str) -> HubFiles:
    """Return the files in a hub repository, given as owner/name, that a transformers model needs."""
    for files in HUB_FILES.values():
        # Other entries hold parts of a model, or a model in another layout.
        if files.repo == repo and any(name.endswith("tokenizer.json") for name in files.files):
            return files
    return HubFiles(repo, repo, dict.fromkeys(("*.json", "*.safetensors")))


def _describe(file: str | HubFiles) -> str:
    return file if isinstance(file, str) else f"{', '.join(file.files)} of {file.repo}"


def _fetch(wanted: HubFiles) -> Path:
    """Download files into the hub's cache, and return the path of the file, or of the folder if there are several."""
    # An index file names shards, which are in the same folder.
    shards = [name.replace(".safetensors.index.json", "-*.safetensors") for name in wanted.files]
    patterns = [*wanted.files, *shards]  # names without an index stand twice in it
    try:
        from huggingface_hub import snapshot_download  # noqa: TID251 - downloads what the user names

        folder = Path(snapshot_download(wanted.repo, revision=wanted.revision, allow_patterns=patterns))
    except (ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise FileNotFoundError(2, f"{wanted.repo} is not in the hub's cache: {reason:.200}") from error
    return folder / next(iter(wanted.files)) if len(wanted.files) == 1 else folder


def _build(card: ModelCard, files: Mapping[str, Path], device: torch.device, dtype: torch.dtype) -> Model:
    config = card.target_config()
    encoder_name = card.prompts.encoder
    shapes = {"shape": config.shape, "small_shape": config.small_shape}
    encoder = make_text_encoder(card.prompts, files.get("text"), **shapes, device=device)
    # Only tokenizers of language models know the ids of the null prompt, which the card does not state.
    config = replace(config, **getattr(encoder, "null_prompt", {}))
    weights = read_weights(files["target"])
    compare_features(weights.path, weights.report, encoder_name)
    target = make_target(weights, config, dtype, encoder_name).to(device).prepare_for_decoding()
    if find_weights(files["tokenizer"]) != weights.path:  # a file of a transformers model holds both
        weights = read_weights(files["tokenizer"])
    tokenizer = make_tokenizer(weights, card.images).to(device)
    models = DecodingModels(target, _read_draft(files, target, dtype))
    if "heads" in files:
        models.parts["heads"] = load_heads(files["heads"], dtype, device)
    parts = {**card.trees, "neighbours": card.neighbours}
    variants = FamilyVariants(encoder_name) if encoder_name in FAMILIES else Variants()
    return Model(models, tokenizer, encoder, SamplingConfig(**card.sampling), parts, variants)


def _load_pretrained(folder: Path, given: Mapping[str, Path], device: torch.device, dtype: torch.dtype) -> Model:
    """Load a transformers model from its folder, or from the folder of a diffusers pipeline such as GLM-Image's."""
    weights = read_weights(given.get("target", folder))
    if weights.layout != "transformers":
        raise ValueError(f"{weights.settings_path} names no class of transformers that generates images")
    family = family_of(cast("str", weights.model_class))
    if not weights.settings_path.with_name("generation_config.json").is_file():
        raise ValueError(
            f"{weights.path.parent} lacks generation_config.json, which states temperature, filters and guidance; "
            "fetch it from the model's repository"
        )
    from lantern_models.text.token_prompts import TokenPromptEncoder

    model = open_pretrained(weights, read_config(weights), dtype)
    model.to(device)  # pyright: ignore[reportArgumentType]  transformers' wrapper of `to` loses its parameters
    shape = published_shape(family)
    shapes = {"shape": shape, "small_shape": FAMILIES[family].small_shape(shape)}
    encoder = TokenPromptEncoder.of_file(family, given.get("text", folder), MAX_TOKENS, **shapes)
    of_images = read_weights(given["tokenizer"]) if "tokenizer" in given else weights
    made = wrap(model, family, encoder, make_image_tokenizer(of_images, grid=sides_of(shape)), shape)
    made.models.draft = _read_draft(given, made.models.target, dtype)
    return made


def _read_draft(files: Mapping[str, Path], target: Target, dtype: torch.dtype) -> DraftModel | None:
    if "drafter" not in files:
        return None
    return read_draft(files["drafter"], target.config, dtype).to(target.device).prepare_for_decoding()


def _device_of(name: str | torch.device) -> torch.device:
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    num_gpus = torch.cuda.device_count()
    if device is not None and (device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < num_gpus)):
        return device
    raise ValueError(f"device must be cpu, or cuda for one of the {num_gpus} GPUs that torch finds, got {name!r}")
