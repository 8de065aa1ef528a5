"""Tests of shared memory limits, custom classes, the name of a machine, and the environment of jobs."""

import os
from types import SimpleNamespace

import pytest
import torch

from lantern.extensions import CLASS_FOLDERS
from lantern_pipeline.job import machine
from lantern_pipeline.job.machine import (
    _cpu_name,
    describe_machine,
    find_own_classes,
    limit_memory,
    memory_bytes,
    name_processor,
    set_job_environment,
)


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
        nodes=nodes,
        global_resources=given,
        register_resource=registered.__setitem__,
    )
    limit_memory(workflow)
    assert registered == ({"mem_mb": memory_bytes() // 10**6} if is_limited else {})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Intel(R) Xeon(R) Platinum 8481C", "Intel(R) Xeon(R) Platinum 8481C"),
        ("AMD EPYC", "AMD EPYC (family 25, model 17)"),  # as virtual machines hide the number
    ],
)
def test_a_cpu_without_a_number_is_named_by_its_family_and_model(tmp_path, name, expected):
    fields = f"cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: {name}\nstepping\t: 1\n\n"
    (tmp_path / "cpuinfo").write_text(2 * fields)
    assert _cpu_name(tmp_path / "cpuinfo") == expected
    assert _cpu_name(tmp_path / "none")  # another system


def test_a_timing_is_of_the_processor_that_decoded():
    machine = {"cpu": "a CPU", "gpus": [{"name": "a GPU"}]}
    assert (name_processor(machine, "cpu"), name_processor(machine, "cuda")) == ("a CPU", "a GPU")
    assert name_processor(describe_machine(), "cpu") == describe_machine()["cpu"]


@pytest.mark.parametrize(
    "config, is_named",
    [
        ({"methods": [{"preset": "lantern", "k": 20}], "data": {"folder": "a:b"}}, False),
        ({"methods": [{"name": "mine", "acceptance": "capped:Capped"}]}, True),
        ({"ablations": {"grids": {"own": {"methods": [{"drafts": ["jacobi", "mine:Drafter"]}]}}}}, True),
        ({"variants": {"other": {"methods": [{"drafts": "mine:Drafter"}]}}}, True),
    ],
    ids=["none", "method", "ablation", "variant"],
)
def test_a_config_files_folder_is_searched_for_classes_only_if_one_is_named(config, is_named, tmp_path, monkeypatch):
    monkeypatch.setenv(CLASS_FOLDERS, "")
    find_own_classes(config, [tmp_path / "mine.yaml"])
    assert os.environ[CLASS_FOLDERS] == (str(tmp_path) if is_named else "")


def test_a_variable_that_the_user_has_set_stays_and_others_get_their_values(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "environ", {"GOMP_SPINCOUNT": "7", "PYTHONPATH": "/mine"})
    for _ in range(2):  # once more changes nothing
        set_job_environment(tmp_path)
        assert os.environ["GOMP_SPINCOUNT"] == "7" and os.environ["HF_HUB_OFFLINE"] == "1"
        assert os.environ["PYTHONPATH"] == os.pathsep.join([str(tmp_path), str(tmp_path / "workflow"), "/mine"])


def test_folders_of_classes_are_named_once_and_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv(CLASS_FOLDERS, "")
    names = [f"{letter}/{file}.yaml" for letter in "gcafbed" for file in ("one", "two")]
    find_own_classes({"methods": [{"drafts": "mine:Drafter"}]}, [tmp_path / name for name in names])
    assert os.environ[CLASS_FOLDERS].split(os.pathsep) == [str(tmp_path / letter) for letter in "abcdefg"]


def test_memory_is_given_in_gib_with_one_digit(monkeypatch):
    card = SimpleNamespace(name="a GPU", total_memory=79.26 * 2**30)
    monkeypatch.setattr(machine, "memory_bytes", lambda: 15.26 * 2**30)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: [card][index])
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31\nGCC version: 12.2.0"
    monkeypatch.setattr(machine, "_read", lambda path: version if "nvidia" in str(path) else "model name: A CPU")
    found = describe_machine()
    assert (found["memory_gib"], found["gpus"]) == (15.3, [{"name": "a GPU", "memory_gib": 79.3}])
    assert (found["cpu"], found["driver"], found["cuda"]) == ("A CPU", "550.90.07", torch.version.cuda)
    monkeypatch.setattr(machine, "memory_bytes", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    found = describe_machine()
    assert [found[name] for name in ("memory_gib", "gpus", "driver", "cuda")] == [None, [], None, None]


@pytest.mark.parametrize("before", [None, "", os.pathsep])
def test_no_empty_folder_is_put_on_the_path(monkeypatch, tmp_path, before):
    monkeypatch.setattr(os, "environ", {} if before is None else {"PYTHONPATH": before})
    set_job_environment(tmp_path)
    assert os.environ["PYTHONPATH"] == os.pathsep.join([str(tmp_path), str(tmp_path / "workflow")])
