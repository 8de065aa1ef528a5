"""Generation of the tables in README.md and on the pages of docs/, from files with results in docs/ and a benchmark.

Each table replaces the text between two markers of its page. `found` is one claim of a run, by its keys in claims.json.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lantern.io import read_json
from lantern_pipeline.data.tables import read_table
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.claims import IDLE, describe_run, describe_setting
from lantern_pipeline.tables.comparisons import read_published
from lantern_pipeline.tables.generality import LENGTH
from lantern_pipeline.tables.markdown import (
    COLUMNS,
    EMPTY,
    FIRST,
    LAST,
    README_PLAIN,
    Cells,
    describe_speed,
    markdown_table,
    method_cells,
    select_few,
    target_cells,
    update_marked_block,
    with_interval,
)
from lantern_pipeline.tables.nodes import node_cells

RESULTS, PEERS, PHOTOGRAPHS = "docs/results.md", "docs/peers.md", "docs/photographs.md"
ABLATIONS, GRIDS = "docs/ablations.md", "docs/grids.md"
MACHINES, WHICH_METHOD = "docs/machines.md", "docs/which_method.md"
# Columns of the tables of peers and of photographs. The CSV files have all others.
_OF_PEERS = (*FIRST, "law_p", *LAST)
_OF_PHOTOGRAPHS = (*FIRST, "frechet_distance", "efficientnet_frechet_distance", "law_p", *LAST)
# Measures of the table of many targets: gain and cost of relaxed methods.
_OF_MANY_TARGETS = (LENGTH, "gain", "nll_change")
BATCHES = Path("benchmarks", "results", "batches_2core_cpu.json")
_BATCH_SIZES = (1, 8, 48)
# Published acceptances by column `rule` of total_variation/curves.csv -> titles of their lines.
_RULES = {
    "sampled_paper": "LANTERN's bound, one sampled draft",
    "top_children": "LANTERN's bound for each of several top drafts",
    "top_official": "the authors' code",
}
# Names of the tables and claims in docs/ with the papers' claims -> the images.
_WORLDS = {"papers": "shapes", "fashion_papers": "clothes"}
# Title of a line -> (table and label of this project's row, or (None, ""); then source, method and
# the beginnings of other columns that select the published row).
_PAPERS: dict[str, tuple[str | None, str, str, str, dict[str, str]]] = {
    "EAGLE-1": ("results", "EAGLE-1 (static 57)", "COOL-SD", "eagle1", {"model": "LlamaGen-XL"}),
    "EAGLE-2": ("results", "EAGLE-2 (dynamic 58)", "VVS", "eagle2", {"note": "precision"}),
    "LANTERN": ("results", "LANTERN (dynamic 58) k 64, δ 0.1", "LANTERN", "lantern", {"note": "random sampling"}),
    "LANTERN δ 0.3": (None, "", "VVS", "lantern", {"parameters": "delta 0.3"}),
    "LANTERN++ λ 5": ("results", "LANTERN++ (static 57) k 10, λ 5", "COOL-SD", "lantern_pp", {"model": "LlamaGen-XL"}),
    "COOL-SD ω 2": ("peers", "COOL-SD ω 2", "COOL-SD", "cool", {"parameters": "omega 2"}),
    "SJD": ("peers", "SJD", "SJD-PAC", "sjd", {"model": "Lumina"}),
    "SCD": ("peers", "SCD", "SCD", "scd", {}),
    "SJD-PAC": ("peers", "SJD-PAC (chain9k3d2)", "SJD-PAC", "sjd_pac", {"model": "Lumina", "dataset": "COCO"}),
    "PathRelax": ("peers", "PathRelax (chain9x2)", "PathRelax", "path_relax", {"dataset": "COCO"}),
    "GSD": ("peers", "GSD (chain9) d² 10000", "GSD", "gsd", {"dataset": "COCO"}),
    "PJD (unverified)": ("peers", "PJD (unverified) w 2", "PJD", "pjd", {"model": "Lumina"}),
    "SSD (unverified)": ("peers", "SSD (unverified)", "SSD", "ssd", {"model": "Janus"}),
}

# Lines of docs/which_method.md: (what a reader has, what is kept, machine and batch, method in the words of `lantern
# bench`, tables on shapes and on clothes, method id, temperature).
_NONE, _TRAINED, _EITHER = "no", "yes", "either"
_TOKENS, _DISTRIBUTION, _LOSS = "tokens", "distribution", "neither"
_CPU, _GPU = "CPU", "GPU"
_DEFAULT, _OTHERS, _AT_AUTHORS = ("results", "fashion"), ("peers", "fashion_peers"), ("papers", "fashion_papers")
_RELAXED_HYBRID = ("lantern_pp tree=hybrid_50 drafts=hybrid k=10 lambda_=5", _AT_AUTHORS)
_RELAXED_HYBRID_ID = "lantern_pp_hybrid-hybrid_50-hybrid-k10-lambda5"
_CHAIN_ID = "lantern_chain-chain5-sampled-k20-delta0.1"
CHOICES = (
    (_EITHER, _TOKENS, _CPU, "jacobi", _DEFAULT, "jacobi", 1),
    (_NONE, _TOKENS, _GPU, "jacobi_50", _DEFAULT, "jacobi_50", 1),
    (_TRAINED, _TOKENS, _GPU, "hybrid tree=hybrid_50", _DEFAULT, "hybrid-hybrid_50", 1),
    (_EITHER, _TOKENS, "CPU, batch 8 or more", BASELINE, _DEFAULT, BASELINE, 1),
    (_NONE, _DISTRIBUTION, _EITHER, "scd", _OTHERS, "scd", 1),
    (_TRAINED, _DISTRIBUTION, _GPU, "eagle1 tree=naive_extend_57", _DEFAULT, "eagle1-naive_extend_57", 1),
    (_EITHER, _LOSS, _EITHER, "zipar window=2", _OTHERS, "zipar-window2", 1),
    (_EITHER, _LOSS, _EITHER, "zipar window=4", _OTHERS, "zipar-window4", 1),
    (_TRAINED, _LOSS, _CPU, "lantern tree=chain5 drafts=sampled k=20 delta=0.1", _DEFAULT, _CHAIN_ID, 1),
    (_TRAINED, _LOSS, _GPU, *_RELAXED_HYBRID, _RELAXED_HYBRID_ID, 1),
    (_TRAINED, _LOSS, f"{_GPU}, temperature 0", *_RELAXED_HYBRID, _RELAXED_HYBRID_ID, 0),
)


def publish(root: Path) -> list[str]:
    """Update every generated table below `root`, the repository. Return the paths of the pages that changed."""
    sections = ("results", "fashion", *_WORLDS, "peers", "fashion_peers", "generality", "nodes", "grid_sizes")
    tables = {name: read_table(root / "docs" / f"{name}.csv") for name in sections}
    claims = read_json(root / "docs" / "claims.json")
    blocks = list(_pages_of_methods(tables, claims))
    blocks.append(("README.md", "findings", textwrap.fill(_finding(tables), 120, subsequent_indent="  ")))
    for page, name in ((PEERS, "mixing"), (PHOTOGRAPHS, "fashion_mixing")):
        blocks.append((page, name, _join(curve_cells(claims[name]["equal_length"]))))
    targets = target_cells(tables["generality"], _OF_MANY_TARGETS)
    blocks.append((ABLATIONS, "generality", _join(targets, trend_cells(claims["generality"]))))
    nodes = tables["nodes"]
    run = describe_briefly(describe_setting(nodes[nodes["acceptance"].notna()]))
    blocks.append((ABLATIONS, "nodes", _join(run, node_cells(nodes))))
    blocks.append((GRIDS, "grid_sizes", _join(grid_cells(tables["grid_sizes"]))))
    worlds = {world: (tables[name], claims[name]["papers"]) for name, world in _WORLDS.items()}
    judged = markdown_table(world_cells(worlds), num_texts=2 + 2 * len(worlds))
    blocks.append((RESULTS, "as_published", _join(setting_cells(worlds), judged)))
    blocks.append((MACHINES, "batches", _join(batch_cells(read_json(root / BATCHES)["cases"]["embedded"]))))
    blocks.append((PEERS, "papers", _join(paper_cells(tables, read_published()))))
    blocks.append((WHICH_METHOD, "which_method", markdown_table(choice_cells(tables), num_texts=4)))
    changed = [page for page, name, text in blocks if update_marked_block(root / page, text, name)]
    # A page has several blocks and is named once.
    return list(dict.fromkeys(changed))


def _pages_of_methods(tables: Mapping[str, pd.DataFrame], claims: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (page, name of the block, text) of the runs whose methods have a table with times."""
    shown = {
        "results": (RESULTS, COLUMNS, "delta"),
        "fashion": (PHOTOGRAPHS, _OF_PHOTOGRAPHS, "delta"),
        "peers": (PEERS, _OF_PEERS, "equal_length"),
        "fashion_peers": (PHOTOGRAPHS, _OF_PHOTOGRAPHS, "equal_length"),
    }
    for name, (page, columns, claim) in shown.items():
        table = tables[name]
        # Rows of real images have no acceptance. They stay in the table, but do not describe the run.
        setting = describe_setting(table[table["acceptance"].notna()])
        is_default = name == "results"
        run = textwrap.fill(describe_run(setting), 120) if is_default else describe_briefly(setting)
        yield page, name, _join(run, method_cells(table, columns), *claim_tables(claims[name], ("distribution", claim)))
        # Only the default run is in the README, with few rows and without most intervals.
        if is_default:
            few = method_cells(select_few(table), FIRST, README_PLAIN)
            notes = textwrap.fill(f"{describe_run(setting)} {describe_speed(table)}", 120)
            yield "README.md", name, _join(few, notes)


