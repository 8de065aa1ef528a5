"""Slow tests of a run without network on hostile prompts, ids and file names: all of them are treated as text."""

import ctypes
import json
import os
import subprocess
import sys
from functools import cache

import pandas as pd
import pytest
import yaml
from PIL import Image

from helpers.paths import ROOT
from helpers.tiny_run import TRAINING, Workflow, planned
from lantern.io import read_json

pytestmark = pytest.mark.slow

SCRIPT = "<script>document.title='stolen'</script><img src=x onerror=\"document.title='stolen'\">"
TEXTS = {
    "../../../etc/escaped": "../../escaped from its folder",
    "/tmp/escaped": "/tmp/escaped",
    "$(touch hacked)": "$(touch hacked)",
    "`touch hacked`": "`touch hacked`; touch hacked && rm -rf x | 'quo\"tes'",
    SCRIPT: SCRIPT,
    "=1+1": '=HYPERLINK("http://example.org","a")',
    "NA": "$\\frac{1}{ \\undefined $ and $x^",
    "007": "\u202eright to left שלום مرحبا",
    "1e5": "emoji 😀 C:\\dir\\file",
    "{x} {wildcards.shard} %s": "{x} {wildcards.shard} %s %(name)s",
    "control": "control \x00 nul \x1b[31m escape \x85 line\r\nend",
    "long": "y" * 10_000,
}
NAMES = ["$(touch hacked)", "`touch hacked`;x", "quo'te\"s", "<b>", "=1+1", "-rf", "{prompt}", "NA", "\u202egnp", "😀"]
ABLATIONS = ["neighbours", "jacobi_relaxed", "drafter_steps"]  # of the tiny config


def no_network():
    """Move the process and its children to where there is no network, not even a working loopback."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):  # CLONE_NEWNET
        raise OSError(ctypes.get_errno(), "unshare")


@cache
def can_cut_network():
    code = "import socket; socket.create_connection(('127.0.0.1', 9), timeout=2)"
    try:
        found = subprocess.run([sys.executable, "-c", code], preexec_fn=no_network, capture_output=True, text=True)
    except (subprocess.SubprocessError, AttributeError, OSError):
        return False  # needs Linux and the right to make a network namespace (root)
    assert "Network is unreachable" in found.stderr
    return True


def without_network(workflow, *arguments):
    """Run Snakemake without a network, if the network can be cut."""
    code, output = workflow.run(*arguments, before=no_network if can_cut_network() else None)
    assert code == 0, output + workflow.logs()
    return planned(output)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Return a finished run on hostile images and prompts, with report and study page."""
    folder = tmp_path_factory.mktemp("hostile")
    inputs = folder / "in put $(touch hacked);`touch hacked`"
    inputs.mkdir()
    for number in range(40):
        name = NAMES[number] if number < len(NAMES) else f"photo {number}"
        colour = tuple((number * step) % 256 for step in (37, 91, 151))
        Image.new("RGB", (40 + number, 64), colour).save(inputs / f"{name}.png")
        (inputs / f"{name}.txt").write_text(f"Photo number {number} of the “garden” $x_1$ <b>\n", encoding="utf-8")
    (folder / "own.jsonl").write_text("".join(json.dumps({"id": id, "text": TEXTS[id]}) + "\n" for id in TEXTS))
    overlay = {
        "data": {"source": "folder", "folder": str(inputs)},
        "prompts": {"own": {"file": str(folder / "own.jsonl")}},
        "repeats": {"noise_seeds": [3]},
        "methods": [
            {"preset": ["autoregressive", "coupled"]},
            {"preset": "proximity", "k": 20},
            {"preset": "lantern_pp", "k": 10, "lambda_": 5},  # other images on every CPU, so that the study shows all
        ],
        "ablations": {"grids": dict.fromkeys(ABLATIONS)},
        "metrics": {"headline_prompt_set": "own"},
        "figures": {"sample_prompts": len(TEXTS), "proximity_prompts": len(TEXTS)},
        "study": {"num_trials": len(TEXTS), "num_checks": 2},
    }
    (folder / "overlay.yaml").write_text(yaml.safe_dump(overlay))
    workflow = Workflow(folder, (folder / "overlay.yaml",))
    workflow.jobs = without_network(workflow, "all", "build_study")
    stylesheet = ROOT / "workflow" / "report" / "stylesheet.css"
    without_network(workflow, "--report", "report.html", "--report-stylesheet", str(stylesheet))
    return workflow


