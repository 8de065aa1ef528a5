"""Draws a sample of an archive's images again, from its models, prompts and config, and compares the codes."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from lantern.checkpoints.native import read_metadata
from lantern.decoding import Decoder, make_decoder
from lantern.generation import decode_timed, load_decoding_models
from lantern.methods import MethodSpec
from lantern.models.config import DraftConfig, TargetConfig, draft_parameters, target_parameters
from lantern.prompts import Prompt
from lantern.records import GenerationRecords, load_records
from lantern.sampling import SamplingConfig
from lantern_pipeline.archive.archive import Archive
from lantern_pipeline.config.methods import expand_methods, table_file
from lantern_pipeline.config.resources import target_sizes
from lantern_pipeline.config.validate import check_keys
from lantern_pipeline.data.decoders import resolve_tree
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.downloads.manifest import describe_file

_RECORDS = re.compile(r"generation/([^/]+)/([^/]+)/T([^/]+)/s(\d+)n(\d+)/[^/]+\.safetensors")
ROUNDING = 2e-5  # relative change of the head's weights that counts as rounding: about 1e-4 nats of a logit
MAX_SIZE = 2**17  # of any number in a model's config
MAX_IDS = 16  # of a null prompt
NUM_ROUNDINGS = 8  # such changes tried before a difference counts


@dataclass(frozen=True)
class RecordFile:
    """A file of records and what it is of, by its path; `prompt_set` to `noise_seed` as in the config."""

    name: str
    method_id: str
    prompt_set: str
    temperature: str
    training_seed: int
    noise_seed: int

    def __str__(self) -> str:
        return f"{self.method_id} {self.prompt_set} T{self.temperature} s{self.training_seed}n{self.noise_seed}"


@dataclass(frozen=True)
class Comparison:
    """One image drawn again.

    Attributes:
        image: which one.
        dtype: number format in which it was decoded, both times.
        num_tokens: of the image.
        num_same: tokens that are the same at the same place.
        first_difference: the first that is not; num_tokens where there is none.
        outcome: "equal"; "rounding", where a change of the weights in the size of rounding gives the archive's tokens
            up to and including the first difference; "differs"; "not comparable", in bfloat16.
    """

    image: str
    dtype: str
    num_tokens: int
    num_same: int
    first_difference: int
    outcome: str


def find_records(archive: Archive, folder: str) -> list[RecordFile]:
    """Lists the record files of an archive whose experiment lies in `folder`."""
    found = []
    for name in archive.manifest:
        if match := _RECORDS.fullmatch(name.removeprefix(f"{folder}/")):
            method_id, prompt_set, temperature, training_seed, noise_seed = match.groups()
            found.append(RecordFile(name, method_id, prompt_set, temperature, int(training_seed), int(noise_seed)))
    return sorted(found, key=lambda file: file.name)


def spread(files: Sequence[RecordFile], num: int, seed: int) -> list[RecordFile]:
    """Chooses `num` files that between them have as many methods, prompt sets, temperatures and seeds as possible; one
    may be chosen again when all its likes have been.
    """
    waiting = list(files)
    random.Random(seed).shuffle(waiting)
    used: Counter = Counter()
    chosen = []
    for _ in range(num if waiting else 0):
        best = min(waiting, key=lambda file: [used[trait] for trait in _traits(file)])
        used.update(_traits(best))
        chosen.append(best)
    return chosen


def _traits(file: RecordFile) -> list[tuple]:
    seeds = (file.training_seed, file.noise_seed)
    return [(0, file.method_id), (1, file.prompt_set), (2, file.temperature), (3, *seeds), (4, file.name)]


class Regenerator:
    """Draws images of an archive again.

    `archive` has its hashes checked, `folder` and `provenance` are those of its experiment, `workplace` is a folder for
    the few files that are needed outside the archive, `models` one with the models that the archive leaves out:
    results/<experiment>/ of a run that converted them.
    """

    def __init__(
        self,
        archive: Archive,
        folder: str,
        provenance: dict[str, Any],
        workplace: Path,
        models: Path | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.archive, self.folder, self.provenance = archive, folder, provenance
        self.workplace, self.models, self.device = workplace, models, device
        self.config = provenance["config"]
        # Without the rules between keys: they look for the user's own files.
        check_keys(self.config)
        self.specs = {(run.spec.method_id, f"{run.temperature:g}"): run.spec for run in expand_methods(self.config)}

    def compare(self, num_images: int, seed: int = 0) -> Iterator[Comparison]:
        """Draws a sample of images again, chosen by `seed`; one comparison per image."""
        draw = random.Random(seed)
        for file in spread(find_records(self.archive, self.folder), num_images, seed):
            records = load_records(self._extract(file.name))
            row = draw.randrange(len(records))
            try:
                yield self._compare_image(file, records.select([row]))
            except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
                raise ValueError(
                    f"{self.archive.path}: {file.name} cannot be drawn again ({type(error).__name__}: {error})"
                ) from error

    def _compare_image(self, file: RecordFile, record: GenerationRecords) -> Comparison:
        spec = self._check_record(file, record)
        decoder = self._make_decoder(file, spec, record.metadata["dtype"])
        prompt = self._find_prompt(file, record.prompt_ids[0])
        encoder = self._make_encoder(file)
        expected = record.codes[0].long()

        def draw() -> torch.Tensor:
            return decode_timed(decoder, [prompt], encoder, file.noise_seed)[0].codes[0].cpu()

        is_same = draw() == expected
        num_tokens, num_same = len(expected), int(is_same.sum())
        first = num_tokens if num_same == num_tokens else int(is_same.int().argmin())
        outcome = "equal"
        if first < num_tokens:
            is_float32 = decoder.dtype == torch.float32
            is_rounding = is_float32 and explains_by_rounding(decoder, draw, expected[: first + 1])
            outcome = ("rounding" if is_rounding else "differs") if is_float32 else "not comparable"
        return Comparison(f"{file} {prompt.id}", record.metadata["dtype"], num_tokens, num_same, first, outcome)

    def _check_record(self, file: RecordFile, record: GenerationRecords) -> MethodSpec:
        """The method of a file, if the file is what its path and the config say."""
        spec = self.specs.get((file.method_id, file.temperature))
        if spec is None:
            raise ValueError(f"{self.archive.path}: the config has no {file.method_id} at T{file.temperature}")
        expected = {
            "method": spec.to_dict(),
            "temperature": float(file.temperature),
            "cfg_scale": self.config["sampling"]["cfg_scale"],
            "run_seed": file.noise_seed,
            "dtype": self.config["generation"]["dtype"],
        }
        for key, value in expected.items():
            if record.metadata.get(key) != value:
                raise ValueError(
                    f"{self.archive.path}: {file.name} should have {key} {value} as its path and the config say, found "
                    f"{record.metadata.get(key)!r:.100}"
                )
        if record.codes.shape[1] != (num_tokens := target_sizes(self.config).num_image_tokens):
            raise ValueError(
                f"{self.archive.path}: {file.name} should have {num_tokens} tokens an image as config key "
                f"tokenizer.grid says, found {record.codes.shape[1]}"
            )
        return spec

    def _make_decoder(self, file: RecordFile, spec: MethodSpec, dtype: str) -> Decoder:
        seed, grid = file.training_seed, self.config["tokenizer"]["grid"]
        target = self._find_model(f"target/s{seed}/model.safetensors")
        check_model_size(target, TargetConfig, target_parameters, grid)
        draft = table = None
        if spec.needs_draft_model:
            draft = self._find_model(f"drafter/s{seed}/model.safetensors")
            check_model_size(draft, DraftConfig, draft_parameters, grid)
        if spec.neighbours:
            table = self._find_model(f"codebook/{table_file(spec.neighbours, seed)}")
        models = load_decoding_models(target, draft, table, self.device, dtype)
        temperature = float(file.temperature)
        trees = self._find_model(f"trees/s{seed}.json") if spec.tree == "tuned" else None
        spec = resolve_tree(spec, temperature, trees)
        return make_decoder(models, spec, SamplingConfig(temperature=temperature, **self.config["sampling"]))

    def _make_encoder(self, file: RecordFile) -> Any:
        prefix = f"{self.folder}/text/{file.prompt_set}/"
        features = [str(self._extract(name)) for name in self.archive.manifest if name.startswith(prefix)]
        config = self.config
        return make_text_encoder(config["text"], config["data"]["source"], features)

    def _find_prompt(self, file: RecordFile, prompt_id: str) -> Prompt:
        name = f"{self.folder}/prompts/{file.prompt_set}.jsonl"
        for prompt in read_prompts(self._extract(name)):
            if prompt.id == prompt_id:
                return prompt
        raise ValueError(f"{self.archive.path}: {name} has no prompt {prompt_id!r:.100}, which {file.name} has")

    def _find_model(self, name: str) -> Path:
        """A model of the archive, or the one of the same hash among the caller's."""
        if f"{self.folder}/{name}" in self.archive:
            return self._extract(f"{self.folder}/{name}")
        sha256 = self.provenance["models"].get(name, {}).get("sha256")
        path = self.models / name if self.models else None
        if path is None or not path.is_file():
            raise ValueError(
                f"{self.archive.path} leaves out {name} (sha256 {sha256}), converted from published weights; let rules "
                "convert_target, convert_drafter and convert_tokenizer make it and name its experiment's folder with "
                "--models"
            )
        found = describe_file(path)["sha256"]
        if found != sha256:
            raise ValueError(f"{path} should have sha256 {sha256} as in {self.archive.path}, found {found}")
        return path

    def _extract(self, name: str) -> Path:
        path = self.workplace / name
        return path if path.is_file() else self.archive.extract(name, self.workplace)


