"""Description of this machine, the memory that jobs may use, and the environment of all jobs.

Imported while Snakemake reads the workflow: no torch before it is asked for GPUs.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypedDict

from lantern.methods import CLASS_FOLDERS

# Snakemake itself sets OMP_NUM_THREADS and its kin from each rule's `threads`.
JOB_ENVIRONMENT = {
    # glibc gives large tensors back to the system and faults them in again, at up to ten times the cost: let it keep
    # them.
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "67108864",
    # GNU OpenMP's threads wait for each other by spinning. Where another process wants the core, that costs five times
    # the work itself (measured: 468 against 92 ms for a training step with two threads); so they soon go to sleep.
    "GOMP_SPINCOUNT": "2000",
    # Nothing is fetched from a model hub in the middle of a run.
    "HF_HUB_OFFLINE": "1",
}


class Gpu(TypedDict):
    """A GPU of a machine."""

    name: str
    memory_gib: float


class Machine(TypedDict):
    """Result of `describe_machine`. Unknown entries are None."""

    cpu: str
    architecture: str
    cores: int | None
    memory_gib: float | None
    gpus: list[Gpu]
    cuda: str | None
    driver: str | None


class Workflow(Protocol):
    """Snakemake's workflow, as far as it is asked about memory."""

    is_main_process: bool
    nodes: int | None
    global_resources: Container[str]

    def register_resource(self, name: str, value: int) -> None:
        """Let jobs that run at the same time ask for no more than `value` of a resource together."""


def find_own_classes(config: object, configfiles: Iterable[Path | str]) -> None:
    """Let this process and its jobs load classes of a user's own from the folders of config files.

    Only if the config names one: a file beside an overlay must not take the place of a library, and is run by nobody
    who did not ask for it.
    """
    if names_own_class(config):
        os.environ[CLASS_FOLDERS] = os.pathsep.join(sorted({str(Path(file).resolve().parent) for file in configfiles}))


def names_own_class(config: object) -> bool:
    """Return whether a method of the config has drafts or an acceptance named as module:Class."""
    if isinstance(config, Mapping):
        return any(
            (key in ("drafts", "acceptance") and ":" in str(value)) or names_own_class(value)
            for key, value in config.items()
        )
    return isinstance(config, list) and any(map(names_own_class, config))


def memory_bytes(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Return the memory that this process and its children may use, or None on a system that does not state it.

    It is the machine's memory, or less if a container or a cluster's session has a limit.

    Args:
        groups: folder in which Linux shows its control groups, version 2.
        own: file that names the control group of this process.
    """
    limits = []
    with suppress(AttributeError, ValueError, OSError):  # no such question on this system
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    names = [line.removeprefix("0::/") for line in _read(own).splitlines() if line.startswith("0::/")]
    for group in [groups / name for name in names]:
        limits += [int(text) for place in (group, *group.parents) if (text := _read(place / "memory.max")).isdecimal()]
    return min(limits, default=None)


def limit_memory(workflow: Workflow) -> None:
    """Lets jobs side by side on this machine ask for no more memory than it has; one that asks for more runs alone.

    `workflow` is Snakemake's. Elsewhere (`--jobs`) each job has a machine's; a user's own `mem_mb` stays.
    """
    is_local = workflow.is_main_process and workflow.nodes is None
    if is_local and "mem_mb" not in workflow.global_resources and (memory := memory_bytes()):
        workflow.register_resource("mem_mb", memory // 10**6)


def describe_machine() -> Machine:
    """Return cpu, architecture, cores, memory_gib, gpus (name and memory_gib), cuda and driver of this machine."""
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
    """Return the CPU, cores and GPUs of a machine of `describe_machine`, in a few words."""
    return ", ".join([machine["cpu"], f"{machine['cores']} cores", *(gpu["name"] for gpu in machine["gpus"])])


def name_processor(machine: Machine, device: str) -> str:
    """Name what decodes on `device`, "cpu" or "cuda", of a machine of `describe_machine`: its CPU or its first GPU."""
    return machine["gpus"][0]["name"] if device == "cuda" else machine["cpu"]


def _cpu_name(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the CPU's model name, with its family and model numbers if the name has no number of its own.

    Virtual machines often hide the number: "AMD EPYC" names processors whose speed differs by a factor of three.
    """
    fields = dict(re.findall(r"^(model name|cpu family|model)\s*:\s*(.+?)\s*$", _read(info), re.M))
    name = fields.get("model name") or platform.processor() or platform.machine()
    if re.search(r"\d", name) or "cpu family" not in fields:
        return name
    return f"{name} (family {fields['cpu family']}, model {fields['model']})"


def _driver_version() -> str | None:
    """Return the version of NVIDIA's kernel module, or None if the system does not show it."""
    found = re.search(r"Kernel Module.*?(\d+(?:\.\d+)+)", _read(Path("/proc/driver/nvidia/version")))
    return found[1] if found else None


def _read(path: Path) -> str:
    """Return the text of a file of the system; empty if there is none."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def set_job_environment(root: Path | str) -> None:
    """Set the environment variables that jobs inherit; a value that the user has set stays.

    Scripts import the packages of the project's folder `root`, whether they are installed or not.
    """
    for name, value in JOB_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    own = [str(root), str(Path(root, "workflow"))]
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in own]
    os.environ["PYTHONPATH"] = os.pathsep.join([*own, *others])
