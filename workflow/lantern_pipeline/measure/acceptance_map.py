"""Where in the image drafts are accepted: records of step lengths, laid out over the grid of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lantern.records import GenerationRecords


@dataclass(frozen=True)
class AcceptanceMap:
    """Acceptance over the grid of tokens, row by row as images are drawn.

    Attributes:
        accepted_share: (grid, grid), share in [0, 1] of the images whose token there was an accepted draft.
        step_length: (grid, grid), mean tokens of the steps that begin there, the target's own token included; nan where
            no step of any image begins.
        num_images: images averaged.
    """

    accepted_share: np.ndarray
    step_length: np.ndarray
    num_images: int


def map_accepted(records: GenerationRecords, grid: int) -> AcceptanceMap:
    """Finds out for every token of one method's images whether it was an accepted draft or the target's own, over a
    grid of grid x grid tokens.

    A step begins where the steps before it end. All its tokens but the last are accepted drafts; the last one is the
    target's own. The first step is the prefill, which emits token 0. The end of the image cuts the last step short:
    steps that begin in the last cells look shorter than they would be, and the very last token counts as the target's
    own although it may have been an accepted draft.
    """
    lengths = records.step_lengths.numpy().astype(np.int64)  # (images, steps)
    num_images, num_tokens = records.codes.shape
    if num_images == 0 or num_tokens not in (grid * grid, grid * (grid + 1)):  # with what ends each line
        raise ValueError(
            f"a map over grid {grid} needs images of {grid * grid} tokens, got {num_images} images of {num_tokens}; "
            "set grid to the tokenizer's"
        )
    if (lengths.sum(axis=1) != num_tokens).any():
        raise ValueError(
            f"step_lengths of an image must sum to its {num_tokens} tokens, got sums from {lengths.sum(axis=1).min()} "
            f"to {lengths.sum(axis=1).max()}; delete the method's records and run again"
        )
    ends = lengths.cumsum(axis=1)
    image, step = np.nonzero(lengths)
    is_accepted = np.ones((num_images, num_tokens), dtype=bool)
    is_accepted[image, ends[image, step] - 1] = False  # the last token of each step
    begins = (ends - lengths)[image, step]
    counts = np.bincount(begins, minlength=num_tokens)
    totals = np.bincount(begins, weights=lengths[image, step], minlength=num_tokens)
    mean = np.divide(totals, counts, out=np.full(num_tokens, np.nan), where=counts > 0)
    shares, lengths = (part.reshape(grid, -1)[:, :grid] for part in (is_accepted.mean(axis=0), mean))
    return AcceptanceMap(shares, lengths, num_images)
