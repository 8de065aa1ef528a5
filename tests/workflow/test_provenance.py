"""Tests of the provenance of a finished run, figures drawn from a copy, and verification of results."""

import getpass
import hashlib
import os
import random
import re
import shlex
import shutil
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helpers.faults import TABLE
from helpers.paths import ROOT
from helpers.tiny_run import METHODS, Workflow, planned, with_overlay
from lantern.io import read_json
from lantern_pipeline.archive.provenance import FILE_PARTS
from lantern_pipeline.cli import app

DRAWN = [f"fig_{name}" for name in ("a_samples", "b_tradeoff", "e_latent_proximity")]


@pytest.fixture(scope="module")
def provenance(finished):
    return read_json(finished.result("provenance.json"))


def test_the_provenance_names_what_made_the_results(finished, provenance):
    assert provenance["experiment"] == "tiny" and provenance["config"]["target"]["dim"] == 32
    assert provenance["config"]["drafter"]["batch_size"] == 8 and "numbers" not in provenance["config"]
    assert provenance["seeds"] == {"seed": 0, "training_seeds": [0], "noise_seeds": [0, 1]}
    assert re.fullmatch(r"[0-9a-f]{40}|None", str(provenance["code"]["commit"]))
    assert provenance["environment"]["packages"]["torch"] and provenance["machine"]["cores"] >= 1
    assert [entry["device"] for entry in provenance["decoding"]] == ["cpu"]


def test_the_provenance_holds_the_hashes_of_the_files(finished, provenance):
    for part in FILE_PARTS:
        for name, entry in provenance[part].items():
            content = finished.result(name).read_bytes()
            assert entry == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}, name
    models = {
        f"{name}/model.safetensors" for name in ("tokenizer", "target/s0", "drafter/s0", "attribute_classifier", "clip")
    }
    assert models <= set(provenance["models"]) and len(provenance["records"]) == 2 * len(METHODS)
    tables = {"summary.csv", "paired.csv", "total_variation/methods.csv", "ablations/neighbours.csv", "premise.csv"}
    assert tables <= set(provenance["tables"])
    reports = {f"{name}/report.json" for name in ("tokenizer", "target/s0", "drafter/s0", "drafter/s0-3steps", "clip")}
    assert reports < set(provenance["tables"])
    assert "latency/s0n1.images.safetensors" in provenance["tables"] and "race.html" in provenance["figures"]
    assert len(provenance["figures"]) == 20 and list(provenance["prompts"]) == ["prompts/seen.jsonl"]


def test_the_provenance_names_no_user_no_host_and_no_folder_of_this_machine(finished):
    text = finished.result("provenance.json").read_text()
    assert not re.search(r'"(/|~|[A-Za-z]:\\)', text)
    for private in (str(ROOT), str(finished.folder), socket.gethostname(), str(Path.home()) + "/"):
        assert private not in text
    assert f'"{getpass.getuser()}"' not in text


def test_a_changed_table_makes_the_provenance_anew_and_nothing_else(copy_of_finished):
    table = copy_of_finished.result("published.csv")
    table.write_text(table.read_text() + "\n")
    code, output = copy_of_finished.run("--dry-run", "--quiet", "rules")
    assert code == 0 and planned(output) == {"write_provenance": 1, "all": 1, "total": 2}, output


def elsewhere(finished, folder):
    """Make the folder of another machine, to which only results/ was copied, with dates in any order."""
    shutil.copytree(finished.folder / "results", folder / "results")
    shuffled = random.Random(0)
    for path in sorted((folder / "results").rglob("*")):
        os.utime(path, (1.7e9, 1.7e9 + shuffled.random() * 1e6))
    return Workflow(folder)


@pytest.mark.slow
def test_a_copy_of_the_results_gives_the_same_figures_and_generates_nothing(finished, tmp_path):
    workflow = elsewhere(finished, tmp_path)
    an_ablation_off = with_overlay(workflow, tmp_path, ablations={"grids": {"neighbours": None}})
    code, output = an_ablation_off.make("figures", "--dry-run")
    jobs = set(planned(output)) - {"total", "figures"}
    assert code == 0 and len(jobs) == 9 and all(job.startswith("draw_") for job in jobs), output

    shutil.rmtree(workflow.result("figures"))
    drawing = ["--rerun-triggers", "mtime", "--allowed-rules", *sorted(jobs)]
    code, output = workflow.run(*drawing, "--", *(f"results/tiny/figures/{name}.png" for name in DRAWN))
    assert code == 0, output + workflow.logs()
    assert all(job.startswith("draw_") for job in set(planned(output)) - {"total"}), output
    for path in workflow.result("figures").iterdir():
        assert path.read_bytes() == finished.result(f"figures/{path.name}").read_bytes(), path.name
    assert len(list(workflow.result("figures").glob("*.png"))) == len(DRAWN)

    workflow.result("summary.csv").unlink()  # a missing table stops the drawing instead of being made
    code, output = workflow.run("--dry-run", *drawing, "--", f"results/tiny/figures/{DRAWN[1]}.png")
    assert code != 0 and "MissingInputException" in output and "results/tiny/summary.csv" in output, output


@pytest.mark.slow
def test_the_figures_of_published_models_are_listed_without_those_that_are_off(tmp_path):
    """`--forcerun` refuses a rule that does not exist."""
    configs = [str(ROOT / "experiments" / f"{name}.yaml") for name in ("llamagen_stage1", "llamagen_quick")]
    code, output = Workflow(tmp_path).make("figures", ARGS=shlex.join(["--dry-run", "--configfile", *configs]))
    assert code != 0 and "MissingInputException" in output and "draw_neighbours" not in output, output


def verify(*arguments):
    """Return exit code and output of `lantern verify`."""
    result = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    return result.exit_code, result.output


def test_the_results_of_a_run_are_verified_as_a_folder_and_as_a_zip_file_and_draw_the_same_codes(finished, tmp_path):
    folder = finished.folder / "results" / "tiny"
    file = shutil.make_archive(tmp_path / "tiny", "zip", finished.folder, "results/tiny")
    code, output = verify(file, "--images", len(METHODS))
    assert code == 0 and f"images generated again: {len(METHODS)} equal" in output, output
    for method in METHODS:
        assert f"equal: {method} seen T1 " in output
    code, output = verify(folder, "--images", 0)
    assert code == 0 and "images generated again: none" in output, output


def test_a_table_edited_by_hand_is_named_and_once_deleted_made_again(copy_of_finished):
    table, dates = copy_of_finished.result("summary.csv"), copy_of_finished.result("summary.csv").stat()
    text = table.read_text()
    table.write_text(text.replace("1", "7"))
    os.utime(table, ns=(dates.st_atime_ns, dates.st_mtime_ns))  # so that Snakemake sees nothing
    code, output = verify(copy_of_finished.result(""), "--images", 0)
    assert code == 1 and "(changed: summary.csv); delete these files, then run the workflow again" in output, output
    table.unlink()
    code, output = copy_of_finished.run("--dry-run", "--quiet", "rules")
    jobs = set(planned(output))
    assert code == 0 and {"summarise", "write_provenance", "draw_tradeoff"} <= jobs, output
    assert "generate_images" not in jobs, output
    code, output = copy_of_finished.run(TABLE)
    assert code == 0 and table.read_text() == text, output
    assert verify(copy_of_finished.result(""), "--images", 0)[0] == 0
