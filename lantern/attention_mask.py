"""Additive attention masks: 0 if a query sees a key, -inf otherwise. A bool mask is called `visible`."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def prefix_mask(text_mask: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a causal mask that hides padding of the prompts, (sequences, 1 for all heads, length, length).

    `text_mask`, (sequences, num_text_tokens), is False for padding. `length` includes the positions of the prompt.
    """
    visible = torch.ones(text_mask.shape[0], length, length, dtype=torch.bool, device=text_mask.device).tril_()
    visible[:, :, : text_mask.shape[1]] &= text_mask[:, None, :]
    # Padding sees itself: the softmax of a row that is all -inf would be nan.
    visible |= torch.eye(length, dtype=torch.bool, device=text_mask.device)
    return additive(visible, dtype)[:, None]


def additive(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert a bool mask of any shape."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))


def window_table(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the attention mask of nodes among one another, (batch or 1, nodes, slots of the nodes + 2).

    Nodes are new tokens, whose slots in the key/value cache are next to each other. `visible` is (batch or 1, nodes,
    slots of the nodes). `KVCache.mask` expands the result to all slots of a cache. The first column represents all
    earlier slots, which are visible, the last one all later slots, which are hidden.
    """
    return F.pad(F.pad(additive(visible, dtype), (1, 0)), (0, 1), value=float("-inf"))
