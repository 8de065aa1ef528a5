"""Models by name or from a folder of results, with tokenizer, text encoder and settings: behind `lantern.load`."""

from __future__ import annotations

import sys
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lantern.api import Model, sampling_of
from lantern.checkpoints.drafter import read_draft
from lantern.checkpoints.files import PIPELINE_MODEL, WeightFile, read_weights
from lantern.checkpoints.native import read_report
from lantern.checkpoints.pretrained import is_pretrained, open_pretrained, read_config
from lantern.checkpoints.target import read_target
from lantern.checkpoints.tokenizers import ImageModel, make_image_tokenizer
from lantern.decoding_state import DecodingModels
from lantern.io import read_json
from lantern.models.adapter import adapt
from lantern.models.config import FFN_MULTIPLE, pick
from lantern.models.families import FAMILIES, PUBLISHED, family_named, family_of, fill_model
from lantern.models.target import TargetConfig
from lantern.models.text import TextEncoder
from lantern.sampling import SamplingConfig
from lantern_pipeline.config.validate import load_yaml
from lantern_pipeline.data.model_sizes import prompt_sizes, resolve_size
from lantern_pipeline.data.text_encoders import compare_features, make_text_encoder
from lantern_pipeline.data.token_prompts import TokenPromptEncoder, fill_form
from lantern_pipeline.fetch.entries import Resource
from lantern_pipeline.fetch.manifest import resource_path
from lantern_pipeline.world.tokenizer import read_tokenizer

WEIGHTS = Path("models/embedded")
# Of the folders that may hold config.yaml and WEIGHTS: this folder, the clone that the code is in, and what a wheel
# installs.
HOMES = (Path(), Path(__file__).resolve().parents[2], Path(sys.prefix, "share", "lantern"))
# Names, and their overlays in experiments/.
OVERLAYS = {
    "llamagen_stage1": ("llamagen_stage1",),
    "llamagen_stage2": ("llamagen_stage1", "llamagen_stage2"),
    "llamagen_c2i": ("llamagen_c2i",),
    **{name: (FAMILIES[model.family].overlay,) for name, model in PUBLISHED.items()},
}


def find_weights_home() -> Path | None:
    """The folder whose config.yaml names weights in WEIGHTS; None where there is none."""
    return next((home for home in HOMES if (home / WEIGHTS).is_dir() and (home / "config.yaml").is_file()), None)


def open_model(source: str | Path, given: Mapping[str, Path], device: torch.device, dtype: torch.dtype) -> Model:
    """See `lantern.load`; `given` are the files that the user names."""
    if any((Path(source) / place / "config.json").is_file() for place in ("", PIPELINE_MODEL)):
        return _open_folder(Path(source), given, device, dtype)
    config, files = _find(source)
    files |= given
    text = config["text"]
    needed = ("target", "tokenizer", *(["text"] if text["checkpoint"] else []))
    if missing := [name for name in needed if name not in files]:
        wanted = ", ".join(f"{name}=... ({config[name]['checkpoint']})" for name in missing)
        raise FileNotFoundError(2, f"files of {source} are not here; give their paths: {wanted}")
    encoder = _text_encoder(config, files.get("text"), device)
    settings = {"ffn_multiple": FFN_MULTIPLE, **resolve_size(config["target"]), **_codes(config)}
    sizes = pick(TargetConfig, settings, **prompt_sizes(text), **getattr(encoder, "null_prompt", {}))
    compare_features(files["target"], read_report(files["target"]), text)
    target = read_target(files["target"], sizes, dtype, text["encoder"]).to(device).prepare_for_decoding()
    models = DecodingModels(target)
    if "drafter" in files:
        models.draft = read_draft(files["drafter"], target.config, dtype).to(device).prepare_for_decoding()
    tokenizer = read_tokenizer(
        files["tokenizer"],
        image_size=config["data"]["image_size"],
        **{name: config["tokenizer"][name] for name in ("grid", "codebook_size", "code_dim")},
    )
    parts = {**config["draft_tree"], "neighbours": config["codebook"]["neighbours"]}
    return Model(models, tokenizer.to(device), encoder, SamplingConfig(**config["sampling"]), parts)


def adopt_model(model: Any, processor: Any, family: str | None, grid: int | None, max_tokens: int) -> Model:
    """See `lantern.from_transformers`."""
    family = family_named(family, type(model).__name__)
    row, tokenizer = FAMILIES[family], getattr(processor, "tokenizer", processor)
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ValueError(f"processor must be the model's, or its fast tokenizer, got {type(processor).__name__}")
    names = {name: value for name, value in vars(tokenizer).items() if name.endswith("_token")}
    names |= {name: str(value) for name, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    form = fill_form(row.prompt, names, large=grid or row.grid, small=row.target.get("small_grid", 0))
    words = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())  # a copy
    state = {f"model.vqmodel.{name}": value for name, value in model.model.vqmodel.state_dict().items()}
    if adapted := next((name for name in state if ".base_layer." in name), None):
        raise ValueError(f"an adapter on {adapted} cannot be read; merge it (merge_and_unload), or leave vqmodel out")
    if any(value.is_meta for value in state.values()):
        raise ValueError("model.vqmodel must lie on one device, got meta (offloaded); load with device_map={'': 0}")
    images = make_image_tokenizer(WeightFile(Path(type(model).__name__), state), grid=grid or row.grid)
    return _assemble(model, family, TokenPromptEncoder(form, words, max_tokens), images)


