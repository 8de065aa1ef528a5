"""Pre-allocated key/value cache with one length per row.

Slots of a row: the text prefix, then the accepted image tokens, then the nodes of the draft tree under verification.
After verification the accepted path is moved to the front of the nodes' region; whatever lies behind is overwritten by
the next step.
"""

from __future__ import annotations

import torch


class KVCache:
    """Keys and values of all layers in one tensor.

    Args:
        num_layers: layers.
        num_rows: images, or twice as many under guidance: rows of the captions first, then of the null caption.
        num_slots: sequence slots per row.
        num_heads: attention heads.
        head_dim: width of a head.
        device: where it lives.
        dtype: element type.
    """

    def __init__(
        self,
        num_layers: int,
        num_rows: int,
        num_slots: int,
        num_heads: int,
        head_dim: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.num_rows, self.num_slots = num_rows, num_slots
        # Zeros, not empty: a masked slot still enters the product with weight 0, and 0 * NaN would be NaN.
        self.keys = torch.zeros(num_layers, num_rows, num_slots, num_heads, head_dim, device=device, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self._flat = [(k.flatten(0, 1), v.flatten(0, 1)) for k, v in zip(self.keys, self.values, strict=True)]
        self._row_offsets = torch.arange(num_rows, device=device) * num_slots
        self._flat_slots = torch.empty(0, dtype=torch.int64, device=device)

    def place(self, slots: torch.Tensor) -> None:
        """Chooses where the next `append` of every layer writes.

        Args:
            slots: int64, (rows, nodes), or (batch, nodes) to use the same slots for both captions of a guided batch.
        """
        self._flat_slots = self._flatten(slots)

    def append(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores one layer's new rows at the chosen slots.

        Args:
            layer: index of the layer.
            key: (rows, nodes, heads, head_dim).
            value: same shape.

        Returns:
            (keys, values) over all slots, each (rows, slots, heads, head_dim); views, not copies.
        """
        for store, new in zip(self._flat[layer], (key, value), strict=True):
            store.index_copy_(0, self._flat_slots, new.flatten(0, 1))
        return self.keys[layer], self.values[layer]

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copies slots of every layer: the slot source[r, j] of row r goes to target[r, j].

        Args:
            source: int64, (rows or batch, n).
            target: int64, same shape; no slot twice in a row.
        """
        flat_source, flat_target = self._flatten(source), self._flatten(target)
        for store in (self.keys, self.values):
            flat = store.flatten(1, 2)
            flat.index_copy_(1, flat_target, flat.index_select(1, flat_source))

    def _flatten(self, slots: torch.Tensor) -> torch.Tensor:
        return (slots + self._row_offsets.view(-1, len(slots), 1)).flatten()  # (captions, batch, n), flattened
