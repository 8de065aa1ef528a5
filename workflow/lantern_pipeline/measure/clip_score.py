"""CLIP score and Human Preference Score: how well images fit their texts, by the run's own CLIP or a published one.

Published models are open_clip's, from a local file of weights. open_clip's `create_model` without weights only warns
and goes on with random ones, which give plausible-looking scores: it is not used here. The architecture comes from
open_clip's table, every tensor from the file, and both must agree.

HPS v2.1 is the cosine of a fine-tuned ViT-H-14 (good images lie near 0.28; its authors' tables show it times 100), of
the image as it was drawn and the prompt without a prefix. Its authors compute it in half precision on a GPU; here,
float32. Source: tgxs002/HPSv2@708ffb3, hpsv2/img_score.py (conventions only).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lantern.checkpoints.native import load_weights
from lantern.io import read_json
from lantern.prompts import Prompt
from lantern_pipeline.data.image_files import NONE, Preprocessing, map_images, to_uint8
from lantern_pipeline.fetch.manifest import resource_sha256
from lantern_pipeline.measure.feature_extractors import describe_weights, read_published
from lantern_pipeline.settings.run_config import MetricChoices
from lantern_pipeline.world.clip import ClipScorer

# OpenAI trained with the fast approximation of GELU: under the name without it, the same weights score differently.
OPENAI_VIT_B_32 = "ViT-B-32-quickgelu"


class ClipScore:
    """A column of cosines between images and their prompts; `metric` is "clip" or "hps", `sha256` of the weights."""

    def __init__(
        self, scorer: ClipScorer, sha256: str | None = None, *, metric: str = "clip", column: str = "clip_score"
    ) -> None:
        self.scorer, self.sha256, self.metric, self.column = scorer, sha256, metric, column

    def describe(self) -> dict[str, str | None]:
        """Says in columns of a row what measures."""
        prefix = f', prefix "{self.scorer.prompt_prefix}"' if self.scorer.prompt_prefix else ""
        return describe_weights(self.metric, f"{self.scorer.name}{prefix}", self.sha256)

    def score(self, images: Tensor, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """Scores images (n, 3, S, S) in [-1, 1] of their prompts: column -> (n,) float32, on the CPU."""
        return {self.column: self.scorer.score(images, [prompt.text for prompt in prompts], batch_size=len(prompts))}


def load_own(metrics: MetricChoices, files: Mapping[str, str], device: torch.device | str) -> ClipScore:
    """Loads what metrics.clip: own measures with."""
    return ClipScore(ClipScorer.from_checkpoint(files["clip"], device=device), resource_sha256(files["clip"]))


def load_openai(metrics: MetricChoices, files: Mapping[str, str], device: torch.device | str) -> ClipScore:
    """Loads what metrics.clip: openai measures with."""
    published = metrics.published
    options = {"prompt_prefix": published.clip_prefix, "preprocessing": published.preprocessing}
    scorer = load_open_clip(published.clip_architecture, files["clip_weights"], **options, device=device)
    return ClipScore(scorer, resource_sha256(files["clip_weights"]))


def load_hps(metrics: MetricChoices, files: Mapping[str, str], device: torch.device | str) -> ClipScore:
    """Loads what metrics.hps measures with."""
    scorer = load_open_clip(metrics.published.hps_architecture, files["hps_weights"], device=device)
    return ClipScore(scorer, resource_sha256(files["hps_weights"]), metric="hps", column="hps")


def load_open_clip(
    architecture: str,
    path: Path | str,
    *,
    prompt_prefix: str = "",
    preprocessing: str = NONE,
    device: torch.device | str = "cpu",
) -> ClipScorer:
    """Loads a published CLIP model in float32; its scores are cosines, in [-1, 1].

    `architecture` is open_clip's name, or the path of a JSON file of the same form. `path` holds safetensors or a
    pickle of tensors, or is the manifest of a resource; OpenAI's own archive is a TorchScript program and is refused:
    open_clip's resource holds the same tensors. `prompt_prefix` is put in front of every text; `preprocessing` names a
    `Preprocessing` before the model's own scaling.
    """
    # Imported here: open_clip takes seconds to import, and only CLIP stages need it.
    from open_clip import SimpleTokenizer
    from open_clip.model import CLIP

    config = read_architecture(architecture)
    weights = read_published(path)
    model = load_weights(CLIP(**config), weights.tensors, weights.path).to(device)
    name = architecture if not architecture.endswith(".json") else Path(architecture).stem
    prepare = OpenClipInput(config["vision_cfg"]["image_size"], Preprocessing(preprocessing))
    # the byte-pair tokenizer that open_clip carries with it; longer texts are cut, the end token stays
    tokenizer = SimpleTokenizer(context_length=config["text_cfg"]["context_length"])
    return ClipScorer(model, tokenizer, prepare, name=name, prompt_prefix=prompt_prefix)


class OpenClipInput:
    """Turns images into a model's input as open_clip does with image files: 8-bit pixels, Pillow's bicubic, centre."""

    def __init__(self, image_size: int, preprocessing: Preprocessing) -> None:
        from open_clip.transform import PreprocessCfg, image_transform_v2

        self.preprocessing = preprocessing
        self.transform = image_transform_v2(PreprocessCfg(size=image_size), is_train=False)

    def __call__(self, images: Tensor) -> Tensor:
        """Prepares images (n, 3, height, width), float32 in [-1, 1]: (n, 3, S, S) float32, on their device."""
        return map_images(self.preprocessing.prepare(to_uint8(images)), self.transform)


def read_architecture(architecture: str) -> dict[str, Any]:
    """Reads the sizes of a model of the plain CLIP kind off open_clip's table, or off a JSON file of the same form."""
    from open_clip import get_model_config

    is_file = architecture.endswith(".json")
    config = read_json(architecture) if is_file else get_model_config(architecture)
    if config is None:
        raise ValueError(f"open_clip has no model {architecture!r}; OpenAI's ViT-B/32 is {OPENAI_VIT_B_32!r}")
    foreign = sorted(set(config) - {"embed_dim", "vision_cfg", "text_cfg", "quick_gelu"})
    if foreign or "timm_model_name" in config["vision_cfg"] or "hf_model_name" in config["text_cfg"]:
        raise ValueError(f"the open_clip model {architecture!r} is not of the plain CLIP kind that can be scored with")
    return config