def explains_by_rounding(decoder: Decoder, draw: Callable[[], torch.Tensor], expected: torch.Tensor) -> bool:
    """Tells whether a difference is one of floating point.

    Two devices round the same sum differently. Where two tokens, or a draft's acceptance and its rejection, are a
    near-tie, either may come out. Such a place is found by changing the head's weights by as much as rounding would:
    the tokens expected, those of the other device up to and including the first difference, must come out of one of a
    few such changes. The decoder, in float32, has its head changed and changed back.
    """
    weight = decoder.target.head.weight.data
    kept = weight.clone()
    try:
        for seed in range(NUM_ROUNDINGS):
            noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)).to(weight.device)
            weight.copy_(kept * (1 + ROUNDING * noise))
            if torch.equal(draw()[: len(expected)], expected):
                return True
        return False
    finally:
        weight.copy_(kept)


def check_model_size(path: Path, config_class: type, count: Callable[[Any], int], grid: int) -> None:
    """Checks, before a model is built, that the sizes in our checkpoint `path` are plain numbers, `grid` tokens a side,
    and ask for no more parameters (`count` of them) than the file holds.
    """
    metadata = read_metadata(path)
    if metadata is None:
        raise ValueError(f"{path} is truncated or is not a safetensors file of ours")
    sizes = metadata.get("config")
    defaults = {field.name: field.default for field in fields(config_class)}
    if (
        not isinstance(sizes, dict)
        or set(sizes) - set(defaults)
        or not all(value == defaults[name] or _is_size(value) for name, value in sizes.items())
    ):
        raise ValueError(f"{path}: the model's config must hold positive numbers for {', '.join(sorted(defaults))}")
    config = config_class(**sizes)
    if config.grid != grid:
        raise ValueError(f"{path}: grid should be {grid} as config key tokenizer.grid says, found {config.grid}")
    needed = 2 * count(config)  # bytes in the narrowest format
    if needed > path.stat().st_size:
        raise ValueError(f"{path}: its config asks for {needed} bytes of weights, the file has {path.stat().st_size}")


def _is_size(value: Any) -> bool:
    """Whether this is a switch, a number of fair size, a few of them, or the name of a rotary table."""
    if isinstance(value, list):
        return len(value) <= MAX_IDS and all(_is_size(part) for part in value)
    return isinstance(value, bool) or value == "1d" or (isinstance(value, int | float) and 0 < value < MAX_SIZE)
