"""Implementation of the command `lantern bench`, which measures the speed of a model's methods on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lantern.api import Model
from lantern.io import write_json
from lantern.methods import keeps_tokens
from lantern.prompts import Prompt
from lantern.text_encoders.base import TextEncoder
from lantern_pipeline.cli_sample import WITH_DRAFT_MODEL, WITHOUT_DRAFT_MODEL, read_values
from lantern_pipeline.data.prompt_files import load_prompts
from lantern_pipeline.measure.bench import Row, bench_rounds
from lantern_pipeline.measure.speed import BASELINE
from lantern_pipeline.runtime.machine import describe_machine, name_processor
from lantern_pipeline.tables.markdown import text_table, with_interval
from lantern_pipeline.world.scenes import caption, sample_scene

Report = dict[str, Any]  # JSON values by name, see `bench`
Parts = dict[str, Any]  # parts and parameters of a method, as `make_method` takes them
FILE_NAME = "bench.json"
BUSY = 0.2  # cores that other processes may keep busy before the note says so
TEXTS = (
    "a red fox in the snow",
    "a bowl of ripe strawberries on a wooden table",
    "a lighthouse on a cliff at sunset",
    "an astronaut riding a horse",
    "a watercolour painting of a small village",
    "a close-up of a bee on a sunflower",
    "a city street at night after rain",
    "a steam train crossing a stone bridge",
)
GARMENTS = (
    "a dark patterned dress",
    "a light plain t-shirt",
    "grey patterned trousers",
    "a dark plain coat",
    "a light plain boot",
    "a grey plain bag",
    "a dark patterned sandal",
    "a light patterned shirt",
)


def bench(
    model: Model,
    methods: str,
    trees: str,
    prompts: Sequence[Prompt],
    *,
    temperature: float | None,
    batch_size: int,
    num_rounds: int,
) -> Iterator[Report]:
    """Measure methods of a model, and yield a report of all rounds so far after each round.

    Args:
        model: the model.
        methods: see `choose_methods`.
        trees: see `choose_methods`.
        prompts: prompts of the images.
        temperature: sampling temperature. None for the model's default.
        batch_size: number of images of the timed batches.
        num_rounds: number of rounds.

    Yields:
        The machine, the settings, and under "rows" the results of `bench_rounds`. All values are JSON.

    Raises:
        ValueError: a method or a tree is unknown, or does not fit the model.
    """
    chosen = choose_methods(methods, trees, has_draft_model=model.models.draft is not None)
    decoders = [
        model.make_decoder(preset, temperature, method_id=text, **parts) for text, (preset, parts) in chosen.items()
    ]
    device, sampling = decoders[0].device, decoders[0].sampling
    machine = describe_machine()
    load_average = os.getloadavg()[0]
    with model.limited_threads():
        rounds = bench_rounds(decoders, prompts, model.encoder, batch_size=batch_size, num_rounds=num_rounds)
        for num_complete, rows in enumerate(rounds, start=1):
            yield {
                "machine": machine,
                "device": device.type,
                "processor": name_processor(machine, device.type),
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "dtype": str(decoders[0].dtype).removeprefix("torch."),
                "load_average": load_average,
                "temperature": sampling.temperature,
                "cfg_scale": sampling.cfg_scale,
                "num_prompts": len(prompts),
                "batch_size": batch_size,
                "num_rounds": num_rounds,
                "rounds_complete": num_complete,
                "rows": [{name: _to_json(value) for name, value in row.items()} for row in rows],
            }


def choose_methods(methods: str, trees: str, *, has_draft_model: bool) -> dict[str, tuple[str, Parts]]:
    """Read the methods to measure.

    Args:
        methods: presets with their parameters, separated by commas, such as "jacobi, lantern k=20 delta=0.1". If empty,
            a few presets that the model can run, or "jacobi" if there are trees.
        trees: names of trees, separated by commas. If there are any, every method is measured with each of them.
        has_draft_model: whether the model has a draft model.

    Returns:
        Text of the method, such as "lantern k=20 delta=0.1" -> (preset, parameters). Autoregressive decoding comes
        first.

    Raises:
        ValueError: a word after a preset does not have the form name=value, or a method names a tree although `trees`
            is given.
    """
    few = WITH_DRAFT_MODEL if has_draft_model else WITHOUT_DRAFT_MODEL
    texts = _split(methods) or (["jacobi"] if trees else list(few))
    chosen: dict[str, tuple[str, Parts]] = {BASELINE: (BASELINE, {})}
    for text in texts:
        preset, *words = text.split()
        if strange := [word for word in words if "=" not in word]:
            raise ValueError(
                f"parameters of a method must be name=value, as in 'lantern k=20 delta=0.1', got {strange[0]!r} for "
                f"{preset}; separate methods by commas"
            )
        parts = read_values(words)
        if trees and "tree" in parts:
            raise ValueError(
                f"--trees replaces the tree of every method, got tree={parts['tree']} for {preset}; leave one out"
            )
        if text == BASELINE:
            continue
        for tree in _split(trees) or [None]:
            if tree is None:
                chosen[" ".join(text.split())] = preset, parts
            else:
                chosen[" ".join([preset, *words, f"tree={tree}"])] = preset, {**parts, "tree": tree}
    return chosen


def choose_prompts(encoder: TextEncoder, file: Path | None, num: int) -> list[Prompt]:
    """Return the prompts to measure.

    Args:
        encoder: text encoder of the model.
        file: prompt file, see `load_prompts`. None for prompts that the encoder can encode: descriptions of photos,
            captions of the shapes dataset or of Fashion-MNIST, or class numbers.
        num: number of prompts. If the file has fewer, all of them are used.

    Raises:
        ValueError: the encoder cannot encode the prompts.
    """
    if file is not None:
        prompts = load_prompts(file)[:num]
        encoder.encode([prompt.text for prompt in prompts])
        return prompts
    captions = [caption(sample_scene(0, index, "seen")) for index in range(num)]
    classes = [str(index) for index in range(num)]
    for texts in (TEXTS, captions, GARMENTS, classes):
        with suppress(ValueError):
            encoder.encode(texts)
            return [Prompt(f"bench-{index}", texts[index % len(texts)]) for index in range(num)]
    raise ValueError("the model can encode none of the default prompts; give it a file of prompts with --prompts")


def table_of(report: Report) -> str:
    """Return the results as a table with one line per method, and notes about how they were measured.

    Args:
        report: a report of `bench`.
    """
    titles = ["method", "tokens / forward", "ms / forward", "ms / image", "relative step cost", "speed-up"]
    titles += [f"images / s, batch {report['batch_size']}", "peak memory (GiB)", "equal images"]
    cells = [titles, *map(_cells_of, report["rows"])]
    return "\n".join([text_table(cells), "", *notes_of(report)])


def _cells_of(row: Row) -> list[str]:
    return [
        row["method"]["method_id"],
        f"{row['mean_accepted_length']:.2f}",
        f"{1000 * row['forward_s']:.2f}",
        f"{1000 * row['latency_s']:.1f}",
        f"{row['relative_step_cost']:.2f}",
        with_interval(row, "speedup"),
        f"{row['images_per_s']:.2f}",
        f"{row['peak_memory_gib']:.2f}",
        f"{row['num_equal']} of {row['num_images']}",
    ]


def notes_of(report: Report) -> list[str]:
    """Return sentences about how a report was measured, and about what makes its numbers uncertain."""
    complete, planned = report["rounds_complete"], report["num_rounds"]
    threads = "" if report["device"] == "cuda" else f", {report['threads']} of {report['machine']['cores']} cores"
    notes = [
        f"Measured on {report['processor']}{threads}, torch {report['torch']}, {report['dtype']}, temperature "
        f"{report['temperature']:g}, guidance scale {report['cfg_scale']:g}.",
        f"Batch 1 unless stated; images per method: {report['num_prompts']}; rounds: {complete}, of which the fastest "
        "counts; [low, high] is a 95 % interval.",
        "Equal images have the tokens of autoregressive decoding with the same noise.",
    ]
    if complete < planned:
        notes.append(f"Interrupted: {complete} of {planned} rounds were complete.")
    notes += _notes_on_tokens(report)
    busy = np.mean([row["busy_elsewhere"] for row in report["rows"]])
    if busy > BUSY:
        notes.append(
            f"Other processes kept {busy:.1f} cores busy (load average {report['load_average']:.1f} at the start), so "
            "the times are uncertain: run it again on an idle machine."
        )
    return notes


def _notes_on_tokens(report: Report) -> list[str]:
    """Return sentences about exact methods whose images are not all equal to those of autoregressive decoding."""
    other: dict[bool, list[str]] = {True: [], False: []}
    for row in report["rows"]:
        if row["method"]["is_exact"] and row["num_equal"] < row["num_images"]:
            other[keeps_tokens(row["method"], report["temperature"])].append(row["method"]["method_id"])
    notes = []
    if other[False]:
        notes.append(f"Exact in distribution, not token by token: {', '.join(other[False])}.")
    if other[True]:
        notes.append(
            f"All images should be equal for {', '.join(other[True])}. Rounding may decide between two tokens that are "
            "almost equally good, in bfloat16 above all; otherwise the method is not exact."
        )
    return notes


def save_report(folder: Path, model: str, report: Report) -> None:
    """Write a report as JSON into a folder, atomically.

    Args:
        folder: the folder, which is created if it is missing.
        model: the model as the user named it.
        report: a report of `bench`.
    """
    write_json(folder / FILE_NAME, {"model": model, **report})


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _to_json(value: object) -> object:
    """Return a value as JSON: numbers of numpy become Python's, and nan becomes None."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and np.isnan(value) else value
