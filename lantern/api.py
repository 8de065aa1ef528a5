"""The public face: a model that draws, by `lantern.load`. See the README's example."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lantern.codebook import nearest_codes
from lantern.decoding import make_decoder
from lantern.decoding_state import DecodingModels
from lantern.generation import draw_images
from lantern.methods import MethodSpec, Parameter, make_method, preset_of
from lantern.models.config import TargetConfig, target_parameters
from lantern.models.text import TextEncoder
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern.sampling import SamplingConfig

if TYPE_CHECKING:
    from PIL.Image import Image

DTYPES = ("float32", "bfloat16")
SMALL = 50e6  # parameters of a target below which one CPU thread decodes fastest: the embedded one has 4 million
# Of a GenerationConfig of transformers: what changes tokens, with the value at which it changes none.
_NOT_APPLIED = {"num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_p": None, "typical_p": 1.0}
_NOT_APPLIED |= {"epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "suppress_tokens": None}
_WHOLE = Parameter("", "a seed", is_whole=True)
_COUNT = Parameter("", "images at a time", 1, is_whole=True)


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
        """The images as Pillow has them."""
        from PIL import Image  # beside the core: pip install pillow

        return [Image.fromarray(pixels) for pixels in self.pixels]

    def save(self, path: Path | str) -> None:
        """Writes the images side by side into one file; its suffix says the format."""
        from PIL import Image

        Image.fromarray(np.concatenate(list(self.pixels), axis=1)).save(path)


@dataclass
class Model:
    """A target model with what it draws with.

    Attributes:
        models: target and, where there is one, draft model, prepared for decoding.
        tokenizer: decodes codes to images in [-1, 1], and has a `codebook`.
        encoder: of the prompts.
        sampling: temperature, filters and guidance unless `draw` is told others.
        parts: parts of a method that it has unless `draw` is told others: `static` and `dynamic`, what the trees of
            these names are, and `neighbours`.
    """

    models: DecodingModels
    tokenizer: torch.nn.Module
    encoder: TextEncoder
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    parts: Mapping[str, Any] = field(default_factory=dict)
    _tables: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)

    def draw(
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
        """Draws an image of each prompt; `parts` are the method's, such as k=20, delta=0.1 or tree="chain5".

        The noise is that of the seed and of a prompt's place, so that methods can be compared image by image.

        Raises:
            ValueError: no such method, a part that it lacks or does not take, or a prompt that cannot be read.
        """
        texts = _texts_of(prompts)
        _WHOLE.check("seed", seed, "draw")
        _COUNT.check("batch_size", batch_size, "draw")
        given = {"temperature": temperature, "cfg_scale": cfg_scale}
        sampling = replace(self.sampling, **{name: value for name, value in given.items() if value is not None})
        spec = self._method(method, parts)
        models = replace(self.models, nearest_codes=None if spec.k is None else self._table(spec))
        with _threads.limited(models.target.config):
            decoder = make_decoder(models, spec, sampling)
            todo = [Prompt(str(place), text) for place, text in enumerate(texts)]
            records, pixels = draw_images(decoder, todo, self.encoder, self.tokenizer.decode, seed, batch_size)
        return Images(pixels.numpy(), records)

    def _method(self, name: str, parts: Mapping[str, Any]) -> MethodSpec:
        """A method with this model's trees and neighbours."""
        known = dict(parts)
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

    def _table(self, spec: MethodSpec) -> torch.Tensor:
        """The nearest codes that a method reads: one more than k, which the authors' residuals take."""
        codebook = self.tokenizer.codebook.detach()
        columns = min(spec.k + 1, len(codebook) - 1)
        if spec.k > columns:
            raise ValueError(
                f"k of {spec.name} must be <= {columns}, got {spec.k}: a code has that many others in a codebook of "
                f"{len(codebook)}"
            )
        if (spec.neighbours, columns) not in self._tables:
            table = nearest_codes(codebook.cpu(), columns, spec.neighbours)
            self._tables[spec.neighbours, columns] = table.to(self.models.target.device)
        return self._tables[spec.neighbours, columns]