def describe_briefly(setting: Mapping[str, str]) -> str:
    """Write what differs between runs, from the result of `describe_setting`: docs/results.md says what they share."""
    is_timed, busy = setting["num_timed"] != "no", setting.get("busy_elsewhere", "0")
    others = f", while other work kept {busy} cores busy" if float(busy) > IDLE else ""
    times = f"{setting['num_timed']} of them timed on {setting['machine']}{others}" if is_timed else "no times"
    text = f"{setting['prompts']} of the set {setting['prompt_set']}, {times}, temperature {setting['temperature']}, "
    return textwrap.fill(f"{text}guidance scale {setting['cfg_scale']}.", 120)


def _join(*parts: str | Cells) -> str:
    return "\n\n".join(part if isinstance(part, str) else markdown_table(part) for part in parts)


def claim_tables(claims: Mapping[str, Any], names: Sequence[str]) -> list[Cells]:
    """Make the tables of those of the named claims that the run has."""
    makers = {"distribution": distribution_cells, "delta": bound_cells, "equal_length": curve_cells}
    return [makers[name](claims[name]) for name in names if claims.get(name)]


def distribution_cells(found: Mapping[str, Any]) -> Cells:
    """Make the table, of one line, that counts exact and relaxed methods by the tests of their output distribution."""
    refuted = ", ".join(label if p is None else f"{label} (p {p:.4f})" for label, p in found["refuted"].items())
    return [
        [
            *("exact methods", "not rejected", "rejected", "tests", "level of each test"),
            *("relaxed methods", "distinguished from the target"),
        ],
        [
            *(str(found[name]) for name in ("num_claims", "num_confirmed")),
            refuted or "none",
            *(str(found["num_tests"]), f"{found['level']:.4f}"),
            *(str(found[name]) for name in ("num_relaxed", "num_told")),
        ],
    ]


