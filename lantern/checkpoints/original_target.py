"""What can be known of a LlamaGen target in its original file, beyond its tensors; the rest is said to be unchecked.

Stages, and models of any number of heads, have tensors of the same names and shapes.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from lantern.checkpoints.files import WeightFile, compare_with_config
from lantern.models.config import LLAMAGEN_SIZES
from lantern.models.target import TargetConfig

log = logging.getLogger(__name__)


def check_original(weights: WeightFile, expected: TargetConfig) -> None:
    """Compares stage and number of heads with the config, as far as the file tells; logs what it does not tell.

    Args:
        weights: the original file.
        expected: sizes that the config gives.

    Raises:
        ValueError: the file is of another stage, or the named size has another number of heads.
    """
    _check_stage(weights, expected)
    _check_heads(weights.path, expected)


def _check_stage(weights: WeightFile, expected: TargetConfig) -> None:
    """Stage 1 (256 pixels) and stage 2 (512) have the same tensors: only the file's name and training args tell."""
    pixels = 16 * expected.grid
    args = weights.args
    named = re.fullmatch(r"[ct]2i_.*_(256|384|512)\.pth?", weights.path.name)
    if "cls_token_num" in args:
        found = args["cls_token_num"]
        compare_with_config(weights.path, "args.cls_token_num", expected.num_text_tokens, found, "text.max_tokens")
    if "image_size" in args:
        wanted = expected.grid * args.get("downsample_size", 16)
        compare_with_config(weights.path, "args.image_size", wanted, args["image_size"], "tokenizer.grid")
    elif named and pixels in (256, 384, 512):
        compare_with_config(weights.path, "the image size in the file's name", pixels, int(named[1]), "tokenizer.grid")
    else:
        log.warning(
            "%s: neither the file's name nor its training's arguments say whether it is of stage 1 or 2; that it draws "
            "images of %d x %d tokens, as config key tokenizer.grid says, was not checked",
            weights.path,
            expected.grid,
            expected.grid,
        )


def _check_heads(path: Path, expected: TargetConfig) -> None:
    """An original file's tensors do not tell the number of heads; width and depth of a named size do."""
    for name, size in LLAMAGEN_SIZES.items():
        if (size["dim"], size["num_layers"]) != (expected.dim, expected.num_layers):
            continue
        if expected.num_heads != size["num_heads"]:
            raise ValueError(
                f"{path}: num_heads should be {size['num_heads']}, which LlamaGen-{name} has, found "
                f"{expected.num_heads} in config key target.num_heads; set target.size to {name}"
            )
        return
    log.warning(
        "%s: width %d and depth %d are of no named size of LlamaGen; the %d heads of config key target.num_heads were "
        "not checked",
        path,
        expected.dim,
        expected.num_layers,
        expected.num_heads,
    )
