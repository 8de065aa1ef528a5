"""Functions that Snakemake scripts use for everything but their results: log file, threads, device, errors."""

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

# Seconds between two writes of the images finished so far. Tests set a shorter time, since they interrupt short jobs.
PARTIAL_EVERY_S = float(os.environ.get("LANTERN_PARTIAL_EVERY_S", 30))


class Job(Protocol):
    """The object `snakemake` that Snakemake gives to a script.

    Attributes:
        rule: name of the rule.
        threads: number of CPU threads.
        log: paths of the log files; the first is used.
        config: the config of the run.
        resources: name of a resource, such as "gpu" -> amount.
        input: input files, as attributes with the names in the rule.
        output: output files, as attributes with the names in the rule.
        params: parameters of the rule, as attributes with their names.
    """

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
    """Context manager around the whole code of a Snakemake script: log file, errors, threads, GPU and lock.

    Output, warnings and log records go to the log file of the rule. Warnings of this package also go to the terminal.
    If there is a terminal, progress bars are shown there. An error ends the process: its traceback goes to the log
    file, one sentence to the terminal. A damaged input file is renamed, so that the next run makes it again.

    PyTorch uses as many CPU threads as the rule states. If the rule requests a GPU, the process sees only one. A killed
    Snakemake may leave a process that still runs the same job. Then this function waits until that process ends.

    Args:
        snakemake: the object that Snakemake gives to the script.

    Yields:
        The logger of the rule.
    """
    terminal, stdout = sys.stderr, sys.stdout
    if "torch" in sys.modules:  # jobs that only read tables do not import it
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
    """Return one sentence for the user about the error that stopped a job.

    If the error is a damaged file below results/, the file is renamed, so that the next run makes it again.
    """
    if isinstance(error, DamagedFileError):
        return _set_aside(error)
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return error.strerror  # a message of this package, without the number of the error
    known = isinstance(error, ValueError | OSError | FloatingPointError)
    return ("" if known else f"{type(error).__name__}: ") + (str(error) or type(error).__name__)


def _set_aside(error: DamagedFileError) -> str:
    """Rename a damaged file, and return a sentence that tells the user about it.

    Files outside results/ keep their names, because the workflow cannot make them again.
    """
    results = Path("results").resolve()
    if not error.path.resolve().is_relative_to(results):
        return str(error)
    aside = error.path.with_name(f"{error.path.name}.damaged")
    with suppress(FileNotFoundError):  # another job may have renamed it already
        error.path.replace(aside)
    return f"{error.path} {error.damage}; it was renamed to {aside.name}: run again to make a new one"


def _warnings_for(terminal: TextIO, rule: str) -> logging.Handler:
    """Return a log handler that shows warnings of this package and of the script, but not of libraries.

    Args:
        terminal: stream to which warnings are written.
        rule: name of the rule, with which each warning begins.
    """
    handler = logging.StreamHandler(terminal)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter(f"{rule}: %(message)s"))
    handler.addFilter(lambda record: record.name.split(".")[0] in ("lantern", "lantern_pipeline", rule))
    return handler


@contextmanager
def training_checkpoint(snakemake: Job) -> Iterator[Path]:
    """Context manager: return the path of the checkpoint from which an interrupted training job resumes.

    The checkpoint is in the folder of the rule's output `model`. It is deleted when the block ends without an error.
    """
    with _resumable_file(snakemake, Path(snakemake.output.model).parent, "checkpoint", ".pt") as path:
        yield path


@contextmanager
def partial_records(snakemake: Job) -> Iterator[Path]:
    """Context manager: return the path of the file with the images that an interrupted generation job has finished.

    The next attempt resumes from it. It is in the folder of the rule's first output, and is deleted when the block ends
    without an error.
    """
    output = Path(snakemake.output[0])
    with _resumable_file(snakemake, output.parent, f"partial-{output.stem}", ".safetensors") as path:
        yield path


@contextmanager
def _resumable_file(snakemake: Job, folder: Path, stem: str, suffix: str) -> Iterator[Path]:
    """Context manager: return the path of a file that an interrupted job leaves for the next attempt.

    The file is deleted when the block ends without an error. Its name contains a hash of the rule's parameters (among
    them a hash of the code), of the device, and of the inputs' paths and modification times. After a change of one of
    these, the job therefore starts from the beginning. The batch size is not hashed, because it changes no image.

    Args:
        snakemake: the object that Snakemake gives to the script.
        folder: folder of the file.
        stem: beginning of the file name.
        suffix: end of the file name.
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
    """Settings of a job that do not change its results. Snakemake does not run a job again if one of them changes.

    Attributes:
        device: device of the job's models.
        stepping: how a decoding step runs: "auto", "eager" or "graph" (a CUDA graph).
        batch_size: images decoded together.
        scoring_batch_size: images whose metrics are computed together.
    """

    device: torch.device
    stepping: str
    batch_size: int
    scoring_batch_size: int


def execution_of(snakemake: Job) -> Execution:
    """Return the settings in the config that decide how a job runs, but not what it computes."""
    config = snakemake.config
    return Execution(
        resolve_device(config["device"]),
        config["generation"]["stepping"],
        config["generation"]["batch_size"],
        config["metrics"]["batch_size"],
    )


def resolve_device(name: str) -> torch.device:
    """Return the device for a config value.

    Args:
        name: "cpu", "cuda", or "auto" for a CUDA device if there is one, else the CPU.

    Raises:
        ValueError: `name` is "cuda" but PyTorch finds no CUDA device. Or `name` is "auto", the process is in a Slurm
            job with a GPU, and PyTorch finds none.
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
