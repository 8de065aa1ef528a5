"""README.md and docs/: tables are what the results make them, sentences have the numbers of the tables."""

from __future__ import annotations

import re
import shutil

import pandas as pd
import pytest

from conftest import ROOT
from lantern.io import read_json
from lantern_pipeline.data.tables import read_table
from lantern_pipeline.tables.claims import claims_of_rows, describe_setting
from lantern_pipeline.tables.generality import find_generality_claims
from lantern_pipeline.tables.markdown import publish
from lantern_pipeline.tables.method_labels import label_rows

PUBLISHED = ROOT / "workflow" / "lantern_pipeline" / "tables" / "published_results.csv"
SECTIONS = ("results", "peers", "mixing", "targets", "generality")
TABLES = {name: read_table(ROOT / "docs" / f"{name}.csv") for name in SECTIONS}
CLAIMS = read_json(ROOT / "docs" / "claims.json")


def test_published_tables_are_up_to_date(tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns(".*"))
    shutil.copy(ROOT / "README.md", tmp_path)
    assert publish(tmp_path) == []
    path = tmp_path / "docs" / "peers.csv"
    path.write_text(path.read_text().replace("2.7822", "9.1617"))
    assert publish(tmp_path) == ["docs/results.md"] and publish(tmp_path) == []
    assert "| 9.16 [" in (tmp_path / "docs" / "results.md").read_text()


@pytest.mark.parametrize("name", TABLES)
def test_published_claims_are_those_of_the_table(name):
    table = TABLES[name]
    if "differs" in table:
        assert_close(find_generality_claims(table), CLAIMS[name])
        return
    rows = table[table["acceptance"].notna()].reset_index(drop=True)
    assert label_rows(rows).tolist() == rows["label"].tolist()
    for key, value in {"setting": describe_setting(rows), **claims_of_rows(rows)}.items():
        assert_close(value or None, CLAIMS[name].get(key))


def assert_close(found, stored):
    """Equal but for the digits that a table leaves out."""
    if isinstance(found, dict):
        assert found.keys() == stored.keys()
        for key, value in found.items():
            assert_close(value, stored[key])
    elif isinstance(found, list):
        for pair in zip(found, stored, strict=True):
            assert_close(*pair)
    else:
        assert found == (pytest.approx(stored, rel=1e-4, abs=1e-6) if isinstance(found, float) else stored)


def test_the_table_of_batches_is_what_was_measured():
    found = read_json(ROOT / "benchmarks" / "results" / "batches_2core_cpu.json")["cases"]["embedded"]
    section = (ROOT / "docs" / "results.md").read_text().split("## Batches")[1].split("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| ([\d.].*) \|$", section, flags=re.M)
    for method, row in zip(found["batch 1"], rows, strict=True):
        sides = [found[f"batch {batch}"][method]["this"] for batch in (1, 8, 48)]
        numbers = [side["images_per_s"] for side in sides] + [sides[2]["mean_accepted_length"]]
        numbers += [side["steps_without_refill"] for side in sides[1:]]
        assert re.findall(r"[\d.]+", row) == [f"{number:.2f}" for number in numbers]


# --- sentences -----------------------------------------------------------------------------------------
# Each function lists, paragraph by paragraph, the numbers of a section in their order, and texts that stand there.


def interval(row, name, factor=1):
    return [factor * row[f"{name}{end}"] for end in ("", "_low", "_high")]


def frontier(claims):
    rows = claims["frontier"]["all"]
    assert rows[-1]["distance"] == 0
    return [value for row in rows for value in (row["label"], row["mean_accepted_length"], row["distance"])]


def of_readme():
    found = CLAIMS["results"]
    exact, relaxed, delta = (found[key] for key in ("exact", "relaxed", "delta"))
    assert found["tokens"] == {"num_rows": 8, "num_equal": 8, "num_near_ties": 0}  # "all eight"
    assert (exact["label"], found["exact_without_draft_model"]["label"]) == ("hybrid", "Jacobi")
    assert found["exact_without_draft_model"]["speedup"] > exact["speedup"]
    assert relaxed["label"].startswith("LANTERN chain") and relaxed["nll_low"] > found["baseline"]["nll_high"]
    assert relaxed["prompt_accuracy_change_low"] < 0 < relaxed["prompt_accuracy_change_high"]
    assert delta["published_is_above"] and not delta["ours_is_above"]
    return [["1.12, 1.44, 1.63 and 1.86 on four CPUs"]]


