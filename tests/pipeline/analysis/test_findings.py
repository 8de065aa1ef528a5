"""Findings: the words follow the numbers, whichever way they fall."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lantern_pipeline.analysis.findings import describe_findings

SETTINGS = {"headline_prompt_set": "seen", "headline_temperature": 1.0, "bootstrap_resamples": 50}


def summary(relaxed_speedup: float = 2.5, change: float = 0.01, tv: float = 0.3) -> pd.DataFrame:
    base = {
        **{"prompt_set": "seen", "temperature": 1.0, "repeat": "s0n0", "num_images": 96, "residual": "paper"},
        **{"tokens_equal_autoregressive": 1.0, "nll": 3.5, "nll_low": 3.4, "nll_high": 3.6, "k": np.nan},
        **{"delta": np.nan, "lambda_": np.nan, "neighbours": None, "cfg_scale": 3.0, "dtype": "float32"},
        **{"prompt_accuracy_change": 0.0, "prompt_accuracy_change_low": 0.0, "prompt_accuracy_change_high": 0.0},
    }
    rows = [
        {"method": "autoregressive", "tree": None, "drafts": None, "relaxation": "none", "speedup": 1.0},
        {"method": "coupled", "tree": "chain3", "drafts": "coupled", "relaxation": "none", "speedup": 1.3},
        {
            "method": "lantern",
            "tree": "chain5",
            "drafts": "sampled",
            "relaxation": "additive",
            "speedup": relaxed_speedup,
        }
        | {"k": 20, "delta": 0.1, "neighbours": "l2_normalised", "nll": 4.2, "nll_low": 4.1, "nll_high": 4.3}
        | {"prompt_accuracy_change": change, "prompt_accuracy_change_low": change - 0.02}
        | {"prompt_accuracy_change_high": change + 0.02, "tokens_equal_autoregressive": 0.0, "tv_mean": tv},
        {"method": "bounded", "tree": "dynamic", "drafts": "top", "relaxation": "bounded", "speedup": 0.8}
        | {"k": 20, "delta": 0.1, "neighbours": "l2_normalised", "tokens_equal_autoregressive": 0.0},
    ]
    table = pd.DataFrame([{**base, "method_id": row["method"], "tv_mean": np.nan, **row} for row in rows])
    return table.assign(speedup_low=table["speedup"] - 0.1, speedup_high=table["speedup"] + 0.1)


def curves(bounded: float = 0.09, published: float = 0.3) -> pd.DataFrame:
    rules = {"sampled_paper": published, "top_children": published, "top_official": published, "bounded": bounded}
    rows = [
        {"rule": rule, "label": rule, "delta": 0.1, "tv_mean": tv, "tv_mean_low": tv - 0.01, "tv_mean_high": tv + 0.01}
        | {"tv_max": tv, "tv_share_above_delta": float(tv > 0.1), "num_nodes": 300}
        for rule, tv in rules.items()
    ]
    return pd.DataFrame(rows)


def ablation(column: str, costs: dict[str, float]) -> pd.DataFrame:
    rows = [
        {"method": "proximity", "neighbours": "l2_normalised", **{column: name}, "method_id": f"{name}{k}"}
        | {"prompt_id": f"p{p}", "num_tokens": 12, "target_forwards": 6 - k, "nll": 3 + cost * k + 0.01 * p}
        for name, cost in costs.items()
        for k in (0, 1)
        for p in range(6)
    ]
    return pd.DataFrame(rows)


def describe(**parts) -> str:
    ablations = parts.pop("ablations", {})
    tables = {"summary": summary(), "curves": curves(), **parts}
    return describe_findings(tables["summary"], tables["curves"], ablations, settings=SETTINGS, seed=0)


def test_a_clear_gain_and_its_cost():
    text = describe()
    assert "**Does relaxation buy speed?** Yes: the fastest relaxed method, LANTERN k 20, δ 0.1, runs at 2.50" in text
    assert "Slower than autoregressive decoding here: bounded k 20, δ 0.1." in text
    assert "from 3.50 to 4.20 [4.10, 4.30] nats" in text
    assert "+1.0 [-1.0, +3.0] points, which 96 prompts cannot tell from none" in text
    assert "lies 0.30 in total variation" in text


@pytest.mark.parametrize("speedup, words", [(1.35, "Perhaps: "), (1.1, "No: ")])
def test_no_clear_gain(speedup, words):
    text = describe(summary=summary(relaxed_speedup=speedup))
    assert words in text and "their intervals overlap" in text


def test_a_change_that_is_seen_is_not_excused():
    assert "cannot tell from none" not in describe(summary=summary(change=-0.05))


def test_the_bound_follows_the_curves():
    text = describe()
    assert "**Is delta a bound?** No, for the published rules." in text and "never exceeds its delta" in text
    assert "Yes, at these nodes." in describe(curves=curves(published=0.05))
    assert "EXCEEDS its delta" in describe(curves=curves(bounded=0.2))


def test_comparisons_at_equal_length_either_way():
    better = {"rules": ablation("method", {"proximity": 0.1, "lantern": 0.5})}
    worse = {"rules": ablation("method", {"proximity": 0.5, "lantern": 0.1})}
    same = {"rules": ablation("method", {"proximity": 0.3, "lantern": 0.3, "lantern_pp": 0.1})}
    assert "Yes: proximity against LANTERN's rule at 2.00 to 2.40 tokens per forward" in describe(ablations=better)
    assert "No, the other way round: proximity against LANTERN's rule" in describe(ablations=worse)
    mixed = describe(ablations=same)
    assert "(not detectably)" in mixed and "(no, the other way round)" in mixed


def test_curves_without_a_common_length_are_said_to_have_none():
    table = ablation("method", {"proximity": 0.1, "lantern": 0.5})
    table.loc[table["method"] == "lantern", "target_forwards"] = 12
    assert "Unknown: proximity against LANTERN's rule: no accepted length in common." in describe(
        ablations={"rules": table}
    )


def test_tables_of_different_prompts_are_an_error_and_no_finding():
    table = ablation("method", {"proximity": 0.1, "lantern": 0.5})
    table = table[(table["method"] != "lantern") | (table["prompt_id"] != "p0")]
    with pytest.raises(ValueError, match="compared on the same prompts only"):
        describe(ablations={"rules": table})


def test_nearest_against_random():
    text = describe(ablations={"neighbours": ablation("neighbours", {"l2_normalised": 0.1, "random": 0.4})})
    assert "**Are nearest codes better than random ones?** Yes: nearest codes against random codes" in text


def test_what_was_not_run_is_left_out():
    assert "equal accepted length" not in describe() and "random" not in describe()
