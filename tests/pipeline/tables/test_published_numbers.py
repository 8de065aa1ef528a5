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
from lantern_pipeline.tables.markdown import publish, with_interval
from lantern_pipeline.tables.method_labels import label_rows

PUBLISHED = ROOT / "workflow" / "lantern_pipeline" / "tables" / "published_results.csv"
TABLES = {name: read_table(ROOT / "docs" / f"{name}.csv") for name in ("results", "peers", "targets", "generality")}
CLAIMS = read_json(ROOT / "docs" / "claims.json")


def test_published_tables_are_up_to_date(tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "README.md", tmp_path)
    assert publish(tmp_path) == []
    path = tmp_path / "docs" / "peers.csv"
    path.write_text(path.read_text().replace("3.1617", "9.1617"))
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


def of_results():
    """Sentences about the default run."""
    found = CLAIMS["results"]
    exact, relaxed, base, delta = (found[key] for key in ("exact", "relaxed", "baseline", "delta"))
    assert found["tokens"] == {"num_rows": 8, "num_equal": 8, "num_near_ties": 0}  # "all eight"
    assert exact == found["exact_without_draft_model"] and delta["published_is_above"] and not delta["ours_is_above"]
    change = with_interval(relaxed, "prompt_accuracy_change", "+.1f", 100)
    rules = [delta["published"][rule] for rule in ("sampled_paper", "top_children", "top_official")]
    one, several, official = (with_interval(rule, "tv_mean") for rule in rules)
    tvs = [rule["tv_mean"] for rule in rules]
    law, models = found["distribution"], found["models"]
    ((not_told, p),) = law["not_told"].items()
    assert not law["refuted"] and law["num_stand"] == law["num_claims"]
    return [
        f"Jacobi is fastest, {exact['speedup']:.2f}x, without a draft model",
        f"{exact['label']} is the fastest exact method, {times(exact)}, and needs no draft model",
        f"LANTERN chain is fastest, {relaxed['speedup']:.2f}x. Its NLL rises from {base['nll']:.2f} to",
        f"to {relaxed['nll']:.2f}; prompt accuracy changes by {change} points",
        f"{relaxed['label']} is the fastest whose prompt accuracy is within two points",
        f"decoding's: {times(relaxed)}. {found['relaxed_and_slow'][0]} is slower than autoregressive decoding.",
        f"rises from {base['nll']:.2f} to {with_interval(relaxed, 'nll')}, and its tokens lie {relaxed['tv_mean']:.2f}",
        f"Prompt accuracy changes by {change} points, which {found['setting']['prompts']} cannot tell",
        f"mean TV is {min(tvs):.2f} to {max(tvs):.2f} at delta {delta['delta']:g}",
        f"{one} for one sampled draft under LANTERN's bound, {several} for several top drafts each under it",
        f"{official} for the authors' code",
        f"never exceeded its delta on {delta['num_nodes']} nodes at {delta['num_deltas']} values",
        f"any of the {law['num_claims']} exact methods",
        f"({law['num_tests']} tests, so p must be below {law['level']:.4f})",
        f"tells {law['num_told']} of {law['num_relaxed']} relaxed rows from the target, but not {not_told} (p {p:.2f})",
        list_frontier(found),
        f"The target has {models['target']['val_cross_entropy']:.2f} nats per token on held-out images",
        f"reconstructs them at {models['tokenizer']['psnr_db']:.1f} dB",
        f"reads {100 * models['attribute_classifier']['val_accuracy']:.1f} % of the attributes",
        f"in {100 * models['clip']['val_image_to_text_accuracy']:.1f} % of cases",
        "{prompts} of the set {prompt_set}, {num_timed} of them timed, temperature {temperature}, guidance scale "
        "{cfg_scale};".format_map(found["setting"]),
    ]


def of_peers():
    found = CLAIMS["peers"]
    law, annealed, group = (found["distribution"], *(found["equal_length"][key] for key in ("annealed", "group")))
    ((refuted, p),) = law["refuted"].items()
    constant, additive = annealed["constant"], group["additive"]
    assert annealed["reversed"] is None and refuted.startswith("SJD-PAC") and additive["high"] < 0 < constant["low"]
    return [
        f"{found['setting']['prompts']} of the set seen, {found['setting']['num_timed']} of them timed.",
        f"{law['num_stand']} of {law['num_claims']}; SJD-PAC's is refuted at this noise seed (p {p:.4f}, where ",
        f"{law['num_tests']} tests need {law['level']:.4f})",
        f"tells {law['num_told']} of {law['num_relaxed']} relaxed rows from the target: 96 images are few",
        list_frontier(found),
        f"COOL-SD's NLL is {constant['difference']:.2f} [{constant['low']:.2f}, {constant['high']:.2f}] higher at the",
        f"at the same {constant['shortest']:.2f} to {constant['longest']:.2f} tokens per forward, and its total",
        f"total variation {constant['tv_first']:.3f} against {constant['tv_second']:.3f}",
        f"GSD's NLL is {-additive['difference']:.2f} [{-additive['high']:.2f}, {-additive['low']:.2f}] below that of",
        f"at {additive['shortest']:.2f} to {additive['longest']:.2f} tokens per forward, at a total variation of ",
        f"{additive['tv_first']:.3f} against {additive['tv_second']:.3f}",
    ]


