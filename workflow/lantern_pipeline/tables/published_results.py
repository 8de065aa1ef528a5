"""Published numbers with this run's beside them, line by line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lantern_pipeline.measure.registry import METRICS, with_ends
from lantern_pipeline.tables.summary import preferred_rows

_ABOUT = ("source", "arxiv", "grade", "gpu", "model", "dataset", "temperature", "method", "parameters", "note")


def compare_with_published(
    published: pd.DataFrame, summary: pd.DataFrame, settings: Mapping[str, Any], model: str | None
) -> pd.DataFrame:
    """Puts this run's rows of the same method beside each line of published_results.csv.

    A row belongs to a line of the same method, temperature (the headline temperature where the source gives none) and,
    where the source gives them, parameters. Several rows make several lines; none leaves this run's columns empty. Of
    every metric in the published table, `<metric>_published` stands before the run's own with its interval. `model` is
    what published tables call this run's target: numbers may be compared where `is_same_model` alone.
    """
    measures = [name for name in published.columns if name in {metric.column for metric in METRICS}]
    rows = preferred_rows(summary)
    rows = rows[rows["prompt_set"] == settings["headline_prompt_set"]]
    own = [name for name in with_ends(*measures) if name in rows]
    lines = []
    for _, line in published.iterrows():
        found = _matching(rows, line, settings["headline_temperature"])
        head = {name: line[name] for name in _ABOUT} | {f"{name}_published": line[name] for name in measures}
        head["is_same_model"] = model is not None and line["model"] == model
        lines += [head | values for values in found[["method_id", *own]].to_dict("records") or [{}]]
    order = [*_ABOUT, "is_same_model", "method_id"]
    order += [column for name in measures for column in (f"{name}_published", *with_ends(name))]
    return pd.DataFrame(lines).reindex(columns=order)


def _matching(rows: pd.DataFrame, line: pd.Series, default_temperature: float) -> pd.DataFrame:
    temperature = default_temperature if pd.isna(line["temperature"]) else line["temperature"]
    found = rows[(rows["method"] == line["method"]) & (rows["temperature"] == temperature)]
    for name, value in re.findall(r"(\w+) ([\d.]+)", "" if pd.isna(line["parameters"]) else line["parameters"]):
        found = found[np.isclose(found[name].astype(float), float(value))]
    return found
