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
    """One layer's keys and values.

    Attributes:
        vectors: (2 * rows * heads * slots, head_dim): all keys, then all values.
        shape: (2, rows, heads, slots, head_dim), by which `vectors` is viewed.
    """

    vectors: torch.Tensor
    shape: tuple[int, int, int, int, int]

    def __post_init__(self) -> None:
        self.limit(self.shape[3])

    def limit(self, num_used: int) -> None:
        """Have passes read the first slots only."""
        self._num_used = num_used
        self._used = self._view()

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of the slots in use, each (rows, heads, slots, head_dim)."""
        # torch.compile would copy a tensor of which it gets a view too, in every pass. Elsewhere views cost time.
        return self._view() if torch.compiler.is_compiling() else self._used

    def _view(self) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.vectors.view(self.shape)[:, :, :, : self._num_used].unbind(0)
        return keys, values

    def write(self, flat_slots: torch.Tensor, new: torch.Tensor) -> None:
        """Takes the keys and values of nodes, (rows * nodes, 2 * heads, head_dim), keys first, at the places that
        `KVCache.flat_slots` gives.
        """
        self.vectors.index_put_((flat_slots,), new)


class KVCache:
    """Pre-allocated keys and values of all layers; no tensor of it ever changes its address.

    A row is an image under one caption; under guidance the
    rows with the prompts' captions come first, then those with the null caption. `visible`, bool (captions, batch, text
    rows), says which caption rows may be seen, captions = 1, or 2 under guidance; `head_shape` is (heads of keys and
    values, width of a head).

    Attributes:
        entries: (layers, 2, captions, batch, heads, slots, head_dim), keys and values: what a head reads lies together.
        layers: of each layer, see `LayerCache`.
        num_used: slots that a pass reads, all unless the host knows that fewer are in use.
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
        num_heads, head_dim = head_shape
        shape = (num_layers, 2, num_captions, batch, num_heads, num_slots, head_dim)
        self.entries = torch.zeros(shape, dtype=dtype, device=visible.device)
        layer_shape = (2, num_captions * batch, num_heads, num_slots, head_dim)
        self.layers = [LayerCache(part.flatten(0, -2), layer_shape) for part in self.entries]
        # Where the slots of a row, (captions, batch, 1, 1), and of a key or value of a head, (2 * heads,), begin.
        heads = torch.arange(2 * num_captions * batch * num_heads, device=visible.device) * num_slots
        self._begins = heads.view(2, num_captions, batch, 1, num_heads).permute(1, 2, 3, 0, 4).flatten(3)
        columns = torch.arange(1, num_slots + 1, device=visible.device)  # column of a window of nodes that begin at 0
        is_seen = F.pad(visible, (0, num_slots - num_text), value=True)
        self._columns = torch.where(is_seen, columns, HIDDEN)[:, :, None]
        self.num_used = num_slots

    def limit(self, num_used: int) -> None:
        """Have passes read the first slots only."""
        if num_used != self.num_used:
            self.num_used = num_used
            for layer in self.layers:
                layer.limit(num_used)

    def text_mask(self, visible: torch.Tensor) -> torch.Tensor:
        """The attention mask with which the caption runs, (rows, 1, text rows, slots); `visible` as for the cache."""
        n = visible.shape[2]
        mask = prefix_mask(visible.flatten(0, 1), n, self.entries.dtype)
        return F.pad(mask, (0, self.num_slots - n), value=float("-inf"))

    def mask(self, window: torch.Tensor, begin: torch.Tensor) -> torch.Tensor:
        """Additive attention mask of a pass over new nodes, (rows, 1, nodes, `num_used`): what precedes the nodes is
        seen, but for the hidden caption rows; of the nodes' own slots, which begin at `begin`, int64 (batch,), what the
        window (batch or 1, nodes, slots of the nodes + 2) says, see `window_table`; of what lies behind nothing.
        """
        columns = (self._columns[:, :, :, : self.num_used] - begin[:, None, None]).clamp_(0, window.shape[2] - 1)
        shape = (*columns.shape[:2], window.shape[1], -1)
        return window.expand(*shape).gather(3, columns.expand(*shape)).flatten(0, 1)[:, None]

    def flat_slots(self, slots: torch.Tensor) -> torch.Tensor:
        """Where slots int64 (batch, n) of all captions stand in `LayerCache.vectors`: int64 (captions * batch * n,
        2 * heads).
        """
        return (self._begins + slots[:, :, None]).flatten(0, 2)

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copies slots of every layer: source[b, j] of image b to target[b, j], int64 (batch, n), no target twice in a
        row.
        """
        vectors = self.entries.flatten(1, -2)
        moved = vectors.index_select(1, self.flat_slots(source).flatten())
        vectors.index_copy_(1, self.flat_slots(target).flatten(), moved)

    def copy_rows(self, rows: torch.Tensor, other: KVCache) -> None:
        """Replaces images `rows`, int64 (n,), none twice, in place by the n of another cache with at most as many
        slots: keys, values and hidden caption rows. What lies behind its slots stays; it is masked until it is
        overwritten.
        """
        self.entries[..., : other.num_slots, :].index_copy_(3, rows, other.entries)
        self._columns[..., : other.num_slots].index_copy_(1, rows, other._columns)


def repeat_rows(x: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Repeats a batch (batch, ...) for each caption that it is run with: (num_rows, ...)."""
    return x if len(x) == num_rows else x.repeat(num_rows // len(x), *[1] * (x.dim() - 1))


def round_slots(num_slots: int) -> int:
    """Slots of a cache: a multiple of 8, since a GPU's attention kernels would pad the mask in every layer."""
    return -(-num_slots // 8) * 8
