"""`lantern sample`: one prompt through the methods of a finished run, or through a few where there is only the
weights in models/embedded; images from the same noise side by side.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from tqdm import tqdm

from lantern.checkpoints.native import read_report
from lantern.codebook import nearest_codes
from lantern.decoding import Decoder
from lantern.generation import decode_timed
from lantern.io import save_tensors
from lantern.methods import PRESETS, MethodSpec
from lantern.prompts import Prompt
from lantern_pipeline.config.methods import expand_methods, table_file
from lantern_pipeline.config.validate import load_yaml
from lantern_pipeline.data.decoders import load_decoders
from lantern_pipeline.data.image_files import decode_images, to_pixels
from lantern_pipeline.data.text_encoders import compare_features, make_text_encoder
from lantern_pipeline.fetch.manifest import resource_path
from lantern_pipeline.figures.image_grid import wrap_prompt
from lantern_pipeline.figures.style import PAGE_WIDTH, new_figure, paper_style
from lantern_pipeline.tables.method_labels import label_method
from lantern_pipeline.world.scenes import scene_of
from lantern_pipeline.world.tokenizer import load_tokenizer

log = logging.getLogger(__name__)
EXAMPLE = "a small white ring above a large blue triangle on grass"
FEW_METHODS = ("autoregressive", "eagle1", "jacobi", "lantern", "lantern_pp")
COLUMNS = 6
CELL_HEIGHT = 1.75  # inches, titles included


@dataclass(frozen=True)
class Sample:
    """One prompt's image by one method: pixels are (S, S, 3) uint8, seconds those of a second decoding; `is_equal`:
    whether its codes are those of autoregressive decoding, the first sample.
    """

    label: str
    pixels: np.ndarray
    is_equal: bool
    target_forwards: int
    num_tokens: int
    seconds: float


def open_weights(home: Path, folder: Path) -> FinishedRun:
    """Fills an empty `folder` with what a run on the weights of `home`'s config.yaml would have stored, tuned trees
    excepted; of its methods it draws FEW_METHODS.
    """
    config = load_yaml(home / "config.yaml")
    seed, codebook = config["repeats"]["training_seeds"][0], config["codebook"]
    places = {"tokenizer": "tokenizer", "target": f"target/s{seed}", "drafter": f"drafter/s{seed}"}
    for section, place in places.items():
        path = resource_path(home / config[section]["checkpoint"])
        compare_features(path, read_report(path), config["text"])
        (folder / place).mkdir(parents=True)
        (folder / place / "model.safetensors").symlink_to(path.resolve())
    run = FinishedRun(folder, config, has_trees=False)
    table = nearest_codes(
        run.tokenizer.codebook.detach(), codebook["num_neighbours"], codebook["neighbours"], config["seed"]
    )
    save_tensors(folder / "codebook" / table_file(codebook["neighbours"], seed), {"nearest_codes": table})
    return run


class FinishedRun:
    """The stored models of an experiment: `folder` is results/<experiment>, `config` the run's own; without
    `has_trees` it draws no method whose tree a run tunes. Unless told otherwise it draws the first method of each of
    FEW_METHODS.
    """

    def __init__(self, folder: Path, config: dict[str, Any], has_trees: bool = True) -> None:
        self.config, self.folder, self.has_trees = config, folder, has_trees
        self.tokenizer = load_tokenizer(self._find("tokenizer"))
        self.encoder = make_text_encoder(config["text"], config["data"]["source"])

    def sample(self, prompt: str, methods: Sequence[str] = ()) -> list[Sample]:
        """Draws a prompt at the headline temperature with the run's methods; or with autoregressive decoding and
        `methods`, ids of the run's or names of presets.
        """
        if not prompt.strip():
            raise ValueError(f"give a prompt, for example {EXAMPLE!r}" + self._known_words())
        self.encoder.encode([prompt])  # an unknown word stops here
        if self.config["data"]["source"] == "scenes" and scene_of(prompt) is None:
            log.warning(
                "%r is no caption that the target has learnt, such as %r: it may draw anything", prompt, EXAMPLE
            )
        samples: list[Sample] = []
        baseline = None
        for decoder in tqdm(self._load_decoders(methods), unit="method", disable=None):
            sample, codes = self._sample_with(decoder, Prompt(prompt, prompt))
            baseline = codes if baseline is None else baseline
            samples.append(replace(sample, is_equal=torch.equal(codes, baseline)))
        return samples

    def _known_words(self) -> str:
        vocabulary = getattr(self.encoder, "vocabulary", None)
        return f"; it knows the words {', '.join(vocabulary)}" if vocabulary else ""

    def _sample_with(self, decoder: Decoder, prompt: Prompt) -> tuple[Sample, torch.Tensor]:
        noise_seed = self.config["repeats"]["noise_seeds"][0]
        for _ in range(2):  # the first warms up
            generation, seconds = decode_timed(decoder, [prompt], self.encoder, noise_seed)
        pixels = to_pixels(decode_images(self.tokenizer, generation.codes))[0]
        forwards = int(generation.target_forwards[0])
        label = label_method(decoder.spec.to_dict())
        return Sample(label, pixels, True, forwards, decoder.num_tokens, seconds), generation.codes

    def _choose(self, methods: Sequence[str], temperature: float) -> list[MethodSpec]:
        specs = [run.spec for run in expand_methods(self.config) if run.temperature == temperature]
        known = {spec.method_id: spec for spec in specs if self.has_trees or spec.tree != "tuned"}
        if not methods:
            chosen = {spec.name: spec for spec in reversed(known.values()) if spec.name in FEW_METHODS}
            return [chosen[name] for name in FEW_METHODS if name in chosen]
        for name in methods:
            if name not in known and name not in PRESETS:
                raise ValueError(f"--method must be a preset or one of {', '.join(known)}, got {name!r}")
        others = [{"preset": name} for name in methods if name not in known]
        known |= {
            run.spec.method_id: run.spec for run in expand_methods({**self.config, "methods": others}, "--method")
        }
        return [known[name] for name in dict.fromkeys(["autoregressive", *methods])]

    def _load_decoders(self, methods: Sequence[str] = ()) -> list[Decoder]:
        temperature, seed = self.config["metrics"]["headline_temperature"], self.config["repeats"]["training_seeds"][0]
        specs = self._choose(methods, temperature)
        tables = dict.fromkeys(table_file(spec.neighbours, seed) for spec in specs if spec.neighbours)
        return load_decoders(
            [(asdict(spec), temperature) for spec in specs],
            self.config["sampling"],
            target=self._find(f"target/s{seed}"),
            drafter=self._find(f"drafter/s{seed}") if any(spec.needs_draft_model for spec in specs) else None,
            nearest_codes=[self._find("codebook", name) for name in tables],
            trees=self._find("trees", f"s{seed}.json") if any(spec.tree == "tuned" for spec in specs) else None,
        )

    def _find(self, stage: str, name: str = "model.safetensors") -> Path:
        path = self.folder / stage / name
        if not path.is_file():
            raise FileNotFoundError(2, f"there is no {path}: run `make reproduce` first")
        return path


def draw_samples(prompt: str, samples: list[Sample]) -> Figure:
    """Draws the images in rows of six, the prompt as the title, target forwards and seconds under each."""
    rows, columns = -(-len(samples) // COLUMNS), min(len(samples), COLUMNS)
    with paper_style():
        figure = new_figure(PAGE_WIDTH, CELL_HEIGHT * rows + 0.3)
        figure.suptitle(wrap_prompt(prompt, 90, 4), fontsize=9, parse_math=False)
        for number, sample in enumerate(samples, start=1):
            axes = figure.add_subplot(rows, columns, number)
            axes.imshow(sample.pixels, interpolation="nearest")
            axes.grid(False)
            axes.set(xticks=[], yticks=[])
            axes.set_title(textwrap.fill(sample.label, 17), fontsize=7, pad=2)
            equal = "\nequal, code by code" if sample.is_equal and number > 1 else ""
            axes.set_xlabel(f"{sample.target_forwards} forwards, {sample.seconds:.2f} s{equal}", fontsize=7, labelpad=2)
        return figure


def table_of(samples: list[Sample]) -> str:
    """The samples as lines of text: method, target forwards, tokens per forward, seconds, speed-up, and whether the
    image equals autoregressive decoding's.
    """
    baseline = next(sample.seconds for sample in samples if sample.label == "autoregressive")
    titles = f"{'method':<32} {'target forwards':>16} {'tokens/forward':>15} {'seconds':>9} {'speed-up':>9}"
    lines = [f"{titles}  image"]
    lines += [
        f"{sample.label:<32} {sample.target_forwards:>16d} {sample.num_tokens / sample.target_forwards:>15.2f} "
        f"{sample.seconds:>9.3f} {baseline / sample.seconds:>9.2f}  "
        + ("equal to autoregressive decoding's" if sample.is_equal else "another one")
        for sample in samples
    ]
    return "\n".join(lines)
