"""Cache of keys and values, which a model keeps between its passes over a batch of images.

A slot holds the keys and values of one token. The slots of an image are the prompt, then the accepted image tokens,
then the nodes of the draft tree that is being verified. After verification the accepted path is moved to the first
slots of the nodes. The next step overwrites the slots after it.

A layer's keys and values are one tensor of head vectors. A *flat slot* is the index of one of them:
`((is_value * rows + row) * heads + head) * slots + slot`.

Axes: branches = 1, or 2 with classifier-free guidance (prompts, then null prompts); rows = branches * batch.

Attention masks are *additive*: 0 if a query sees a key, -inf otherwise. A bool mask is called `visible`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

HIDDEN = 2**40  # column index of a hidden prompt position, larger than the index of every slot


@dataclass
class LayerCache:
    """View of one layer in `KVCache.entries`."""

    vectors: torch.Tensor  # by flat slot, (2 * rows * heads * slots, head_dim)
    shape: tuple[int, int, int, int, int]  # of `vectors` before it was flattened: (2, rows, heads, slots, head_dim)

    def __post_init__(self) -> None:
        self.limit(self.shape[3])

    def limit(self, num_used: int) -> None:
        """Let `read` return the first `num_used` slots only."""
        self._num_used = num_used
        self._used = self._view()

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the used keys and values, each (rows, heads, used slots, head_dim)."""
        # If torch.compile gets a tensor and a view of it, it copies the tensor in every pass. It therefore gets a new
        # view. Otherwise the stored view saves time.
        return self._view() if torch.compiler.is_compiling() else self._used

    def _view(self) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.vectors.view(self.shape)[:, :, :, : self._num_used].unbind(0)
        return keys, values

    def write(self, flat_slots: torch.Tensor, new: torch.Tensor) -> None:
        """Store new tokens' key heads, then value heads, (rows * nodes, 2 * heads, head_dim), at flat slots."""
        self.vectors.index_put_((flat_slots,), new)


class KVCache:
    """Pre-allocated keys and values of all layers. Its tensors never move in memory, as CUDA graphs require.

    Args:
        visible: prompt positions that may be attended to, bool (branches, batch, num_text_tokens).
        num_slots: number of slots per image and branch.
        head_shape: (number of key/value heads, channels of a head).
    """

    def __init__(
        self,
        visible: torch.Tensor,
        num_layers: int,
        num_slots: int,
        head_shape: tuple[int, int],
        dtype: torch.dtype,
    ) -> None:
        num_captions, batch, num_text = visible.shape  # num_captions: branches
        self.num_slots = num_slots
        num_heads, head_dim = head_shape
        shape = (num_layers, 2, num_captions, batch, num_heads, num_slots, head_dim)
        # Zeros, not empty: a masked slot still enters the product with weight 0, and 0 * NaN would be NaN.
        self.entries = torch.zeros(shape, dtype=dtype, device=visible.device)
        layer_shape = (2, num_captions * batch, num_heads, num_slots, head_dim)
        self.layers = [LayerCache(part.flatten(0, -2), layer_shape) for part in self.entries]
        # First flat slot of each row and head, keys then values: (branches, batch, 1, 2 * heads).
        heads = torch.arange(2 * num_captions * batch * num_heads, device=visible.device) * num_slots
        self._begins = heads.view(2, num_captions, batch, 1, num_heads).permute(1, 2, 3, 0, 4).flatten(3)
        # Column of each slot in the `window` of `mask`, if the nodes begin at slot 0, (branches, batch, 1, slots).
        # `mask` subtracts the slot where they begin. Hidden slots stay so large that they fall in the last column.
        columns = torch.arange(1, num_slots + 1, device=visible.device)
        is_seen = F.pad(visible, (0, num_slots - num_text), value=True)
        self._columns = torch.where(is_seen, columns, HIDDEN)[:, :, None]
        self.num_used = num_slots

    def limit(self, num_used: int) -> None:
        """Let further passes attend to the first `num_used` slots only, which takes less time."""
        if num_used != self.num_used:
            self.num_used = num_used
            for layer in self.layers:
                layer.limit(num_used)

    def text_mask(self, visible: torch.Tensor) -> torch.Tensor:
        """Return the additive mask of a pass over the prompts, (rows, 1, num_text_tokens, slots)."""
        n = visible.shape[2]
        mask = prefix_mask(visible.flatten(0, 1), n, self.entries.dtype)
        # All slots, since prompts run before the first `limit`.
        return F.pad(mask, (0, self.num_slots - n), value=float("-inf"))

    def mask(self, window: torch.Tensor, begin: torch.Tensor) -> torch.Tensor:
        """Return the additive mask of a pass over new nodes of a draft tree, (rows, 1, nodes, `num_used`).

        Nodes see all slots before `begin`, (batch,), except padding of the prompt. Among the slots of the nodes, they
        see those that `window`, from `window_table`, allows. They see no later slots.
        """
        # One gather: column 0 of `window` for slots before `begin`, 1 to n for those of the nodes, n + 1 for later or
        # hidden ones.
        columns = (self._columns[:, :, :, : self.num_used] - begin[:, None, None]).clamp_(0, window.shape[2] - 1)
        shape = (*columns.shape[:2], window.shape[1], -1)
        return window.expand(*shape).gather(3, columns.expand(*shape)).flatten(0, 1)[:, None]

    def flat_slots(self, slots: torch.Tensor) -> torch.Tensor:
        """Return the flat slots of each image's slots, int64 (batch, n), as (rows * n, 2 * heads), keys then values."""
        return (self._begins + slots[:, :, None]).flatten(0, 2)

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy the keys and values in slots `source` to slots `target`, (batch, n) each, in every layer.

        An image may not have the same target twice: which copy would win is undefined.
        """
        vectors = self.entries.flatten(1, -2)
        # A copy first, since source and target may overlap.
        moved = vectors.index_select(1, self.flat_slots(source).flatten())
        vectors.index_copy_(1, self.flat_slots(target).flatten(), moved)

    def copy_rows(self, rows: torch.Tensor, other: KVCache) -> None:
        """Copy all images of another cache, and their mask of the prompts, into some rows of the batch.

        rows is int64, one for each image of the other cache, without duplicates. If the other cache has fewer slots,
        the remaining slots keep their contents. They are masked until overwritten.
        """
        # Axis 3 of the entries and axis 1 of the columns are the batch.
        self.entries[..., : other.num_slots, :].index_copy_(3, rows, other.entries)
        self._columns[..., : other.num_slots].index_copy_(1, rows, other._columns)


def repeat_rows(x: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Repeat a batch once per branch, to `num_rows` rows. A tensor with that many rows is returned as it is."""
    return x if len(x) == num_rows else x.repeat(num_rows // len(x), *[1] * (x.dim() - 1))


def round_slots(num_slots: int) -> int:
    """Round up to a multiple of 8. A GPU would otherwise pad the attention mask in every layer."""
    return -(-num_slots // 8) * 8  # -(-n // 8): n / 8 rounded up


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
