"""Draws a sample of an unpacked experiment's images again, from its models, prompts and config; compares the codes."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lantern.generation import decode_timed
from lantern.methods import MethodSpec
from lantern.records import GenerationRecords, load_records
from lantern_pipeline.config.methods import expand_methods, table_file
from lantern_pipeline.config.validate import check_keys
from lantern_pipeline.data.decoders import load_decoders
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.fetch.manifest import describe_file

_RECORDS = re.compile(r"generation/([^/]+)/([^/]+)/T([^/]+)/s(\d+)n(\d+)/[^/]+\.safetensors")


@dataclass(frozen=True)
class Comparison:
    """One image drawn again: `same` says of each token, bool (tokens,), whether it is the archive's."""

    image: str
    dtype: str
    same: torch.Tensor

    @property
    def outcome(self) -> str:
        """Equal, differs or, in bfloat16, which rounds differently on each device, not comparable."""
        if self.same.all():
            return "equal"
        return "differs" if self.dtype == "float32" else "not comparable"


class Redrawing:
    """Draws images of results/<experiment> again; `models` is that of a run that converted the models it lacks."""

    def __init__(
        self,
        folder: Path,
        provenance: Mapping[str, Any],
        models: Path | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.folder, self.provenance, self.models, self.device = folder, provenance, models, device
        self.config = provenance["config"]
        check_keys(self.config)  # not the rules between keys: they look for the user's own files
        self.specs = {(run.spec.method_id, f"{run.temperature:g}"): run.spec for run in expand_methods(self.config)}

    def compare(self, num_images: int, seed: int = 0) -> Iterator[Comparison]:
        """Draws images chosen by `seed`, of as many methods as possible."""
        draw = random.Random(seed)
        for name in self.choose(num_images, draw):
            records = load_records(self.folder / name)
            try:
                yield self._compare(name, records.select([draw.randrange(len(records))]))
            except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
                raise ValueError(f"{name} cannot be drawn again ({type(error).__name__}: {error})") from error

    def choose(self, num: int, draw: random.Random) -> list[str]:
        """`num` files of records: one of every method before a second of any."""
        files = sorted(path.relative_to(self.folder).as_posix() for path in self.folder.glob("generation/*/*/*/*/*"))
        files = [name for name in files if _RECORDS.fullmatch(name)]
        draw.shuffle(files)
        turns: Counter = Counter()
        turn_of = {}
        for name in files:
            turn_of[name] = turns[name.split("/")[1]]
            turns[name.split("/")[1]] += 1
        ranked = sorted(files, key=turn_of.__getitem__)
        return [ranked[place % len(ranked)] for place in range(num if ranked else 0)]

    def _compare(self, name: str, record: GenerationRecords) -> Comparison:
        method_id, prompt_set, temperature, training_seed, noise_seed = _RECORDS.fullmatch(name).groups()
        spec = self.specs.get((method_id, temperature))
        if spec is None:
            raise ValueError(f"{name}: the config has no {method_id} at T{temperature}")
        self._check_record(name, record, spec, float(temperature), int(noise_seed))
        config, seed = self.config, int(training_seed)
        features = sorted(map(str, self.folder.glob(f"text/{prompt_set}/*.safetensors")))
        (decoder,) = load_decoders(
            [(asdict(spec), float(temperature))],
            config["sampling"],
            target=self._find(f"target/s{seed}/model.safetensors"),
            drafter=self._find(f"drafter/s{seed}/model.safetensors") if spec.needs_draft_model else None,
            nearest_codes=[self._find(f"codebook/{table_file(spec.neighbours, seed)}")] if spec.neighbours else [],
            device=self.device,
            dtype=config["generation"]["dtype"],
            trees=self._find(f"trees/s{seed}.json") if spec.tree == "tuned" else None,
        )
        prompts = {prompt.id: prompt for prompt in read_prompts(self.folder / f"prompts/{prompt_set}.jsonl")}
        (prompt_id,) = record.prompt_ids
        if prompt_id not in prompts:
            raise ValueError(f"prompts/{prompt_set}.jsonl has no prompt {prompt_id!r:.100}, which {name} has")
        encoder = make_text_encoder(config["text"], config["data"]["source"], features)
        codes = decode_timed(decoder, [prompts[prompt_id]], encoder, int(noise_seed))[0].codes[0].cpu()
        image = f"{method_id} {prompt_set} T{temperature} s{training_seed}n{noise_seed} {prompt_id}"
        return Comparison(image, config["generation"]["dtype"], codes == record.codes[0].long())

    def _check_record(
        self, name: str, record: GenerationRecords, spec: MethodSpec, temperature: float, run_seed: int
    ) -> None:
        """Makes sure that a file is what its path and the config say."""
        expected = {
            "method": spec.to_dict(),
            "temperature": temperature,
            "cfg_scale": self.config["sampling"]["cfg_scale"],
            "run_seed": run_seed,
            "dtype": self.config["generation"]["dtype"],
        }
        for key, value in expected.items():
            if record.metadata.get(key) != value:
                raise ValueError(
                    f"{name} should have {key} {value} as its path and the config say, found "
                    f"{record.metadata.get(key)!r:.100}"
                )

    def _find(self, name: str) -> Path:
        """A file of the experiment, or the one of the same sum among the caller's."""
        if (self.folder / name).is_file():
            return self.folder / name
        sha256 = self.provenance["models"].get(name, {}).get("sha256")
        path = self.models / name if self.models else None
        if path is None or not path.is_file():
            raise ValueError(
                f"the archive leaves out {name} (sha256 {sha256}), converted from published weights; let rules "
                "convert_target, convert_drafter and convert_tokenizer make it and name its experiment's folder with "
                "--models"
            )
        if (found := describe_file(path)["sha256"]) != sha256:
            raise ValueError(f"{path} should have sha256 {sha256} as in the archive, found {found}")
        return path
