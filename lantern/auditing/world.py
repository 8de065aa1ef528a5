"""Worlds: a target and a draft model, so small that every sequence of tokens can be listed with its probability.

A *context* is a prompt and the tokens so far. The contexts of a world are numbered from 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lantern.parameters import Parameter
from lantern.sampling import SamplingConfig, filter_logits

MAX_SEQUENCES = 4096
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
    """A target and a draft model with known probabilities.

    The distribution of a token depends on the prompt and on all tokens before it. Codes 0 and 1, 2 and 3, ... are
    similar: their code vectors are near each other, and their probabilities are nearly equal.

    Attributes:
        lines: number of lines of a sequence.
        columns: number of tokens of a line.
        num_prompts: number of prompts, which are the numbers from 0.
        target: target distribution after each context, float64 (contexts, vocab). Some codes have probability 0, as
            after a top-k filter. `contexts_of` numbers the contexts.
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
        """Number of tokens of a sequence."""
        return self.lines * self.columns

    @property
    def num_sequences(self) -> int:
        """Number of sequences of codes per prompt, including those of probability 0."""
        return self.vocab_size**self.num_tokens

    @property
    def place_values(self) -> torch.Tensor:
        """Place value of each position of a sequence, int64 (num_tokens,), from which contexts are numbered.

        The context without tokens has the lowest number of all contexts of a prompt. Each token adds to this number
        (token + 1) times the place value of its position. The last position has the place value 0, since no
        distribution follows the last token.
        """
        values = (self.vocab_size + 1) ** torch.arange(self.num_tokens)
        values[-1] = 0
        return values

    def contexts_of(self, prompts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the number of the context of each sequence, int64 (batch,).

        The number is the row of the context in `target` and in `draft`. A context is a prompt and the tokens so far.

        Args:
            prompts: prompts, int64 (batch,).
            tokens: tokens so far, int64 (batch, n) with n from 0 to num_tokens - 1.
        """
        first = prompts * (len(self.target) // self.num_prompts)
        return first + ((tokens + 1) * self.place_values[: tokens.shape[1]]).sum(1)

    def target_probs(self, prompts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the target distribution of the next token, float64 (batch, vocab).

        For the arguments see `contexts_of`.
        """
        return self.target[self.contexts_of(prompts, tokens)]

    def draft_probs(self, prompts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the draft model's distribution of the next token, float64 (batch, vocab).

        For the arguments see `contexts_of`.
        """
        return self.draft[self.contexts_of(prompts, tokens)]

    def sequence_probs(self) -> torch.Tensor:
        """Return the probability of every sequence after every prompt, float64 (num_prompts, num_sequences)."""
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
        """Return the column of each sequence in `sequence_probs`, int64 (batch,).

        Args:
            tokens: whole sequences, int64 (batch, num_tokens).
        """
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
        of_pairs, of_codes = torch.randn(2, num_contexts, vocab_size, generator=generator, dtype=torch.float64)
        return of_pairs[:, pairs] + 0.2 * of_codes

    target = 1.2 * noise()
    draft = 0.7 * target + 0.8 * noise()
    filters = SamplingConfig(top_k=top_k)
    angles = 2 * torch.pi * pairs / (pairs[-1] + 1) + 0.2 * (torch.arange(vocab_size) % 2)
    return World(
        lines,
        columns,
        num_prompts,
        target=filter_logits(target, filters).softmax(-1),
        draft=filter_logits(draft, filters).softmax(-1),
        codebook=torch.stack([angles.cos(), angles.sin()], dim=1),
    )
