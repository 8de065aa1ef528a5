"""Implementation of the command `lantern predict`, which predicts the speed of methods without measuring them.

The *step cost* of a method is the time of its decoding step, in steps of autoregressive decoding. Tokens per forward
pass, if they are given, are the same for all methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lantern.methods import make_method
from lantern_models.loading import find_shipped
from lantern_pipeline.cli_words import read_method
from lantern_pipeline.tables.predict import published_tokens, table_of
from lantern_pipeline.tables.predict_bench import measured_tokens, read_bench
from lantern_pipeline.tables.predict_bench import table_of as bench_table_of

RATES = Path("docs/results.csv")  # has the tokens per forward pass that this project measured
SOURCE = "the shapes dataset, docs/results.csv"


def predict_gpu(model: str, gpu: str, methods: Sequence[str], tokens_per_forward: float | None) -> str:
    """Return a table of predicted times and speed-ups on a GPU, from estimates and published step costs.

    Args:
        methods: names of presets. If empty, "jacobi" and "eagle1".
        tokens_per_forward: None for the number that docs/results.csv has for each method.
    """
    found = []
    for text in methods or ["jacobi", "eagle1"]:
        name, parts = read_method(text, "predict")
        if parts:
            raise ValueError(
                f"the estimates for a GPU know presets only, got {text!r}; leave its parameters out, or add --bench"
            )
        if tokens_per_forward is None:
            found.append((name, _published(name), SOURCE))
        else:
            found.append((name, tokens_per_forward, "given"))
    return table_of(model, gpu, found)


def predict_from_bench(path: Path, methods: Sequence[str], tokens_per_forward: float | None) -> str:
    """Return a table of predicted times and speed-ups on a machine, from step costs that were measured there.

    Args:
        path: file that `lantern bench --output` wrote, or its folder.
        methods: presets with their parameters, such as "jacobi tree=chain15". If empty, "jacobi".
        tokens_per_forward: None for the numbers in the file, or else in docs/results.csv.
    """
    report, found = read_bench(path), []
    for text in methods or ["jacobi"]:
        preset, parts = read_method(text, "predict")
        spec = make_method(preset, method_id=text, **parts)
        measured = measured_tokens(report, spec)
        if tokens_per_forward is not None:
            found.append((spec, tokens_per_forward, "given"))
        elif measured is not None:
            found.append((spec, measured, "measured by the bench"))
        # `_published` knows a preset with its own parameters only.
        elif parts:
            raise ValueError(f"the bench did not measure the tokens per forward of {text}: give --tokens-per-forward")
        else:
            found.append((spec, _published(preset), SOURCE))
    return bench_table_of(report, found)


def _published(preset: str) -> float:
    # Where the file is not shipped, the error names its path.
    return published_tokens(find_shipped(RATES) or RATES, preset)