def _open_folder(folder: Path, given: Mapping[str, Path], device: torch.device, dtype: torch.dtype) -> Model:
    """A model of transformers from its folder, or from that of one of diffusers' pipelines, such as GLM-Image's."""
    weights = read_weights(given.get("target", folder))
    if not is_pretrained(weights):
        raise ValueError(f"{weights.settings_path} names no class of transformers that draws images")
    if not weights.settings_path.with_name("generation_config.json").is_file():
        raise ValueError(
            f"{weights.path.parent} lacks generation_config.json, which says temperature, filters and guidance; fetch "
            "it from the model's repository"
        )
    model = open_pretrained(weights, read_config(weights), dtype).to(device)
    family = family_of(type(model).__name__)
    row = FAMILIES[family]
    sides = {"large": row.grid, "small": row.target.get("small_grid", 0)}
    encoder = TokenPromptEncoder.of_file(family, given.get("text", folder), 128, **sides)
    images = make_image_tokenizer(read_weights(given["tokenizer"]) if "tokenizer" in given else weights, grid=row.grid)
    made = _assemble(model, family, encoder, images)
    if "drafter" in given:
        draft = read_draft(given["drafter"], made.models.target.config, dtype)
        made.models.draft = draft.to(device).prepare_for_decoding()
    return made


def _assemble(model: Any, family: str, encoder: TokenPromptEncoder, images: ImageModel) -> Model:
    """A model of transformers that samples as its generation settings say, or where they do not as its overlay."""
    sizes = {"grid": images.config.grid, "num_text_tokens": encoder.max_tokens, **encoder.null_prompt}
    sampling, home = sampling_of(model.generation_config), find_weights_home()
    overlay = home and home / "experiments" / f"{FAMILIES[family].overlay}.yaml"
    if model.generation_config.do_sample is None and overlay and overlay.is_file():
        sections = (load_yaml(file).get("sampling", {}) for file in (home / "config.yaml", overlay))
        sampling = SamplingConfig(**ChainMap(*reversed(list(sections))))
    encoder.refuses_long = True
    target = adapt(model, family, **sizes)
    return Model(DecodingModels(target), images.to(target.device), encoder, sampling, {"neighbours": "l2_normalised"})


def _find(source: str | Path) -> tuple[dict[str, Any], dict[str, Path]]:
    """Settings and files of a name or of a folder of results."""
    folder = Path(source)
    if (folder / "provenance.json").is_file():
        config = read_json(folder / "provenance.json")["config"]
        seed = config["repeats"]["training_seeds"][0]
        places = {"tokenizer": "tokenizer", "target": f"target/s{seed}", "drafter": f"drafter/s{seed}"}
        found = {name: folder / place / "model.safetensors" for name, place in places.items()}
        found = {name: path for name, path in found.items() if path.is_file()}
        return config, found | _resources(config, Path(), ("text",))
    home = find_weights_home()
    if home is None or str(source) not in ("embedded", *OVERLAYS):
        known = ", ".join(("embedded", *OVERLAYS))
        raise ValueError(
            f"a model must be one of {known}, or the folder of a finished run or of a model of transformers, got "
            f"{str(source)!r}; weights of your own are read by the name of their kind: lantern.load('llamagen_stage1', "
            "target=path, tokenizer=path)"
        )
    config = load_yaml(home / "config.yaml")
    for name in OVERLAYS.get(str(source), ()):
        overlay = load_yaml(home / "experiments" / f"{name}.yaml")
        for section in ("data", "text", "tokenizer", "target", "drafter", "codebook", "sampling", "draft_tree"):
            config[section] = {**config[section], **(overlay.get(section) or {})}
    config["model"] = str(source) if str(source) in PUBLISHED else None
    fill_model(config)
    return config, _resources(config, home, ("target", "drafter", "tokenizer", "text"))


def _resources(config: Mapping[str, Any], home: Path, sections: tuple[str, ...]) -> dict[str, Path]:
    """Of some sections the files that their checkpoint names: a path, or a resource that has been fetched."""
    found = {}
    for section in sections:
        name = config[section]["checkpoint"]
        if name is not None and (home / name).exists():
            found[section] = resource_path(home / name)
        elif name is not None and Resource(name).manifest.is_file():
            found[section] = resource_path(Resource(name).manifest)
    return found


def _codes(config: Mapping[str, Any]) -> dict[str, int]:
    num_tokens = config["tokenizer"]["codebook_size"] + (config["target"].get("line_end") is not None)
    return {"vocab_size": num_tokens, "grid": config["tokenizer"]["grid"]}


def _text_encoder(config: Mapping[str, Any], file: Path | None, device: torch.device) -> TextEncoder:
    text = {**config["text"], "grids": [config["tokenizer"]["grid"], config["target"].get("small_grid", 0)]}
    if text["encoder"] != "t5":
        return make_text_encoder(text, config["data"]["source"], [] if file is None else [str(file)])
    from lantern_pipeline.data.t5 import T5TextEncoder

    return T5TextEncoder(file, caption_dim=text["caption_dim"], max_tokens=text["max_tokens"], device=device)
