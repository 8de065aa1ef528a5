"""Training on several processes with Hugging Face accelerate: one process per GPU, or several on one CPU.

A rule with the resource `gpu=4` starts four processes on its machine. For more machines, run on each of them

    python -m torch.distributed.run --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint <host>:29500
        -m lantern_pipeline.training.drafter_job <job.json>

with the same job file, checkpoint and inputs on a disk that all machines see.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
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
ERROR_MARK = "lantern-worker-error: "
ATTACHED = "LANTERN_ATTACHED"  # set for workers that shall end with the process that started them


def make_accelerator(device: torch.device) -> Accelerator:
    """The processes that are running and this one's device.

    Accelerate keeps one state per process. Precision is no part of it here (a recipe's own autocast sees to that), so
    that trainers of different precision live side by side; a state of another kind of device is replaced.

    Args:
        device: "cpu", with the backend gloo, or "cuda", with nccl and one GPU per process.
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
    """Runs a module in several processes of this machine and waits; their output goes to this one's stdout.

    Args:
        module: name for `python -m`; its work is to be wrapped into `report_errors`.
        arguments: of the module.
        num_processes: how many.
        device: "cuda" takes one GPU per process.

    Raises:
        ValueError: fewer GPUs than processes.
        ChildProcessError: a process failed; carries its sentence.
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
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": threads, ATTACHED: "1"}
    tail: deque[str] = deque(maxlen=50)
    errors = []
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, env=environment, text=True, errors="replace", **streams) as process:
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                tail.append(line.strip())
                if ERROR_MARK in line:
                    errors.append(json.JSONDecoder().raw_decode(line.split(ERROR_MARK, 1)[1])[0])
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        # The first error is the cause; the others lost their partner.
        reason = errors[0] if errors else next((line for line in reversed(tail) if line), "no output")
        raise ChildProcessError(
            f"{module} on {num_processes} processes failed with exit code {process.returncode}: {reason}"
        )


@contextmanager
def report_errors() -> Iterator[None]:
    """Around a worker's work: tells `run_processes` what went wrong, and ends with the process that started it."""
    if os.environ.get(ATTACHED):
        threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        yield
    except Exception as error:
        known = isinstance(error, ValueError | OSError | FloatingPointError)
        sentence = str(error) if known and str(error) else f"{type(error).__name__}: {error}"
        sys.stdout.write(f"\n{ERROR_MARK}{json.dumps(sentence)}\n")  # one write: other processes write here too
        sys.stdout.flush()
        raise


def _end_with_parent() -> None:
    """Waits until the starting process closes its end of stdin, by dying; a worker without it would train on."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(1)
