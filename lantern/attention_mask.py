"""Additive attention masks: 0 where a query sees a key, -inf elsewhere."""

from __future__ import annotations

import torch


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


def window_table(visible: torch.Tensor, num_slots: int, dtype: torch.dtype) -> torch.Tensor:
    """What `slide_window` slides over: [prefix, all visible | the nodes | behind them, nothing visible].

    Args:
        visible: bool, (rows or 1, queries, nodes).
        num_slots: slots of the cache.
        dtype: of the result.

    Returns:
        Additive, (rows or 1, queries, num_slots + nodes + num_slots).
    """
    shape = (*visible.shape[:2], num_slots)
    hidden = torch.full(shape, float("-inf"), dtype=dtype, device=visible.device)
    nodes = torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, float("-inf"))
    return torch.cat([torch.zeros_like(hidden), nodes, hidden], dim=2)


def slide_window(table: torch.Tensor, begin: torch.Tensor, num_slots: int) -> torch.Tensor:
    """The part of `window_table` that puts the nodes of row b at slot begin[b]; (batch, queries, num_slots)."""
    columns = torch.arange(num_slots, 2 * num_slots, device=begin.device) - begin[:, None]  # (batch, slots)
    if table.shape[0] == 1:
        batch, queries = begin.shape[0], table.shape[1]
        return table[0].index_select(1, columns.flatten()).view(queries, batch, num_slots).transpose(0, 1)
    return table.gather(2, columns[:, None, :].expand(-1, table.shape[1], -1))