def bound_cells(found: Mapping[str, Any]) -> Cells:
    """Make the table that shows whether delta bounds the total variation.

    For published acceptances, it has the mean at one delta. For `bounded`, it says whether any node exceeds any delta.
    """
    rows = [[title, with_interval(found["published"][rule], "tv_mean")] for rule, title in _RULES.items()]
    bounded = "above" if found["ours_is_above"] else "never above"
    rows.append(["`bounded`", f"{bounded} delta on {found['num_nodes']} nodes at {found['num_deltas']} values of it"])
    return [["acceptance", f"TV from the target at delta {found['delta']:g}"], *rows]


def curve_cells(found: Mapping[str, Mapping[str, Any]]) -> Cells:
    """Make the table that compares acceptances at equal tokens per forward pass, from claim `equal_length`."""
    rows = []
    for first, others in found.items():
        for second, part in others.items():
            if part is None:  # no length is common to both
                rows.append([first, second, "none", EMPTY, EMPTY, EMPTY])
                continue
            change = f"{part['difference']:+.2f} [{part['low']:+.2f}, {part['high']:+.2f}]"
            lengths = f"{part['shortest']:.2f} to {part['longest']:.2f}"
            rows.append([first, second, lengths, change, *(f"{part[name]:.3f}" for name in ("tv_first", "tv_second"))])
    titles = ["first", "second", "tokens / forward of both", "NLL of the first minus the second"]
    return [[*titles, "TV of the first", "TV of the second"], *rows]


