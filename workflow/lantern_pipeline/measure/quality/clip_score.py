"""CLIP score and Human Preference Score (HPS): cosine similarities that state how well images fit their prompts.

The CLIP model is one that the run has trained, or a published one. For a published model, the architecture comes from
open_clip's table and every tensor from a local file. An error is raised if they do not fit together. open_clip's
function `create_model` is not used. If the weights are missing, it continues with random weights, whose scores look
plausible.

HPS v2.1 is the score of a fine-tuned ViT-H-14, for prompts without a prefix. Good images score near 0.28. The authors
print 100 times the score. They compute it in half precision on a GPU, and this project in float32.

Source: tgxs002/HPSv2@708ffb3, hpsv2/img_score.py (conventions only).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from lantern.io import read_json
from lantern.models.stored import load_weights
from lantern.prompts import Prompt
from lantern_pipeline.data.image_files import NONE, Preprocessing, map_images, to_uint8
from lantern_pipeline.fetch.manifest import describe_file, read_manifest, resource_sha256
from lantern_pipeline.measure.quality.feature_extractors import (
    PublishedWeights,
    describe_weights,
    read_published,
)
from lantern_pipeline.schema.run_config import MetricChoices
from lantern_pipeline.world.clip import ClipScorer, Tokenizer

# OpenAI trained with the fast approximation of GELU ("quickgelu"). Without it, the same weights score differently.
OPENAI_VIT_B_32 = "ViT-B-32-quickgelu"
# SHA-256 of the files in workflow/resources.yaml -> whether their model was trained with quick GELU
QUICK_GELU = {
    "e6d1bd7789aa45192b3bf90570a789b478bae1b74ebcce7eddd908e83a2b7c31": True,  # OpenAI's ViT-B-32
    "c57a38fb4a2f7e7c15bf00da2ea377cdf165448b4dd1052a484c215a998c9837": False,  # HPS v2.1
}


class ClipScore:
    """Metric of single images. `metric` is the prefix of the columns that identify the model, "clip" or "hps"."""

    def __init__(
        self, scorer: ClipScorer, sha256: str | None = None, *, metric: str = "clip", column: str = "clip_score"
    ) -> None:
        self.scorer, self.sha256, self.metric, self.column = scorer, sha256, metric, column

    def describe(self) -> dict[str, str | None]:
        """Return name and hash of the model, as columns of the result table."""
        prefix = f', prefix "{self.scorer.prompt_prefix}"' if self.scorer.prompt_prefix else ""
        return describe_weights(self.metric, f"{self.scorer.name}{prefix}", self.sha256)

    def count_cut(self, prompts: Sequence[Prompt]) -> dict[str, int]:
        """Return a column with the number of prompts that the model does not read to their end, and warn of them."""
        return {f"{self.metric}_num_cut": self.scorer.count_cut([prompt.text for prompt in prompts])}

    def score(self, images: Tensor, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
        """Return the column of scores, float32 (n,) on the CPU, of images (n, 3, height, width) in [-1, 1]."""
        return {self.column: self.scorer.score(images, [prompt.text for prompt in prompts], batch_size=len(prompts))}


def load_own(metrics: MetricChoices, files: Mapping[str, str], device: torch.device | str) -> ClipScore:
    """Load the CLIP model that the run has trained, for config value `metrics.clip: own`."""
    return ClipScore(ClipScorer.from_checkpoint(files["clip"], device=device), resource_sha256(files["clip"]))


def load_openai(metrics: MetricChoices, files: Mapping[str, str], device: torch.device | str) -> ClipScore:
    """Load OpenAI's CLIP model, for config value `metrics.clip: openai`."""
    published = metrics.published
    options = {"prompt_prefix": published.clip_prefix, "preprocessing": published.preprocessing}
    scorer = load_open_clip(published.clip_architecture, files["clip_weights"], **options, device=device)
    return ClipScore(scorer, resource_sha256(files["clip_weights"]))


