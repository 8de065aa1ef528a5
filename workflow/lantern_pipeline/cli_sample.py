"""`lantern sample`: one prompt through every method of a finished run, images from the same noise side by side."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from lantern.decoding import Decoder
from lantern.generation import decode_timed, load_decoding_models
from lantern.methods import MethodSpec
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern_pipeline.config.methods import expand_methods, table_file
from lantern_pipeline.data.image_files import decode_images, to_pixels
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.figures.image_grid import wrap_prompt
from lantern_pipeline.figures.style import PAGE_WIDTH, new_figure, paper_style
from lantern_pipeline.world.tokenizer import load_tokenizer

COLUMNS = 6
CELL_HEIGHT = 1.65  # inches, titles included


@dataclass(frozen=True)
class Sample:
    """One prompt's image by one method: pixels are (S, S, 3) uint8, seconds those of a second decoding."""

    method_id: str
    pixels: np.ndarray
    target_forwards: int
    num_tokens: int
    seconds: float


class FinishedRun:
    """The stored models of an experiment: `folder` is results/<experiment>, `config` the run's own."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.config, self.folder = config, folder
        self.tokenizer = load_tokenizer(self._find("tokenizer"))
        self.encoder = make_text_encoder(config["text"], config["data"]["source"], config["seed"])

    def sample(self, prompt: str) -> list[Sample]:
        """Draws a prompt with every method of the run at its headline temperature."""
        self.encoder.encode([prompt])  # an unknown word stops here
        temperature = self.config["metrics"]["headline_temperature"]
        specs = [run.spec for run in expand_methods(self.config) if run.temperature == temperature]
        return [self._sample_with(spec, Prompt(prompt, prompt)) for spec in tqdm(specs, unit="method", disable=None)]

    def _sample_with(self, spec: MethodSpec, prompt: Prompt) -> Sample:
        decoder, noise_seed = self._make_decoder(spec), self.config["repeats"]["noise_seeds"][0]
        for _ in range(2):  # the first warms up
            generation, seconds = decode_timed(decoder, [prompt], self.encoder, noise_seed)
        pixels = to_pixels(decode_images(self.tokenizer, generation.codes))[0]
        return Sample(spec.method_id, pixels, int(generation.target_forwards[0]), decoder.num_tokens, seconds)

    def _make_decoder(self, spec: MethodSpec) -> Decoder:
        seed = self.config["repeats"]["training_seeds"][0]
        models = load_decoding_models(
            self._find(f"target/s{seed}"),
            self._find(f"drafter/s{seed}") if spec.drafts else None,
            self._find("codebook", table_file(spec.neighbours, seed)) if spec.neighbours else None,
        )
        temperature = self.config["metrics"]["headline_temperature"]
        sampling = SamplingConfig(temperature=temperature, **self.config["sampling"])
        return Decoder(models, spec, sampling)

    def _find(self, stage: str, name: str = "model.safetensors") -> Path:
        path = self.folder / stage / name
        if not path.is_file():
            raise FileNotFoundError(2, f"there is no {path}: run `make reproduce` first")
        return path


def draw_samples(prompt: str, samples: list[Sample]) -> Figure:
    """Draws the images in rows of six, the prompt as the title, target forwards and seconds under each."""
    rows = -(-len(samples) // COLUMNS)
    with paper_style():
        figure = new_figure(PAGE_WIDTH, CELL_HEIGHT * rows + 0.3)
        figure.suptitle(wrap_prompt(prompt, 90, 4), fontsize=9, parse_math=False)
        for number, sample in enumerate(samples, start=1):
            axes = figure.add_subplot(rows, COLUMNS, number)
            axes.imshow(sample.pixels, interpolation="nearest")
            axes.grid(False)
            axes.set(xticks=[], yticks=[])
            axes.set_title(textwrap.fill(sample.method_id.replace("-", " "), 17), fontsize=7, pad=2)
            axes.set_xlabel(f"{sample.target_forwards} forwards, {sample.seconds:.2f} s", fontsize=7, labelpad=2)
        return figure


def table_of(samples: list[Sample]) -> str:
    """The samples as lines of text: method, target forwards, tokens per forward, seconds, speed-up."""
    baseline = next(sample.seconds for sample in samples if sample.method_id == "autoregressive")
    lines = [f"{'method':<32} {'target forwards':>16} {'tokens/forward':>15} {'seconds':>9} {'speed-up':>9}"]
    lines += [
        f"{sample.method_id:<32} {sample.target_forwards:>16d} {sample.num_tokens / sample.target_forwards:>15.2f} "
        f"{sample.seconds:>9.3f} {baseline / sample.seconds:>9.2f}"
        for sample in samples
    ]
    return "\n".join(lines)
