"""Golden codes: tokens and accepted lengths of every preset with the shipped models, which no change of code may alter.

    PYTHONPATH=.:workflow:tests:benchmarks python -m helpers.golden_codes  # write tests/data/golden_codes.json

Two processors round the same sum differently, so a choice between two tokens, or between acceptance and rejection, may
fall either way if both sides are almost equal. Such *ties* are found here, not by trying other processors: every image
is generated again by models whose weights differ by a few units in their last place. An image that changes has a tie at
the first token that differs, and the file names it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import accumulate, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from every_method import VARIANTS

import lantern
from lantern.api import Model
from lantern.extensions import load_class
from lantern.generation import generate_records
from lantern.io import load_tensors, save_tensors
from lantern.methods import MethodSpec, make_method
from lantern.prompts import Prompt
from lantern.registry import PRESETS
from lantern.state import DecodingModels
from lantern_methods.shift_heads import ShiftHeads
from lantern_methods.state_head import StateHead

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "tests" / "data" / "golden_codes.json"
SEED = 7
BATCH = 3  # of four prompts: the last image takes the row of the first that is complete
# The captions of both models, with words of different number.
CAPTIONS = {
    "embedded": (
        "a small red circle on grass",
        "a large blue square on water",
        "a small green ring left of a large white cross on night",
        "a large yellow triangle above a small purple circle on brick",
    ),
    "fashion": ("a dark plain t-shirt", "a light patterned dress", "dark plain trousers", "a grey patterned bag"),
}
# Parameters that the presets leave open.
PARAMETERS: dict[str, dict[str, Any]] = {
    "lantern": {"k": 64, "delta": 0.4},
    "lantern_pp": {"k": 10, "lambda_": 5.0},
    "proximity": {"k": 3},
    "bounded": {"k": 20, "delta": 0.2},
    "cool": {"omega": 1.1},
    "ensemble": {"weight": 0.8},
    "mixing": {"budget": 0.1},
    "zipar": {"window": 4},
    "pjd": {"window": 4, "max_drafts": 3},  # fewer than a line may lead, so that both bounds count
    "gsd": {"d_max": 50.0},  # no two embeddings of these targets are as close as the 0.5 of the paper
    "lantern_official": {"delta": 0.19},
    "mixing_of_siblings": {"budget": 0.1},
    "lantern_jensen_shannon": {"delta": 0.1},
}
Case = tuple[str, str, float]  # model, method and temperature
Image = tuple[list[int], list[int]]  # codes, and the number of tokens of each step
# Presets, and on one model methods with other acceptances, residuals and drafters.
CASES: list[Case] = list(product(CAPTIONS, PRESETS, (0.0, 1.0)))
CASES += [("embedded", name, 1.0) for name in VARIANTS]
TIE_CHANGES = (2.0**-23, 2.0**-21, 2.0**-19)  # relative changes of weights, from one unit of float32 to sixteen
TIE_SEEDS = (1, 2)


@cache
def load_model(world: str) -> Model:
    return lantern.load(world)


def load_changed(world: str, change: float, seed: int, folder: Path) -> Model:
    """Return a shipped model whose weights are multiplied by 1 + u, with u between -change and change."""
    generator = torch.Generator().manual_seed(seed)
    files = {}
    for name in ("target", "drafter"):
        tensors, metadata = load_tensors(ROOT / "models" / world / f"{name}.safetensors")
        changed = {
            key: tensor * (1 + change * (2 * torch.rand(tensor.shape, generator=generator) - 1))
            for key, tensor in tensors.items()
        }
        files[name] = folder / f"{name}.safetensors"
        save_tensors(files[name], changed, metadata)
    return lantern.load(world, **files)


def parts_of(models: DecodingModels, spec: MethodSpec) -> dict[str, torch.nn.Module]:
    """Return heads with the same weights on every machine, since the shipped models have none."""
    if not spec.drafts_row.trained:
        return {}
    target = models.target
    is_state = load_class(spec.drafts_row.trained["heads"]) is StateHead
    heads = StateHead.from_target(target.config, seed=0) if is_state else ShiftHeads.from_target(target, 2, seed=0)
    with torch.no_grad():
        for name, weight in heads.named_parameters():
            if "gate_up" in name or "down" in name:
                numbers = torch.arange(weight.numel()) * 40_503 % 65_536  # the odd factor visits every number
                weight.copy_((numbers / 65_536 - 0.5).view_as(weight) * 0.1)
    return {"heads": heads.eval().prepare_for_decoding()}


def generate(model: Model, case: Case, batch_size: int, num_images: int = 4) -> list[Image]:
    """Generate the first images of a case."""
    world, method, temperature = case
    preset, parts = VARIANTS.get(method, (method, {}))
    parts = {**parts, **PARAMETERS.get(preset, {}), **PARAMETERS.get(method, {})}
    spec = make_method(preset, **parts)
    decoder = replace(model, models=replace(model.models, parts=parts_of(model.models, spec))).make_decoder(
        preset, temperature, **parts
    )
    prompts = [Prompt(str(number), text) for number, text in enumerate(CAPTIONS[world][:num_images])]
    records = generate_records(decoder, prompts, model.encoder, run_seed=SEED, batch_size=batch_size)
    lengths = [[length for length in row if length] for row in records.step_lengths.tolist()]
    return list(zip(records.codes.tolist(), lengths, strict=True))


def first_difference(image: Image, other: Image) -> int | None:
    """Return the first token at which two images differ, or after which a step of one of them ends. None if equal."""
    (codes, lengths), (other_codes, other_lengths) = image, other
    ends, other_ends = set(accumulate(lengths)), set(accumulate(other_lengths))
    tokens = [place for place, pair in enumerate(zip(codes, other_codes, strict=True)) if pair[0] != pair[1]]
    return min([*tokens, *(end - 1 for end in ends ^ other_ends)], default=None)


def name_of(case: Case) -> str:
    """Return the key of a case in the file."""
    world, method, temperature = case
    return f"{world} {method} T{temperature:g}"


def make_all() -> dict[str, Any]:
    """Generate all images, and again by models with changed weights, and return the contents of the file."""
    stored: dict[str, dict[str, Any]] = {}
    for case in CASES:
        images, single = (generate(load_model(case[0]), case, batch) for batch in (BATCH, 1))
        stored[name_of(case)] = {"codes": [codes for codes, _ in images], "lengths": [steps for _, steps in images]}
        stored[name_of(case)]["ties"] = {}
        if single != images:
            raise SystemExit(f"{name_of(case)}: images of batch 1 differ at {[*map(first_difference, images, single)]}")
    for world, change, seed in product(CAPTIONS, TIE_CHANGES, TIE_SEEDS):
        with TemporaryDirectory() as folder:
            model = load_changed(world, change, seed, Path(folder))
        for case in CASES:
            if case[0] == world:
                add_ties(stored[name_of(case)], generate(model, case, BATCH), change)
    return stored


def add_ties(row: dict[str, Any], images: list[Image], change: float) -> None:
    """Name the first token of each image that a change of the weights has changed, with the smallest such change."""
    for number, (found, *expected) in enumerate(zip(images, row["codes"], row["lengths"], strict=True)):
        place = first_difference(found, tuple(expected))
        if place is not None:
            ties = row["ties"].setdefault(str(number), {})
            ties[str(place)] = min(change, ties.get(str(place), 1.0))


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = (f"{json.dumps(name)}:{json.dumps(row, separators=(',', ':'))}" for name, row in make_all().items())
    PATH.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