def of_results():
    found = CLAIMS["results"]
    exact, relaxed, delta, models = (found[key] for key in ("exact", "relaxed", "delta", "models"))
    alone = found["exact_without_draft_model"]
    cost = [*interval(relaxed, "nll"), relaxed["tv_mean"], *interval(relaxed, "prompt_accuracy_change", 100)]
    tvs = [interval(delta["published"][rule], "tv_mean") for rule in ("sampled_paper", "top_children", "top_official")]
    law = found["distribution"]
    told = [law[name] for name in ("num_claims", "num_tests", "level", "num_told", "num_relaxed")]
    assert not law["refuted"] and law["num_stand"] == law["num_claims"]
    classifier, clip = models["attribute_classifier"]["val_accuracy"], models["clip"]["val_image_to_text_accuracy"]
    quality = [
        models["target"]["val_cross_entropy"],
        models["tokenizer"]["psnr_db"],
        100 * classifier,
        "32",
        100 * clip,
    ]
    return [
        ["hybrid", *interval(exact, "mean_accepted_length"), "Jacobi", *interval(alone, "mean_accepted_length")],
        [relaxed["label"], *interval(relaxed, "mean_accepted_length"), found["relaxed_and_slow"][0]],
        [found["baseline"]["nll"], *cost, found["setting"]["prompts"]],
        [delta["delta"], *tvs[0], *tvs[1], *tvs[2], delta["num_nodes"], delta["num_deltas"]],
        [*told, *next(iter(law["not_told"].items()))],
        frontier(found),
        quality,
    ]


def of_targets():
    rows = TABLES["targets"].set_index(["method_id", "target"])
    best, worse = (rows.loc["autoregressive"].loc[name] for name in ("base", "short"))
    lengths, nll = rows["mean_accepted_length"].unstack(), rows["nll_change"].unstack().loc["proximity-k60"]
    percent = 100 * (lengths["base"] / lengths["short"] - 1)
    chains = [name for name in percent.index if "chain5" in name]
    apart = {key for key, value in CLAIMS["targets"].items() if value["unlike_base"]}
    assert apart == {"jacobi", "hybrid", "proximity-k60", *chains}
    assert round(percent["jacobi"]) == round(percent["hybrid"]) and len({round(percent[name]) for name in chains}) == 1
    assert (rows.loc[~rows["is_exact"].eq(True), "prompt_accuracy_change_high"] > 0).all()
    fewer = ["Jacobi and hybrid", -percent["jacobi"], -percent[chains[0]]]
    return [
        [
            row[name] * factor
            for name, factor in (("target_cross_entropy", 1), ("prompt_accuracy", 100))
            for row in (best, worse)
        ],
        [*fewer, "EAGLE-1", "proximity k 60", percent["proximity-k60"], nll["short"], nll["base"]],
    ]


def of_peers():
    found = CLAIMS["peers"]
    law, annealed, group = (found["distribution"], *(found["equal_length"][key] for key in ("annealed", "group")))
    ((refuted, p),) = law["refuted"].items()
    constant, additive = annealed["constant"], group["additive"]
    assert annealed["reversed"] is None and refuted.startswith("SJD-PAC") and additive["high"] < 0 < constant["low"]
    ends = ("shortest", "longest", "tv_first", "tv_second")
    told = [law[name] for name in ("num_tests", "level", "num_told", "num_relaxed")]
    return [
        [law["num_stand"], law["num_claims"], "SJD-PAC's", p, *told, "96"],
        frontier(found),
        [constant[name] for name in ("difference", "low", "high", *ends)],
        [*(-additive[name] for name in ("difference", "high", "low")), *(additive[name] for name in ends)],
    ]


def of_mixing():
    found, rows = CLAIMS["mixing"]["equal_length"], TABLES["mixing"].set_index("label")
    mixing, bound, additive = (found[name] for name in ("mixing", "multiplicative", "additive"))
    numbers, mirrored, lengths = ("difference", "low", "high"), ("difference", "high", "low"), ("shortest", "longest")
    labels = ("LANTERN chain k 20, δ 0.1", "LANTERN chain (random) k 128, δ 0.1", "mixing budget 0.3")
    accuracy = [interval(rows.loc[label], "prompt_accuracy_change", 100) for label in labels]
    assert additive["random additive"]["difference"] < -mixing["additive"]["difference"]
    return [
        [
            *(mixing["multiplicative"][name] for name in (*numbers, *lengths)),
            *(mixing["additive"][name] for name in (*numbers, *lengths)),
            *(-mixing["ensemble"][name] for name in mirrored),
        ],
        [
            *(mixing["constant"][name] for name in numbers),
            *(bound["constant"][name] for name in numbers),
            *(-bound["random multiplicative"][name] for name in mirrored),
        ],
        [
            *(-additive["random additive"][name] for name in mirrored),
            "0.1",
            *accuracy[0],
            *accuracy[1],
            *accuracy[2],
            "0.3",
        ],
    ]


