"""Loading of models: by name, from the folder of a finished run, or from a transformers model.

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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lantern.api import Model
from lantern.caller import shut_out_settings
from lantern.cards.card import FILE_NAME, HubFiles, ModelCard, read_card
from lantern.cards.published import CARDS, HUB_FILES, card_of_family, published_shape
from lantern.checkpoints.decoding_models import load_heads
from lantern.checkpoints.drafter import read_draft
from lantern.checkpoints.files import PIPELINE_MODEL, WeightFile, read_weights
from lantern.checkpoints.pretrained import is_pretrained, open_pretrained, read_config
from lantern.checkpoints.target import read_target
from lantern.checkpoints.tokenizers import ImageModel, make_image_tokenizer, read_tokenizer
from lantern.decoding_state import DecodingModels
from lantern.models.adapter import adapt
from lantern.models.config import shape_fields, sides_of
from lantern.models.draft import DraftModel
from lantern.models.families import FAMILIES, altered_layer, family_named, family_of
from lantern.models.stored import read_report
from lantern.models.target import Target
from lantern.parameters import Parameter, check_sides
from lantern.sampling import SamplingConfig
from lantern.text_encoders.encoders import compare_features, make_text_encoder
from lantern.text_encoders.sources import SourceEncoder
from lantern.within_generate import sampling_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from lantern.text_encoders.tokens import TokenPromptEncoder

DTYPES = ("float32", "bfloat16", "float16")
MAX_TOKENS = 128  # default length of the longest prompt of a transformers model
SHIPPED = ("embedded", "fashion")  # models whose weights are shipped, in models/
# Folders in which the shipped files may be: the clone, and the folder of a wheel's data files.
HOMES = (Path(__file__).resolve().parents[1], Path(sys.prefix, "share", "lantern"))
_COUNT = Parameter("", "a number", 1, is_integer=True)

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
    if _is_pretrained_folder(Path(source)):
        return _load_pretrained(Path(source), given, torch_device, torch_dtype)
    # A hub id, owner/name, looks like a path.
    if not Path(source).exists() and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(source)):
        return _load_pretrained(_fetch(_files_of_repository(str(source))), given, torch_device, torch_dtype)
    card, files = _find_card(source)
    return _build(card, _locate(str(source), card, files | given), torch_device, torch_dtype)


@shut_out_settings()
def from_transformers(
    model: PreTrainedModel,
    processor: Any,
    *,
    family: str | None = None,
    grid: int | tuple[int, int] | None = None,
    max_tokens: int = MAX_TOKENS,
) -> Model:
    """Make a Lantern model from a transformers model, so that it generates images by any method.

    The method `jacobi` needs no other model, and generates the same tokens as autoregressive decoding.

    Args:
        model: model of a class in `lantern.models.families.FAMILIES`, also within the wrappers of peft and of
            torch.compile. It is not changed and stays on its device. Its head and the embedding of its codes are
            copied, so after a training step call this function again.
        processor: processor or tokenizer of the model. To edit source pictures, the processor is needed.
        family: key of FAMILIES, a transformers class together with one form of prompts. Needed only if the class has
            several families.
        grid: side of an image in codes, or (height, width), if it differs from the published one.
        max_tokens: length of the longest prompt, including the tokens around the caption. `generate` refuses longer
            prompts.

    Raises:
        ValueError: the class is unknown (the message lists the known ones), the tokenizer belongs to another model, or
            the model is in training mode or runs on several devices. Also if its image tokenizer is quantised or has an
            adapter such as LoRA, or its generation_config has a setting that changes tokens and is not supported.
    """
    max_tokens = _COUNT.check("max_tokens", max_tokens, "from_transformers")
    given = None if grid is None else check_sides("grid", grid)
    from lantern.text_encoders.tokens import TokenPromptEncoder

    model = _unwrap(model)
    family = family_named(family, type(model).__name__)
    row = FAMILIES[family]
    tokenizer = getattr(processor, "tokenizer", processor)
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ValueError(f"processor must be the model's, or its fast tokenizer, got {type(processor).__name__}")
    # Special tokens by placeholder of the form: attributes, if the class sets any, and the map, which wins. `fill_form`
    # ignores values that are no texts.
    names = {name: value for name, value in vars(tokenizer).items() if name.endswith("_token")}
    names |= {name: str(value) for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    shape = published_shape(family) if given is None else given
    small_shape = row.small_shape(shape)
    # A copy, since the encoder switches off the padding and truncation of its tokenizer.
    words = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    # The names that the image tokenizer's weights have in a file of the whole model.
    state = {f"model.vqmodel.{name}": value for name, value in _tokenizer_state(model).items()}
    image_tokenizer = make_image_tokenizer(WeightFile(Path(type(model).__name__), state), grid=sides_of(shape))
    encoder = TokenPromptEncoder(row.prompt, words, max_tokens, names=names, shape=shape, small_shape=small_shape)
    made = _adopt(model, family, encoder, image_tokenizer, shape)
    if row.takes_sources and hasattr(processor, "image_processor"):
        made.make_source_encoder = partial(SourceEncoder, model, processor)
    return made


def _unwrap(model: Any) -> Any:
    """Return the transformers model within the wrappers of torch.compile and peft. Its layers keep their adapters."""
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
    if not hasattr(model, "get_base_model"):  # a wrapper of peft has it
        return model
    if model.active_peft_config.is_prompt_learning:
        kind = model.active_peft_config.peft_type.value
        raise ValueError(f"adapters must be in layers, as LoRA's are, got {kind}, which changes the prompt; train LoRA")
    return model.get_base_model()


def _tokenizer_state(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    tokenizer = model.get_submodule("model.vqmodel")
    # The weights are copied into Lantern's own tokenizer, which would lose adapters.
    if (layer := altered_layer(tokenizer)) is not None:
        raise ValueError(
            f"the image tokenizer, model.vqmodel, must have its published layers, got {layer}; merge its adapter "
            "(merge_and_unload), or quantise the model without it: llm_int8_skip_modules=['model.vqmodel', 'lm_head']"
        )
    if any(weight.is_meta for weight in tokenizer.parameters()):
        from accelerate.utils.modeling import get_state_dict_offloaded_model  # accelerate has offloaded them

        return get_state_dict_offloaded_model(tokenizer)
    return tokenizer.state_dict()


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
    compare_features(files["target"], read_report(files["target"]), encoder_name)
    target = read_target(files["target"], config, dtype, encoder_name).to(device).prepare_for_decoding()
    models = DecodingModels(target, _read_draft(files, target, dtype))
    if "heads" in files:
        models.parts["heads"] = load_heads(files["heads"], dtype, device)
    tokenizer = read_tokenizer(files["tokenizer"], card.images).to(device)
    parts = {**card.trees, "neighbours": card.neighbours}
    family = encoder_name if encoder_name in FAMILIES else None
    return Model(models, tokenizer, encoder, SamplingConfig(**card.sampling), parts, family)


def _is_pretrained_folder(folder: Path) -> bool:
    # In a diffusers pipeline, PIPELINE_MODEL is the folder of the transformers model.
    return any((folder / place / "config.json").is_file() for place in ("", PIPELINE_MODEL))


def _load_pretrained(folder: Path, given: Mapping[str, Path], device: torch.device, dtype: torch.dtype) -> Model:
    """Load a transformers model from its folder, or from the folder of a diffusers pipeline such as GLM-Image's."""
    weights = read_weights(given.get("target", folder))
    if not is_pretrained(weights):
        raise ValueError(f"{weights.settings_path} names no class of transformers that generates images")
    if not weights.settings_path.with_name("generation_config.json").is_file():
        raise ValueError(
            f"{weights.path.parent} lacks generation_config.json, which states temperature, filters and guidance; "
            "fetch it from the model's repository"
        )
    from lantern.text_encoders.tokens import TokenPromptEncoder

    model = open_pretrained(weights, read_config(weights), dtype)
    model.to(device)  # pyright: ignore[reportArgumentType]  transformers' wrapper of `to` loses its parameters
    family = family_of(type(model).__name__)
    shape = published_shape(family)
    shapes = {"shape": shape, "small_shape": FAMILIES[family].small_shape(shape)}
    encoder = TokenPromptEncoder.of_file(family, given.get("text", folder), MAX_TOKENS, **shapes)
    of_images = read_weights(given["tokenizer"]) if "tokenizer" in given else weights
    made = _adopt(model, family, encoder, make_image_tokenizer(of_images, grid=sides_of(shape)), shape)
    made.models.draft = _read_draft(given, made.models.target, dtype)
    return made


