"""How much memory decoding takes, by a formula of the sizes alone; `benchmarks/full_size.py` measures against it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lantern.methods import DynamicTreeOptions
from lantern.models.config import DraftConfig, TargetConfig, draft_parameters, target_parameters
from lantern.models.vq16 import VQ16, VQ16Config
from lantern.noise import choose_window

FLOAT32 = 4  # bytes
GIB = 2**30
# Copies of a step's logits alive at once: logits, filtered, noise, their sum, and verification's distributions.
_LOGIT_COPIES = 8
# Feature maps at full resolution alive at once in a residual block of the image decoder.
_FEATURE_MAPS = 5


@dataclass(frozen=True)
class DecodingLoad:
    """What is decoded, and how.

    Attributes:
        batch: images decoded together.
        num_nodes: nodes that the target verifies at once, root included; 1 for autoregressive decoding.
        bytes_per_value: of weights, cache and activations: 4 for float32, 2 for bfloat16.
        is_guided: whether the null caption runs along, which doubles the rows.
        noise_streams: noise fields over the vocabulary: 0 greedy, 1, or 2 for sampled drafts.
        table_columns: nearest codes kept for each code; 0 without relaxation.
    """

    batch: int = 1
    num_nodes: int = 1
    bytes_per_value: int = FLOAT32
    is_guided: bool = True
    noise_streams: int = 1
    table_columns: int = 0

    @property
    def rows(self) -> int:
        """Rows in the models: images, twice under guidance."""
        return self.batch * (2 if self.is_guided else 1)


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes by what they hold; `total` is the highest sum at any one time.

    Attributes:
        weights: of all models that are loaded.
        table: of nearest codes.
        kv_cache: of target and draft model.
        noise: noise fields of the batch.
        step: activations of a decoding step or of the prefill, whichever takes more.
        image: activations of the image decoder, after decoding.
    """

    weights: int
    table: int
    kv_cache: int
    noise: int
    step: int
    image: int

    @property
    def total(self) -> int:
        """Peak in bytes: models, table, cache and noise, and the larger of a step and drawing the images."""
        return self.weights + self.table + self.kv_cache + self.noise + max(self.step, self.image)


def tokenizer_parameters(config: VQ16Config) -> int:
    """Parameters of a VQ-16, counted on a model without storage."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in VQ16(config).parameters())


def kv_cache_bytes(config: TargetConfig, load: DecodingLoad, has_draft: bool = False) -> int:
    """Bytes of keys and values: 2 x layers x rows x slots x d x bytes per value.

    Slots are caption rows, image tokens and the nodes under verification; the draft model has one layer and about as
    many slots.
    """
    slots = config.num_text_tokens + config.num_image_tokens + load.num_nodes
    layers = config.num_layers + (1 if has_draft else 0)
    return 2 * layers * load.rows * slots * config.dim * load.bytes_per_value


def estimate_memory(
    target: TargetConfig, load: DecodingLoad, draft: DraftConfig | None = None, tokenizer: VQ16Config | None = None
) -> MemoryEstimate:
    """Memory of a decoding job on its device.

    weights: (target + draft model + the drafter's table of embedded tokens, V d) x bytes per value, but the target's
    head, V d, in float32; image tokenizer in float32. kv_cache: `kv_cache_bytes`. noise: batch x positions
    (`choose_window`) x V x 4 bytes per stream. step: the logits of all nodes, batch x nodes x V, 8 times in float32,
    and the activations of one layer, rows x nodes x (6 d + 3 f), and its attention weights, rows x heads x nodes x
    slots; or those of the prefill, with the caption rows for nodes. image: 5 feature maps of the highest resolution, of
    as many images as are decoded together. tables: V x k x 8 bytes.

    Args:
        target: sizes of the target.
        load: batch, nodes, precision.
        draft: sizes of the draft model; None for autoregressive decoding.
        tokenizer: sizes of the image tokenizer; None where images are decoded elsewhere.

    Returns:
        Bytes; Python, PyTorch's libraries and the CUDA context (0.5 to 1 GiB) come on top.
    """
    c, size = target, load.bytes_per_value
    parameters = target_parameters(c)
    if draft is not None:
        parameters += draft_parameters(draft) + draft.vocab_size * draft.dim
    slots = c.num_text_tokens + c.num_image_tokens + load.num_nodes
    per_node = 6 * c.dim + 3 * c.ffn_hidden + c.num_heads * slots
    positions = choose_window(c.num_image_tokens, c.vocab_size)
    logits = _LOGIT_COPIES * load.batch * load.num_nodes * c.vocab_size * FLOAT32
    image = 0
    if tokenizer is not None:
        at_once = min(load.batch, max(1, 8 * 256 * 256 // tokenizer.image_size**2))
        image = _FEATURE_MAPS * at_once * tokenizer.channels * tokenizer.image_size**2 * FLOAT32
    return MemoryEstimate(
        weights=parameters * size
        + c.vocab_size * c.dim * (FLOAT32 - size)  # the head
        + (tokenizer_parameters(tokenizer) * FLOAT32 if tokenizer else 0),
        table=8 * c.vocab_size * load.table_columns,
        kv_cache=kv_cache_bytes(c, load, draft is not None),
        noise=load.noise_streams * load.batch * positions * c.vocab_size * FLOAT32,
        step=max(
            logits + load.rows * load.num_nodes * per_node * size, load.rows * c.num_text_tokens * per_node * size
        ),
        image=image,
    )


def nodes_of(tree: object) -> int:
    """Nodes that the target verifies at once under a tree as `MethodSpec.tree_shape` gives it; 1 for None."""
    if tree is None:
        return 1
    return 1 + (tree.num_nodes if isinstance(tree, DynamicTreeOptions) else len(tree))
