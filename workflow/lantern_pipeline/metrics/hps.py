"""Human Preference Score v2.1: the cosine of a fine-tuned open_clip ViT-H-14, without the package of its authors.

The score is a cosine (good images lie near 0.28); tables of its authors show it times 100. It reads the image as it was
drawn and the prompt without a prefix. The authors' package computes it in half precision on a GPU; here, float32.

Source: tgxs002/HPSv2@708ffb3, hpsv2/img_score.py (conventions only).
"""

from __future__ import annotations

from pathlib import Path

import torch

from lantern_pipeline.metrics.clip_score import load_open_clip
from lantern_pipeline.world.clip import ClipScorer

HPS_ARCHITECTURE = "ViT-H-14"


def load_hps(
    path: Path | str | None, architecture: str = HPS_ARCHITECTURE, device: torch.device | str = "cpu"
) -> ClipScorer:
    """Loads the score from its checkpoint, e.g. HPS_v2.1_compressed.pt; see `load_open_clip`."""
    return load_open_clip(architecture, path, device=device)
