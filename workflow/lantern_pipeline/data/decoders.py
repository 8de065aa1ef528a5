"""Decoders of several methods that share their models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lantern.cards.card import SamplingSettings
from lantern.decoding import Decoder, make_decoder
from lantern.generation import load_decoding_models, load_nearest_codes
from lantern.io import read_json
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig
from lantern_pipeline.runtime.job import Job, resolve_device


def load_decoders(
    runs: Sequence[tuple[dict[str, Any], float]],
    sampling: SamplingSettings,
    *,
    target: Path | str,
    drafter: Path | str | None,
    nearest_codes: Sequence[Path | str],
    device: torch.device | str = "cpu",
    dtype: str = "float32",
    stepping: str = "auto",
    trees: Path | str | None = None,
) -> list[Decoder]:
    """Makes a decoder of every run (all fields of a `MethodSpec`, temperature) with the config section `sampling`; the
    models are read once, the tables of nearest codes as `load_tables` does, tuned trees as `resolve_tree` does.
    """
    shared = load_decoding_models(target, drafter, device=device, dtype=dtype)
    tables = load_tables(nearest_codes, device)
    decoders = []
    for method, temperature in runs:
        spec = resolve_tree(MethodSpec(**method), temperature, trees)
        models = replace(shared, nearest_codes=tables.get(spec.neighbours or ""))
        options = SamplingConfig(temperature=temperature, **sampling)
        decoders.append(make_decoder(models, spec, options, stepping=stepping))
    return decoders


def load_job_decoders(
    snakemake: Job, runs: Sequence[tuple[dict[str, Any], float]], stepping: str = "auto"
) -> list[Decoder]:
    """Make the decoders of a job from its inputs and parameters, as `load_decoders` does, on the config's device."""
    params, files = snakemake.params, snakemake.input
    return load_decoders(
        runs,
        params.sampling,
        target=files.target,
        drafter=files.drafter or None,
        nearest_codes=files.nearest_codes,
        device=resolve_device(snakemake.config["device"]),
        dtype=params.dtype,
        trees=files.get("trees") or None,
        stepping=stepping,
    )


def tuned_name(method_id: str, temperature: float) -> str:
    """How the file of tuned trees calls a method at a temperature."""
    return f"{method_id} T{temperature:g}"


def resolve_tree(spec: MethodSpec, temperature: float, trees: Path | str | None) -> MethodSpec:
    """The method with the shape of its tree: where it is tuned, the one that rule tune_tree chose and wrote into the
    file `trees`; other methods stay as they are.
    """
    if spec.tree != "tuned":
        return spec
    name = tuned_name(spec.method_id, temperature)
    found = read_json(Path(trees))["methods"] if trees else {}
    if name not in found:
        raise ValueError(
            f"{trees or 'no file of trees'} holds no tree of {name}; delete it and run rule tune_tree again"
        )
    return replace(spec, tree_shape=found[name]["tree_shape"])


def load_tables(
    paths: Path | str | Sequence[Path | str], device: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """Reads tables of nearest codes, int64 (vocab, columns); each is named after its file up to the first dot:
    "l2_normalised", "probability".
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    return {Path(path).name.partition(".")[0]: load_nearest_codes(path, device) for path in paths}