def test_the_whole_pipeline_runs_on_a_folder_of_images(hostile):
    summary = pd.read_csv(hostile.result("summary.csv"))
    coupled = summary[summary["method"] == "coupled"]
    assert coupled["prompt_set"].tolist() == ["seen", "own"] and set(coupled["repeat"]) == {"s0n3"}
    assert (coupled["tokens_equal_autoregressive"] == 1).all() and coupled["prompt_accuracy"].isna().all()
    rows = [json.loads(line) for line in hostile.result("prompts/seen.jsonl").read_text().splitlines()]
    assert len(rows) == 4 and all(row["id"].startswith("seen-") and "“garden”" in row["text"] for row in rows)
    assert (hostile.result("figures/fig_a_samples.png")).stat().st_size > 1000


def test_every_stage_passes_without_network(hostile):
    if not can_cut_network():
        pytest.skip("needs Linux and the right to make a network namespace (root)")
    assert hostile.jobs.keys() >= TRAINING | {"generate_images", "write_provenance", "build_study"}


def test_no_prompt_becomes_a_path_or_a_command(hostile):
    assert sorted(path.name for path in hostile.folder.iterdir() if not path.name.startswith(".")) == sorted(
        ["in put $(touch hacked);`touch hacked`", "own.jsonl", "overlay.yaml", "report.html", "results"]
    )
    names = [path.relative_to(hostile.folder).as_posix() for path in (hostile.folder / "results").rglob("*")]
    assert all(name.isascii() and name.replace("/", "").replace("-", "").replace(".", "").replace("_", "").isalnum()
               for name in names)  # fmt: skip
    assert not os.path.exists("/tmp/escaped") and not list(hostile.folder.parent.glob("*escaped*"))


def test_ids_and_texts_reach_tables_and_figures_unchanged(hostile):
    rows = [json.loads(line) for line in hostile.result("prompts/own.jsonl").read_text().split("\n")[:-1]]
    assert {row["id"]: row["text"] for row in rows} == TEXTS
    images = pd.read_csv(hostile.result("quality/own.T1.s0n3.images.csv"), dtype=str, keep_default_na=False)
    assert set(images.loc[images["method_id"] == "coupled", "prompt_id"]) == set(TEXTS)
    summary = pd.read_csv(hostile.result("summary.csv"))
    coupled = summary[(summary["method_id"] == "coupled") & (summary["prompt_set"] == "own")]
    assert (coupled["num_images"] == len(TEXTS)).all() and (coupled["tokens_equal_autoregressive"] == 1).all()
    assert hostile.result("figures/fig_a_samples.pdf").read_bytes().startswith(b"%PDF")
    trials = read_json(hostile.result("study/key.json"))["trials"].values()
    assert SCRIPT in {trial["prompt_id"] for trial in trials}


def test_a_script_in_a_prompt_is_text_in_study_and_report(hostile, browser):
    page, requests = browser.new_page(), []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(hostile.result("study/study.html").as_uri())
    page.keyboard.press("Enter")
    captions, title = [], page.title()
    while page.is_visible("#trial"):
        captions.append(page.text_content("#caption"))
        page.keyboard.press("ArrowLeft")
    assert SCRIPT in captions and page.title() == title and page.query_selector("#caption *") is None
    page.goto((hostile.folder / "report.html").as_uri())
    page.wait_for_load_state()
    assert page.title() != "stolen" and page.inner_text("body").strip()
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.querySelector('.next').getBoundingClientRect().right") <= 390
    page.click(".next >> text=figures")
    page.wait_for_selector("text=(a) Same prompts, same noise, every method")  # visible, at the latest in 30 s
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