def trend_cells(claims: Mapping[str, Mapping[str, Any]]) -> Cells:
    """Make the table, of one line per method, that shows whether it gains more on more ambiguous targets."""
    rows = []
    for found in claims.values():
        measure = found["measure"]
        ranges = (f"{found[f'{name}_min']:.2f} to {found[f'{name}_max']:.2f}" for name in (measure, "nll_change"))
        title = "gain" if measure == "gain" else "tokens / forward"
        rows.append([found["label"], title, *ranges, f"{found['tau']:+.2f}", f"{found['p']:.2g}"])
    return [["method", "measure", "over all targets", "NLL added", "Kendall's tau", "p"], *rows]


def grid_cells(table: pd.DataFrame) -> Cells:
    """Make the table of tokens per forward pass and added NLL of each method, with one column per target."""
    # The targets differ in their grids, which name them here.
    sides = table["grid_side"].astype(str)
    return target_cells(table.assign(target=sides + " x " + sides), (LENGTH, "nll_change"))


def batch_cells(cases: Mapping[str, Any]) -> Cells:
    """Make the table of images per second by batch size, from the results of benchmarks/decode.py for one model."""
    batches = [f"batch {size}" for size in _BATCH_SIZES]
    titles = ["method", *batches, "tokens / forward", "steps without refill, 8 and 48"]
    rows = []
    for method in cases[batches[0]]:
        # This checkout's numbers. A benchmark may also have those of another.
        sides = [cases[batch][method]["this"] for batch in batches]
        cells = [f"{side['images_per_s']:.2f}" for side in sides] + [f"{sides[-1]['tokens_per_forward']:.2f}"]
        # Without refill, a batch waits for its slowest image: by what factor that takes more steps.
        rows.append([method, *cells, ", ".join(f"{side['steps_without_refill']:.2f}" for side in sides[1:])])
    return [titles, *rows]


def _finding(tables: Mapping[str, pd.DataFrame]) -> str:
    """Write the first finding of the README, whose words a test compares with the tables."""
    # Temperature -> one text per world.
    lengths: dict[float, list[str]] = {1.0: [], 0.0: []}
    relaxed: dict[float, list[str]] = {1.0: [], 0.0: []}
    # Ids as experiments/papers.yaml gives them: exact drafts, the same drafts relaxed, and LANTERN++ at every (k, λ).
    for temperature in lengths:
        for name, world in _WORLDS.items():
            rows = tables[name][tables[name]["temperature"] == temperature].set_index("method_id")[LENGTH]
            exact, both = rows["hybrid-hybrid_50"], rows["lantern_pp_hybrid-hybrid_50-hybrid-k10-lambda5"]
            others = rows[rows.index.str.startswith("lantern_pp-naive_extend_57")]
            lengths[temperature].append(f"{exact:.2f} and {others.min():.2f} to {others.max():.2f} on {world}")
            relaxed[temperature].append(f"{100 * (both / exact - 1):.0f}")
    return (
        "- **With as many nodes, exact drafts emit at least as many tokens as LANTERN++ at its authors' settings**: "
        f"`hybrid` with 50 drafts and LANTERN++ with 57 emit {', '.join(lengths[1.0])}, and relaxing the exact drafts "
        f"adds {' and '.join(relaxed[1.0])} %. At temperature 0 LANTERN++ leads ({', '.join(lengths[0.0])}), and "
        f"relaxing adds {' and '.join(relaxed[0.0])} % ([claims](docs/results.md#as-published))."
    )


Worlds = Mapping[str, tuple[pd.DataFrame, Sequence[Mapping[str, str]]]]  # images -> (table, verdicts) of their run


def setting_cells(worlds: Worlds) -> Cells:
    """Make the table with one line per method at its authors' settings. Its columns are measures, in every world.

    Variants that ran at one temperature only have no line: the claims have their numbers.
    """
    measures = [(1.0, LENGTH, "tokens / forward"), (1.0, "nll", "NLL"), (0.0, LENGTH, "tokens / forward at T 0")]
    labels = list(dict.fromkeys(label for table, _ in worlds.values() for label in table["label"]))
    cells = [["method", *(f"{world}: {title}" for *_, title in measures for world in worlds)]]
    for label in labels:
        line = [label]
        for temperature, column, _ in measures:
            for table, _ in worlds.values():
                found = table[(table["label"] == label) & (table["temperature"] == temperature)]
                line.append(with_interval(found.iloc[0], column) if len(found) else EMPTY)
        if EMPTY not in line:
            cells.append(line)
    return cells


