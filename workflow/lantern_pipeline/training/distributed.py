"""Training on several processes of one machine with Hugging Face accelerate: one per GPU, or several on one CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, is_initialized
from torch.nn.parallel import DistributedDataParallel

import lantern
import lantern_pipeline

FOLDERS = [str(Path(package.__file__).resolve().parents[1]) for package in (lantern, lantern_pipeline)]
FAULT = "fault: "  # begins the line that says what stopped a worker


def make_accelerator(device: torch.device) -> Accelerator:
    """The processes that are running, over gloo on the CPU or nccl on one GPU each, and this one's device.

    Accelerate keeps one state per process. Precision is no part of it here (a recipe's own autocast sees to that), so
    that trainers of different precision live side by side; a state of another kind of device is replaced.
    """
    if is_initialized() and AcceleratorState().device.type != device.type and not torch.distributed.is_initialized():
        AcceleratorState._reset_state(reset_partial_state=True)
    return Accelerator(cpu=device.type == "cpu", mixed_precision="no")


def share(accelerator: Accelerator, module: torch.nn.Module) -> torch.nn.Module:
    """Moves a module to this process's device and, on several processes, wraps it so that gradients are averaged.

    Its buffers are left out of what processes send each other: they are tables that each makes itself, and complex
    ones are not for every backend.
    """
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, [n for n, _ in module.named_buffers()])
    return accelerator.prepare(module)


def run_processes(module: str, arguments: Sequence[str], num_processes: int, device: torch.device) -> None:
    """Runs a module, whose work is wrapped into `report_errors`, in several processes of this machine and waits; their
    output goes to this one's stdout, and a failure becomes an error with the sentence of the first that failed: the
    others lost their partner.
    """
    if device.type == "cuda" and torch.cuda.device_count() < num_processes:
        raise ValueError(
            f"{module} on {num_processes} processes needs as many GPUs, found {torch.cuda.device_count()}; lower the "
            "rule's resource gpu"
        )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={num_processes}", "-m", module, *arguments]
    path = os.pathsep.join(filter(None, [*FOLDERS, os.environ.get("PYTHONPATH")]))
    threads = str(max(1, torch.get_num_threads() // num_processes))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": threads}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    faults = []
    with subprocess.Popen(command, env=environment, text=True, errors="replace", **streams) as process:
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                faults += [line.removeprefix(FAULT).strip()] if line.startswith(FAULT) else []
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise ChildProcessError(
            f"{module} on {num_processes} processes failed with exit code {process.returncode}: "
            + (faults[0] if faults else "see the log")
        )


@contextmanager
def report_errors() -> Iterator[None]:
    """Around a worker's work: tells `run_processes` what went wrong, and ends with the process that started it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        yield
    except Exception as error:
        known = isinstance(error, ValueError | OSError | FloatingPointError) and str(error)
        sentence = str(error) if known else f"{type(error).__name__}: {error}"
        print(FAULT + " ".join(sentence.split()), flush=True)
        raise


def _end_with_parent() -> None:
    """Waits until the starting process closes its end of stdin, by dying; a worker without it would train on."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(1)
