"""The frame of every workflow script: log file, progress on the terminal, threads, device, errors."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from lantern.io import DamagedFileError
from lantern_pipeline.runtime.locks import VISIBLE_GPUS, hold_gpu, hold_job

if TYPE_CHECKING:
    import torch

# Seconds between two writes of the images finished so far; tests that interrupt jobs of a second ask for fewer.
PARTIAL_EVERY_S = float(os.environ.get("LANTERN_PARTIAL_EVERY_S", 30))


class Job(Protocol):
    """The object `snakemake` that a script gets; inputs, outputs and parameters have the names of the rule's."""

    rule: str
    threads: int
    log: Sequence[str]
    config: Mapping[str, Any]
    resources: Mapping[str, int]
    input: Any
    output: Any
    params: Any


@contextmanager
def job_log(snakemake: Job) -> Iterator[logging.Logger]:
    """Send the output, warnings and log records of a script to its rule's log file, and set the number of threads.

    Progress bars stay on the terminal if there is one, and so do warnings of this package. An error leaves its
    traceback in the log and one sentence on the terminal.

    If a killed Snakemake left the same job behind, the new process waits until it ends, since a file has one writer at
    a time. A damaged result is set aside, so that the next run makes it again. A job that asks for a GPU sees its GPU
    only.
    """
    terminal, stdout = sys.stderr, sys.stdout
    if "torch" in sys.modules:  # a job on tables has none
        sys.modules["torch"].set_num_threads(max(1, int(snakemake.threads)))
    path = Path(snakemake.log[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        hold_job(snakemake.rule, path, terminal),
        hold_gpu(snakemake.rule, terminal) if int(snakemake.resources.get("gpu", 0)) else nullcontext(),
        open(path, "w", encoding="utf-8", buffering=1) as file,
    ):
        logging.basicConfig(stream=file, level=logging.INFO, format="%(asctime)s %(message)s", force=True)
        logging.getLogger().addHandler(_warnings_for(terminal, snakemake.rule))
        logging.captureWarnings(True)
        sys.stdout = file
        sys.stderr = terminal if terminal.isatty() else file
        try:
            yield logging.getLogger(snakemake.rule)
        except KeyboardInterrupt:
            print(f"\n{snakemake.rule}: interrupted; run the same command again to resume", file=terminal)
            sys.exit(130)
        except Exception as error:
            traceback.print_exc(file=file)
            print(f"\n{snakemake.rule}: {_describe(error)} (details: {path})", file=terminal)
            sys.exit(1)
        finally:
            sys.stdout, sys.stderr = stdout, terminal
            logging.basicConfig(stream=terminal, force=True)


def _describe(error: Exception) -> str:
    """Return one sentence about what stopped a job."""
    if isinstance(error, DamagedFileError):
        return _set_aside(error)
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return error.strerror  # ours, without the number
    known = isinstance(error, ValueError | OSError | FloatingPointError)
    return ("" if known else f"{type(error).__name__}: ") + (str(error) or type(error).__name__)


def _set_aside(error: DamagedFileError) -> str:
    """Rename a damaged file of the run's results, and no other file. Return the sentence that says so."""
    results = Path("results").resolve()
    if not error.path.resolve().is_relative_to(results):
        return str(error)
    aside = error.path.with_name(f"{error.path.name}.damaged")
    with suppress(FileNotFoundError):  # another job has met it too
        error.path.replace(aside)
    return f"{error.path} {error.damage}; it was set aside as {aside.name}: run again to make a new one"


def _warnings_for(terminal: TextIO, rule: str) -> logging.Handler:
    """Return a handler that shows warnings of this package and of the script, but not of libraries."""
    handler = logging.StreamHandler(terminal)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter(f"{rule}: %(message)s"))
    handler.addFilter(lambda record: record.name.split(".")[0] in ("lantern", "lantern_pipeline", rule))
    return handler


@contextmanager
def training_checkpoint(snakemake: Job) -> Iterator[Path]:
    """Names the file, beside the output `model`, from which an interrupted training goes on."""
    with _resumable_file(snakemake, Path(snakemake.output.model).parent, "checkpoint", ".pt") as path:
        yield path


@contextmanager
def partial_records(snakemake: Job) -> Iterator[Path]:
    """Names the file, beside the first output, in which a generation job keeps its finished images."""
    output = Path(snakemake.output[0])
    with _resumable_file(snakemake, output.parent, f"partial-{output.stem}", ".safetensors") as path:
        yield path


@contextmanager
def _resumable_file(snakemake: Job, folder: Path, stem: str, suffix: str) -> Iterator[Path]:
    """Names a file that an interrupted job leaves for the next one; it is removed once the block has ended well.

    The name holds a hash of the rule's parameters (settings and code fingerprint), of the device and of the inputs'
    dates, so that a changed configuration, an edit or a new input starts afresh instead of going on from what it did
    not make. A batch size changes no image and is no part of it.
    """
    inputs = [(str(file), Path(file).stat().st_mtime_ns) for file in snakemake.input]
    key = json.dumps([dict(snakemake.params.items()), snakemake.config["device"], inputs], sort_keys=True, default=str)
    path = folder / f".{stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}{suffix}"
    for stale in set(folder.glob(f".{stem}-{'[0-9a-f]' * 16}{suffix}")) - {path}:
        stale.unlink()
    yield path
    path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Execution:
    """Settings of a job that do not change its results, so no parameters of rules.

    Attributes:
        device: device of its models.
        stepping: how a decoding step runs: "auto", "eager" or "graph".
        batch_size: images decoded together.
        scoring_batch_size: images measured together.
    """

    device: torch.device
    stepping: str
    batch_size: int
    scoring_batch_size: int


def execution_of(snakemake: Job) -> Execution:
    """Return how the config says that a job runs."""
    config = snakemake.config
    return Execution(
        resolve_device(config["device"]),
        config["generation"]["stepping"],
        config["generation"]["batch_size"],
        config["metrics"]["batch_size"],
    )


def resolve_device(name: str) -> torch.device:
    """Pick the device for a config value: "auto" (a CUDA device if there is one, else the CPU), "cpu" or "cuda".

    Raises:
        ValueError: PyTorch finds no CUDA device although `name` is "cuda", or is "auto" in a Slurm job that has a GPU.
    """
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"config key device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("config key device is 'cuda' but PyTorch finds no CUDA device; use auto or cpu")
    job, gpu = os.environ.get("SLURM_JOB_ID"), os.environ.get(VISIBLE_GPUS)
    if name == "auto" and job and gpu and not torch.cuda.is_available():
        raise ValueError(
            f"Slurm job {job} has GPU {gpu}, but PyTorch finds no CUDA device: install a PyTorch that fits the node's "
            "driver, or set config key device to cpu"
        )
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