def of_targets():
    rows = TABLES["targets"].set_index(["method_id", "target"])
    best, worse = (rows.loc["autoregressive"].loc[name] for name in ("base", "short"))
    lengths, nll = rows["mean_accepted_length"].unstack(), rows["nll_change"].unstack().loc["proximity-k60"]
    percent = 100 * (lengths["base"] / lengths["short"] - 1)
    chains = [name for name in percent.index if "chain5" in name]
    apart = {key for key, value in CLAIMS["targets"].items() if value["unlike_base"]}
    assert apart == {"jacobi", "hybrid", "proximity-k60", *chains}
    assert (rows.loc[~rows["is_exact"].eq(True), "prompt_accuracy_change_high"] > 0).all()
    return [
        f"is {best['target_cross_entropy']:.2f} against {worse['target_cross_entropy']:.2f} nats per token",
        f"draws {100 * best['prompt_accuracy']:.1f} % against {100 * worse['prompt_accuracy']:.1f} % of the attributes",
        *(f"Jacobi and hybrid emit {-percent[name]:.0f} % fewer tokens per forward" for name in ("jacobi", "hybrid")),
        *(f"and LANTERN chain {-percent[name]:.0f} % fewer" for name in chains),
        f"proximity k 60 {percent['proximity-k60']:.0f} % more",
        f"its cost in NLL grows from {nll['short']:.2f} to {nll['base']:.2f}",
    ]


def of_generality():
    found = CLAIMS["generality"]
    parts = [
        next(found[key] for key in found if key.startswith(name))
        for name in ("lantern_chain", "lantern_pp", "proximity")
    ]
    chain, pp, proximity = parts
    assert all(part["num_above_one"] == part["num_targets"] == 8 for part in parts)
    untold = [chain, pp, *(found[name] for name in ("hybrid", "coupled", "eagle1-chain5"))]
    assert found["jacobi"]["p"] < 0.05 < min(part["p"] for part in untold)
    gains = [f"{part['gain_min']:.2f} to {part['gain_max']:.2f} times" for part in parts]
    costs = [f"{part['nll_change_min']:.2f} to {part['nll_change_max']:.2f}" for part in parts]
    return [
        f"LANTERN chain gains {gains[0]}, LANTERN++ {gains[1]}, proximity {gains[2]}.",
        f"LANTERN chain costs {costs[0]} nats per token, LANTERN++ {costs[1]}, proximity {costs[2]}.",
        f"(Kendall's tau {proximity['tau']:.2f}, p {proximity['p']:.4f})",
        f"(tau {chain['tau']:+.2f} and {pp['tau']:+.2f})",
        f"Jacobi's fall with it (tau {found['jacobi']['tau']:.2f}, p {found['jacobi']['p']:.3f})",
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


def of_papers():
    """Rows of the table of published numbers, and the README's sentence of some."""
    published, here, there = pd.read_csv(PUBLISHED), {}, {}
    for label, (run, own, source, method, parts) in PAPERS.items():
        rows = published[(published["source"] == source) & (published["method"] == method)]
        for name, start in parts.items():
            rows = rows[rows[name].fillna("").str.startswith(start)]
        assert len(rows) == bool(source), label
        there[label] = numbers_of(rows.iloc[0]) if source else "–"
        here[label] = numbers_of(TABLES[run].set_index("label").loc[own]) if run else "–"
    names = {"results": " (default)", "peers": " (peers)", None: ""}
    few = {label: f"{there[label]} (here {here[label]})" for label in ("EAGLE-1", "LANTERN++ λ 5")}
    return [
        *(f"| {label} | {here[label]}{names[PAPERS[label][0]]} | {there[label]} |" for label in PAPERS),
        f"EAGLE-1 {few['EAGLE-1']}; LANTERN {there['LANTERN δ 0.3']} (here {here['LANTERN']}); LANTERN++ "
        f"{few['LANTERN++ λ 5']}.",
    ]


def numbers_of(row):
    length = "" if pd.isna(row["mean_accepted_length"]) else f", {row['mean_accepted_length']:.2f}"
    return f"{row['speedup']:.2f}x{length}"


def times(row):
    return f"{row['speedup']:.2f}x [{row['speedup_low']:.2f}, {row['speedup_high']:.2f}]"


def list_frontier(claims):
    rows = claims["frontier"]["all"]
    texts = [f"{row['label']} ({row['speedup']:.2f}x, TV {row['distance']:.2f})" for row in rows[:-1]]
    texts[1:] = [text.replace("TV ", "") for text in texts[1:]]
    assert rows[-1]["distance"] == 0
    return f"{', '.join(texts)} and {rows[-1]['label']} ({rows[-1]['speedup']:.2f}x, 0)"


@pytest.mark.parametrize("sentences", [of_results, of_peers, of_targets, of_generality, of_papers])
def test_sentences_of_the_documents_have_the_numbers_of_the_tables(sentences):
    text = " ".join(((ROOT / "README.md").read_text() + (ROOT / "docs" / "results.md").read_text()).split())
    for sentence in sentences():
        assert sentence in text, sentence


def test_every_number_of_a_sentence_is_compared():
    """Decimal numbers of the sentences, outside the generated tables and the guide to reading them."""
    text = (ROOT / "docs" / "results.md").read_text().partition("## How to read")[0]
    text += (ROOT / "README.md").read_text().partition("## Results")[2].partition("\n## ")[0]
    text = re.sub(r"(?s)<!-- (\w+):begin -->.*?<!-- \1:end -->", "", text)
    lists = (of_results, of_peers, of_targets, of_generality, of_papers)
    compared = {number for part in lists for sentence in part() for number in re.findall(r"\d+\.\d+", sentence)}
    known = {"3.5", "0.3"}  # million parameters; delta of a published row
    assert set(re.findall(r"\d+\.\d+", text)) <= compared | known
