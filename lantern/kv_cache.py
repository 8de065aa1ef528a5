"""What a model keeps of a batch of images between its passes: keys and values, with one length per row.

Slots of a row: the text prefix, then the accepted image tokens, then the nodes of the draft tree under verification.
After verification the accepted path is moved to the front of the nodes' region; whatever lies behind is overwritten by
the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lantern.attention_mask import prefix_mask

HIDDEN = 2**40  # a hidden caption row counts as behind every slot


@dataclass
class LayerCache:
    """One layer's part of a `KVCache`; all three are views of one buffer.

    Attributes:
        entries: (rows * slots, 2 * heads * head_dim): key and value of each slot, side by side.
        keys: (rows, heads, slots, head_dim).
        values: (rows, heads, slots, head_dim).
    """

    entries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


class KVCache:
    """Pre-allocated keys and values of all layers; no tensor of it ever changes its address.

    A row is an image under one caption; under guidance the rows with the prompts' captions come first, then those with
    the null caption. `visible`, bool (captions, batch, text rows), says which caption rows may be seen, captions = 1,
    or 2 under guidance; `head_shape` is (heads of keys and values, width of a head).

    Attributes:
        entries: (layers, captions, batch, slots, 2, heads, head_dim): a key and its value side by side, so that one
            write stores both.
        layers: of each layer, see `LayerCache`.
    """

    def __init__(
        self,
        visible: torch.Tensor,
        num_layers: int,
        num_slots: int,
        head_shape: tuple[int, int],
        dtype: torch.dtype,
    ) -> None:
        num_captions, batch, num_text = visible.shape
        self.num_slots = num_slots
        # Zeros, not empty: a masked slot still enters the product with weight 0, and 0 * NaN would be NaN.
        shape = (num_layers, num_captions, batch, num_slots, 2, *head_shape)
        self.entries = torch.zeros(shape, dtype=dtype, device=visible.device)
        self.layers = []
        for entries in self.entries.flatten(1, 2):  # (rows, slots, 2, heads, head_dim)
            keys, values = entries.transpose(1, 3).unbind(2)
            self.layers.append(LayerCache(entries.flatten(0, 1).flatten(1), keys, values))
        rows = torch.arange(num_captions * batch, device=visible.device).view(num_captions, batch, 1)
        self._offsets = rows * num_slots
        places = torch.arange(1, num_slots + 1, device=visible.device)  # column of a window of nodes that begin at 0
        is_seen = F.pad(visible, (0, num_slots - num_text), value=True)
        self._places = torch.where(is_seen, places, HIDDEN)[:, :, None]

    def text_mask(self, visible: torch.Tensor) -> torch.Tensor:
        """The attention mask with which the caption runs, (rows, 1, text rows, slots); `visible` as for the cache."""
        n = visible.shape[2]
        mask = prefix_mask(visible.flatten(0, 1), n, self.entries.dtype)
        return F.pad(mask, (0, self.num_slots - n), value=float("-inf"))

    def mask(self, window: torch.Tensor, begin: torch.Tensor) -> torch.Tensor:
        """Additive attention mask of a pass over new nodes, (rows, 1, nodes, slots): what precedes the nodes is seen,
        but for the hidden caption rows; of the nodes' own slots, which begin at `begin`, int64 (batch,), what the
        window (batch or 1, nodes, slots of the nodes + 2) says, see `window_table`; of what lies behind nothing.
        """
        columns = (self._places - begin[:, None, None]).clamp_(0, window.shape[2] - 1)
        shape = (*columns.shape[:2], window.shape[1], -1)
        return window.expand(*shape).gather(3, columns.expand(*shape)).flatten(0, 1)[:, None]

    def flat_slots(self, slots: torch.Tensor) -> torch.Tensor:
        """Where slots int64 (batch, n) of all captions stand among the rows of `LayerCache.entries`: int64 (captions *
        batch * n,).
        """
        return (slots + self._offsets).flatten()

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copies slots of every layer: source[b, j] of image b to target[b, j], int64 (batch, n), no target twice in a
        row.
        """
        flat = self.entries.flatten(1, 3)
        flat.index_copy_(1, self.flat_slots(target), flat.index_select(1, self.flat_slots(source)))

    def copy_rows(self, rows: torch.Tensor, other: KVCache) -> None:
        """Replaces images `rows`, int64 (n,), none twice, in place by the n of another cache with at most as many
        slots: keys, values and hidden caption rows. What lies behind its slots stays; it is masked until it is
        overwritten.
        """
        self.entries[:, :, :, : other.num_slots].index_copy_(2, rows, other.entries)
        self._places[..., : other.num_slots].index_copy_(1, rows, other._places)


def repeat_rows(x: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Repeats a batch (batch, ...) for each caption that it is run with: (num_rows, ...)."""
    return x if len(x) == num_rows else x.repeat(num_rows // len(x), *[1] * (x.dim() - 1))


def round_slots(num_slots: int) -> int:
    """Slots of a cache: a multiple of 8, since a GPU's attention kernels would pad the mask in every layer."""
    return -(-num_slots // 8) * 8
