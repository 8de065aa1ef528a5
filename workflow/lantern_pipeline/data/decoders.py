"""Decoders of several methods that share their models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lantern.decoding import Decoder
from lantern.generation import load_decoding_models, load_nearest_codes
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig


def load_decoders(
    runs: Sequence[tuple[dict[str, Any], float]],
    sampling: dict[str, Any],
    *,
    target: Path | str,
    drafter: Path | str | None,
    nearest_codes: Sequence[Path | str],
    device: torch.device | str = "cpu",
    dtype: str = "float32",
) -> list[Decoder]:
    """Makes a decoder of every run (all fields of a `MethodSpec`, temperature) with the config section `sampling`; the
    models are read once, the tables of nearest codes as `load_tables` does.
    """
    shared = load_decoding_models(target, drafter, device=device, dtype=dtype)
    tables = load_tables(nearest_codes, device)
    decoders = []
    for method, temperature in runs:
        spec = MethodSpec(**method)
        models = replace(shared, nearest_codes=tables.get(spec.neighbours))
        decoders.append(Decoder(models, spec, SamplingConfig(temperature=temperature, **sampling)))
    return decoders


def load_tables(
    paths: Path | str | Sequence[Path | str], device: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """Reads tables of nearest codes, int64 (vocab, columns); each is named after its file up to the first dot:
    "l2_normalised", "probability".
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    return {Path(path).name.partition(".")[0]: load_nearest_codes(path, device) for path in paths}
