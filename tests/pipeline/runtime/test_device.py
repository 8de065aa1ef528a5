"""Where a job's models run."""

import pytest

from lantern_pipeline.runtime.job import resolve_device


def test_a_slurm_job_never_takes_the_cpu_in_place_of_its_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert resolve_device("auto").type == "cpu"  # on one machine, auto takes what is there
    monkeypatch.setenv("SLURM_JOB_ID", "62")
    with pytest.raises(ValueError, match="Slurm job 62 has GPU 0, but PyTorch finds no CUDA device: install"):
        resolve_device("auto")
    assert resolve_device("cpu").type == "cpu"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert resolve_device("auto").type == "cpu"  # the job has no GPU
