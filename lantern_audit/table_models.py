"""The target, the draft model and the heads of a world, as models that every method of Lantern can decode with.

The models have no weights. A *row* is the number of a context in the tables of the `World`, which is a sum of one
*term* for the prompt and one for each token. A hidden state has two channels: a row, and the table in which to look it
up, 0 for the target's and 1 for the draft model's. Trained networks of methods, such as shift heads, make themselves
for such hidden states, by `of_rows`.

The target stores the terms in its key/value cache, in place of attention values. "Attention" adds up the terms that the
mask admits, and the sum is the row. A wrong slot, mask or position therefore leads to a wrong row, so that an audit
also finds errors in the handling of the cache.
"""

from __future__ import annotations

import torch
from torch import nn
from typing_extensions import override

from lantern.codebook import nearest_codes
from lantern.extensions import load_class
from lantern.kv_cache import KVCache, repeat_rows
from lantern.methods import MethodSpec
from lantern.models.config import DraftConfig, TargetConfig
from lantern.models.draft import DraftModel
from lantern.models.target import Target
from lantern.state import DecodingModels
from lantern_audit.world import World


class TableTarget(Target):
    """The target of a world. A prompt is one id, and an image a sequence without line ends."""

    kind = "table_target"
    config_class = TargetConfig
    log_probs: torch.Tensor
    place_values: torch.Tensor

    def __init__(self, world: World) -> None:
        super().__init__(
            TargetConfig(
                dim=2,
                num_layers=1,
                num_heads=1,
                vocab_size=world.vocab_size,
                grid=world.lines,
                columns=world.columns,
                num_text_tokens=1,
                num_prompt_ids=world.num_prompts,
                rope="1d",  # positions are integers that count the prompt, see `extend`
            )
        )
        rows, width = world.codebook.shape
        self.token_embedding = nn.Embedding(rows, width, _weight=world.codebook, _freeze=True)
        # (2, contexts, vocab)
        self.register_buffer("log_probs", torch.stack([world.target, world.draft]).log().float())
        # float32 holds the rows exactly, since there are fewer than 2^24.
        self.register_buffer("place_values", world.place_values.float())
        self._contexts_per_prompt = len(world.target) // world.num_prompts  # the place value of a prompt

    @property
    @override
    def is_head_linear(self) -> bool:
        # The head looks up a row, so that guidance, which mixes linearly, must follow it.
        return False

    @property
    @override
    def cache_shape(self) -> tuple[int, int, int]:
        return 1, 1, 1  # one layer, one head, one channel

    def values_of(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the term that each token adds to the row of its context, float32 (batch, nodes).

        `positions` are positions in the image, int64 (batch, nodes). After the end of the image the term is 0.
        """
        # The last place value is 0. Positions of complete images may be negative, and their results are not used.
        return (tokens + 1) * self.place_values[positions.clamp(0, len(self.place_values) - 1)]

    @override
    def read_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        context, is_draft = hidden.long().unbind(-1)
        return self.log_probs[is_draft, context.clamp(max=self.log_probs.shape[1] - 1)]  # a wrong mask adds too much

    @override
    def embed_prompts(self, features: torch.Tensor) -> torch.Tensor:
        # A prompt's embedding is its term.
        return features[..., None].float() * self._contexts_per_prompt

    @override
    def extend(
        self,
        cache: KVCache,
        tokens: torch.Tensor,
        slots: torch.Tensor,
        rotary_positions: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        # Unlike in the base class, the input of a token depends on its position.
        values = self.values_of(tokens, rotary_positions - self.config.num_text_tokens)
        return self.run_nodes(repeat_rows(values[..., None], len(mask)), slots, rotary_positions, mask, cache)

    @override
    def run_nodes(
        self, x: torch.Tensor, slots: torch.Tensor, rotary_positions: torch.Tensor, mask: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        (layer,) = cache.layers
        # The terms are the keys, too, which are not read.
        layer.write(cache.flat_slots(slots), x.view(-1, 1, 1).expand(-1, 2, -1))  # (rows * nodes, 2, 1)
        _, values = layer.read()
        # The additive mask is 0 where a node sees a slot: (rows, 1, nodes, slots) times (rows, 1, 1, slots).
        contexts = ((mask == 0) * values[..., 0][:, :, None]).sum(-1)[:, 0]  # (branches * batch, nodes)
        return torch.stack([contexts, torch.zeros_like(contexts)], dim=-1).view(-1, *slots.shape, 2)


class TableDraft(DraftModel):
    """The draft model of a world.

    The row of a hidden state and the term of the next token give the row of the longer context, without the cache.
    """

    def __init__(self, target: TableTarget) -> None:
        # Keeps the caller's random state: the base class draws weights, which are not used.
        with torch.random.fork_rng(devices=[]):
            super().__init__(DraftConfig.of(target.config))
        self.values_of = target.values_of

    @override
    def extend(
        self,
        cache: KVCache,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        slots: torch.Tensor,
        rotary_positions: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        # The draft model's rotary positions are one lower than the target's, whose prompt has one token. They are
        # therefore positions in the image.
        contexts = hidden[..., 0] + self.values_of(tokens, rotary_positions)
        return torch.stack([contexts, torch.ones_like(contexts)], dim=-1)


def make_models(world: World, spec: MethodSpec) -> DecodingModels:
    """Make the target and the draft model of a world, the heads that the method declares, and its nearest codes.

    The method determines the distance of nearest codes, "l2" by default.
    """
    target = TableTarget(world)
    table = nearest_codes(world.codebook, world.vocab_size - 1, spec.neighbours or "l2")
    # A class without `of_rows` leaves its part out. The method then says what it needs.
    classes = {name: load_class(path) for name, path in spec.drafts_row.trained.items()}
    with torch.random.fork_rng(devices=[]):  # as in `TableDraft`
        parts = {name: cls.of_rows(target.config) for name, cls in classes.items() if hasattr(cls, "of_rows")}
    return DecodingModels(target, TableDraft(target), table, parts)
