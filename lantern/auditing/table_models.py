"""The target, the draft model and the heads of a world, as models that every method of Lantern can decode with.

A *world* is a target and a draft model whose distributions are in tables, with one row per context. A *context* is a
prompt and the tokens so far. The number of its row is the sum of one term for the prompt and one term for each token.

The models have no weights. The target stores the terms in its key/value cache, in place of attention values.
"Attention" adds up the terms that the mask admits, and the sum is the number of the row. A wrong slot, mask or position
therefore leads to a wrong row, so that an audit also finds errors in the handling of the cache.

A shift head predicts the target's hidden state for a later token, see `lantern.models.heads`.
"""

from __future__ import annotations

import torch
from torch import nn

from lantern.auditing.world import World
from lantern.codebook import nearest_codes
from lantern.decoding_state import DecodingModels
from lantern.kv_cache import KVCache, repeat_rows
from lantern.methods import MethodSpec
from lantern.models.config import DraftConfig, TargetConfig
from lantern.models.draft import DraftModel
from lantern.models.heads import HeadsConfig, ShiftHeads
from lantern.models.state_head import StateHead, StateHeadConfig
from lantern.models.target import Target


class TableTarget(Target):
    """A target that reads its probabilities from the tables of a world.

    A hidden state has two channels. The first is the number of the row of the context, which is the prompt and the
    tokens so far. The second selects the table: 0 for the target's, 1 for the draft model's.
    """

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
                rope="1d",
            )
        )
        rows, width = world.codebook.shape
        self.token_embedding = nn.Embedding(rows, width, _weight=world.codebook, _freeze=True)
        self.register_buffer("log_probs", torch.stack([world.target, world.draft]).log().float())
        self.register_buffer("place_values", world.place_values.float())
        self._contexts_per_prompt = len(world.target) // world.num_prompts

    @property
    def is_head_linear(self) -> bool:
        """False, since the head looks up a row of a table. Guidance is therefore applied after the head."""
        return False

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """Sizes of a key/value cache with one layer, one head and one channel, see `Target.cache_shape`."""
        return 1, 1, 1

    def values_of(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the term that each token adds to the number of its context's row, float32 (batch, nodes).

        The number of a row in the tables of the world is a sum with one term per token of the context.

        Args:
            tokens: tokens, int64 (batch, nodes).
            positions: their positions in the image, int64 (batch, nodes). The term of a token after the end of the
                image is 0. Positions of complete images may be negative. Their results are not used.
        """
        return (tokens + 1) * self.place_values[positions.clamp(0, len(self.place_values) - 1)]

    def read_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Look up the log-probabilities of the next token, see `Target.read_logits`."""
        context, is_draft = hidden.long().unbind(-1)
        return self.log_probs[is_draft, context.clamp(max=self.log_probs.shape[1] - 1)]  # a wrong mask adds too much

    def embed_prompts(self, features: torch.Tensor) -> torch.Tensor:
        """Return the number of the table row for the context that is only a prompt, float32 (..., 1).

        Args:
            features: the prompts as numbers from 0, (...).
        """
        return features[..., None].float() * self._contexts_per_prompt

    def extend(
        self,
        cache: KVCache,
        tokens: torch.Tensor,
        slots: torch.Tensor,
        rotary_positions: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Return the hidden states of new tokens, which hold the numbers of table rows, see `Target.extend`.

        Each token has the row of its context: the prompt and all tokens up to this one. The number of the row is a sum
        of one term per token. The terms of the new tokens are stored in the cache.
        """
        values = self.values_of(tokens, rotary_positions - self.config.num_text_tokens)
        return self.run_nodes(repeat_rows(values[..., None], len(mask)), slots, rotary_positions, mask, cache)

    def run_nodes(
        self, x: torch.Tensor, slots: torch.Tensor, rotary_positions: torch.Tensor, mask: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        """Return the hidden states of new tokens, which hold the numbers of table rows.

        The number is the sum of the terms that the token sees in the cache, one term per token of its context.
        For the arguments see `Target.run_nodes`.
        """
        (layer,) = cache.layers
        layer.write(cache.flat_slots(slots), x.view(-1, 1, 1).expand(-1, 2, -1))
        _, values = layer.read()
        contexts = ((mask == 0) * values[..., 0][:, :, None]).sum(-1)[:, 0]
        return torch.stack([contexts, torch.zeros_like(contexts)], dim=-1).view(-1, *slots.shape, 2)


class TableDraft(DraftModel):
    """A draft model that reads its probabilities from the tables of a world.

    The tables have one row per context, that is, a prompt and the tokens so far. A hidden state holds the number of the
    context's row. This number is a sum with one term per token, see `TableTarget.values_of`. The next token adds its
    term, which gives the number for the longer context. The key/value cache is not used.
    """

    def __init__(self, target: TableTarget) -> None:
        with torch.random.fork_rng(devices=[]):  # the weights of the base class are not used
            super().__init__(DraftConfig.of(target.config))
        self.values_of = target.values_of

    def extend(
        self,
        cache: KVCache,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        slots: torch.Tensor,
        rotary_positions: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:
        """Add each token to a context, and return hidden states with the table rows of the longer contexts.

        For the arguments see `DraftModel.extend`.
        """
        contexts = hidden[..., 0] + self.values_of(tokens, rotary_positions)
        return torch.stack([contexts, torch.ones_like(contexts)], dim=-1)


class TableHeads(ShiftHeads):
    """Shift heads for the tables of a world, without trained weights.

    A shift head predicts the target's hidden state for a later token. Here a hidden state names a row in a table of
    distributions. These heads ignore the shift: they return the row that they are given, in the draft model's table.
    """

    def __init__(self, target: TableTarget) -> None:
        with torch.random.fork_rng(devices=[]):  # the weights of the base class are not used
            super().__init__(HeadsConfig.of(target.config, num_right=1))

    def right(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Predict the hidden state for the next token to the right, see `ShiftHeads.right`."""
        return self.below(hidden, embedded)[..., None, :]

    def below(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Predict the hidden state for the token one line below, see `ShiftHeads.below`."""
        return torch.stack([hidden[..., 0], torch.ones_like(hidden[..., 0])], dim=-1)


class TableStateHead(StateHead):
    """A state head for the tables of a world, without trained weights.

    A state head corrects an outdated hidden state. Here a hidden state names a row in a table of distributions. This
    head returns the same row in the draft model's table, so that its drafts are often wrong.
    """

    def __init__(self, target: TableTarget) -> None:
        with torch.random.fork_rng(devices=[]):  # the weights of the base class are not used
            super().__init__(StateHeadConfig.of(target.config))

    def forward(self, previous: torch.Tensor, outdated: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Return the outdated row in the draft model's table. For the arguments see `StateHead.forward`."""
        return torch.stack([outdated[..., 0], torch.ones_like(outdated[..., 0])], dim=-1)


def make_models(world: World, spec: MethodSpec) -> DecodingModels:
    """Make the target, the draft model and the heads of a world, and a table of the nearest codes of each code.

    Args:
        world: a small target and draft model with known probabilities.
        spec: the method. It states the distance that defines the nearest codes ("l2" by default), and whether the heads
            are shift heads or a state head.
    """
    target = TableTarget(world)
    table = nearest_codes(world.codebook, world.vocab_size - 1, spec.neighbours or "l2")
    heads = TableStateHead(target) if spec.drafts_row.has_state_head else TableHeads(target)
    return DecodingModels(target, TableDraft(target), table, heads)
