"""Memory that jobs may share, and the environment in which they start."""

import os
from types import SimpleNamespace

import pytest

from lantern_pipeline.runtime.machine import limit_memory, memory_bytes, set_job_environment


def test_without_a_limit_it_is_the_machines(tmp_path):
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory_bytes(tmp_path / "none", tmp_path / "none") == whole
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_bytes(tmp_path, tmp_path / "own") == whole


def test_a_containers_or_a_sessions_limit_holds_where_it_is_lower(tmp_path):
    (tmp_path / "own").write_text("1:net:/x\n0::/slurm/job_7/step_0\n")
    session = tmp_path / "slurm" / "job_7"
    (session / "step_0").mkdir(parents=True)
    (session / "step_0" / "memory.max").write_text("max\n")
    (session / "memory.max").write_text("4000000\n")
    assert memory_bytes(tmp_path, tmp_path / "own") == 4000000
    (tmp_path / "memory.max").write_text("3000000\n")
    assert memory_bytes(tmp_path, tmp_path / "own") == 3000000


@pytest.mark.parametrize(
    "is_main, nodes, given, is_limited",
    [(True, None, {}, True), (False, None, {}, False), (True, 4, {}, False), (True, None, {"mem_mb": 5000}, False)],
    ids=["local", "a job's process", "on a cluster", "the user's own"],
)
def test_only_a_local_run_is_held_within_the_machines_memory(is_main, nodes, given, is_limited):
    registered = {}
    workflow = SimpleNamespace(
        is_main_process=is_main,
        global_resources={"_nodes": SimpleNamespace(value=nodes), **given},
        register_resource=registered.__setitem__,
    )
    limit_memory(workflow)
    assert registered == ({"mem_mb": memory_bytes() // 10**6} if is_limited else {})


def test_a_variable_that_the_user_has_set_stays_and_others_get_their_values(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", {"GOMP_SPINCOUNT": "7", "PYTHONPATH": "/mine"})
    for _ in range(2):  # once more changes nothing
        set_job_environment(tmp_path)
        assert os.environ["GOMP_SPINCOUNT"] == "7" and os.environ["HF_HUB_OFFLINE"] == "1"
        assert os.environ["PYTHONPATH"] == os.pathsep.join([str(tmp_path), str(tmp_path / "workflow"), "/mine"])
