"""Description of this machine, the memory that jobs may use, and the environment variables of all jobs.

Snakemake imports this module while it plans the jobs, so only functions that look for GPUs import torch.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypedDict

from lantern.extensions import CLASS_FOLDERS

# Snakemake sets OMP_NUM_THREADS and similar variables itself, from each rule's `threads`.
JOB_ENVIRONMENT = {
    # By default glibc returns the memory of large tensors to the system and requests it again, which may take ten times
    # as long as the computation. With these values it keeps the memory. An old glibc ignores a threshold above 32 MiB.
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "67108864",
    # GNU OpenMP's threads wait for each other by spinning. If another process needs the core, a training step with two
    # threads then takes five times as long (measured: 468 instead of 92 ms). With this value they soon sleep.
    "GOMP_SPINCOUNT": "2000",
    # Jobs download nothing from a model hub, except in rule fetch_resource.
    "HF_HUB_OFFLINE": "1",
}


class Gpu(TypedDict):
    """One GPU, as PyTorch describes it."""

    name: str
    memory_gib: float  # in units of 2^30 bytes


class Machine(TypedDict):
    """A machine, as published results describe it. Unknown values are None."""

    cpu: str
    architecture: str  # instruction set, such as "x86_64"
    cores: int | None  # logical ones
    memory_gib: float | None
    gpus: list[Gpu]
    cuda: str | None  # CUDA version of PyTorch, if there is a GPU
    driver: str | None  # version of NVIDIA's kernel module


class Workflow(Protocol):
    """Interface of Snakemake's workflow object, as far as `limit_memory` uses it."""

    # whether this is the process that the user started
    is_main_process: bool
    # jobs that may run at a time on other machines (`--jobs`); None if jobs run on this machine
    nodes: int | None
    # names of resources, such as "mem_mb", whose sum over all running jobs is limited
    global_resources: Container[str]

    def register_resource(self, name: str, value: int) -> None:
        """Limit the sum of a resource over all jobs that run at the same time."""


def find_own_classes(config: object, configfiles: Iterable[Path | str]) -> None:
    """Allow this process and its jobs to import a user's custom classes from the folders of the config files."""
    # Imported here, since benchmarks/gpu_check.py describes a machine without pydantic.
    from lantern_pipeline.schema.methods import own_classes

    # Only then: otherwise a file next to a config file could stand in for a missing library unnoticed.
    if any(own_classes(config)):
        # jobs inherit the variable
        os.environ[CLASS_FOLDERS] = os.pathsep.join(sorted({str(Path(file).resolve().parent) for file in configfiles}))


def use_shipped_weights(config: Mapping[str, Any], home: str) -> None:
    """Let a run in another folder find the weights that the clone has in models/.

    Args:
        config: the merged config. The key `checkpoint` of its sections is changed in place.
        home: the folder of the clone.
    """
    for settings in config.values():
        path = settings.get("checkpoint") if isinstance(settings, dict) else None
        if (
            isinstance(path, str)
            and path.startswith("models/")
            # Paths in a config are relative to the folder of the run: a file there goes before that of the clone.
            and not Path(path).exists()
            and Path(home, path).exists()
        ):
            settings["checkpoint"] = os.path.relpath(Path(home, path))


def memory_bytes(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return the memory in bytes that this process and its children may use, or None if the system does not state it.

    It is the memory of the machine, or less if a container or a cluster's session has a limit.

    Args:
        groups: folder in which Linux describes its control groups (cgroup v2), which limit memory.
        own: file that names the control group of this process.
    """
    limits = []
    with suppress(AttributeError, ValueError, OSError):  # this system does not state it
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    # The line "0::/<name>" states the group in cgroup v2.
    names = [line.removeprefix("0::/") for line in _read(own).splitlines() if line.startswith("0::/")]
    # The limits of all groups around it hold, too. A group without one has the text "max", and `_read` yields "" for
    # folders above `groups`.
    for group in [groups / name for name in names]:
        limits += [int(text) for place in (group, *group.parents) if (text := _read(place / "memory.max")).isdecimal()]
    return min(limits, default=None)


def limit_memory(workflow: Workflow) -> None:
    """Limit the total memory of the jobs that run at the same time to the memory of this machine.

    A job that requests more runs alone. Nothing is limited if jobs run on other machines, or if the user has limited
    `mem_mb`.
    """
    is_local = workflow.is_main_process and workflow.nodes is None
    if is_local and "mem_mb" not in workflow.global_resources and (memory := memory_bytes()):
        workflow.register_resource("mem_mb", memory // 10**6)


def describe_machine() -> Machine:
    """Describe this machine. Only the GPUs that PyTorch sees are listed."""
    import torch

    gpus: list[Gpu] = []
    memory = memory_bytes()
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append({"name": properties.name, "memory_gib": round(properties.total_memory / 2**30, 1)})
    return {
        "cpu": _cpu_name(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1) if memory else None,
        "gpus": gpus,
        "cuda": torch.version.cuda if gpus else None,
        "driver": _driver_version() if gpus else None,
    }


def name_machine(machine: Machine) -> str:
    """Describe a machine in one line: processor, number of cores and GPUs."""
    return ", ".join([machine["cpu"], f"{machine['cores']} cores", *(gpu["name"] for gpu in machine["gpus"])])


def name_processor(machine: Machine, device: str) -> str:
    """Return the name of the processor that decodes on device "cuda" or "cpu"."""
    return machine["gpus"][0]["name"] if device == "cuda" else machine["cpu"]


def _cpu_name(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name of the CPU. If the name has no digits, its family and model numbers follow."""
    fields = dict(re.findall(r"^(model name|cpu family|model)\s*:\s*(.+?)\s*$", _read(info), re.M))
    name = fields.get("model name") or platform.processor() or platform.machine()
    # Virtual machines often hide the exact name: "AMD EPYC" names processors whose speed differs by a factor of three.
    if re.search(r"\d", name) or "cpu family" not in fields:
        return name
    return f"{name} (family {fields['cpu family']}, model {fields['model']})"


def _driver_version() -> str | None:
    """Return the version of NVIDIA's kernel module, or None if the system does not show it."""
    found = re.search(r"Kernel Module.*?(\d+(?:\.\d+)+)", _read(Path("/proc/driver/nvidia/version")))
    return found[1] if found else None


def _read(path: Path) -> str:
    """Return the text of a system file, or an empty string if the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def set_job_environment(root: Path | str) -> None:
    """Set those variables in JOB_ENVIRONMENT that the user has not set. All jobs inherit them."""
    for name, value in JOB_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Scripts can import the packages below `root` even if they are not installed, or installed from elsewhere.
    own = [str(root), str(Path(root, "workflow"))]
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in own]
    os.environ["PYTHONPATH"] = os.pathsep.join([*own, *others])
