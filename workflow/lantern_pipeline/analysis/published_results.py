"""Published numbers with this run's beside them, line by line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lantern_pipeline.analysis.summary import preferred_rows

MEASURES = ("speedup", "mean_accepted_length", "fid", "clip_score")
_ABOUT = ("source", "arxiv", "grade", "gpu", "model", "dataset", "temperature", "method", "parameters", "note")


def compare_with_published(
    published: pd.DataFrame, summary: pd.DataFrame, settings: Mapping[str, Any], model: str | None
) -> pd.DataFrame:
    """Puts this run's rows of the same method beside each published number.

    A row of the run belongs to a published one of the same method, temperature (the headline temperature where the
    source gives none) and, where the source gives them, parameters. Several rows make several lines; none leaves this
    run's columns empty.

    Args:
        published: figures/published_results.csv.
        summary: table of results.
        settings: config section `metrics`: headline prompt set and temperature.
        model: what published tables call this run's target; None where it stands in none.

    Returns:
        The published columns, `<measure>_published` and `<measure>` with its interval for each of MEASURES, `method_id`
        of this run's row, and `is_same_model`: only then may the numbers be compared at all.
    """
    rows = preferred_rows(summary)
    rows = rows[rows["prompt_set"] == settings["headline_prompt_set"]]
    lines = []
    for _, line in published.iterrows():
        found = _matching(rows, line, settings["headline_temperature"])
        head = {name: line[name] for name in _ABOUT} | {f"{name}_published": line[name] for name in MEASURES}
        head["is_same_model"] = model is not None and line["model"] == model
        own = found[["method_id", *_with_intervals(found)]].to_dict("records") or [{}]
        lines += [head | values for values in own]
    frame = pd.DataFrame(lines)
    order = [*_ABOUT, "is_same_model", "method_id"]
    for name in MEASURES:
        order += [f"{name}_published", name, f"{name}_low", f"{name}_high"]
    return frame.reindex(columns=order)


def _matching(rows: pd.DataFrame, line: pd.Series, default_temperature: float) -> pd.DataFrame:
    temperature = default_temperature if pd.isna(line["temperature"]) else line["temperature"]
    found = rows[(rows["method"] == line["method"]) & (rows["temperature"] == temperature)]
    for name, value in re.findall(r"(\w+) ([\d.]+)", "" if pd.isna(line["parameters"]) else line["parameters"]):
        found = found[np.isclose(found[name].astype(float), float(value))]
    return found


def _with_intervals(rows: pd.DataFrame) -> list[str]:
    names = [f"{measure}{end}" for measure in MEASURES for end in ("", "_low", "_high")]
    return [name for name in names if name in rows]