def of_generality():
    found = CLAIMS["generality"]
    names = ("lantern_chain", "lantern_pp", "proximity")
    parts = [next(found[key] for key in found if key.startswith(name)) for name in names]
    chain, pp, proximity = parts
    assert all(part["num_above_one"] == part["num_targets"] == 8 for part in parts)
    untold = [chain, pp, *(found[name] for name in ("hybrid", "coupled", "eagle1-chain5"))]
    assert found["jacobi"]["p"] < 0.05 < min(part["p"] for part in untold)
    ranges = [part[f"{name}_{end}"] for name in ("gain", "nll_change") for part in parts for end in ("min", "max")]
    return [
        ["all 8 targets", *ranges],
        ["top-10 mass", proximity["tau"], proximity["p"], chain["tau"], pp["tau"]],
        ["Jacobi's fall", found["jacobi"]["tau"], found["jacobi"]["p"]],
    ]


# Label in the table of published numbers -> run, row of ours; source, method and further columns of the published row.
PAPERS = {
    "EAGLE-1": ("results", "EAGLE-1", "COOL-SD", "eagle1", {"model": "LlamaGen-XL"}),
    "LANTERN": ("results", "LANTERN k 20, δ 0.1", "LANTERN", "lantern", {"note": "random sampling; 1.82x"}),
    "LANTERN δ 0.3": (None, None, "VVS", "lantern", {"parameters": "delta 0.3"}),
    "LANTERN chain": ("results", "LANTERN chain k 20, δ 0.1", None, None, {}),
    "LANTERN++ λ 5": ("results", "LANTERN++ k 10, λ 5", "COOL-SD", "lantern_pp", {"model": "LlamaGen-XL"}),
    "COOL-SD ω 2": ("peers", "COOL-SD ω 2", "COOL-SD", "cool", {"parameters": "omega 2"}),
    "SJD": ("peers", "SJD", "SJD-PAC", "sjd", {"model": "Lumina"}),
    "SCD": ("peers", "SCD", "SCD", "scd", {}),
    "SJD-PAC": ("peers", "SJD-PAC (chain9k3d2)", "SJD-PAC", "sjd_pac", {"model": "Lumina", "dataset": "COCO"}),
    "PathRelax": ("peers", "PathRelax (chain9x2)", "PathRelax", "path_relax", {"dataset": "COCO"}),
    "GSD": ("peers", "GSD (chain9) d² 10000", "GSD", "gsd", {"dataset": "COCO"}),
}


def numbers_here(label):
    run, own, *_ = PAPERS[label]
    return numbers_of(TABLES[run].set_index("label").loc[own]) if run else []


def numbers_there(label):
    *_, source, method, parts = PAPERS[label]
    rows = pd.read_csv(PUBLISHED)
    rows = rows[(rows["source"] == source) & (rows["method"] == method)]
    for name, start in parts.items():
        rows = rows[rows[name].fillna("").str.startswith(start)]
    assert len(rows) == bool(source), label
    return numbers_of(rows.iloc[0]) if source else []


def numbers_of(row):
    return [row[name] for name in ("speedup", "mean_accepted_length") if not pd.isna(row[name])]


def of_papers():
    runs = {"results": "(default)", "peers": "(peers)", None: "–"}
    rows = [[f"| {label} |", *numbers_here(label), runs[PAPERS[label][0]], *numbers_there(label)] for label in PAPERS]
    return [["3.5 million"], *rows]


def test_sentences_have_the_numbers_of_the_tables_in_their_order_and_no_other():
    text = (ROOT / "README.md").read_text().partition("## Results")[2].partition("\n## ")[0] + "\n\n"
    text += (ROOT / "docs" / "results.md").read_text().partition("## How to read")[0]
    text = re.sub(r"(?s)<!-- (\w+):begin -->.*?<!-- \1:end -->", "", text)
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=- |\| )", text)]
    paragraphs = [part for part in paragraphs if re.search(r"\d\.\d", part)]
    batches = [["batch 1 alone", "2608.18183", "1.48 to 1.65"]]
    machines = [["CPU"], ["295 ms", "1.86"], ["AVX-512", "230 ms", "1.44, 1.41"], ["Zen 5", "84 ms", "1.12"]]
    here = CLAIMS["results"]
    latency = f"{here['setting']['autoregressive_latency_ms']} ms"
    machines.append(["25, model 17", latency, here["exact_without_draft_model"]["speedup"]])
    expected = [
        *of_readme(),
        *of_results(),
        *machines,
        *batches,
        *of_papers(),
        *of_targets(),
        *of_peers(),
        *of_mixing(),
    ]
    expected += of_generality()
    for paragraph, wanted in zip(paragraphs, expected, strict=True):
        if paragraph.startswith("|"):  # the other columns say what was measured
            paragraph = "|".join(paragraph.split("|")[:4])
        numbers = re.compile(r"(?<!\w)[-+]?\d+(?:\.\d+)?")
        parts = [part for value in wanted for part in (numbers.findall(value) if isinstance(value, str) else [value])]
        for found, value in zip(numbers.findall(paragraph), parts, strict=True):
            form = f"{'+' * found.startswith('+')}.{len(found.partition('.')[2])}f"
            assert found == (value if isinstance(value, str) else f"{value:{form}}"), paragraph
        assert all(value in paragraph for value in wanted if isinstance(value, str)), paragraph
