"""Published numbers beside a run's."""

import pandas as pd

from conftest import ROOT
from lantern_pipeline.tables.published_results import compare_with_published

SETTINGS = {"headline_prompt_set": "coco", "headline_temperature": 1.0}
PUBLISHED = pd.read_csv(ROOT / "workflow/lantern_pipeline/tables/published_results.csv")


def summary():
    """LANTERN at two deltas, EAGLE-2 at two temperatures, and another prompt set."""
    rows = [
        ("lantern-a", "lantern", 0.3, 1.0, "coco", 1.5),
        ("lantern-b", "lantern", 0.4, 1.0, "coco", 1.7),
        ("eagle2", "eagle2", None, 1.0, "coco", 0.9),
        ("eagle2", "eagle2", None, 0.0, "coco", 1.2),
        ("eagle2", "eagle2", None, 1.0, "parti", 9.0),
    ]
    frame = pd.DataFrame(rows, columns=["method_id", "method", "delta", "temperature", "prompt_set", "speedup"])
    return frame.assign(repeat="s0n0", speedup_low=frame["speedup"] - 0.1, fid=20.0, omega=None)


def line(table, source, method, **more):
    found = table[(table["source"] == source) & (table["method"] == method)]
    for name, value in more.items():
        found = found[found[name] == value]
    return found


def test_rows_meet_by_method_temperature_and_parameters():
    table = compare_with_published(PUBLISHED, summary(), SETTINGS, "LlamaGen-XL stage I")
    (vvs,) = line(table, "VVS", "lantern", parameters="delta 0.3").to_dict("records")
    assert (vvs["method_id"], vvs["speedup_published"], vvs["speedup"]) == ("lantern-a", 1.45, 1.5)
    assert (vvs["fid_published"], vvs["fid"], vvs["speedup_low"]) == (24.97, 20.0, 1.4)
    (greedy,) = line(table, "LANTERN", "eagle2", temperature=0.0).to_dict("records")
    assert (greedy["speedup_published"], greedy["speedup"]) == (1.29, 1.2)
    # a source without parameters meets every row of its method, and numbers that nothing meets stay
    assert sorted(line(table, "CIAR", "lantern")["method_id"]) == ["lantern-a", "lantern-b"]
    (missing,) = line(table, "VVS", "lantern", parameters="delta 0.2").to_dict("records")
    assert pd.isna(missing["speedup"]) and missing["speedup_published"] == 1.26
    assert set(table.loc[table["is_same_model"], "model"]) == {"LlamaGen-XL stage I"}
    assert not compare_with_published(PUBLISHED, summary(), SETTINGS, None)["is_same_model"].any()
