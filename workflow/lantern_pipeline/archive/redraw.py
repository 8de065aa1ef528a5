"""Check that images of a run can be reproduced.

A sample of the images is generated again from the run's models, prompts and config, and the codes are compared.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

import torch

from lantern.generation import decode_timed
from lantern.methods import MethodSpec
from lantern.records import GenerationRecords, load_records
from lantern_pipeline.archive.provenance import FILE_NAME, Provenance
from lantern_pipeline.archive.verify import refuse_own_classes
from lantern_pipeline.data.decoders import load_decoders
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.fetch.manifest import describe_file
from lantern_pipeline.plan.methods import expand_methods
from lantern_pipeline.plan.validate import check_keys
from lantern_pipeline.schema.run_config import RunConfig

_RECORDS = re.compile(r"generation/([^/]+)/([^/]+)/T([^/]+)/s(\d+)n(\d+)/[^/]+\.safetensors")


def redraw(
    folder: Path,
    provenance: Provenance,
    num_images: int,
    *,
    seed: int = 0,
    models: Path | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name of an image, bool (tokens,): whether each code equals the stored one) for random images of a run.

    Args:
        folder: folder of the results, whose files were compared with their digests before.
        num_images: if it is 0, no file is read.
        seed: chooses the images. Their noise has the run's own seeds.
        models: results/<experiment> of another run, with the converted models that `folder` lacks. Licences may forbid
            sending them with the results.

    Raises:
        ValueError: a file is missing, does not fit the others, or names a custom class.
    """
    if not num_images:
        return
    # The results may come from another person, and to load a class is to run its code.
    refuse_own_classes(provenance["config"], FILE_NAME)
    config = check_keys(provenance["config"])  # `validate_config` would look for files of the user
    specs = {(run.spec.method_id, f"{run.temperature:g}"): run.spec for run in expand_methods(config)}
    draw = random.Random(seed)
    for name in choose_records(provenance["records"], num_images, draw):
        records = load_records(folder / name)
        refuse_own_classes(records.metadata, name)
        record = records.select([draw.randrange(len(records))])
        try:
            method_id, prompt_set, temperature, seed_of_models, seed_of_noise = _parts_of(name)
            seeds = f"s{seed_of_models}n{seed_of_noise}"
            image = f"{method_id} {prompt_set} T{temperature} {seeds} {record.prompt_ids[0]}"
            if (spec := specs.get((method_id, temperature))) is None:
                raise ValueError(f"{name}: the config has no {method_id} at T{temperature}")
            yield image, _redraw(folder, provenance, config, spec, name, record, models, device)
        # A file with valid digests may still have any contents, so each of these errors is possible.
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            raise ValueError(f"{name} cannot be generated again ({type(error).__name__}: {error})") from error


def choose_records(listed: Iterable[str], num: int, draw: random.Random) -> list[str]:
    """Return names of `num` random files of records among those that the provenance lists, spread over the methods.

    No method has a second file in the result before every method has one. If there are fewer files, they are repeated.
    """
    files = sorted(filter(_RECORDS.fullmatch, listed))
    draw.shuffle(files)
    of_method = defaultdict(list)
    for name in files:
        of_method[name.split("/")[1]].append(name)
    turns = [name for turn in zip_longest(*of_method.values()) for name in turn if name]
    return [turns[place % len(turns)] for place in range(num if turns else 0)]  # no files: no names


def _parts_of(name: str) -> tuple[str, ...]:
    # (method id, prompt set, temperature, training seed, noise seed)
    match = _RECORDS.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} should be a file of records, generation/<method>/<set>/T<temperature>/s<n>n<n>/...")
    return match.groups()


def _redraw(
    folder: Path,
    provenance: Provenance,
    config: RunConfig,
    spec: MethodSpec,
    name: str,
    record: GenerationRecords,
    models: Path | None,
    device: torch.device | str,
) -> torch.Tensor:
    _, prompt_set, temperature, seed, noise_seed = _parts_of(name)

    def find(file: str) -> Path:
        if (folder / file).is_file():
            return folder / file
        sha256 = provenance["models"].get(file, {}).get("sha256")
        path = models / file if models else None
        if path is None or not path.is_file():
            raise ValueError(
                f"the results lack {file} (sha256 {sha256}), converted from published weights; in a clone, run "
                f"`snakemake --cores all results/{config.experiment}/{file} --configfile OVERLAY` with the run's "
                f"overlay, then verify with --models results/{config.experiment}"
            )
        # `models` may belong to a run with other weights of the same sizes.
        if (found := describe_file(path)["sha256"]) != sha256:
            raise ValueError(f"{path} should have sha256 {sha256} as in {FILE_NAME}, found {found}")
        return path

    (decoder,) = load_decoders(
        [(spec, float(temperature))],
        config.sampling.settings,
        target=find(f"target/s{seed}/model.safetensors"),
        drafter=find(f"drafter/s{seed}/model.safetensors") if spec.needs_draft_model else None,
        heads=find(f"heads/s{seed}/model.safetensors") if "heads" in spec.drafts_row.trained else None,
        nearest_codes=[find(f"codebook/{spec.neighbours}.safetensors")] if spec.neighbours else [],
        device=device,
        dtype=config.generation.dtype,
    )
    prompts = {prompt.id: prompt for prompt in read_prompts(folder / f"prompts/{prompt_set}.jsonl")}
    (prompt_id,) = record.prompt_ids
    if prompt_id not in prompts:
        raise ValueError(f"prompts/{prompt_set}.jsonl has no prompt {prompt_id!r:.100}, which {name} has")
    # empty unless the encoder is T5, whose features are stored
    features = sorted(map(str, folder.glob(f"text/{prompt_set}/*.safetensors")))
    encoder = make_text_encoder(config.text_settings, config.data.source, features)
    # Noise depends on seeds and prompt id, not on the batch. Rounding in bfloat16 may depend on its size.
    generation, _ = decode_timed(decoder, [prompts[prompt_id]], encoder, int(noise_seed))
    return generation.codes[0].cpu() == record.codes[0].long()
