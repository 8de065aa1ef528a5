"""Worlds: a target and a draft model, so small that every sequence of tokens can be listed with its probability.

A *context* is a prompt and the tokens so far. It is numbered by digits in base V + 1, for a vocabulary of V codes:
digit 0 for a position without a token, and c + 1 for code c. The first position has the place value 1. The last one
needs no digit, since no distribution follows the last token:

    context = prompt (V + 1)^(num_tokens - 1) + sum_{i < num_tokens - 1} (token_i + 1) (V + 1)^i
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lantern.parameters import Parameter
from lantern.sampling import SamplingConfig, filter_logits

MAX_SEQUENCES = 4096  # per prompt
_SIZES = {
    "vocab_size": Parameter("", "number of codes", 3, 8, is_integer=True),
    "lines": Parameter("", "lines of a sequence", 1, 8, is_integer=True),
    "columns": Parameter("", "tokens of a line", 1, 8, is_integer=True),
    "num_prompts": Parameter("", "number of prompts", 1, 8, is_integer=True),
    "top_k": Parameter("", "number of codes that are possible after a context", 2, 8, is_integer=True),
    "seed": Parameter("", "seed of the probabilities", is_integer=True),
}


@dataclass(frozen=True)
class World:
    """The tables of a target and a draft model.

    Codes 0 and 1, 2 and 3, ... are similar: their code vectors are near each other, and their probabilities are nearly
    equal. Prompts are numbers from 0. A sequence has `lines` lines of `columns` tokens.

    Attributes:
        target: target distribution after each context, float64 (contexts, vocab). Some codes have probability 0, as
            after a top-k filter.
        draft: distribution of the draft model, shaped like `target`.
        codebook: code vectors, float32 (vocab, 2).
    """

    lines: int
    columns: int
    num_prompts: int
    target: torch.Tensor
    draft: torch.Tensor
    codebook: torch.Tensor

    @property
    def vocab_size(self) -> int:
        """Number of codes."""
        return self.target.shape[1]

    @property
    def num_tokens(self) -> int:
        """Length of a sequence, which has no line ends."""
        return self.lines * self.columns

    @property
    def num_sequences(self) -> int:
        """Number of sequences of codes per prompt, including those of probability 0."""
        return self.vocab_size**self.num_tokens

    @property
    def place_values(self) -> torch.Tensor:
        """Factor of token + 1 in the number of a context, by position, int64 (num_tokens,). The last one is 0."""
        values = (self.vocab_size + 1) ** torch.arange(self.num_tokens)
        values[-1] = 0
        return values

    def contexts_of(self, prompts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the number of the context of each sequence, which is its row in `target` and `draft`, int64 (batch,).

        Args:
            prompts: int64 (batch,).
            tokens: tokens so far, int64 (batch, n) with n from 0 to num_tokens - 1.
        """
        first = prompts * (len(self.target) // self.num_prompts)  # (V + 1)^(num_tokens - 1) contexts each
        return first + ((tokens + 1) * self.place_values[: tokens.shape[1]]).sum(1)

    def target_probs(self, prompts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the target distribution of the next token in the contexts, float64 (batch, vocab)."""
        return self.target[self.contexts_of(prompts, tokens)]

    def draft_probs(self, prompts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the draft model's distribution of the next token in the contexts, float64 (batch, vocab)."""
        return self.draft[self.contexts_of(prompts, tokens)]

    def sequence_probs(self) -> torch.Tensor:
        """Return the probability of every sequence after every prompt, float64 (num_prompts, num_sequences)."""
        # The last position varies fastest, as `numbers_of` assumes.
        sequences = torch.cartesian_prod(*[torch.arange(self.vocab_size)] * self.num_tokens).view(-1, self.num_tokens)
        found = []
        for prompt in range(self.num_prompts):
            prompts = torch.full((len(sequences),), prompt)
            probs = torch.ones(len(sequences), dtype=torch.float64)
            for position in range(self.num_tokens):
                following = self.target_probs(prompts, sequences[:, :position])
                probs *= following.gather(1, sequences[:, position : position + 1])[:, 0]
            found.append(probs)
        return torch.stack(found)

    def numbers_of(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the column in `sequence_probs` of each sequence of num_tokens tokens, int64 (batch,)."""
        return (tokens * self.vocab_size ** torch.arange(self.num_tokens - 1, -1, -1)).sum(1)


def make_world(
    vocab_size: int = 5, lines: int = 2, columns: int = 2, num_prompts: int = 2, top_k: int = 4, seed: int = 0
) -> World:
    """Make a world, a small target and draft model, with random probabilities.

    Args:
        vocab_size: number of codes.
        lines: number of lines of a sequence.
        columns: number of tokens of a line.
        num_prompts: number of prompts.
        top_k: number of codes that are possible after a context.
        seed: seed of the probabilities.

    Raises:
        ValueError: a number is out of range, or there are more than MAX_SEQUENCES sequences.
    """
    given = (vocab_size, lines, columns, num_prompts, top_k, seed)
    vocab_size, lines, columns, num_prompts, top_k, seed = (
        part.check(name, value, "a world") for (name, part), value in zip(_SIZES.items(), given, strict=True)
    )
    num_tokens = lines * columns
    if num_tokens < 2 or vocab_size**num_tokens > MAX_SEQUENCES:
        raise ValueError(
            f"a world must have at least 2 tokens and at most {MAX_SEQUENCES} sequences, got {vocab_size}^{num_tokens};"
            " choose other lines, columns or vocab_size"
        )
    generator = torch.Generator().manual_seed(seed)
    num_contexts = num_prompts * (vocab_size + 1) ** (num_tokens - 1)
    pairs = torch.arange(vocab_size) // 2

    def noise() -> torch.Tensor:
        # Most of the noise is common to the codes of a pair, so that their probabilities are nearly equal.
        of_pairs, of_codes = torch.randn(2, num_contexts, vocab_size, generator=generator, dtype=torch.float64)
        return of_pairs[:, pairs] + 0.2 * of_codes

    target = 1.2 * noise()
    # Correlated with the target, so that drafts are accepted and rejected often. Its own top-k filter leaves it codes
    # that the target never emits.
    draft = 0.7 * target + 0.8 * noise()
    filters = SamplingConfig(top_k=top_k)
    # Code vectors are on a circle, those of a pair 0.2 radians apart.
    angles = 2 * torch.pi * pairs / (pairs[-1] + 1) + 0.2 * (torch.arange(vocab_size) % 2)
    return World(
        lines,
        columns,
        num_prompts,
        target=filter_logits(target, filters).softmax(-1),
        draft=filter_logits(draft, filters).softmax(-1),
        codebook=torch.stack([angles.cos(), angles.sin()], dim=1),
    )
