"""Cache of keys and values, which a model keeps between its passes over a batch of images.

A slot holds the keys and values of one token. The slots of an image are the prompt, then the accepted image tokens,
then the nodes of the draft tree that is being verified. After verification the accepted path is moved to the first
slots of the nodes. The next step overwrites the slots after it.

Axes: branches = 1, or 2 with classifier-free guidance (prompts, then null prompts); rows = branches * batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lantern.attention_mask import prefix_mask

HIDDEN = 2**40  # column index of a hidden prompt position, larger than the index of every slot


@dataclass
class LayerCache:
    """One layer's keys and values.

    An image has one row per guidance branch: one row without guidance, two rows with guidance. A slot holds the keys
    and values of one token.

    Attributes:
        vectors: all keys, then all values, (2 * rows * heads * slots, head_dim).
        shape: shape of `vectors` before it was flattened, (2, rows, heads, slots, head_dim).
    """

    vectors: torch.Tensor
    shape: tuple[int, int, int, int, int]

    def __post_init__(self) -> None:
        self.limit(self.shape[3])

    def limit(self, num_used: int) -> None:
        """Restrict attention to the first `num_used` cache slots. A slot holds the keys and values of one token."""
        self._num_used = num_used
        self._used = self._view()

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values, each (branches * batch, heads, slots, head_dim).

        Only the slots to which `limit` restricts attention are returned.
        """
        # If torch.compile gets a tensor and a view of it, it copies the tensor in every pass. It therefore gets a new
        # view. Otherwise the stored view saves time.
        return self._view() if torch.compiler.is_compiling() else self._used

    def _view(self) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.vectors.view(self.shape)[:, :, :, : self._num_used].unbind(0)
        return keys, values

    def write(self, flat_slots: torch.Tensor, new: torch.Tensor) -> None:
        """Store the keys and values of new tokens.

        Args:
            flat_slots: indices along the first axis of the attribute `vectors` at which to write, from
                `KVCache.flat_slots`, int64 (branches * batch * nodes, 2 * heads).
            new: keys of all heads, then values of all heads, (branches * batch * nodes, 2 * heads, head_dim).
        """
        self.vectors.index_put_((flat_slots,), new)


class KVCache:
    """Pre-allocated keys and values of all layers. Its tensors never move in memory, as CUDA graphs require.

    Args:
        visible: prompt positions that may be attended to, bool (branches, batch, num_text_tokens).
        num_layers: number of layers.
        num_slots: number of slots per image and branch.
        head_shape: (number of key/value heads, channels of a head).
        dtype: dtype of keys and values.

    Attributes:
        entries: keys and values, (layers, 2, branches, batch, heads, slots, head_dim). The data of one head is
            contiguous.
        layers: a `LayerCache` per layer.
        num_used: number of slots that a pass attends to, see `limit`. All slots by default.
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
        # First flat slot per row and per key or value head: (branches, batch, 1, 2 * heads).
        heads = torch.arange(2 * num_captions * batch * num_heads, device=visible.device) * num_slots
        self._begins = heads.view(2, num_captions, batch, 1, num_heads).permute(1, 2, 3, 0, 4).flatten(3)
        columns = torch.arange(
            1, num_slots + 1, device=visible.device
        )  # column of each slot in `window` if the nodes begin at slot 0
        is_seen = F.pad(visible, (0, num_slots - num_text), value=True)
        self._columns = torch.where(is_seen, columns, HIDDEN)[:, :, None]
        self.num_used = num_slots

    def limit(self, num_used: int) -> None:
        """Restrict attention to the first `num_used` cache slots. A slot holds the keys and values of one token."""
        if num_used != self.num_used:
            self.num_used = num_used
            for layer in self.layers:
                layer.limit(num_used)

    def text_mask(self, visible: torch.Tensor) -> torch.Tensor:
        """Return the attention mask of a pass over the prompts.

        Args:
            visible: prompt positions that may be attended to, bool (branches, batch, num_text_tokens).

        Returns:
            Additive mask, (branches * batch, 1, num_text_tokens, slots).
        """
        n = visible.shape[2]
        mask = prefix_mask(visible.flatten(0, 1), n, self.entries.dtype)
        return F.pad(mask, (0, self.num_slots - n), value=float("-inf"))

    def mask(self, window: torch.Tensor, begin: torch.Tensor) -> torch.Tensor:
        """Return the attention mask of a pass over new nodes of a draft tree.

        Nodes see all earlier slots, except padding of the prompt. Among the slots of the nodes, they see those that
        `window` allows. They see no later slots.

        Args:
            window: mask of the nodes among one another, from `window_table`, (batch or 1, nodes, slots of the tree +
                2). The first column represents all earlier slots, and the last one all later slots.
            begin: first slot of the nodes, int64 (batch,).

        Returns:
            Additive mask, (branches * batch, 1, nodes, `num_used`). Branches are those of classifier-free guidance:
            with and without the prompt.
        """
        columns = (self._columns[:, :, :, : self.num_used] - begin[:, None, None]).clamp_(0, window.shape[2] - 1)
        shape = (*columns.shape[:2], window.shape[1], -1)
        return window.expand(*shape).gather(3, columns.expand(*shape)).flatten(0, 1)[:, None]

    def flat_slots(self, slots: torch.Tensor) -> torch.Tensor:
        """Return the indices of slots in `LayerCache.vectors`, the flattened keys and values of a layer.

        Args:
            slots: slots of each image, int64 (batch, n), the same for all branches.

        Returns:
            int64 (branches * batch * n, 2 * heads), for the keys, then for the values.
        """
        return (self._begins + slots[:, :, None]).flatten(0, 2)

    def move(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy the keys and values in some cache slots to other slots, in every layer.

        Args:
            source: slots to copy, int64 (batch, n).
            target: slots to overwrite, int64 (batch, n). An image may not have the same slot twice.
        """
        vectors = self.entries.flatten(1, -2)
        moved = vectors.index_select(1, self.flat_slots(source).flatten())
        vectors.index_copy_(1, self.flat_slots(target).flatten(), moved)

    def copy_rows(self, rows: torch.Tensor, other: KVCache) -> None:
        """Copy all images of another cache into some batch rows of this cache. A batch gets new prompts in this way.

        Keys, values and the mask of the prompts are copied. If the other cache has fewer slots, the remaining slots
        keep their contents. They are masked until they are overwritten.

        Args:
            rows: batch indices of the images to replace, int64 (n,), without duplicates.
            other: a cache of n images with at most the same number of slots.
        """
        self.entries[..., : other.num_slots, :].index_copy_(3, rows, other.entries)
        self._columns[..., : other.num_slots].index_copy_(1, rows, other._columns)


def repeat_rows(x: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Repeat a batch once per guidance branch, from (batch, ...) to (num_rows, ...).

    Args:
        x: (batch, ...). A tensor that already has `num_rows` rows is returned as it is.
        num_rows: batch size times number of branches.
    """
    return x if len(x) == num_rows else x.repeat(num_rows // len(x), *[1] * (x.dim() - 1))


def round_slots(num_slots: int) -> int:
    """Round a number of cache slots up to a multiple of 8.

    A GPU would otherwise pad the attention mask in every layer.
    """
    return -(-num_slots // 8) * 8