def _read_draft(files: Mapping[str, Path], target: Target, dtype: torch.dtype) -> DraftModel | None:
    if "drafter" not in files:
        return None
    return read_draft(files["drafter"], target.config, dtype).to(target.device).prepare_for_decoding()


def _adopt(
    model: PreTrainedModel, family: str, encoder: TokenPromptEncoder, images: ImageModel, shape: tuple[int, int]
) -> Model:
    """Build a model from a transformers model in memory. The encoder is changed to refuse long prompts."""
    card = card_of_family(family)
    # A generation_config that does not set do_sample states no sampling. The published settings apply then.
    if model.generation_config.do_sample is None and card is not None:
        sampling_of(model, do_sample=True)  # refuses filters that are not supported
        sampling = SamplingConfig(**card.sampling)
    else:
        sampling = sampling_of(model)
    encoder.refuses_long = True
    sizes = shape_fields(shape, FAMILIES[family].small_shape(shape))
    target = adapt(model, family, num_text_tokens=encoder.max_tokens, **encoder.null_prompt, **sizes)
    neighbours = "l2_normalised" if card is None else card.neighbours
    parts = {"neighbours": neighbours}
    return Model(DecodingModels(target), images.to(target.device), encoder, sampling, parts, family)


def _device_of(name: str | torch.device) -> torch.device:
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    num_gpus = torch.cuda.device_count()
    if device is not None and (device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < num_gpus)):
        return device
    raise ValueError(f"device must be cpu, or cuda for one of the {num_gpus} GPUs that torch finds, got {name!r}")
