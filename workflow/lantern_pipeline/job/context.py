"""Functions that Snakemake scripts use for everything but their results: log file, threads, device, errors."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from lantern.io import DamagedFileError
from lantern_pipeline.job.locks import VISIBLE_GPUS, hold_gpu

if TYPE_CHECKING:
    import torch

# Seconds between two writes of the images finished so far. Tests set a shorter time, since they interrupt short jobs.
PARTIAL_EVERY_S = float(os.environ.get("LANTERN_PARTIAL_EVERY_S", 30))


class Job(Protocol):
    """The object `snakemake` of a Snakemake script. Files and parameters are attributes, with the names in the rule."""

    rule: str
    threads: int
    log: Sequence[str]  # the first path is used
    config: Mapping[str, Any]
    resources: Mapping[str, int]  # such as "gpu" -> number
    input: Any
    output: Any
    params: Any


@contextmanager
def job_log(snakemake: Job) -> Iterator[logging.Logger]:
    """Context manager around the whole code of a Snakemake script, which yields the logger of the rule.

    Output, warnings and log records go to the log file of the rule, warnings of this package also to the terminal. An
    error ends the process: its traceback goes to the log file, one sentence to the terminal. A damaged input file is
    renamed, so that the next run makes it again.

    PyTorch uses as many CPU threads as the rule states. If the rule requests a GPU, the process sees only one.
    """
    terminal, stdout = sys.stderr, sys.stdout
    if "torch" in sys.modules:  # jobs that only read tables do not import it
        sys.modules["torch"].set_num_threads(max(1, int(snakemake.threads)))
    path = Path(snakemake.log[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        hold_gpu(snakemake.rule, terminal) if int(snakemake.resources.get("gpu", 0)) else nullcontext(),
        # flushed at each line
        open(path, "w", encoding="utf-8", buffering=1) as file,
    ):
        logging.basicConfig(stream=file, level=logging.INFO, format="%(asctime)s %(message)s", force=True)
        logging.getLogger().addHandler(_warnings_for(terminal, snakemake.rule))
        logging.captureWarnings(True)
        sys.stdout = file
        # tqdm writes progress bars to stderr
        sys.stderr = terminal if terminal.isatty() else file
        try:
            yield logging.getLogger(snakemake.rule)
        except KeyboardInterrupt:
            print(f"\n{snakemake.rule}: interrupted; run the same command again to resume", file=terminal)
            sys.exit(130)  # the shell's status after Ctrl-C: 128 + SIGINT
        except Exception as error:
            traceback.print_exc(file=file)
            print(f"\n{snakemake.rule}: {_describe(error)} (details: {path})", file=terminal)
            sys.exit(1)
        finally:
            sys.stdout, sys.stderr = stdout, terminal
            logging.basicConfig(stream=terminal, force=True)


def _describe(error: Exception) -> str:
    if isinstance(error, DamagedFileError):
        return _set_aside(error)
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return error.strerror  # str(error) would begin with "[Errno 2]"
    # The messages of these are sentences for users. Others need the name of the error to be understood.
    known = isinstance(error, ValueError | OSError | FloatingPointError)
    return ("" if known else f"{type(error).__name__}: ") + (str(error) or type(error).__name__)


def _set_aside(error: DamagedFileError) -> str:
    """Rename a damaged file below results/, and return a sentence that tells the user about it."""
    # The workflow cannot make files outside results/ again.
    results = Path("results").resolve()
    if not error.path.resolve().is_relative_to(results):
        return str(error)
    aside = error.path.with_name(f"{error.path.name}.damaged")
    with suppress(FileNotFoundError):  # another job may have renamed it already
        error.path.replace(aside)
    return f"{error.path} {error.damage}; it was renamed to {aside.name}: run again to make a new one"


def _warnings_for(terminal: TextIO, rule: str) -> logging.Handler:
    """Return a log handler that shows warnings of this package and of the script, but not of libraries."""
    handler = logging.StreamHandler(terminal)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter(f"{rule}: %(message)s"))
    handler.addFilter(lambda record: record.name.split(".")[0] in ("lantern", "lantern_pipeline", rule))
    return handler


@contextmanager
def training_checkpoint(snakemake: Job) -> Iterator[Path]:
    """Context manager: yield the path of the checkpoint from which an interrupted training job resumes."""
    with _resumable_file(snakemake, Path(snakemake.output.model).parent, "checkpoint", ".pt") as path:
        yield path


@contextmanager
def partial_records(snakemake: Job) -> Iterator[Path]:
    """Context manager: yield the path of the records that an interrupted generation job has finished."""
    output = Path(snakemake.output[0])
    with _resumable_file(snakemake, output.parent, f"partial-{output.stem}", ".safetensors") as path:
        yield path


@contextmanager
def _resumable_file(snakemake: Job, folder: Path, stem: str, suffix: str) -> Iterator[Path]:
    """Context manager: yield a path whose file is deleted when the block ends without an error."""
    # After a change of what the contents depend on, the name is another, and the job starts from the beginning.
    path = folder / f".{stem}-{hash_origin(snakemake, snakemake.input)[:16]}{suffix}"
    # files of the same job before a change
    for stale in set(folder.glob(f".{stem}-{'[0-9a-f]' * 16}{suffix}")) - {path}:
        stale.unlink()
    yield path
    path.unlink(missing_ok=True)


def hash_origin(snakemake: Job, files: Iterable[str]) -> str:
    """Return a SHA-256 of what a job's results depend on: parameters, device, and files, by name and time."""
    # Among the parameters is a hash of the code. The batch size is none of them, because it changes no result.
    inputs = [(str(file), Path(file).stat().st_mtime_ns) for file in files]
    key = json.dumps([dict(snakemake.params.items()), snakemake.config["device"], inputs], sort_keys=True, default=str)
    return hashlib.sha256(key.encode()).hexdigest()


@dataclass(frozen=True)
class Execution:
    """Settings of a job that do not change its results: no parameters of rules, so that a change runs no job again.

    Attributes:
        stepping: how a decoding step runs: "auto", "eager" or "graph" (a CUDA graph).
        batch_size: images decoded together.
        scoring_batch_size: images whose metrics are computed together.
    """

    device: torch.device
    stepping: str
    batch_size: int
    scoring_batch_size: int


def execution_of(snakemake: Job) -> Execution:
    """Read a job's `Execution` from its config. A missing GPU raises a ValueError, see `resolve_device`."""
    config = snakemake.config
    return Execution(
        resolve_device(config["device"]),
        config["generation"]["stepping"],
        config["generation"]["batch_size"],
        config["metrics"]["batch_size"],
    )


def resolve_device(name: str) -> torch.device:
    """Return the device for a config value: "cpu", "cuda", or "auto" for a CUDA device if there is one."""
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise ValueError(f"config key device must be auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("config key device is 'cuda' but PyTorch finds no CUDA device; use auto or cpu")
    job, gpu = os.environ.get("SLURM_JOB_ID"), os.environ.get(VISIBLE_GPUS)
    # Slurm gave the job a GPU, which "auto" should not leave unused without a word.
    if name == "auto" and job and gpu and not torch.cuda.is_available():
        raise ValueError(
            f"Slurm job {job} has GPU {gpu}, but PyTorch finds no CUDA device: install a PyTorch that fits the node's "
            "driver, or set config key device to cpu"
        )
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
