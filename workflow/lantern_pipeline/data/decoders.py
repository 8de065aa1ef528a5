"""Decoders of several methods that share their models: the target, and if needed a draft model and heads.

*Heads* are small networks that predict the target's hidden states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lantern.codebook import load_nearest_codes
from lantern.decoding import Decoder, make_decoder
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig
from lantern_models.cards.card import SamplingSettings
from lantern_models.checkpoints.decoding_models import load_decoding_models
from lantern_pipeline.job.context import Job, execution_of


def load_decoders(
    runs: Sequence[tuple[MethodSpec, float]],
    sampling: SamplingSettings,
    *,
    target: Path | str,
    drafter: Path | str | None,
    heads: Path | str | None = None,
    nearest_codes: Sequence[Path | str],
    device: torch.device | str = "cpu",
    dtype: str = "float32",
    stepping: str = "auto",
) -> list[Decoder]:
    """Load the models of a run once, and make one decoder per pair (method, temperature) of `runs`.

    Args:
        sampling: config section `sampling`.
        drafter: weights of the draft model. None if no method uses one; likewise `heads`.
        nearest_codes: files with tables of nearest codes, as in `load_tables`.
        stepping: how a decoding step runs: "auto", "eager" or "graph" (a CUDA graph).
    """
    shared = load_decoding_models(target, drafter, device=device, dtype=dtype, heads=heads)
    tables = load_tables(nearest_codes, device)
    decoders = []
    for spec, temperature in runs:
        # Of the models, only the table of nearest codes differs between methods: None if a method names none.
        models = replace(shared, nearest_codes=tables.get(spec.neighbours or ""))
        options = SamplingConfig(temperature=temperature, **sampling)
        decoders.append(make_decoder(models, spec, options, stepping=stepping))
    return decoders


def load_job_decoders(
    snakemake: Job, runs: Sequence[tuple[MethodSpec, float]], stepping: str = "auto"
) -> list[Decoder]:
    """Make the decoders of a Snakemake job from its input files and parameters, on the device that the config names."""
    params, files = snakemake.params, snakemake.input
    return load_decoders(
        runs,
        params.sampling,
        target=files.target,
        # Snakemake has an empty list for a file that the job does not need. Only some rules have the input `heads`.
        drafter=files.drafter or None,
        heads=files.get("heads") or None,
        nearest_codes=files.nearest_codes,
        device=execution_of(snakemake).device,
        dtype=params.dtype,
        stepping=stepping,
    )


def load_tables(
    paths: Path | str | Sequence[Path | str], device: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """Read tables of nearest codes, which list the most similar codes of each code.

    Returns:
        File name without suffix, such as "l2_normalised" -> table, int16 or int32 (vocab, columns).
    """
    paths = [paths] if isinstance(paths, str | Path) else paths
    return {Path(path).stem: load_nearest_codes(path, device) for path in paths}