def load(
    source: str | Path = "embedded",
    *,
    target: str | Path | None = None,
    drafter: str | Path | None = None,
    tokenizer: str | Path | None = None,
    text: str | Path | None = None,
    device: str = "cpu",
    dtype: str = "float32",
) -> Model:
    """Loads a model by name, "embedded" or a published one's such as "llamagen_stage1", from a folder of results, or
    from that of a model of transformers.

    Args:
        source: name or folder.
        target: file or folder of weights in place of those that belong to the name.
        drafter: the same of the draft model.
        tokenizer: the same of the tokenizer of images.
        text: folder of a T5, or a tokenizer.json.
        device: where to decode.
        dtype: number format of the weights, "float32" or "bfloat16".

    Raises:
        ValueError: an unknown name, lists the known ones; a device that is not here; another dtype; or a file that is
            damaged or of another model.
        FileNotFoundError: a file that the model needs is not here.
    """
    files = {"target": target, "drafter": drafter, "tokenizer": tokenizer, "text": text}
    files = {name: path for name, path in files.items() if path is not None}
    for name, path in {"source": source, **files}.items():
        if not isinstance(path, str | Path):
            raise ValueError(f"{name} must be a path, got {path!r}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    files = {name: Path(path) for name, path in files.items()}
    return _pretrained("load").open_model(source, files, _device_of(device), getattr(torch, dtype))


def from_transformers(
    model: Any, processor: Any, *, family: str | None = None, grid: int | None = None, max_tokens: int = 128
) -> Model:
    """Makes a model of transformers draw by any method: Jacobi decoding needs nothing else and changes no token.

    Args:
        model: of a class with a row in `lantern.models.families.FAMILIES`, loaded as transformers does; it is used as
            it stands, on its device and in its number format.
        processor: the one that belongs to it, or its tokenizer.
        family: that row's name, where the class has several.
        grid: tokens of an image's side, where it is not the published one.
        max_tokens: of the longest prompt, its form included; `draw` refuses longer ones.

    Raises:
        ValueError: a class without a row, lists those with one; a tokenizer of another model; or a model that is spread
            over devices or adapted where it cannot be read.
    """
    for name, value in {"grid": grid, "max_tokens": max_tokens}.items():
        if value is not None:
            _COUNT.check(name, value, "from_transformers")
    return _pretrained("from_transformers").adopt_model(model, processor, family, grid, max_tokens)


def sampling_of(known: Any) -> SamplingConfig:
    """Temperature, filters and guidance of a `GenerationConfig` of transformers, whose `generate` keeps the best 50
    tokens where nothing else is said.

    Raises:
        ValueError: a setting that changes tokens and is not supported.
    """
    for name, neutral in _NOT_APPLIED.items():
        if (value := getattr(known, name, None)) not in (None, neutral):
            raise ValueError(
                f"{name} of the model's generation_config must be {neutral}, got {value!r}: it is not applied; set "
                f"model.generation_config.{name} to {neutral}"
            )
    return SamplingConfig(
        temperature=(known.temperature or 1.0) if known.do_sample else 0.0,
        top_k=50 if known.top_k is None else known.top_k,
        top_p=known.top_p or 1.0,
        cfg_scale=known.guidance_scale or 1.0,
    )


def _texts_of(prompts: str | Sequence[str]) -> list[str]:
    texts = [prompts] if isinstance(prompts, str) else list(prompts) if isinstance(prompts, Iterable) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"prompts must be a text or a list of one or more, got {prompts!r:.60}")
    return texts


def _device_of(name: str | torch.device) -> torch.device:
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = None
    num_gpus = torch.cuda.device_count()
    if device is not None and (device.type == "cpu" or (device.type == "cuda" and (device.index or 0) < num_gpus)):
        return device
    raise ValueError(f"device must be cpu, or cuda for one of the {num_gpus} GPUs that torch finds, got {name!r}")


def _pretrained(asked: str) -> ModuleType:
    try:
        from lantern_pipeline import pretrained
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"lantern.{asked} needs more than the core ({error.name}); install it from a clone: pip install "
            "'.[pipeline]'",
            name=error.name,
        ) from error
    return pretrained


class _Threads:
    """The number of threads of an operation: one for a draw with a small model.

    A Python thread that starts during a draw gets the draw's number. So of several draws that overlap, each gives back
    the number that was set before the first.
    """

    def __init__(self) -> None:
        self._lock, self._num_draws, self._before = threading.Lock(), 0, 0

    @contextmanager
    def limited(self, config: TargetConfig) -> Iterator[None]:
        """Draw with one thread if the target is small."""
        if target_parameters(config) >= SMALL:
            yield
            return
        with self._lock:
            if self._num_draws == 0:
                self._before = torch.get_num_threads()
            self._num_draws += 1
            torch.set_num_threads(1)
        try:
            yield
        finally:
            with self._lock:
                self._num_draws -= 1
                torch.set_num_threads(self._before)


_threads = _Threads()
