"""CLIP score with a published open_clip model, by default OpenAI's ViT-B/32, from a local file of weights.

open_clip's `create_model` without weights only warns and goes on with random ones, which give plausible-looking scores:
it is not used here. The architecture comes from open_clip's table, every tensor from the file, and both must agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lantern.checkpoints.native import load_weights
from lantern.io import read_json
from lantern_pipeline.data.image_files import NONE, Preprocessing, map_images, to_uint8
from lantern_pipeline.metrics.published_weights import load_published
from lantern_pipeline.world.clip import ClipScorer

# OpenAI trained with the fast approximation of GELU: under the name without it, the same weights score differently.
OPENAI_VIT_B_32 = "ViT-B-32-quickgelu"


def load_open_clip(
    architecture: str,
    path: Path | str | None,
    *,
    prompt_prefix: str = "",
    preprocessing: str = NONE,
    device: torch.device | str = "cpu",
) -> ClipScorer:
    """Loads a published CLIP model.

    Args:
        architecture: open_clip's name, e.g. "ViT-B-32-quickgelu", or the path of a JSON file of the same form.
        path: weights: safetensors or a pickle of tensors; or the manifest of a resource. OpenAI's own archive is a
            TorchScript program and is refused; open_clip's resource holds the same tensors.
        prompt_prefix: put in front of every text, e.g. "A photo depicts ".
        preprocessing: name of a `Preprocessing`, before the model's own scaling.
        device: where to score.

    Returns:
        A scorer in float32; its scores are cosines, in [-1, 1].

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no path, an unknown architecture, or a file that does not hold exactly its weights.
    """
    if path is None:
        raise ValueError(f"{architecture} needs a file of weights: a random model's scores look plausible")
    # Imported here: open_clip takes seconds to import, and only CLIP stages need it.
    from open_clip.model import CLIP

    config = read_architecture(architecture)
    weights = load_published(path)
    model = load_weights(CLIP(**config), weights.tensors, weights.path).to(device)
    name = architecture if not architecture.endswith(".json") else Path(architecture).stem
    prepare = OpenClipInput(config["vision_cfg"]["image_size"], Preprocessing(preprocessing))
    tokenizer = _make_tokenizer(config["text_cfg"])
    return ClipScorer(model, tokenizer, prepare, name=name, prompt_prefix=prompt_prefix)


class OpenClipInput:
    """Turns images into a model's input as open_clip does with image files: 8-bit pixels, Pillow's bicubic, centre.

    Args:
        image_size: of the model's image tower, pixels.
        preprocessing: what is done before.
    """

    def __init__(self, image_size: int, preprocessing: Preprocessing) -> None:
        from open_clip.transform import PreprocessCfg, image_transform_v2

        self.preprocessing = preprocessing
        self.transform = image_transform_v2(PreprocessCfg(size=image_size), is_train=False)

    def __call__(self, images: Tensor) -> Tensor:
        """Prepares images (n, 3, height, width), float32 in [-1, 1]: (n, 3, S, S) float32, on their device."""
        return map_images(self.preprocessing.prepare(to_uint8(images)), self.transform)


def read_architecture(architecture: str) -> dict[str, Any]:
    """Reads the sizes of a model off open_clip's table, or off a JSON file of the same form.

    Raises:
        ValueError: open_clip has no such model, or it is not of the plain CLIP kind.
    """
    from open_clip import get_model_config

    is_file = architecture.endswith(".json")
    config = read_json(architecture) if is_file else get_model_config(architecture)
    if config is None:
        raise ValueError(f"open_clip has no model {architecture!r}; OpenAI's ViT-B/32 is {OPENAI_VIT_B_32!r}")
    foreign = sorted(set(config) - {"embed_dim", "vision_cfg", "text_cfg", "quick_gelu"})
    if foreign or "timm_model_name" in config["vision_cfg"] or "hf_model_name" in config["text_cfg"]:
        raise ValueError(f"the open_clip model {architecture!r} is not of the plain CLIP kind that can be scored with")
    return config


def _make_tokenizer(text: dict[str, Any]) -> Any:
    """The byte-pair tokenizer that open_clip carries with it; longer texts are cut, the end token stays."""
    from open_clip import SimpleTokenizer

    return SimpleTokenizer(context_length=text["context_length"])