def load_hps(metrics: MetricChoices, files: Mapping[str, str], device: torch.device | str) -> ClipScore:
    """Load the model of the Human Preference Score, for config key `metrics.hps`."""
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
    """Load a published CLIP model in float32.

    Args:
        architecture: name in open_clip's table, or path of a JSON file of the same form.
        preprocessing: name of a `Preprocessing` that crops and scales images before the model's own scaling.
    """
    # Imported here: open_clip takes seconds to import, and only CLIP stages need it.
    from open_clip import SimpleTokenizer
    from open_clip.model import CLIP

    config = read_architecture(architecture)
    # OpenAI's own file is a TorchScript program, which is refused, because loading it would run its code. open_clip
    # publishes the same tensors.
    weights = read_published(path)
    _check_gelu(architecture, bool(config.get("quick_gelu")), path, weights)
    model = load_weights(CLIP(**config), weights.tensors, weights.path).to(device)
    name = architecture if not architecture.endswith(".json") else Path(architecture).stem
    prepare = OpenClipInput(config["vision_cfg"]["image_size"], Preprocessing(preprocessing))
    # open_clip's byte-pair tokenizer cuts texts that are too long, but keeps the end token.
    tokenizer = cast("Tokenizer", SimpleTokenizer(context_length=config["text_cfg"]["context_length"]))
    return ClipScorer(model, tokenizer, prepare, name=name, prompt_prefix=prompt_prefix)


def _check_gelu(architecture: str, is_quick: bool, given: Path | str, weights: PublishedWeights) -> None:
    """Raise a ValueError if known weights were trained with the other GELU: they load, and their scores are wrong."""
    manifest = read_manifest(given)
    # For several files, `weights.sha256` is the hash of them all.
    is_alone = Path(given).is_file() and (manifest is None or len(manifest["files"]) == 1)
    sha256 = weights.sha256 if is_alone else describe_file(weights.path)["sha256"]
    # timm's repositories of OpenAI's models, of all sizes, have names that end in ".openai".
    is_openai = manifest is not None and ".openai" in manifest["source"]
    # Unknown weights are believed to fit the architecture that the config names.
    needed = QUICK_GELU.get(sha256, True if is_openai else is_quick)
    if needed != is_quick:
        raise ValueError(
            f"the weights {weights.path} were trained {'with' if needed else 'without'} quick GELU, and the "
            f"architecture {architecture!r} has {'quick' if is_quick else 'plain'} GELU, with which they score "
            f"differently; name the architecture {'with' if needed else 'without'} '-quickgelu', or set quick_gelu to "
            f"{str(needed).lower()} in its JSON file"
        )


class OpenClipInput:
    """Conversion of images to the input of a CLIP model, as open_clip converts image files."""

    def __init__(self, image_size: int, preprocessing: Preprocessing) -> None:
        from open_clip.transform import PreprocessCfg, image_transform_v2

        self.preprocessing = preprocessing
        self.transform = image_transform_v2(PreprocessCfg(size=image_size), is_train=False)

    def __call__(self, images: Tensor) -> Tensor:
        """Convert images in [-1, 1] to float32 (n, 3, S, S), where S is the image size of the model."""
        # Rounded to 8 bits, then resized by Pillow's bicubic filter and cropped: scores depend on all three.
        return map_images(self.preprocessing.prepare(to_uint8(images)), self.transform)


def read_architecture(architecture: str) -> dict[str, Any]:
    """Read the arguments of open_clip's `CLIP` from its table, or from a JSON file of the same form."""
    from open_clip import get_model_config

    is_file = architecture.endswith(".json")
    config = read_json(architecture) if is_file else get_model_config(architecture)
    if config is None:
        raise ValueError(f"open_clip has no model {architecture!r}; OpenAI's ViT-B/32 is {OPENAI_VIT_B_32!r}")
    # Models with other keys take parts of their architecture from another library, not from open_clip's table.
    foreign = sorted(set(config) - {"embed_dim", "vision_cfg", "text_cfg", "quick_gelu"})
    if foreign or "timm_model_name" in config["vision_cfg"] or "hf_model_name" in config["text_cfg"]:
        raise ValueError(
            f"the open_clip model {architecture!r} must be a plain CLIP model, without timm or Hugging Face"
        )
    return config
