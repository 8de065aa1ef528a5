"""Records of generated images: their tokens, and how these were decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lantern.io import DamagedFileError, load_tensors, save_tensors
from lantern.methods import MethodSpec

_TENSORS = ("codes", "target_forwards", "step_lengths", "accepted_nodes", "is_substituted", "seconds", "margins")


@dataclass
class GenerationRecords:
    """Images of one method, prompt set and temperature, and how they were decoded.

    The prefill counts as a forward pass of the target.

    Attributes:
        prompt_ids: prompt id of each image.
        codes: tokens of each image, int32 (images, tokens).
        target_forwards: number of forward passes of the target, int32 (images,). In autoregressive decoding this is the
            number of tokens.
        step_lengths: number of tokens that each forward pass of the target emitted, int16 (images, tokens), padded with
            zeros. The numbers of an image add up to its number of tokens.
        accepted_nodes: index, in the draft tree, of the deepest node accepted in each forward pass after the prefill,
            int16 (images, tokens). 0 is the root. Padded with -1. Nodes of a static tree are numbered from 1 in the
            order of `lantern.tree_shapes.check_choices`. In hybrid trees, the nodes of Jacobi drafts come before the
            nodes of the draft model's drafts.
        is_substituted: whether a token differs from the target's sample at its node, bool (images, tokens). All False
            if drafts are verified by rejection sampling, in which the target takes no such sample.
        seconds: each image's share of the decoding time, float32 (images,). Images that are decoded together share it
            equally.
        margins: for each token, how close the sample was: the difference between the two largest keys, in nats, float32
            (images, tokens). The key of a code is its log-probability plus the sampling noise. (images, 0) unless
            decoding was autoregressive.
        metadata: method, tree_shape, temperature, cfg_scale, batch_size, run_seed, device, and further settings of the
            run.
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
        """Return the records of some images, in the order of `rows`."""
        index = torch.tensor(list(rows), dtype=torch.int64)
        tensors = {name: getattr(self, name)[index] for name in _TENSORS}
        return GenerationRecords([self.prompt_ids[row] for row in rows], **tensors, metadata=self.metadata)

    @property
    def substitutions(self) -> torch.Tensor:
        """Number of emitted tokens per image that differ from the target's sample, float64 (images,).

        nan if drafts are verified by rejection sampling, in which the target takes no such sample.
        """
        counts = self.is_substituted.sum(dim=1).double()
        # A sum of False would read as no substitution, but none was observed.
        spec = MethodSpec.from_dict(self.metadata["method"], self.metadata["tree_shape"])
        is_known = spec.samples_target_tokens(self.metadata["temperature"])
        return counts if is_known else torch.full_like(counts, torch.nan)


def save_records(path: Path, records: GenerationRecords) -> None:
    """Write records into one safetensors file. An interrupted call leaves no incomplete file."""
    tensors = {name: getattr(records, name) for name in _TENSORS}
    save_tensors(path, tensors, {"kind": "records", "prompt_ids": records.prompt_ids, **records.metadata})


def load_records(path: Path) -> GenerationRecords:
    """Read records from a file.

    Raises:
        DamagedFileError: the file is damaged, has no records or records of another version of Lantern, or has different
            numbers of ids and images.
    """
    tensors, metadata = load_tensors(path)
    if metadata.pop("kind", None) != "records" or "codes" not in tensors:
        raise DamagedFileError(path, "holds no generation records")
    # `codes` alone marks a file of this kind. What else is missing tells the version.
    if missing := [name for name in _TENSORS if name not in tensors]:
        raise DamagedFileError(path, f"lacks {', '.join(missing)}: another version of Lantern wrote it")
    ids = metadata.pop("prompt_ids")
    if len(ids) != len(tensors["codes"]):
        raise DamagedFileError(path, f"has {len(ids)} prompt ids for {len(tensors['codes'])} images")
    return GenerationRecords(ids, **{name: tensors[name] for name in _TENSORS}, metadata=metadata)


def concatenate_records(parts: Sequence[GenerationRecords], order: Sequence[str] | None = None) -> GenerationRecords:
    """Join records of one method that have different prompts. The metadata of the first is kept.

    Args:
        order: prompt ids in the order of the result. None keeps the order of the parts.

    Raises:
        ValueError: an id appears twice, or `order` and the parts do not have the same ids.
    """
    ids = [i for part in parts for i in part.prompt_ids]
    index = {i: row for row, i in enumerate(ids)}
    if len(index) < len(ids):  # an id is there twice; the message names the most frequent one
        raise ValueError(f"prompt {max(ids, key=ids.count)} appears in two of the files of one method; leave one out")
    order = list(order) if order is not None else ids
    if set(order) != set(ids):
        raise ValueError(f"records and prompts differ: {sorted(set(order) ^ set(ids))[:3]} are not in both")
    rows = torch.tensor([index[i] for i in order], dtype=torch.int64)
    joined = {name: torch.cat([getattr(part, name) for part in parts])[rows] for name in _TENSORS}
    return GenerationRecords(order, **joined, metadata=parts[0].metadata)
