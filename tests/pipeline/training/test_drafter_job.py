"""A draft model's training as a job: several processes are one process, and what goes wrong in them is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from tiny_codes import CONFIG, RECIPE, make_dataset, make_target

from lantern.checkpoints.native import load_model, save_model
from lantern.io import load_tensors, read_json, save_tensors, write_json
from lantern.models.draft import DraftModel
from lantern.models.target import TargetModel
from lantern.prompts import Prompt
from lantern_pipeline.data.prompt_files import write_prompts
from lantern_pipeline.training.distributed import FOLDERS, run_processes
from lantern_pipeline.training.drafter_job import DrafterJob, launch

HERE = Path(__file__).parent
STEPS = 4
LOSSES = {
    "guided": {"loss": "guided", "noise": 0.05},
    "published": {"loss": "published", "noise": 0.2, "caption_dropout": 0.3, "optimiser": "adamw"},
}


def write_split(folder: Path, name: str, num: int, num_shards: int) -> tuple[list[str], str]:
    dataset = make_dataset(num)
    ids = [f"{name}-{i}" for i in range(num)]
    write_prompts(folder / f"{name}.jsonl", [Prompt(*pair) for pair in zip(ids, dataset.captions, strict=True)])
    files = []
    for shard in range(num_shards):
        files.append(str(folder / f"{name}-{shard}.safetensors"))
        rows = slice(shard, None, num_shards)
        save_tensors(files[-1], {"codes": dataset.codes[rows].int()}, {"ids": ids[rows]})
    return files, str(folder / f"{name}.jsonl")


@pytest.fixture
def job(tmp_path) -> DrafterJob:
    save_model(tmp_path / "target.safetensors", make_target())
    codes, captions = write_split(tmp_path, "train", 32, 2)
    val_codes, val_captions = write_split(tmp_path, "val", 7, 1)
    settings = {
        **RECIPE,
        "checkpoint": None,
        "num_steps": STEPS,
        "batch_size": 4,
        "accumulation": 2,
        "warmup": 2,
        "eval_every": 1,
    }
    return DrafterJob(
        target=str(tmp_path / "target.safetensors"),
        codes=codes,
        captions=captions,
        features=[],
        val_codes=val_codes,
        val_captions=val_captions,
        val_features=[],
        settings=settings,
        sampling={"cfg_scale": 3.0, "top_k": 5, "top_p": 1.0, "filter_order": "top_k_first"},
        text={
            "encoder": "words",
            "caption_dim": CONFIG.caption_dim,
            "seed": 0,
            "phrase_words": 1,
            "max_tokens": CONFIG.num_text_tokens,
        },
        source="folder",
        training_seed=3,
        device="cpu",
        model=str(tmp_path / "model.safetensors"),
        report=str(tmp_path / "report.json"),
        checkpoint=str(tmp_path / ".checkpoint-0.pt"),
    )


def with_settings(job: DrafterJob, **settings) -> DrafterJob:
    return replace(job, settings=job.settings | settings)


def run(job: DrafterJob, num_processes: int) -> list[dict[str, float]]:
    """History without times."""
    launch(job, num_processes)
    return [
        {key: value for key, value in entry.items() if key != "elapsed_s"} for entry in read_json(job.report)["history"]
    ]


def test_two_processes_give_the_losses_of_one(job):
    """Noise, dropped captions, two batches a step and a validation of seven images over two processes.

    Of the published loss: those of the guided one are compared below, with an interruption in their middle.
    """
    job = with_settings(job, **LOSSES["published"])
    alone, together = run(job, 1), run(job, 2)
    assert len(alone) == len(together) == STEPS
    for one, two in zip(alone, together, strict=True):
        assert two == pytest.approx(one, rel=1e-4)
    assert not Path(job.checkpoint).with_suffix(".json").exists()
    assert read_json(job.report)["num_processes"] == 2


def test_the_report_and_the_model_hold_losses_and_acceptance(job):
    launch(job, 1)
    report = read_json(job.report)
    for key in ("loss", "overlap_1", "overlap_3", "val_loss", "val_acceptance_3", "val_expected_length", "num_steps"):
        assert key in report
    assert load_model(Path(job.model), DraftModel).token_embedding.weight.dtype == torch.float32


def test_a_job_is_json(job):
    assert DrafterJob(**json.loads(json.dumps(asdict(job)))) == job


def test_an_interrupted_run_goes_on_as_if_undisturbed_on_any_number_of_processes(job, monkeypatch, tmp_path):
    job = with_settings(job, **LOSSES["guided"])
    undisturbed = run(job, 1)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    write_json(tmp_path / "job.json", asdict(job))
    with pytest.raises(ChildProcessError, match=r"interrupted_job on 2 processes failed.*: the power failed"):
        run_processes("interrupted_job", [str(tmp_path / "job.json")], 2, torch.device("cpu"))
    saved = torch.load(job.checkpoint, weights_only=True)
    assert saved["next_step"] == 2
    names = set(load_model(Path(job.model), DraftModel).state_dict())
    assert set(saved["trainer"]["model"]) == names  # no wrapper's names
    resumed = run(job, 1)  # what two processes have begun
    assert [entry["step"] for entry in resumed] == list(range(STEPS))
    for one, two in zip(undisturbed, resumed, strict=True):
        assert two == pytest.approx(one, rel=1e-4)


def test_a_loss_that_is_not_finite_in_one_process_stops_both_at_its_step(job, tmp_path):
    """Code 7 is fed to the models in one training image only, and its embedding is too large to count with."""
    target = load_model(Path(job.target), TargetModel)
    target.token_embedding.weight.data[7] = 3e38  # files with nan are refused before
    save_model(Path(job.target), target)
    tensors, metadata = load_tensors(job.codes[0])
    tensors["codes"][5, 0] = 7
    save_tensors(job.codes[0], tensors, metadata)
    with pytest.raises(FloatingPointError, match=r"drafter: \w+ is (nan|inf) at step \d") as alone:
        launch(job, 1)
    with pytest.raises(ChildProcessError, match=r"exit code 1: drafter: \w+ is (nan|inf)") as together:
        launch(job, 2)
    assert str(together.value).endswith(str(alone.value))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_no_worker_trains_on_when_its_parent_is_killed(job, tmp_path):
    job = with_settings(job, num_steps=10_000_000, eval_every=None)
    write_json(tmp_path / "job.json", asdict(job))
    code = "import sys\nfrom test_drafter_job import *\nlaunch(DrafterJob(**read_json(sys.argv[1])), 2)"
    folders = [HERE, HERE.parent, HERE.parent.parent, *FOLDERS]  # these very packages, wherever others are installed
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", code, str(tmp_path / "job.json")]
    with open(tmp_path / "log", "w") as log:
        parent = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, stdout=log, stderr=log)
    try:
        wait_until(lambda: "drafter step" in (tmp_path / "log").read_text() or parent.poll() is not None)
        assert len(processes_of(job)) >= 2, (tmp_path / "log").read_text()
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        wait_until(lambda: not processes_of(job))
    finally:
        for number in [parent.pid, *processes_of(job)]:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def processes_of(job: DrafterJob) -> list[int]:
    """Numbers of the processes, the dead but unburied left out, whose command line names the job file."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str(Path(job.checkpoint).with_suffix(".json")).encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_until(condition) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise TimeoutError("waited for a minute")
