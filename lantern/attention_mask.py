"""Additive attention masks: 0 where a query sees a key, -inf elsewhere."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def prefix_mask(text_mask: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """Causal mask in which padded caption columns are hidden, except each padded row from itself.

    Args:
        text_mask: bool, (rows, num_text_tokens), True where a caption token is.
        length: rows of the sequence, text included.
        dtype: of the result.

    Returns:
        Additive mask, (rows, 1, length, length): 0 where visible, -inf elsewhere.
    """
    visible = torch.ones(text_mask.shape[0], length, length, dtype=torch.bool, device=text_mask.device).tril_()
    visible[:, :, : text_mask.shape[1]] &= text_mask[:, None, :]
    visible |= torch.eye(length, dtype=torch.bool, device=text_mask.device)
    return additive(visible, dtype)[:, None]


def additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where visible, -inf elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))


def window_table(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What new nodes see of one another, for `KVCache.mask`: [all that precedes them | their slots | what lies behind].

    Args:
        visible: bool, (batch or 1, queries, slots of the nodes).
        dtype: of the result.

    Returns:
        Additive, (batch or 1, queries, 1 + slots of the nodes + 1): 0 in the first column, -inf in the last.
    """
    return F.pad(F.pad(additive(visible, dtype), (1, 0)), (0, 1), value=float("-inf"))
