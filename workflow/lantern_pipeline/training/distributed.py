"""Training on several processes with Hugging Face accelerate: one process per GPU, or several on one CPU.

A rule with the resource `gpu=4` starts four processes on its machine. For more machines, run on each of them

    python -m torch.distributed.run --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint <host>:29500
        -m lantern_pipeline.training.drafter_job <job.json>

with the same job file, checkpoint and inputs on a disk that all machines see.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, is_initialized
from torch.nn.parallel import DistributedDataParallel

import lantern
import lantern_pipeline

FOLDERS = [str(Path(package.__file__).resolve().parents[1]) for package in (lantern, lantern_pipeline)]
# Names the file for the sentence of the first error. (The error files of torch.distributed.elastic count time in whole
# seconds: among errors of one second they take that of the lowest rank, which may only have lost its partner.)
ERROR_FILE = "LANTERN_ERROR_FILE"


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
    output goes to this one's stdout, and a failure becomes an error with their sentence.
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
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    reason = "no output"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "error.txt")
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": threads, ERROR_FILE: str(file)}
        with subprocess.Popen(command, env=environment, text=True, errors="replace", **streams) as process:
            try:
                for line in process.stdout:
                    print(line, end="", flush=True)
                    reason = line.strip() or reason
            except BaseException:
                process.terminate()
                raise
        if file.exists():
            reason = file.read_text(encoding="utf-8")
    if process.returncode:
        raise ChildProcessError(
            f"{module} on {num_processes} processes failed with exit code {process.returncode}: {reason}"
        )


@contextmanager
def report_errors() -> Iterator[None]:
    """Around a worker's work: tells `run_processes` what went wrong, and ends with the process that started it."""
    file = os.environ.get(ERROR_FILE)
    if file:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        yield
    except Exception as error:
        known = isinstance(error, ValueError | OSError | FloatingPointError) and str(error)
        sentence = str(error) if known else f"{type(error).__name__}: {error}"
        if file:  # made by the first error, which is the cause; the others lost their partner
            with suppress(FileExistsError), open(file, "x", encoding="utf-8") as opened:
                opened.write(sentence)
        raise


def _end_with_parent() -> None:
    """Waits until the starting process closes its end of stdin, by dying; a worker without it would train on."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(1)
