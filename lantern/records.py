"""Records of generated images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lantern.io import DamagedFileError, load_tensors, save_tensors
from lantern.methods import draws_target_tokens

_TENSORS = ("codes", "target_forwards", "step_lengths", "accepted_nodes", "is_substituted", "seconds", "margins")


@dataclass
class GenerationRecords:
    """Images of one method, prompt set and temperature.

    Attributes:
        prompt_ids: one id per image.
        codes: int32, (images, tokens).
        target_forwards: int32, (images,): forwards of the target model, the prefill included; `tokens` if
            autoregressive.
        step_lengths: int16, (images, tokens): tokens emitted by each target forward, bonus token included;
            zero-padded, each row sums to the number of tokens.
        accepted_nodes: int16, (images, tokens): of each target forward after the prefill, the deepest accepted node of
            the draft tree, 0 for the root; -1-padded. A static tree's nodes have the order of
            `lantern.tree_shapes.check_choices`, from 1 on; of hybrid drafts, Jacobi's come first.
        is_substituted: bool, (images, tokens): the emitted token is not the one that the target drew there. All False
            for verification by rejection, where the target draws no token of its own.
        seconds: float32, (images,): the image's share of the time that decoding took, synchronised, see
            `generate_records`.
        margins: float32, (images, tokens): gap between the two best perturbed log-probabilities, nats; autoregressive
            records only, empty (images, 0) elsewhere.
        metadata: method, tree_shape, temperature, cfg_scale, batch_size, run_seed, device and what else the job wants
            kept.
    """

    prompt_ids: list[str]
    codes: torch.Tensor
    target_forwards: torch.Tensor
    step_lengths: torch.Tensor
    accepted_nodes: torch.Tensor
    is_substituted: torch.Tensor
    seconds: torch.Tensor
    margins: torch.Tensor
    metadata: dict[str, Any]

    def __len__(self) -> int:
        return len(self.prompt_ids)

    def select(self, rows: Sequence[int]) -> GenerationRecords:
        """Records of some images, in the order given."""
        index = torch.tensor(list(rows), dtype=torch.int64)
        tensors = {name: getattr(self, name)[index] for name in _TENSORS}
        return GenerationRecords([self.prompt_ids[row] for row in rows], **tensors, metadata=self.metadata)

    @property
    def substitutions(self) -> torch.Tensor:
        """Tokens that stand in for another one that the target drew, float64 (images,); nan where verification by
        rejection draws none.
        """
        counts = self.is_substituted.sum(dim=1).double()
        is_known = draws_target_tokens(self.metadata["method"], self.metadata["temperature"])
        return counts if is_known else torch.full_like(counts, torch.nan)


def save_records(path: Path, records: GenerationRecords) -> None:
    """Writes records into one safetensors file, atomically."""
    tensors = {name: getattr(records, name).cpu().contiguous() for name in _TENSORS}
    save_tensors(path, tensors, {"kind": "records", "prompt_ids": records.prompt_ids, **records.metadata})


def load_records(path: Path) -> GenerationRecords:
    """Reads records.

    Raises:
        DamagedFileError: the file is damaged, holds no records or another version's, or its ids and images differ in
            number.
    """
    tensors, metadata = load_tensors(path)
    if metadata.pop("kind", None) != "records" or "codes" not in tensors:
        raise DamagedFileError(path, "holds no generation records")
    if missing := [name for name in _TENSORS if name not in tensors]:
        raise DamagedFileError(path, f"lacks {', '.join(missing)}: another version of Lantern wrote it")
    ids = metadata.pop("prompt_ids")
    if len(ids) != len(tensors["codes"]):
        raise DamagedFileError(path, f"has {len(ids)} prompt ids for {len(tensors['codes'])} images")
    return GenerationRecords(ids, **{name: tensors[name] for name in _TENSORS}, metadata=metadata)


def concatenate_records(parts: Sequence[GenerationRecords], order: Sequence[str] | None = None) -> GenerationRecords:
    """Joins records of disjoint prompts of one method, in the `order` of prompt ids, by default the parts' own;
    metadata is the first part's.

    Raises:
        ValueError: an id that appears twice, or that `order` has and the parts lack (or the other way round).
    """
    ids = [i for part in parts for i in part.prompt_ids]
    place = {i: row for row, i in enumerate(ids)}
    if len(place) < len(ids):
        raise ValueError(f"prompt {max(ids, key=ids.count)} appears in two of the files of one method; leave one out")
    order = list(order) if order is not None else ids
    if set(order) != set(ids):
        raise ValueError(f"records and prompts differ: {sorted(set(order) ^ set(ids))[:3]} are not in both")
    rows = torch.tensor([place[i] for i in order], dtype=torch.int64)
    joined = {name: torch.cat([getattr(part, name) for part in parts])[rows] for name in _TENSORS}
    return GenerationRecords(order, **joined, metadata=parts[0].metadata)


def load_shards(paths: Sequence[str | Path], prompt_ids: Sequence[str]) -> dict[str, GenerationRecords]:
    """Reads the records of many methods on one prompt set, `prompt_ids`: method id -> records in that order, methods in
    the order in which they first appear. Errors are those of `load_records` and `concatenate_records`.
    """
    parts: dict[str, list[GenerationRecords]] = {}
    for path in paths:
        records = load_records(Path(path))
        parts.setdefault(records.metadata["method"]["method_id"], []).append(records)
    # method by method, so that no more than one is held twice
    return {method_id: concatenate_records(parts.pop(method_id), prompt_ids) for method_id in list(parts)}
