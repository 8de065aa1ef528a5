"""LlamaGen's named model sizes, for the config key target.size. Read while Snakemake builds the workflow: no torch."""

from __future__ import annotations

from typing import Any

# Source: FoundationVision/LlamaGen@ce98ec4, autoregressive/models/gpt.py. Released for text to image: XL. B to XXXL
# were made for classes, 1B to 7B for text.
LLAMAGEN_SIZES: dict[str, dict[str, int]] = {
    "B": {"dim": 768, "num_layers": 12, "num_heads": 12},
    "L": {"dim": 1024, "num_layers": 24, "num_heads": 16},
    "XL": {"dim": 1280, "num_layers": 36, "num_heads": 20},
    "XXL": {"dim": 1536, "num_layers": 48, "num_heads": 24},
    "XXXL": {"dim": 2560, "num_layers": 48, "num_heads": 40},
    "1B": {"dim": 2048, "num_layers": 22, "num_heads": 32},
    "3B": {"dim": 3200, "num_layers": 24, "num_heads": 32},
    "7B": {"dim": 4096, "num_layers": 32, "num_heads": 32},
}
FFN_MULTIPLE = 256  # LlamaGen rounds the width of its feed-forward part up to a multiple of this


def resolve_size(settings: dict[str, Any]) -> dict[str, Any]:
    """Puts the numbers of a named size in place of a config section's own.

    Args:
        settings: config section `target`; its key `size` may be missing or None.

    Returns:
        The section; with a size, its dim, num_layers and num_heads are LlamaGen's and ffn_multiple is set.

    Raises:
        ValueError: no such size; lists the known ones.
    """
    name = settings.get("size")
    if name is None:
        return dict(settings)
    if str(name) not in LLAMAGEN_SIZES:
        raise ValueError(f"config key target.size must be one of {', '.join(LLAMAGEN_SIZES)}, got {name!r}")
    return {**settings, **LLAMAGEN_SIZES[str(name)], "ffn_multiple": FFN_MULTIPLE}
