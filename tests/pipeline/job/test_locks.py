"""Tests of locks: one GPU per job. No GPU is needed."""

import errno
import io
import os
import stat
import subprocess
import sys
import threading

import filelock
import pytest
import torch

from lantern_pipeline.job.locks import VISIBLE_GPUS, hold_gpu, try_lock, visible_gpus


def test_where_the_file_system_knows_no_locks_nothing_is_locked(monkeypatch, tmp_path):
    refuse_with(monkeypatch, errno.ENOTSUP)
    with open(tmp_path / "lock", "a") as first, open(tmp_path / "lock", "a") as second:
        assert try_lock(first) and try_lock(second)


def test_a_lock_has_one_holder_and_ends_with_its_file(tmp_path):
    with open(tmp_path / "lock", "a") as first, open(tmp_path / "lock", "a") as second:
        assert try_lock(first) and not try_lock(second)
        first.close()
        assert try_lock(second)


def test_a_file_system_that_fails_is_an_error(monkeypatch, tmp_path):
    refuse_with(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"), open(tmp_path / "lock", "a") as file:
        try_lock(file)


def refuse_with(monkeypatch, number):
    def lock(descriptor, *, blocking):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(filelock, "lock_descriptor", lock)


JOB = """
import os, sys
from pathlib import Path
from lantern_pipeline.job.locks import hold_gpu
with hold_gpu("generate_images", sys.stderr, Path(sys.argv[1])):
    print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def three(monkeypatch):
    monkeypatch.setenv(VISIBLE_GPUS, "0,1,GPU-5e/7")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def hold(folder):
    return hold_gpu("generate_images", io.StringIO(), folder)


def start(folder):
    command = [sys.executable, "-c", JOB, str(folder)]
    job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return job, job.stdout.readline().strip()


def test_jobs_side_by_side_have_different_gpus_and_a_killed_one_gives_its_own_back(three, tmp_path):
    (first, one), (second, other) = start(tmp_path), start(tmp_path)
    assert (one, other) == ("0", "1")
    with hold(tmp_path):
        assert os.environ[VISIBLE_GPUS] == "GPU-5e/7"
    first.kill()
    first.wait()
    with hold(tmp_path):
        assert os.environ[VISIBLE_GPUS] == "0"
    assert os.environ[VISIBLE_GPUS] == "0,1,GPU-5e/7"
    second.communicate("")


def test_a_job_waits_until_a_gpu_is_free_and_says_so_once(monkeypatch, tmp_path):
    monkeypatch.setenv(VISIBLE_GPUS, "0")
    first, _ = start(tmp_path)
    terminal, ran = io.StringIO(), threading.Event()

    def work():
        with hold_gpu("train_drafter", terminal, tmp_path):
            ran.set()

    waiting = threading.Thread(target=work)
    waiting.start()
    while not terminal.getvalue():  # the thread has tried, and waits
        assert not ran.wait(timeout=0.05)
    assert not ran.wait(timeout=1.5)  # a second attempt at least
    first.communicate("")
    waiting.join(timeout=60)
    assert ran.is_set()
    assert terminal.getvalue() == "train_drafter: waiting for one of 1 GPUs, which other jobs have\n"


def test_without_a_gpu_nothing_changes(monkeypatch, tmp_path):
    monkeypatch.setenv(VISIBLE_GPUS, "")
    assert visible_gpus() == []
    with hold(tmp_path):
        assert os.environ[VISIBLE_GPUS] == ""
    monkeypatch.delenv(VISIBLE_GPUS)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert visible_gpus() == ["0", "1"]
    with hold(tmp_path / "locks"):
        assert os.environ[VISIBLE_GPUS] == "0"
        assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o700  # of this user only
    assert VISIBLE_GPUS not in os.environ


def test_jobs_of_a_cluster_count_their_gpus_each_from_zero(monkeypatch, tmp_path):
    monkeypatch.setenv(VISIBLE_GPUS, "0")
    monkeypatch.setenv("SLURM_JOB_ID", "11")
    job, gpu = start(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    with hold(tmp_path):
        assert gpu == os.environ[VISIBLE_GPUS] == "0"
    job.communicate("")
