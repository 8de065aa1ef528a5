"""A model that generates images, and what it generates. `lantern.load` makes one; see docs/library.md."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lantern.checkpoints.tokenizers import ImageModel
from lantern.codebook import nearest_codes
from lantern.decoding import make_decoder
from lantern.decoding_state import DecodingModels
from lantern.generation import generate_images
from lantern.methods import MethodSpec, make_method, preset_of
from lantern.models.config import TargetConfig, target_parameters
from lantern.parameters import Parameter
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern.sampling import SamplingConfig
from lantern.text_encoders.base import TextEncoder

if TYPE_CHECKING:
    from PIL.Image import Image

# CPU threads that generate fastest, by the parameters of a target up to which they do; above, torch's number. Measured
# on two cores (benchmarks/results/threads_2core_cpu.json). The embedded target has 4 million.
THREADS = {6e6: 1, 50e6: 2}
_WHOLE = Parameter("", "a seed", is_integer=True)
_COUNT = Parameter("", "images at a time", 1, is_integer=True)


@dataclass(frozen=True)
class Images:
    """Images of some prompts by one method.

    Attributes:
        pixels: uint8, (images, size, size, 3); of a model whose codes need another program, see `CodeColours`.
        records: codes, (images, tokens), and how they were decoded.
    """

    pixels: np.ndarray
    records: GenerationRecords

    @property
    def codes(self) -> torch.Tensor:
        """Tokens of the images, int32 (images, tokens)."""
        return self.records.codes

    @property
    def steps(self) -> torch.Tensor:
        """Forward passes of the target model, the prompt's included, int32 (images,)."""
        return self.records.target_forwards

    @property
    def tokens_per_forward(self) -> torch.Tensor:
        """Tokens that a forward pass of the target emitted, float32 (images,)."""
        return self.codes.shape[1] / self.steps

    @property
    def seconds(self) -> torch.Tensor:
        """Share of each image in the time of decoding, float32 (images,)."""
        return self.records.seconds

    def pictures(self) -> list[Image]:
        """Return the images as Pillow's.

        Raises:
            ModuleNotFoundError: Pillow is not installed.
        """
        return [_to_picture(pixels) for pixels in self.pixels]

    def save(self, path: Path | str) -> None:
        """Write the images side by side into one file, whose suffix says the format; errors are those of `pictures`."""
        _to_picture(np.concatenate(list(self.pixels), axis=1)).save(path)


@dataclass
class Model:
    """A model that generates images of prompts.

    Attributes:
        models: target and, if there is one, draft model, prepared for decoding.
        tokenizer: decodes codes to images in [-1, 1], and has a `codebook`.
        encoder: text encoder of the prompts.
        sampling: default temperature, filters and guidance of `generate`.
        parts: default trees and neighbours of a method: `static` and `dynamic`, the trees of these names, and
            `neighbours`.
    """

    models: DecodingModels
    tokenizer: ImageModel
    encoder: TextEncoder
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    parts: Mapping[str, object] = field(default_factory=dict)
    _tables: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)

    def generate(
        self,
        prompts: str | Sequence[str],
        method: str = "jacobi",
        *,
        seed: int = 0,
        temperature: float | None = None,
        cfg_scale: float | None = None,
        batch_size: int = 16,
        **parts: Any,
    ) -> Images:
        """Generate an image of each prompt.

        The noise depends on the seed and on the prompt's index, so that methods can be compared image by image.

        Args:
            prompts: one text or several.
            method: name of a preset in `lantern.methods`.
            seed: of the noise.
            temperature: in place of the model's; 0 is greedy.
            cfg_scale: guidance scale in place of the model's; 1 is off.
            batch_size: images generated together.
            parts: parameters of the method, such as k=20, delta=0.1 or tree="chain5".

        Raises:
            ValueError: the method is unknown, a parameter is missing or unknown, or a prompt cannot be encoded.
        """
        texts = _texts_of(prompts)
        _WHOLE.check("seed", seed, "generate")
        _COUNT.check("batch_size", batch_size, "generate")
        given = {"temperature": temperature, "cfg_scale": cfg_scale}
        sampling = replace(self.sampling, **{name: value for name, value in given.items() if value is not None})
        spec = self._method(method, parts)
        models = replace(self.models, nearest_codes=self._table(spec))
        with _threads.limited(models.target.config):
            decoder = make_decoder(models, spec, sampling)
            todo = [Prompt(str(index), text) for index, text in enumerate(texts)]
            records, pixels = generate_images(decoder, todo, self.encoder, self.tokenizer.decode, seed, batch_size)
        return Images(pixels.numpy(), records)

    def draw(self, *_: object, **__: object) -> Images:
        """Raise an error that names `generate`, as this function is called since version 0.6."""
        raise AttributeError("Model.draw is now called generate; its arguments are the same")

    def _method(self, name: str, parts: Mapping[str, object]) -> MethodSpec:
        """A method with this model's trees and neighbours."""
        known: dict[str, Any] = dict(parts)
        if "name" in known:
            raise ValueError(f"method {name} takes no name, got {known['name']!r}; method_id names it")
        tree = known.get("tree", preset_of(name).get("tree"))
        if tree == "static" and "static" in self.parts:
            known["tree"] = self.parts["static"]
        if tree == "dynamic" and "dynamic" in self.parts:
            known.setdefault("tree_shape", self.parts["dynamic"])
        if "k" in known and "neighbours" in self.parts:
            known.setdefault("neighbours", self.parts["neighbours"])
        return make_method(name, **known)

    def _table(self, spec: MethodSpec) -> torch.Tensor | None:
        """Return the nearest codes that a method reads, one more than k for the authors' residuals. None without k."""
        k = spec.get("k")
        if k is None or spec.neighbours is None:
            return None
        codebook = self.tokenizer.codebook.detach()
        columns = min(k + 1, len(codebook) - 1)
        if k > columns:
            raise ValueError(
                f"k of {spec.name} must be <= {columns}, got {k}: a code has that many others in a codebook of "
                f"{len(codebook)}"
            )
        if (spec.neighbours, columns) not in self._tables:
            table = nearest_codes(codebook.cpu(), columns, spec.neighbours)
            self._tables[spec.neighbours, columns] = table.to(self.models.target.device)
        return self._tables[spec.neighbours, columns]


def _to_picture(pixels: np.ndarray) -> Image:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "saving images needs Pillow; install it from a clone: pip install '.[pictures]'", name=error.name
        ) from error
    return Image.fromarray(pixels)


def _texts_of(prompts: str | Sequence[str]) -> list[str]:
    texts = [prompts] if isinstance(prompts, str) else list(prompts) if isinstance(prompts, Iterable) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"prompts must be a text or a list of one or more, got {prompts!r:.60}")
    return texts


class _Threads:
    """The number of CPU threads per operation: one or two while a small model generates.

    A Python thread that starts meanwhile inherits the number. So if several calls overlap, each restores the number
    that was set before the first.
    """

    def __init__(self) -> None:
        self._lock, self._num_calls, self._before = threading.Lock(), 0, 0

    @contextmanager
    def limited(self, config: TargetConfig) -> Iterator[None]:
        """Use few threads inside the block if the target is small."""
        most = next((number for size, number in THREADS.items() if target_parameters(config) < size), None)
        if most is None:
            yield
            return
        with self._lock:
            if self._num_calls == 0:
                self._before = torch.get_num_threads()
            self._num_calls += 1
            torch.set_num_threads(min(most, self._before))
        try:
            yield
        finally:
            with self._lock:
                self._num_calls -= 1
                torch.set_num_threads(self._before)


_threads = _Threads()
