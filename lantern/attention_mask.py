"""Additive attention masks: 0 where a query sees a key, -inf elsewhere."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def prefix_mask(text_mask: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive causal mask, (rows, 1, length, length), in which padded caption columns are hidden, except each padded
    row from itself; text_mask: bool (rows, num_text_tokens), True where a caption token is.
    """
    visible = torch.ones(text_mask.shape[0], length, length, dtype=torch.bool, device=text_mask.device).tril_()
    visible[:, :, : text_mask.shape[1]] &= text_mask[:, None, :]
    visible |= torch.eye(length, dtype=torch.bool, device=text_mask.device)
    return additive(visible, dtype)[:, None]


def additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where visible, -inf elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))


def window_table(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What new nodes see of one another, for `KVCache.mask`: [all that precedes them | their slots | what lies behind],
    bool (batch or 1, queries, slots of the nodes) -> additive, two columns wider: 0 in the first, -inf in the last.
    """
    return F.pad(F.pad(additive(visible, dtype), (1, 0)), (0, 1), value=float("-inf"))
