"""Faults, each injected for real into a copy of a finished run; each ends in the table of the undisturbed run."""

import os
import shutil
import signal
import subprocess
import time

import pandas as pd
import pytest
import torch

from helpers.faults import FOLLOWERS, SHARD, SUMMARIES, TABLE, check_table, go_on, held_run, overwrite, resume, rewrite
from helpers.paths import ROOT
from helpers.tiny_run import METHODS, edited_project, planned, with_overlay, without_time
from lantern.io import load_tensors
from lantern.records import load_records

pytestmark = pytest.mark.xdist_group("finished_run")


@pytest.fixture
def unmeasured(copy_of_finished):
    """A run that has all its images; what follows from those of the second repeat is still to be made."""
    for file in [*copy_of_finished.result("quality").glob("seen.T1.s0n1.*"), *SUMMARIES]:
        (copy_of_finished.folder / file).unlink()
    return copy_of_finished


@pytest.fixture
def run(unmeasured):
    """A run that lacks one shard too."""
    unmeasured.result(SHARD).unlink()
    return unmeasured


def jobs_of(output):
    return {name: count for name, count in planned(output).items() if name != "total"}


# --- killed ----------------------------------------------------------------------------------------


def test_a_killed_job_and_a_killed_run_go_on_behind_their_finished_images(run, finished, tmp_path):
    log = run.result("logs/generate_images.eagle2.seen.T1.s0n1.1-of-1.log")
    with held_run(run, tmp_path / "first", TABLE) as first:
        os.kill(first.job(), signal.SIGKILL)
        assert first.wait() != 0
    (partial,) = run.result(SHARD).parent.glob(".partial-*")
    drawn = load_tensors(partial)[1]["prompt_ids"]
    assert 0 < len(drawn) < 4

    with held_run(run, tmp_path / "second", TABLE) as second:
        second.job()
        assert f"{len(drawn)} of 4 images were drawn by an interrupted job" in log.read_text()
        is_refused_beside(run)
        os.killpg(second.process.pid, signal.SIGKILL)
        second.wait()
    assert not run.result(SHARD).exists()
    drawn_by_both = load_tensors(partial)[1]["prompt_ids"]
    assert drawn_by_both[: len(drawn)] == drawn and len(drawn_by_both) > len(drawn)

    output = resume(run)
    assert jobs_of(output) == dict.fromkeys({"generate_images", *FOLLOWERS}, 1)
    assert f"{len(drawn_by_both)} of 4 images were drawn by an interrupted job" in log.read_text()
    assert os.listdir(run.result(SHARD).parent) == ["1-of-1.safetensors"]
    check_table(run, finished)


def is_refused_beside(run):
    """A second run beside one that goes on does no harm: a dry one plans, any other ends."""
    code, output = run.run(TABLE)
    assert code != 0 and "Directory cannot be locked" in output, output
    code, output = run.run("--dry-run", TABLE)
    assert code == 0 and jobs_of(output)["generate_images"] == 1, output


def test_a_job_that_a_killed_run_left_behind_is_waited_for_and_a_changed_key_re_runs_its_own(run, finished, tmp_path):
    with held_run(run, tmp_path / "first", TABLE) as first:
        left_behind = first.job()
        first.process.kill()  # Snakemake alone
        first.wait()
        changed = with_overlay(run, tmp_path, ablations={"num_prompts": 4})
        code, output = changed.run("--unlock")
        assert code == 0, output
        with held_run(changed, tmp_path / "second", TABLE, "results/tiny/ablations/drafter_steps.csv") as second:
            second.release()
            words = f"generate_images: waiting for process {left_behind} on"
            while words not in second.output() and second.process.poll() is None:
                time.sleep(0.2)
            assert words in second.output(), second.output()
            assert not run.result(SHARD).exists()
            os.kill(left_behind, signal.SIGKILL)
            assert second.wait() == 0, second.output() + run.logs()
    # Of the ablations, all but this one have a number of prompts of their own.
    assert jobs_of(second.output()) == dict.fromkeys({"generate_images", "run_ablation", *FOLLOWERS}, 1)
    check_table(run, finished)


