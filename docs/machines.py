"""Compare machines: write docs/machines.csv, docs/machines.png and the table of docs/machines.md.

    python docs/machines.py my-laptop     # measures this machine first, into docs/machines/my-laptop/bench.json
    python docs/machines.py               # only writes the files

The first takes about three minutes, on an otherwise idle machine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd

from lantern_pipeline.data.tables import method_columns, write_table
from lantern_pipeline.figures import style
from lantern_pipeline.measure.columns import with_ends
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.tables.markdown import Cells, markdown_table, update_marked_block, with_interval
from lantern_pipeline.tables.method_labels import label_rows
from lantern_pipeline.tables.predict_bench import Report, read_bench

ROOT = Path(__file__).resolve().parents[1]
METHODS = "eagle1, jacobi, hybrid, lantern_pp k=10 lambda_=5, lantern k=20 delta=0.1 tree=chain5 drafts=sampled"
NUM_PROMPTS = 12
MACHINE = ("processor", "threads", "torch", "load_average")
MEASURED = ("tokens_per_forward", "latency_s", "relative_step_cost", "speedup")


def measure(name: str) -> None:
    """Measure the embedded model on this machine with `lantern bench`.

    Args:
        name: name of the machine, which is the folder of its results.
    """
    folder = ROOT / "docs" / "machines" / name
    options = ["--methods", METHODS, "--num", str(NUM_PROMPTS), "--output", str(folder)]
    lantern = Path(sys.executable).with_name("lantern")
    subprocess.run([lantern, "bench", "embedded", *options], check=True)
    (folder / "race.html").unlink()  # the repository keeps the numbers only


def read_machine(path: Path) -> Report:
    """Read the results of one machine.

    Args:
        path: bench.json in the machine's folder.

    Raises:
        ValueError: `make machine` did not write the file, or was interrupted.
    """
    report = read_bench(path)
    methods = ", ".join(str(row["method"].get("method_id")) for row in report["rows"])
    found = {"methods": methods, **{key: report.get(key) for key in ("model", "num_prompts", "rounds_complete")}}
    wanted = {
        "methods": f"{BASELINE}, {METHODS}",
        "model": "embedded",
        "num_prompts": NUM_PROMPTS,
        "rounds_complete": report.get("num_rounds"),
    }
    for key, value in wanted.items():
        if found[key] != value:
            raise _wrong(path, key, value, found[key])
    texts = {key: report.get(key) for key in ("processor", "torch")}
    numbers = {key: report.get(key) for key in ("threads", "load_average")}
    for row in report["rows"]:
        numbers |= {f"{key} of {row['method']['method_id']}": row.get(key) for key in with_ends(*MEASURED)}
    for kind, values in ((str, texts), ((int, float), numbers)):
        for key, value in values.items():
            if not isinstance(value, kind):
                raise _wrong(path, key, "a text" if kind is str else "a number", value)
    return report


def _wrong(path: Path, key: str, wanted: object, found: object) -> ValueError:
    remedy = f"measure again with `make machine NAME={path.parent.name}`"
    return ValueError(f"{key} of {path} must be {wanted}, got {found}; {remedy}")


def read_machines(docs: Path) -> pd.DataFrame:
    """Read the results of all machines.

    Args:
        docs: folder with machines/<name>/bench.json.

    Returns:
        One row per machine and method, with columns about the machine (name, processor, threads, torch version) and the
        method (name, label). The other columns are those of MEASURED, with intervals.
    """
    rows = []
    for path in sorted(docs.glob("machines/*/bench.json")):
        report = read_machine(path)
        machine = {key: report[key] for key in MACHINE}
        for row in report["rows"]:
            measured = {key: row[key] for key in with_ends(*MEASURED)}
            rows.append({"machine": path.parent.name, **machine, **method_columns(row["method"]), **measured})
    table = pd.DataFrame(rows)
    return table.assign(label=label_rows(table))[["machine", "method", "label", *MACHINE, *with_ends(*MEASURED)]]


def machine_cells(table: pd.DataFrame) -> Cells:
    """Make a table with one line per machine: time of autoregressive decoding, and the speed-up of each method.

    Args:
        table: result of `read_machines`.
    """
    labels = [label for label in table["label"].unique() if label != BASELINE]
    cells = [["machine", "processor, threads, torch", "one image, autoregressive", *labels]]
    for name, rows in table.groupby("machine", sort=False):
        rows = rows.set_index("label")
        first = rows.iloc[0]
        about = f"{first['processor']}, {first['threads']}, {first['torch']}"
        time = f"{1000 * rows.loc[BASELINE, 'latency_s']:.0f} ms"
        cells.append([str(name), about, time, *(with_interval(rows.loc[label], "speedup") for label in labels)])
    return cells


def draw_machines(table: pd.DataFrame, path: Path) -> None:
    """Draw the speed-up of each method on each machine, with a 95 % interval.

    Args:
        table: result of `read_machines`.
        path: image file to write.
    """
    methods = table[table["label"] != BASELINE]
    with style.paper_style():
        figure = style.new_figure(style.PAGE_WIDTH, 1.2 + 0.35 * methods["machine"].nunique())
        axes = figure.subplots()
        names = list(methods["machine"].unique())
        labels = list(methods["label"].unique())
        for index, label in enumerate(labels):
            rows = methods[methods["label"] == label]
            heights = [names.index(name) + (index - (len(labels) - 1) / 2) * 0.12 for name in rows["machine"]]
            look = {"linestyle": "none", "markersize": 3.5, **style.method_look(rows["method"].iloc[0])}
            axes.errorbar(rows["speedup"], heights, xerr=style.half_widths(rows, "speedup"), label=label, **look)
        style.name_rows(axes, names)
        axes.axvline(1, color="0.6", linewidth=0.8)
        axes.set_xlabel("speed-up over autoregressive decoding")
        figure.legend(loc="outside lower center", ncols=len(labels))
        style.save_figure(figure, [path])


def publish(docs: Path) -> None:
    """Write machines.csv, machines.png and the table of machines.md.

    Args:
        docs: folder with machines/<name>/bench.json.
    """
    table = read_machines(docs)
    write_table(docs / "machines.csv", table)
    draw_machines(table, docs / "machines.png")
    update_marked_block(docs / "machines.md", markdown_table(machine_cells(table)), "machines")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        measure(name)
    publish(ROOT / "docs")
