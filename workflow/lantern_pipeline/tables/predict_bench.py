"""Predictions of speed-ups from the step costs that `lantern bench` measured on the user's own machine.

They answer two questions without another measurement. How fast is a method at other tokens per forward pass, for
example if only random weights were timed? How fast is a method that was not timed?
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lantern.method_tables import drafts_of
from lantern.methods import MethodSpec
from lantern.tree_shapes import num_drafts
from lantern_pipeline.measure.speed import BASELINE
from lantern_pipeline.tables.markdown import text_table
from lantern_pipeline.tables.predict import check_tokens, format_range

FILE_NAME = "bench.json"
KEYS = ("model", "processor", "num_tokens", "random_weights")
ROW_KEYS = ("method", "num_drafts", "forward_s", "relative_step_cost")
NO_PARTS = ("name", "method_id", "neighbours", "is_exact")  # values of a method that do not change the cost of a step

Report = Mapping[str, Any]  # as `lantern bench --output` writes it
Row = Mapping[str, Any]  # one of its rows


@dataclass(frozen=True)
class StepCost:
    """Relative step cost of a method, as a range: time of its step divided by that of an autoregressive step.

    Attributes:
        low: lowest cost.
        high: highest cost.
        source: words that state from which measurement the range is.
    """

    low: float
    high: float
    source: str


def read_bench(path: Path) -> Report:
    """Read the file that `lantern bench --output` wrote.

    Args:
        path: the file, or its folder.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no such report, or an older version wrote it.
    """
    path = path / FILE_NAME if path.is_dir() else path
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        rows = [row for row in report["rows"] if all(key in row for key in ROW_KEYS)]
        is_complete = all(key in report for key in KEYS) and rows[0]["method"]["name"] == BASELINE
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} must be a file of lantern bench --output; measure again") from error
    if not is_complete or len(rows) < len(report["rows"]):
        raise ValueError(f"{path} must be a file of this version's lantern bench --output; measure again")
    return report


def cost_of(report: Report, spec: MethodSpec) -> StepCost:
    """Return the relative step cost of a method: a measured one, or a range between two measured methods.

    If the method itself was not measured, measured methods of its kind are used. There are two kinds: methods that need
    a draft model, and methods that need none. The range begins at the step cost of the measured method with the next
    smaller number of drafts. It ends at the step cost of the one with the next larger number. Autoregressive decoding
    counts as a method with 0 drafts.

    Args:
        report: measurements of `lantern bench`, from `read_bench`.
        spec: the method.

    Raises:
        ValueError: no measured method of the same kind has at least as many drafts.
    """
    wanted, number = _parts_of(spec.to_dict()), num_drafts(spec.tree_shape)
    rows = report["rows"][1:]
    for row in rows:
        if _parts_of(row["method"]) == wanted:
            return StepCost(*_ends(row), "measured")
    kind = "with a draft model" if spec.drafts_row.is_trained else "without a draft model"
    rows = [row for row in rows if drafts_of(row["method"]["drafts"]).is_trained == spec.drafts_row.is_trained]
    larger = [row["num_drafts"] for row in rows if row["num_drafts"] >= number]
    if not larger:
        most = max((row["num_drafts"] for row in rows), default=0)
        raise ValueError(
            f"{spec.method_id} has {number} drafts, and methods {kind} in the bench have at most {most}; measure it or "
            "a larger tree with lantern bench --methods or --trees"
        )
    above = min(larger)
    below = max((row["num_drafts"] for row in rows if row["num_drafts"] <= number), default=0)
    low = min((_ends(row)[0] for row in rows if row["num_drafts"] == below), default=1.0)
    high = max(_ends(row)[1] for row in rows if row["num_drafts"] == above)
    numbers = f"{below} and {above}" if below < above else f"{above}"
    return StepCost(min(low, high), high, f"between measured methods {kind} with {numbers} drafts")


def _parts_of(method: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in method.items() if name not in NO_PARTS and value is not None}


def _ends(row: Row) -> tuple[float, float]:
    """Return the ends of the interval of a row's relative step cost, or the value twice if there is no interval."""
    value = row["relative_step_cost"]
    low, high = (row.get(f"relative_step_cost_{end}") for end in ("low", "high"))
    return value if low is None else low, value if high is None else high


def measured_tokens(report: Report, spec: MethodSpec) -> float | None:
    """Return the tokens per forward pass that `lantern bench` measured for a method, or None if it did not."""
    if report["random_weights"]:
        return None
    wanted = _parts_of(spec.to_dict())
    return next((row["mean_accepted_length"] for row in report["rows"] if _parts_of(row["method"]) == wanted), None)


def table_of(report: Report, methods: Sequence[tuple[MethodSpec, float, str]]) -> str:
    """Write predicted times and speed-ups of several methods as a text table, autoregressive decoding first.

    Args:
        report: measurements of `lantern bench`, from `read_bench`.
        methods: for each method, (the method, tokens per forward pass, words that state where this number is from).

    Raises:
        ValueError: tokens per forward pass are below 1 or not finite, or the cost of a step cannot be predicted.
    """
    seconds = report["num_tokens"] * report["rows"][0]["forward_s"]  # of an image by autoregressive decoding
    cells = [["method", "tokens / forward", "relative step cost", "predicted seconds", "predicted speed-up"]]
    cells.append([BASELINE, "1.00", "1.00", f"{seconds:.2f}", "1.00"])
    sources = []
    for spec, tokens, source in methods:
        check_tokens(tokens)
        cost = cost_of(report, spec)
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