def test_resume_makes_files_without_a_record_again_for_which_no_change_would_be_noticed(copy_of_finished):
    run, table = copy_of_finished, "results/tiny/latency/s0n1.csv"
    code, output = run.run("--cleanup-metadata", table)  # what a job leaves that Slurm ended after a kill -9
    assert code == 0, output
    code, output = run.make("resume", "--dry-run", "--quiet", "rules", "--workflow-profile", "profiles/slurm")
    jobs = jobs_of(output)
    assert code == 0 and jobs["measure_latency"] == 1 and jobs["summarise"] == 1, output
    assert "generate_images" not in jobs and f"--forcerun {table} --rerun-incomplete" in output
    assert "--cores" not in output  # the profile's count


# --- damaged ---------------------------------------------------------------------------------------


def test_damaged_shards_are_named_set_aside_and_made_again(unmeasured, finished):
    run = unmeasured
    flipped, cut = (run.result(SHARD.replace("eagle2", method)) for method in ("eagle2", "coupled"))
    content = bytearray(flipped.read_bytes())
    content[-1] ^= 1
    overwrite(flipped, content)
    overwrite(cut, cut.read_bytes()[:-40])
    for shard, words in ((flipped, "is damaged: its SHA-256 should be"), (cut, "is truncated or is not a safetensors")):
        code, output = run.run(TABLE)
        assert code != 0 and "Traceback" not in output
        place = f"{shard.relative_to(run.folder)}"
        assert f"measure_quality: {place} {words}" in output, output
        assert "it was set aside as 1-of-1.safetensors.damaged: run again, which makes it anew" in output
        assert os.listdir(shard.parent) == ["1-of-1.safetensors.damaged"]
    assert jobs_of(go_on(run)) == dict.fromkeys({"generate_images", *FOLLOWERS}, 1)
    check_table(run, finished)


def test_weights_that_are_no_numbers_and_logits_that_are_none_stop_the_run(run, finished):
    target = run.result("target/s0/model.safetensors")
    whole = target.read_bytes()

    def spoil(tensors):
        tensors["head.weight"][3, 5] = torch.nan

    def inflate(tensors):
        tensors["head.weight"][3] = 3e38  # a number, but the logit of it is none

    sentences = {
        spoil: "results/tiny/target/s0/model.safetensors: tensor head.weight should hold finite numbers, found 1 of",
        inflate: "logits of prompt seen-00000 are not finite at step ",
    }
    for change, words in sentences.items():
        rewrite(target, change)
        code, output = run.run(f"results/tiny/{SHARD}")
        (sentence,) = [line for line in output.splitlines() if "generate_images: " in line]
        assert code != 0 and words in sentence and "Traceback" not in output, output
        assert not run.result(SHARD).exists()
        overwrite(target, whole)
    assert jobs_of(go_on(run)) == dict.fromkeys({"generate_images", *FOLLOWERS}, 1)
    check_table(run, finished)


# --- no room ---------------------------------------------------------------------------------------


# A disk of 16 KiB, full, where the missing shard goes. Mounts of a namespace end with it, so that none is left behind.
ON_A_FULL_DISK = """
folder=$1; shift
mount -t tmpfs -o size=16k lantern-test "$folder" || exit 99
cat /dev/zero > "$folder/filler" 2> /dev/null
"$@"
code=$?
ls -A "$folder"
exit $code
"""


