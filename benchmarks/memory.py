"""How much memory decoding takes, by a formula of the sizes alone; `benchmarks/full_size.py` measures against it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lantern.codebook import code_dtype
from lantern.kv_cache import round_slots
from lantern.models.config import DraftConfig, TargetConfig, draft_parameters, head_parameters, target_parameters
from lantern.models.vq16 import VQ16, VQ16Config
from lantern.noise import choose_window
from lantern.tree_shapes import DynamicTreeOptions, JointTree

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
        has_graphs: whether steps are CUDA graphs, which keep their activations.
    """

    batch: int = 1
    num_nodes: int = 1
    bytes_per_value: int = FLOAT32
    is_guided: bool = True
    noise_streams: int = 1
    table_columns: int = 0
    has_graphs: bool = False

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
        step: activations of a decoding step.
        prefill: activations of the captions' pass, and their keys and values before they are copied to the cache.
        image: activations of the image decoder, after decoding.
        has_graphs: whether a step's activations are kept while something else runs.
    """

    weights: int
    table: int
    kv_cache: int
    noise: int
    step: int
    prefill: int
    image: int
    has_graphs: bool

    @property
    def total(self) -> int:
        """Peak in bytes: models, table, cache and noise, and the largest of a step, the prefill and drawing the
        images; with graphs a step and the larger of the others.
        """
        others = max(self.prefill, self.image)
        work = self.step + others if self.has_graphs else max(self.step, others)
        return self.weights + self.table + self.kv_cache + self.noise + work


def tokenizer_parameters(config: VQ16Config) -> int:
    """Parameters of a VQ-16, counted on a model without storage."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in VQ16(config).parameters())


def num_slots(config: TargetConfig, load: DecodingLoad) -> int:
    """Slots of a row: caption rows, image tokens and the nodes under verification, rounded up to a multiple of 8."""
    return round_slots(config.num_text_tokens + config.num_image_tokens + load.num_nodes)


def kv_cache_bytes(config: TargetConfig, load: DecodingLoad, has_draft: bool = False) -> int:
    """Bytes of keys and values: 2 x layers x rows x slots x width of the keys x bytes per value; the draft model has
    one layer and about as many slots.
    """
    layers = config.num_layers + (1 if has_draft else 0)
    return 2 * layers * load.rows * num_slots(config, load) * config.kv_dim * load.bytes_per_value


def estimate_memory(
    target: TargetConfig, load: DecodingLoad, draft: DraftConfig | None = None, tokenizer: VQ16Config | None = None
) -> MemoryEstimate:
    """Memory of a decoding job on its device.

    weights: (target + draft model + the drafter's table of embedded tokens, V d) x bytes per value, but the target's
    head in float32; image tokenizer in float32. kv_cache: `kv_cache_bytes`. noise: batch x positions
    (`choose_window`) x V x 4 bytes per stream; on a CPU what the images themselves hold comes on top. step: the logits
    of all nodes, batch x nodes x V, 8 times in float32, and the activations of one layer, rows x nodes x (6 d + 3 f),
    and its attention weights, rows x heads x nodes x slots. prefill: the same with the caption rows for nodes and
    without logits, and a cache of the caption alone. image: 5 feature maps of the highest resolution, of as many images
    as are decoded together. tables: V x k x 2 bytes, 4 above 32,767 codes.

    Args:
        target: sizes of the target.
        load: batch, nodes, precision.
        draft: sizes of the draft model; None for decoding without one.
        tokenizer: sizes of the image tokenizer; None where images are decoded elsewhere.

    Returns:
        Bytes; Python, PyTorch's libraries and the CUDA context (0.5 to 1 GiB) come on top.
    """
    c, size = target, load.bytes_per_value
    parameters = target_parameters(c)
    if draft is not None:
        parameters += draft_parameters(draft) + draft.vocab_size * draft.dim
    cache, text = kv_cache_bytes(c, load, draft is not None), c.num_text_tokens
    slots, positions = num_slots(c, load), choose_window(c.num_image_tokens, c.vocab_size)

    def activations(num_nodes: int, slots: int) -> int:
        return load.rows * num_nodes * (6 * c.dim + 3 * c.ffn_hidden + c.num_heads * slots) * size

    logits = _LOGIT_COPIES * load.batch * load.num_nodes * c.vocab_size * FLOAT32
    image = 0
    if tokenizer is not None:
        at_once = min(load.batch, max(1, 8 * 256 * 256 // tokenizer.image_size**2))
        image = _FEATURE_MAPS * at_once * tokenizer.channels * tokenizer.image_size**2 * FLOAT32
    return MemoryEstimate(
        weights=parameters * size
        + head_parameters(c) * (FLOAT32 - size)
        + (tokenizer_parameters(tokenizer) * FLOAT32 if tokenizer else 0),
        table=code_dtype(c.vocab_size).itemsize * c.vocab_size * load.table_columns,
        kv_cache=cache,
        noise=load.noise_streams * load.batch * positions * c.vocab_size * FLOAT32,
        step=logits + activations(load.num_nodes, slots),
        prefill=activations(text, text) + cache * text // slots,
        image=image,
        has_graphs=load.has_graphs,
    )


def nodes_of(tree: object) -> int:
    """Nodes that the target verifies at once under a tree as `MethodSpec.tree_shape` gives it; 1 for None."""
    if tree is None:
        return 1
    if isinstance(tree, JointTree):
        return 1 + len(tree.jacobi) + len(tree.drafter)
    return 1 + (tree.num_nodes if isinstance(tree, DynamicTreeOptions) else len(tree))