def world_cells(worlds: Worlds) -> Cells:
    """Make the table of the papers' claims, from the verdicts of `judge_papers` in every world."""
    judged = {world: {row["claim"]: row for row in rows} for world, (_, rows) in worlds.items()}
    # A world whose run lacks the methods of a claim has empty cells in its line.
    claims = {claim: row for rows in judged.values() for claim, row in rows.items()}
    titles = [title for world in worlds for title in (world, "verdict")]
    missing = {"here": EMPTY, "verdict": EMPTY}
    cells = [["claim", "published", *titles]]
    for claim, row in claims.items():
        found = [rows.get(claim, missing) for rows in judged.values()]
        cells.append([claim, row["published"], *(part[key] for part in found for key in ("here", "verdict"))])
    return cells


def paper_cells(tables: Mapping[str, pd.DataFrame], published: pd.DataFrame) -> Cells:
    """Make the table of this project's speed-ups and tokens per forward pass next to published ones.

    `tables` has this project's results under "results" and "peers".
    """
    rows = []
    for title, (section, label, source, method, columns) in _PAPERS.items():
        here = EMPTY
        if section is not None and (ours := tables[section][tables[section]["label"] == label]).size:
            name = "default" if section == "results" else section
            here = f"{_speed(ours.iloc[0])} ({name})"
        found = published[(published["source"] == source) & (published["method"] == method)]
        for column, start in columns.items():
            found = found[found[column].fillna("").str.startswith(start)]
        # Unpacking fails if the columns of _PAPERS no longer select exactly one published row.
        (row,) = found.to_dict("records")
        place = ", ".join(row[column] for column in ("model", "gpu") if isinstance(row[column], str))
        rows.append([title, here, _speed(row), place or EMPTY, source])
    return [["method", "here", "published", "published on", "by"], *rows]


def choice_cells(tables: Mapping[str, pd.DataFrame]) -> Cells:
    """Make the table of docs/which_method.md from CHOICES. A cell has the value on shapes, then that on clothes."""
    measures = (LENGTH, "relative_step_cost", "speedup")
    titles = ["tokens / forward", "relative step cost, CPU", "speed-up, CPU", "NLL added", "TV"]
    cells = [["draft model", "keeps", "runs on", "method", *titles]]
    for has, kept, where, method, names, method_id, temperature in CHOICES:
        found = [tables[name][tables[name]["temperature"] == temperature].set_index("method_id") for name in names]
        # A run without the method has empty cells in its line.
        pairs = [(table.reindex([method_id]).iloc[0], table.loc[BASELINE]) for table in found]
        line = [has, kept, where, f"`{method}`"]
        line += [_both(f"{row[name]:.2f}" for row, _ in pairs) for name in measures]
        # The runs of other published methods were timed on another CPU.
        if names == _OTHERS:
            line[-2:] = [f"{text} †" for text in line[-2:]]
        if kept == _LOSS:
            # `+ 0.0` turns -0.0 into 0.0, which has the sign +.
            line.append(_both(f"{round(row['nll'] - base['nll'], 2) + 0.0:+.2f}" for row, base in pairs))
            line.append(_both(_distance(row) for row, _ in pairs))
        else:
            line += ["0", "0"]
        cells.append(line)
    return cells


def _distance(row: pd.Series) -> str:
    """Write the total variation of a row, or the share of substitutions, which bounds it from above."""
    if pd.notna(row["tv_mean"]) or pd.isna(row["substitution_rate"]):
        return f"{row['tv_mean']:.3f}"
    return f"≤ {row['substitution_rate']:.3f}"


def _both(texts: Iterable[str]) -> str:
    # Values that were not measured are nan.
    parts = [EMPTY if text.endswith("nan") else text for text in texts]
    return EMPTY if set(parts) == {EMPTY} else "; ".join(parts)


def _speed(row: Mapping[str, Any] | pd.Series) -> str:
    """Write the speed-up and the tokens per forward pass of a row, as far as they are known: "1.50x, 2.10"."""
    parts = [(row["speedup"], "{:.2f}x"), (row["tokens_per_forward"], "{:.2f}")]
    return ", ".join(form.format(value) for value, form in parts if not pd.isna(value))