def on_a_full_disk(folder, command):
    """Runs a command; returns (exit code, what it printed and then what is in the folder)."""
    script = ["unshare", "--mount", "sh", "-c", ON_A_FULL_DISK, "sh", str(folder), *command]
    result = subprocess.run(script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    return result.returncode, result.stdout


def test_a_full_disk_is_one_sentence_and_once_there_is_room_the_run_goes_on(run, finished):
    folder = run.result(SHARD).parent
    if shutil.which("unshare") is None or on_a_full_disk(folder, ["true"])[0] != 0:
        pytest.skip("a small disk can be mounted by root only")
    code, output = on_a_full_disk(folder, run.command(TABLE))
    sentence = f"generate_images: could not write results/tiny/{SHARD}: No space left on device; nothing was left"
    assert code != 0 and sentence in output and "Traceback" not in output, output
    assert output.splitlines()[-1] == "filler" and output.splitlines()[-2].endswith("did not complete successfully.")
    assert jobs_of(go_on(run)) == dict.fromkeys({"generate_images", *FOLLOWERS}, 1)
    check_table(run, finished)


# --- changed ---------------------------------------------------------------------------------------


def test_an_edit_in_acceptance_generates_again_trains_nothing_and_changes_no_number(copy_of_finished, finished):
    run, records = copy_of_finished, [f"generation/{name}/seen/T1/s0n1/1-of-1.safetensors" for name in METHODS[:2]]
    project = edited_project(run.folder / "project", "lantern/acceptance/rejection.py")

    def make(target, *options):
        words = [*run.command(*target), *options]
        command = [word.replace(str(ROOT / "Snakefile"), str(project / "Snakefile")) for word in words]
        result = subprocess.run(command, cwd=run.folder, capture_output=True, text=True, timeout=600)
        assert result.returncode == 0, result.stdout + result.stderr + run.logs()
        return result.stdout + result.stderr

    jobs = planned(make(["results/tiny/quality/seen.T1.s0n1.csv"], "--dry-run", "--quiet", "rules"))
    by_method = {"generate_images": len(METHODS), "score_images": len(METHODS)}
    assert jobs == {**by_method, "measure_quality": 1, "total": 2 * len(METHODS) + 1}
    assert jobs_of(make([f"results/tiny/{record}" for record in records])) == {"generate_images": 2}
    for record in records:
        codes, expected = (load_records(of.result(record)).codes for of in (run, finished))
        assert codes.equal(expected)


# --- shards ----------------------------------------------------------------------------------------


def test_two_and_four_shards_give_the_tables_of_one(copy_of_finished, tmp_path):
    methods = [{"preset": "autoregressive"}, {"preset": "proximity", "k": 20}]
    run = with_overlay(copy_of_finished, tmp_path, methods=methods)
    names = ["results/tiny/quality/seen.T1.s0n0.csv", "results/tiny/quality/seen.T1.s0n0.images.csv"]
    tables = {}
    for number in (1, 2, 4):  # of four prompts, drawn in one shard already
        code, output = run.run(names[0], "--set-scatter", f"shards={number}")
        assert code == 0, output + run.logs()
        assert jobs_of(output).get("generate_images", 0) == (2 * number if number > 1 else 0)
        assert len(list(run.result("generation/proximity-k20/seen/T1/s0n0").glob(f"*-of-{number}.*"))) == number
        tables[number] = [without_time(pd.read_csv(run.folder / name)) for name in names]
    assert set(tables[1][0]["num_images"]) == {4}
    for number in (2, 4):
        for table, expected in zip(tables[number], tables[1], strict=True):
            margin = "margin_at_difference"  # of logits, whose rounding depends on the batch
            if margin in table:
                pd.testing.assert_series_equal(table[margin], expected[margin], rtol=1e-4)
            parts = [part.drop(columns=margin, errors="ignore") for part in (table, expected)]
            pd.testing.assert_frame_equal(*parts, check_exact=True)


def test_training_images_encoded_in_two_shards_train_the_same_target(copy_of_finished, finished, tmp_path):
    run = with_overlay(copy_of_finished, tmp_path, data={"num_shards": 2})
    target = "target/s0/model.safetensors"
    code, output = run.run(f"results/tiny/{target}")
    assert code == 0, output + run.logs()
    assert jobs_of(output) == {"encode_images": 4, "train_target": 1}
    weights, expected = (load_tensors(folder.result(target))[0] for folder in (run, finished))
    assert weights.keys() == expected.keys() and all(torch.equal(weights[name], expected[name]) for name in weights)
