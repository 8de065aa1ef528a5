"""One prompt through every method of a finished run: images from the same noise, target forwards and seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from lantern.decoding import Decoder
from lantern.generation import decode_timed, load_decoding_models, make_tree
from lantern.methods import MethodRun, expand_methods
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern_pipeline.config.validate import table_file, tree_settings
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.world.tokenizer import load_model as load_tokenizer


@dataclass(frozen=True)
class Sample:
    """One prompt's image by one method.

    Attributes:
        run: the method and its temperature.
        pixels: (S, S, 3) uint8.
        target_forwards: runs of the target model.
        num_tokens: image tokens.
        seconds: wall-clock time of decoding, after one decoding that is not timed.
    """

    run: MethodRun
    pixels: Tensor
    target_forwards: int
    num_tokens: int
    seconds: float


class TrainedRun:
    """The stored models of one experiment.

    Args:
        config: its validated configuration.
        results: folder that holds `<experiment>/`.

    Raises:
        FileNotFoundError: a model has not been trained yet; names the file and the command that trains it.
    """

    def __init__(self, config: dict[str, Any], results: Path) -> None:
        self.config, self.folder = config, results / config["experiment"]
        self.tokenizer = load_tokenizer(self._find("tokenizer"))
        self.encoder = make_text_encoder(config["text"], config["data"]["source"], config["seed"])

    def sample(self, prompt: str) -> list[Sample]:
        """Draws a prompt with every configured method at the headline temperature.

        Args:
            prompt: text; in the embedded world of known words only.

        Returns:
            One sample per method, in the order of the config.

        Raises:
            ValueError: a word that the text encoder does not know, or too many words.
        """
        self.encoder.encode([prompt])  # an unknown word stops here
        temperature = self.config["metrics"]["headline_temperature"]
        runs = [run for run in expand_methods(self.config) if run.temperature == temperature]
        return [self._sample_with(run, Prompt(prompt, prompt)) for run in tqdm(runs, unit="method", disable=None)]

    def _sample_with(self, run: MethodRun, prompt: Prompt) -> Sample:
        decoder, noise_seed = self._make_decoder(run), self.config["repeats"]["noise_seeds"][0]
        for _ in range(2):  # the first warms up
            generation, seconds = decode_timed(decoder, [prompt], self.encoder, noise_seed)
        with torch.inference_mode():
            image = self.tokenizer.decode(generation.codes)[0]
        pixels = ((image + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0)
        return Sample(run, pixels, int(generation.target_forwards[0]), decoder.num_tokens, seconds)

    def _make_decoder(self, run: MethodRun) -> Decoder:
        spec, seed = run.spec, self.config["repeats"]["training_seeds"][0]
        models = load_decoding_models(
            self._find(f"target/s{seed}"),
            self._find(f"drafter/s{seed}") if spec.drafts else None,
            self._find("codebook", table_file(spec.neighbours, seed)) if spec.neighbours else None,
        )
        sampling = SamplingConfig(temperature=run.temperature, **self.config["sampling"])
        return Decoder(models, spec, sampling, make_tree(spec, tree_settings(spec, self.config)))

    def _find(self, stage: str, name: str = "model.safetensors") -> Path:
        path = self.folder / stage / name
        if not path.is_file():
            raise FileNotFoundError(2, f"there is no {path}: run `make reproduce` first")
        return path
