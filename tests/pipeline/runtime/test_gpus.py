"""Every job has GPUs of its own; nothing here needs one."""

import io
import os
import subprocess
import sys
import threading

import pytest
import torch

from lantern_pipeline.runtime.gpus import VARIABLE, hold_gpus, visible_gpus

JOB = """
import os, sys
from pathlib import Path
from lantern_pipeline.runtime.gpus import hold_gpus
with hold_gpus(int(sys.argv[1]), "generate_images", sys.stderr, Path(sys.argv[2])):
    print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def four(monkeypatch):
    monkeypatch.setenv(VARIABLE, "0,1,2,GPU-5e/7")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def hold(num, folder):
    return hold_gpus(num, "generate_images", io.StringIO(), folder)


def start(num, folder):
    command = [sys.executable, "-c", JOB, str(num), str(folder)]
    job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return job, job.stdout.readline().strip()


def test_jobs_side_by_side_have_different_gpus_and_a_killed_one_gives_its_own_back(four, tmp_path):
    first, its_gpu = start(1, tmp_path)
    second, its_gpus = start(2, tmp_path)
    assert (its_gpu, its_gpus) == ("0", "1,2")
    with hold(1, tmp_path):
        assert os.environ[VARIABLE] == "GPU-5e/7"
    first.kill()
    first.wait()
    with hold(2, tmp_path):
        assert os.environ[VARIABLE] == "0,GPU-5e/7"
    assert os.environ[VARIABLE] == "0,1,2,GPU-5e/7"
    second.communicate("")


def test_a_job_waits_until_gpus_are_free_and_says_so_once(four, tmp_path):
    first, _ = start(2, tmp_path)
    terminal, ran = io.StringIO(), threading.Event()

    def work():
        with hold_gpus(3, "train_drafter", terminal, tmp_path):
            ran.set()

    waiting = threading.Thread(target=work)
    waiting.start()
    assert not ran.wait(timeout=2.5)
    # What it cannot have together it does not keep from others.
    second, its_gpus = start(2, tmp_path)
    assert its_gpus == "2,GPU-5e/7" and not ran.is_set()
    first.communicate("")
    second.communicate("")
    waiting.join(timeout=60)
    assert ran.is_set()
    assert terminal.getvalue() == "train_drafter: waiting for 3 of 4 GPUs, which other jobs have\n"


def test_without_gpus_or_with_too_few_nothing_changes(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, "3")
    for num in (0, 2):
        with hold(num, tmp_path):
            assert os.environ[VARIABLE] == "3"
    monkeypatch.setenv(VARIABLE, "")
    assert visible_gpus() == []
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert visible_gpus() == ["0", "1"]
    with hold(1, tmp_path):
        assert os.environ[VARIABLE] == "0"
    assert VARIABLE not in os.environ


def test_jobs_of_a_cluster_count_their_gpus_each_from_zero(four, monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, "0")
    monkeypatch.setenv("SLURM_JOB_ID", "11")
    job, gpu = start(1, tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    with hold(1, tmp_path):
        assert gpu == os.environ[VARIABLE] == "0"
    job.communicate("")
