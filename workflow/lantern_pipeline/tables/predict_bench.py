"""Predictions of speed-ups from the step costs that `lantern bench` measured on the user's own machine.

They answer two questions without another measurement. How fast is a method at other tokens per forward pass, for
example if only random weights were timed? How fast is a method that was not timed? The *kind* of a method is whether it
needs a draft model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lantern.methods import MethodSpec
from lantern.registry import drafts_of
from lantern.tree_shapes import num_drafts
from lantern_pipeline.data.tables import with_current_names
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.markdown import text_table
from lantern_pipeline.tables.predict import check_tokens, format_range

FILE_NAME = "bench.json"
# Keys that a report and each of its rows must have.
KEYS = ("model", "processor", "num_tokens", "random_weights")
ROW_KEYS = ("method", "num_drafts", "forward_s", "relative_step_cost")
NO_PARTS = ("name", "method_id", "neighbours", "is_exact")  # values of a method that do not change the cost of a step
_AGAIN = "measure again by `lantern bench MODEL --output FOLDER`"

Report = Mapping[str, Any]  # as `lantern bench --output` writes it
Row = Mapping[str, Any]  # one of its rows


@dataclass(frozen=True)
class StepCost:
    """Relative step cost of a method, as a range, and words that state from which measurement it is."""

    low: float
    high: float
    source: str


def read_bench(path: Path) -> Report:
    """Read the file that `lantern bench --output` wrote, by its path or by its folder.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no such report, or an older version wrote it.
    """
    path = path / FILE_NAME if path.is_dir() else path
    try:
        report = json.loads(with_current_names(path.read_text(encoding="utf-8")))
        rows = [row for row in report["rows"] if all(key in row for key in ROW_KEYS)]
        # The first row is the baseline, to which all costs are relative.
        is_complete = all(key in report for key in KEYS) and rows[0]["method"]["name"] == BASELINE
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} must be a file of lantern bench --output; {_AGAIN}") from error
    # A report of an older version lacks keys. Predicting from the remaining rows would be silently wrong.
    if not is_complete or len(rows) < len(report["rows"]):
        raise ValueError(f"{path} must be a file of this version's lantern bench --output; {_AGAIN}")
    return report


def cost_of(report: Report, spec: MethodSpec) -> StepCost:
    """Return the relative step cost of a method: measured, or a range between two measured methods of its kind.

    The range begins at the cost of the next smaller number of drafts and ends at that of the next larger one.

    Raises:
        ValueError: no measured method of the same kind has at least as many drafts.
    """
    wanted, number = _parts_of(spec.to_dict()), num_drafts(spec.tree_shape)
    rows = report["rows"][1:]  # without the baseline
    for row in rows:
        if _parts_of(row["method"]) == wanted:
            return StepCost(*_ends(row), "measured")
    kind = "with a draft model" if spec.drafts_row.is_trained else "without a draft model"
    rows = [row for row in rows if drafts_of(row["method"]["drafts"]).is_trained == spec.drafts_row.is_trained]
    # A step does not get cheaper with more drafts, but by how much it gets dearer is unknown: no extrapolation.
    larger = [row["num_drafts"] for row in rows if row["num_drafts"] >= number]
    if not larger:
        most = max((row["num_drafts"] for row in rows), default=0)
        raise ValueError(
            f"{spec.method_id} has {number} drafts, and methods {kind} in the bench have at most {most}; measure it or "
            "a larger tree with lantern bench --methods or --trees"
        )
    above = min(larger)
    # Autoregressive decoding has 0 drafts and cost 1, for both kinds.
    below = max((row["num_drafts"] for row in rows if row["num_drafts"] <= number), default=0)
    low = min((_ends(row)[0] for row in rows if row["num_drafts"] == below), default=1.0)
    high = max(_ends(row)[1] for row in rows if row["num_drafts"] == above)
    numbers = f"{below} and {above}" if below < above else f"{above}"
    # By noise, the smaller tree may have been slower.
    return StepCost(min(low, high), high, f"between measured methods {kind} with {numbers} drafts")


def _parts_of(method: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in method.items() if name not in NO_PARTS and value is not None}


def _ends(row: Row) -> tuple[float, float]:
    """Return the interval of a row's relative step cost, or the value twice if there is no interval."""
    value = row["relative_step_cost"]
    low, high = (row.get(f"relative_step_cost_{end}") for end in ("low", "high"))
    return value if low is None else low, value if high is None else high


def measured_tokens(report: Report, spec: MethodSpec) -> float | None:
    """Return the tokens per forward pass that `lantern bench` measured for a method, or None if it did not."""
    # Random weights have a step's cost, but accept other drafts than a trained model.
    if report["random_weights"]:
        return None
    wanted = _parts_of(spec.to_dict())
    return next((row["tokens_per_forward"] for row in report["rows"] if _parts_of(row["method"]) == wanted), None)


def table_of(report: Report, methods: Sequence[tuple[MethodSpec, float, str]]) -> str:
    """Write predicted times and speed-ups as a text table, autoregressive decoding first, then all sources.

    `methods` are (method, tokens per forward pass, words that state where this number is from).
    """
    seconds = report["num_tokens"] * report["rows"][0]["forward_s"]  # of an image by autoregressive decoding
    cells = [["method", "tokens / forward", "relative step cost", "predicted seconds", "predicted speed-up"]]
    cells.append([BASELINE, "1.00", "1.00", f"{seconds:.2f}", "1.00"])
    sources = []
    for spec, tokens, source in methods:
        check_tokens(tokens)
        cost = cost_of(report, spec)
        # speed-up = tokens per forward pass / relative step cost, lowest first
        speedup = tokens / cost.high, tokens / cost.low
        of_image = seconds / speedup[1], seconds / speedup[0]
        ranges = [format_range(bounds) for bounds in ((cost.low, cost.high), of_image, speedup)]
        cells.append([spec.method_id, f"{tokens:.2f}", *ranges])
        sources.append(f"  relative step cost of {spec.method_id}: {cost.source}")
        sources.append(f"  tokens per forward of {spec.method_id}, {tokens:.2f}: {source}")
    title = (
        f"predicted from steps measured on {report['processor']}: {report['model']}, {report['num_tokens']} tokens per "
        "image, batch 1"
    )
    return "\n".join([title, text_table(cells), "Sources:", *sources])
