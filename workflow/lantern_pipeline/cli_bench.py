"""Implementation of the command `lantern bench`, which measures the speed of a model's methods on this machine.

A *round* measures every method once. With random weights only decoding steps are timed, and there are no prompts and no
images. `methods` and `trees` are the texts of the command's options, see `choose_methods`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lantern
from lantern.api import Model
from lantern.io import write_json, write_text
from lantern.methods import MethodSpec
from lantern.prompts import Prompt, TextEncoder
from lantern_models.loading import DTYPES
from lantern_pipeline.cli_sample import WITH_DRAFT_MODEL, WITHOUT_DRAFT_MODEL
from lantern_pipeline.cli_words import Parts, read_method
from lantern_pipeline.data.image_files import to_pixels
from lantern_pipeline.data.prompt_files import load_prompts
from lantern_pipeline.job.machine import describe_machine, name_processor
from lantern_pipeline.measure.speed.bench import Round, Row, bench_rounds
from lantern_pipeline.measure.speed.latency import TimedImage, join_timed_images
from lantern_pipeline.measure.speed.random_models import random_model
from lantern_pipeline.measure.speed.speedups import BASELINE
from lantern_pipeline.measure.speed.steps import step_rounds
from lantern_pipeline.pages.race import build_page
from lantern_pipeline.tables.markdown import text_table, with_interval
from lantern_pipeline.world.fashion import GARMENTS
from lantern_pipeline.world.scenes import caption, sample_scene

Report = dict[str, Any]  # JSON values by name, see `bench`
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


def bench(
    model: Model,
    methods: str,
    trees: str,
    prompts: Sequence[Prompt] | None,
    *,
    temperature: float | None,
    batch_size: int,
    num_rounds: int,
) -> Iterator[tuple[Report, list[TimedImage]]]:
    """Measure round after round, and report all rounds so far after each.

    Args:
        prompts: None for random weights.
        temperature: None for the model's default.
        batch_size: number of images of the timed batches.

    Yields:
        (report, images of the round). The report has the machine, the settings, and under "rows" one dict per method,
        whose keys `bench_rounds` explains, or `step_rounds` if only steps are timed.
    """
    chosen = choose_methods(methods, trees, has_draft_model=model.models.draft is not None)
    decoders = [
        model.make_decoder(preset, temperature, method_id=text, **parts) for text, (preset, parts) in chosen.items()
    ]
    device, sampling = decoders[0].device, decoders[0].sampling  # those of all
    machine = describe_machine()
    # Of the last minute, before the measurement, which is a load itself.
    load_average = os.getloadavg()[0]
    options = {"batch_size": batch_size, "num_rounds": num_rounds}
    # Threads as in `Model.generate`, whose speed is in question.
    with model.limited_threads():
        if prompts is None:
            rounds = (Round(rows, []) for rows in step_rounds(decoders, model.encoder, **options))
        else:
            rounds = bench_rounds(decoders, prompts, model.encoder, **options)
        for num_complete, (rows, images) in enumerate(rounds, start=1):
            report = {
                "machine": machine,
                "device": device.type,
                "processor": name_processor(machine, device.type),
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "dtype": str(decoders[0].dtype).removeprefix("torch."),
                "load_average": load_average,
                "temperature": sampling.temperature,
                "cfg_scale": sampling.cfg_scale,
                "random_weights": prompts is None,
                "num_tokens": decoders[0].num_tokens,
                "num_prompts": len(prompts or []),
                "batch_size": batch_size,
                "num_rounds": num_rounds,
                "rounds_complete": num_complete,
                "rows": [{name: _to_json(value) for name, value in row.items()} for row in rows],
            }
            yield report, images


def load_subject(
    source: str, file: Path | None, num: int, *, random_weights: bool, is_tiny: bool, device: str, dtype: str
) -> tuple[Model, list[Prompt] | None]:
    """Load the model to measure, and choose its prompts.

    Args:
        source: name or path of the model, as `lantern.load` takes it. For random weights, a name that `random_model`
            takes.
        file: prompt file, see `choose_prompts`.
    """
    if not random_weights:
        if is_tiny:
            raise ValueError("--tiny changes the sizes of random weights only; add --random-weights, or leave it out")
        model = lantern.load(source, device=device, dtype=dtype)
        return model, choose_prompts(model.encoder, file, num)
    if file is not None:
        raise ValueError("--random-weights measures steps, which need no prompts, got --prompts; leave one of them out")
    if dtype not in DTYPES:  # as `lantern.load` checks above
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return random_model(source, torch.device(device), getattr(torch, dtype), is_tiny=is_tiny), None


def choose_methods(methods: str, trees: str, *, has_draft_model: bool) -> dict[str, tuple[str, Parts]]:
    """Return the methods that `lantern bench` measures, from the text of its options.

    Args:
        methods: presets with their parameters, separated by commas, such as "jacobi, lantern k=20 delta=0.1". If empty,
            a few presets that the model can run. If empty although `trees` names a tree, only "jacobi".
        trees: names of draft trees, separated by commas. If there are any, every method is measured with each of them.
        has_draft_model: whether the default presets may need a draft model.

    Returns:
        Text of the method, such as "lantern k=20 delta=0.1" -> (name of the preset, parameters). Autoregressive
        decoding is always the first.
    """
    few = WITH_DRAFT_MODEL if has_draft_model else WITHOUT_DRAFT_MODEL
    texts = _split(methods) or (["jacobi"] if trees else list(few))
    # First, since the speed-ups are over the first.
    chosen: dict[str, tuple[str, Parts]] = {BASELINE: (BASELINE, {})}
    for text in texts:
        preset, parts = read_method(text, "bench")
        if trees and "tree" in parts:
            raise ValueError(
                f"--trees replaces the tree of every method, got tree={parts['tree']} for {preset}; leave one out"
            )
        if text == BASELINE:
            continue  # in `chosen` already; it has no tree
        for tree in _split(trees) or [None]:
            if tree is None:
                # One method written with other spaces is measured once.
                chosen[" ".join(text.split())] = preset, parts
            else:
                chosen[" ".join([*text.split(), f"tree={tree}"])] = preset, {**parts, "tree": tree}
    return chosen


def choose_prompts(encoder: TextEncoder, file: Path | None, num: int) -> list[Prompt]:
    """Return the prompts of the images whose decoding is timed.

    Args:
        file: prompt file, see `load_prompts`. None for default prompts: descriptions of photos, captions of the shapes
            dataset or of Fashion-MNIST, or class numbers. The first kind that the encoder can encode is used.
        num: number of prompts. If the file has fewer, all of them are used.

    Raises:
        ValueError: the encoder cannot encode the prompts.
    """
    if file is not None:
        prompts = load_prompts(file)[:num]
        # A prompt that the encoder refuses must be reported before an hour of measurement.
        encoder.encode([prompt.text for prompt in prompts])
        return prompts
    captions = [caption(sample_scene(0, index, "seen")) for index in range(num)]
    # Shuffled: in their order, the first of them are all dark.
    garments = random.Random(0).sample(list(GARMENTS), len(GARMENTS))
    classes = [str(index) for index in range(num)]
    for texts in (TEXTS, captions, garments, classes):
        # The encoder refuses prompts of a kind that the model does not know.
        with suppress(ValueError):
            encoder.encode(texts)
            return [Prompt(f"bench-{index}", texts[index % len(texts)]) for index in range(num)]
    raise ValueError("the model can encode none of the default prompts; give it a file of prompts with --prompts")


def table_of(report: Report) -> str:
    """Return a report as text: a table with one line per method, and notes below it."""
    batch = f"batch {report['batch_size']}"
    if report["random_weights"]:
        titles = ["method", "drafts", "ms / forward", "relative step cost", f"ms / forward, {batch}"]
        cells = [[*titles, "peak memory (GiB)"], *map(_step_cells_of, report["rows"])]
    else:
        titles = ["method", "tokens / forward", "ms / forward", "ms / image", "relative step cost", "speed-up"]
        cells = [
            [*titles, f"images / s, {batch}", "peak memory (GiB)", "equal images"],
            *map(_cells_of, report["rows"]),
        ]
    return "\n".join([text_table(cells), "", *notes_of(report)])


def _step_cells_of(row: Row) -> list[str]:
    # Here and in `_cells_of`: the order of the titles in `table_of`.
    return [
        row["method"]["method_id"],
        f"{row['num_drafts']}",
        f"{1000 * row['forward_s']:.2f}",
        with_interval(row, "relative_step_cost"),
        f"{1000 * row['batch_forward_s']:.2f}",
        f"{row['peak_memory_gib']:.2f}",
    ]


def _cells_of(row: Row) -> list[str]:
    return [
        row["method"]["method_id"],
        f"{row['tokens_per_forward']:.2f}",
        f"{1000 * row['forward_s']:.2f}",
        f"{1000 * row['latency_s']:.1f}",
        f"{row['relative_step_cost']:.2f}",
        with_interval(row, "speedup"),
        f"{row['images_per_s']:.2f}",
        f"{row['peak_memory_gib']:.2f}",
        f"{row['num_equal']} of {row['num_images']}",
    ]


def notes_of(report: Report) -> list[str]:
    """Return the notes below the table: how the times were measured, and what makes them uncertain."""
    complete, planned = report["rounds_complete"], report["num_rounds"]
    # On a GPU the number of threads hardly matters.
    threads = "" if report["device"] == "cuda" else f", {report['threads']} of {report['machine']['cores']} cores"
    notes = [
        f"Measured on {report['processor']}{threads}, torch {report['torch']}, {report['dtype']}, temperature "
        f"{report['temperature']:g}, guidance scale {report['cfg_scale']:g}.",
    ]
    if complete < planned:
        notes.append(f"Interrupted: {complete} of {planned} rounds were complete.")
    if report["random_weights"]:
        return [
            *notes,
            f"Batch 1 unless stated; median of {complete} rounds; [low, high] are the lowest and the highest round.",
            "The weights are random, so only the time of steps is measured. For the speed-up at the tokens per forward "
            "of your weights, give bench.json to lantern predict --bench.",
        ]
    notes += [
        f"Batch 1 unless stated; images per method: {report['num_prompts']}; rounds: {complete}, of which the fastest "
        "counts; [low, high] is a 95 % interval.",
        "Equal images have the tokens of autoregressive decoding with the same noise.",
        *_notes_on_tokens(report),
    ]
    # Measured while each method ran, unlike the load average.
    busy = np.mean([row["busy_elsewhere"] for row in report["rows"]])
    if busy > BUSY:
        notes.append(
            f"Other processes kept {busy:.1f} cores busy (load average {report['load_average']:.1f} at the start), so "
            "the times are uncertain: run it again on an idle machine."
        )
    return notes


def _notes_on_tokens(report: Report) -> list[str]:
    """Return notes that name the exact methods with images that differ from those of autoregressive decoding."""
    # Key: whether the images should be equal token by token.
    other: dict[bool, list[str]] = {True: [], False: []}
    for row in report["rows"]:
        spec = MethodSpec.from_dict(row["method"])
        if spec.is_exact and row["num_equal"] < row["num_images"]:
            other[spec.keeps_tokens(report["temperature"])].append(spec.method_id)
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
    """Write a report as JSON into a folder, atomically. `model` is the model as the user named it."""
    write_json(folder / FILE_NAME, {"model": model, **report})


def save_race(folder: Path, model: Model, prompts: Sequence[Prompt], images: Sequence[TimedImage]) -> None:
    """Write race.html into a folder: the page on which the measured methods generate images side by side."""
    config = model.models.target.config

    def draw(codes: torch.Tensor) -> np.ndarray:
        return to_pixels(model.tokenizer.decode(config.code_grids(codes.long())))

    # Index of the token of each code, (height, width), since line ends are no codes.
    positions = config.code_grids(torch.arange(config.num_image_tokens))
    write_text(folder / "race.html", build_page(join_timed_images(images), prompts, draw, positions))


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _to_json(value: object) -> object:
    """Return a value as JSON: numbers of numpy become Python's, and nan becomes None."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and np.isnan(value) else value
