"""Tests of the device of a job's models."""

import pytest

from lantern_pipeline.job.context import resolve_device


def test_a_slurm_job_never_takes_the_cpu_in_place_of_its_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert resolve_device("auto").type == "cpu"  # on one machine, auto uses the device that exists
    monkeypatch.setenv("SLURM_JOB_ID", "62")
    with pytest.raises(ValueError, match="Slurm job 62 has GPU 0, but PyTorch finds no CUDA device: install"):
        resolve_device("auto")
    assert resolve_device("cpu").type == "cpu"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert resolve_device("auto").type == "cpu"  # the job has no GPU


def test_a_device_is_one_that_is_known_and_there(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for is_there, found in ((True, ["cuda", "cuda", "cpu"]), (False, ["cpu", "cpu"])):
        monkeypatch.setattr("torch.cuda.is_available", lambda is_there=is_there: is_there)
        names = ("auto", "cuda", "cpu") if is_there else ("auto", "cpu")
        assert [resolve_device(name).type for name in names] == found
    with pytest.raises(ValueError, match="config key device is 'cuda' but PyTorch finds no CUDA device; use auto or"):
        resolve_device("cuda")
    with pytest.raises(ValueError, match="config key device must be auto, cpu or cuda, got 'tpu'"):
        resolve_device("tpu")
