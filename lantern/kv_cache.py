"""What a model keeps of a batch of images between its passes: keys and values, with one length per row.

Slots of a row: the text prefix, then the accepted image tokens, then the nodes of the draft tree under verification.
After verification the accepted path is moved to the front of the nodes' region; whatever lies behind is overwritten by
the next step.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from lantern.attention_mask import additive, prefix_mask


class KVCache:
    """Pre-allocated keys and values of all layers.

    A row is an image under one caption; under guidance the rows with the prompts' captions come first, then those with
    the null caption.

    Args:
        visible: bool, (batch, text rows): caption rows that may be seen, the same for the null caption.
        num_captions: 1, or 2 under guidance.
        num_layers: layers.
        num_slots: sequence slots per row.
        head_shape: attention heads, width of a head.
        dtype: element type.
    """

    def __init__(
        self,
        visible: torch.Tensor,
        num_captions: int,
        num_layers: int,
        num_slots: int,
        head_shape: tuple[int, int],
        dtype: torch.dtype,
    ) -> None:
        self.visible, self.num_rows, self.num_slots = visible, num_captions * len(visible), num_slots
        shape = (num_layers, self.num_rows, num_slots, *head_shape)
        # Zeros, not empty: a masked slot still enters the product with weight 0, and 0 * NaN would be NaN.
        self.keys = torch.zeros(shape, dtype=dtype, device=visible.device)
        self.values = torch.zeros_like(self.keys)
        self._flat = [(k.flatten(0, 1), v.flatten(0, 1)) for k, v in zip(self.keys, self.values, strict=True)]
        self._row_offsets = torch.arange(self.num_rows, device=visible.device).view(num_captions, -1, 1) * num_slots
        self._flat_slots = torch.empty(0, dtype=torch.int64, device=visible.device)
        self._text_bias = F.pad(additive(visible, dtype), (0, num_slots - visible.shape[1]))[:, None]

    def place_text(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Chooses the slots of the text prefix; returns them, int64 (batch, text rows), and a mask as `place` does."""
        batch, n = self.visible.shape
        slots = torch.arange(n, device=self.visible.device).expand(batch, n)
        mask = prefix_mask(self.visible, n, self.keys.dtype)[:, 0]
        return slots, self._place(slots, F.pad(mask, (0, self.num_slots - n), value=float("-inf")))

    def place(self, slots: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        """Chooses where the next `append` of every layer writes.

        Args:
            slots: int64, (batch, nodes).
            window: additive, (batch, nodes, slots): what each node sees, but for the caption rows that are closed.

        Returns:
            Additive attention mask, (rows, 1, nodes, slots).
        """
        return self._place(slots, window + self._text_bias)

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
        """Copies slots of every layer: the slots source[b, j] of image b go to target[b, j].

        Args:
            source: int64, (batch, n).
            target: int64, same shape; no slot twice in a row.
        """
        flat_source, flat_target = self._flatten(source), self._flatten(target)
        for store in (self.keys, self.values):
            flat = store.flatten(1, 2)
            flat.index_copy_(1, flat_target, flat.index_select(1, flat_source))

    def _place(self, slots: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self._flat_slots = self._flatten(slots)
        return repeat_rows(mask[:, None], self.num_rows)

    def _flatten(self, slots: torch.Tensor) -> torch.Tensor:
        return (slots + self._row_offsets).flatten()  # (captions, batch, n), flattened


def repeat_rows(x: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Repeats a batch (batch, ...) for each caption that it is run with: (num_rows, ...)."""
    return x if len(x) == num_rows else x.repeat(num_rows // len(x), *[1] * (x.dim() - 1))
