"""`lantern.audit`: it counts the sequences of a sampler, and compares the counts with the exact probabilities.

A *fold* is a tenth of the samples. The estimate of the total variation needs several.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from tqdm import tqdm
from typing_extensions import override

from lantern.parameters import Parameter
from lantern_audit.samplers import ASSISTED, Sampler, make_sampler
from lantern_audit.statistics import Interval, chi_square, detectable_noncentrality, total_variation
from lantern_audit.world import World, make_world

LEVEL = 0.001  # a p-value below this shows a difference
UNCLEAR = 0.05  # between these two p-values more samples are needed
POWER = 0.9  # probability of finding a total variation of `Audit.detectable`
NUM_FOLDS = 10
NUM_SAMPLES = 50_000
NUM_ASSISTED = 2_000  # transformers' assisted generation takes 10 ms per sequence
BATCH_SIZE = 1_000
_NUM_SEEDS = 10_000_000  # seeds per audit, as many as it may have samples; audits with different seeds share none
_NUM = Parameter("", "number of sequences", 500, 10_000_000, is_integer=True)
_SEED = Parameter("", "seed of the samples", 0, 2**31, is_integer=True)
_BATCH = Parameter("", "sequences at a time", 1, is_integer=True)


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes:
        name: name of the sampler.
        num_samples: number of sequences that were sampled.
        num_possible: number of sequences that are possible, summed over prompts.
        num_impossible: number of samples whose probability under the target is 0.
        total_variation: estimate of the total variation between the sampler's and the target's distributions of whole
            sequences, averaged over prompts, with a 95 % interval. See `lantern_audit.statistics.total_variation`.
        p_value: p-value of a chi-square test of whole sequences.
        detectable: smallest total variation that the test would find with a probability of at least POWER, if rare
            sequences are counted as one. Smaller differences may be missed.
    """

    name: str
    num_samples: int
    num_possible: int
    num_impossible: int
    total_variation: Interval
    p_value: float
    detectable: float

    @property
    def has_difference(self) -> bool:
        """True if the p-value is below LEVEL, which shows that the sampler differs from the target."""
        return self.p_value < LEVEL

    @property
    def sentence(self) -> str:
        """Conclusion of the audit in one sentence: not lossless, undecided, or no difference found."""
        # A single impossible sequence is proof, so that no p-value is stated.
        if self.num_impossible:
            return (
                f"{self.name} is not lossless: {self.num_impossible:,} of {self.num_samples:,} sequences are ones that "
                f"the target never emits, and the total variation is {self.total_variation}."
            )
        if self.has_difference:
            return (
                f"{self.name} is not lossless: the total variation from the target's sequences is "
                f"{self.total_variation} (p {_p_text(self.p_value)})."
            )
        if self.p_value < UNCLEAR:
            return (
                f"{self.name} is undecided in {self.num_samples:,} sequences (p {_p_text(self.p_value)}, and a "
                f"difference is one below {LEVEL}): sample more of them."
            )
        return (
            f"{self.name} shows no difference from the target in {self.num_samples:,} sequences "
            f"(p {_p_text(self.p_value)}); a total variation of {self.detectable:.3f} or more, with rare sequences "
            f"counted as one, would have been found with a probability of at least {100 * POWER:.0f} %."
        )

    @override
    def __str__(self) -> str:
        rows = {
            "sequences": f"{self.num_samples:,} samples of {self.num_possible:,} possible ones",
            "total variation": f"{self.total_variation} (95 % interval)",
            "chi-square test": f"p {_p_text(self.p_value)}",
            "smallest bias seen": f"{self.detectable:.3f} total variation",
        }
        return "\n".join([*(f"{name:<21}{value}" for name, value in rows.items()), self.sentence])


def audit(
    sampler: str | Sampler,
    /,
    world: World | None = None,
    num: int | None = None,
    *,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    **parts: Any,
) -> Audit:
    """Test whether a sampler has the distribution of its target.

    Args:
        sampler: a function of a world, prompts, int64 (batch,), and seeds, int64 (batch,), which returns tokens, int64
            (batch, num_tokens). Or a name: a preset, "transformers" for its assisted generation, "module:function", or
            "module:Class" of an acceptance or a drafter.
        world: a small target and draft model with known probabilities. By default `make_world()`, or a smaller world
            for "transformers".
        num: number of sequences to sample, shared equally by the prompts. By default 50,000, or 2,000 for
            "transformers".
        seed: seed of the samples. No two samples have the same seed.
        batch_size: number of sequences that are sampled together.
        parts: parts and parameters of a method, such as k=4, delta=0.1 or tree="chain3".

    Raises:
        ValueError: an argument is out of range, the sampler is unknown, a part does not fit, or the sampler returns
            something else than tokens.
    """
    is_assisted = sampler == ASSISTED
    if world is None:
        # Few possible sequences, for which few samples are enough.
        world = make_world(3, 1, 3, num_prompts=1, top_k=3) if is_assisted else make_world()
    usual = NUM_ASSISTED if is_assisted else NUM_SAMPLES
    num_samples: int = _NUM.check("num", usual if num is None else num, "audit")
    seed = _SEED.check("seed", seed, "audit")
    batch_size = _BATCH.check("batch_size", batch_size, "audit")
    name = sampler if isinstance(sampler, str) else getattr(sampler, "__name__", type(sampler).__name__)
    function = make_sampler(sampler, parts) if isinstance(sampler, str) else sampler
    if parts and not isinstance(sampler, str):
        raise ValueError(f"a function takes no parts of a method, got {', '.join(parts)}; leave them out")
    counts = _count(function, name, world, num_samples, seed, batch_size)
    probs = world.sequence_probs()
    test = chi_square(counts.sum(0), probs)  # over folds
    is_impossible = probs == 0
    return Audit(
        name=name,
        num_samples=int(counts.sum()),
        num_possible=int((~is_impossible).sum()),
        num_impossible=int(counts.sum(0)[is_impossible].sum()),
        total_variation=total_variation(counts, probs),
        p_value=test.p_value,
        # Let d be the differences of probabilities p. By Cauchy and Schwarz, sum |d| <= sqrt(sum d^2 / p), so that
        # TV <= sqrt(noncentrality / n) / 2 with n samples. A larger TV therefore has a larger noncentrality. The mean
        # over prompts has the same bound, since the root is concave.
        detectable=math.sqrt(detectable_noncentrality(test.df, LEVEL, POWER) / num_samples) / 2,
    )


def _count(sampler: Sampler, name: str, world: World, num: int, seed: int, batch_size: int) -> torch.Tensor:
    """Return how often each sequence was sampled, int64 (folds, prompts, sequences)."""
    counts = torch.zeros(NUM_FOLDS, world.num_prompts, world.num_sequences, dtype=torch.int64)
    every = torch.arange(num)
    for samples in tqdm(every.split(batch_size), desc=name, unit="batch", disable=None):
        # Both the prompts and the folds of each prompt get equal shares of the samples.
        prompts = samples % world.num_prompts
        tokens = sampler(world, prompts, samples + seed * _NUM_SEEDS)
        _check_tokens(tokens, name, world, len(samples))
        folds = samples // world.num_prompts % NUM_FOLDS
        # A batch may have one sequence several times, hence accumulate=True.
        cells = (folds, prompts, world.numbers_of(tokens.cpu().long()))
        counts.index_put_(cells, torch.ones_like(samples), accumulate=True)
    return counts


def _check_tokens(tokens: object, name: str, world: World, num: int) -> None:
    wanted = f"integer tokens in [0, {world.vocab_size}) of shape ({num}, {world.num_tokens})"
    if not isinstance(tokens, torch.Tensor):
        found = type(tokens).__name__
    elif tokens.shape != (num, world.num_tokens) or tokens.is_floating_point():
        found = f"{tokens.dtype} of shape {tuple(tokens.shape)}"
    elif (tokens < 0).any() or (tokens >= world.vocab_size).any():
        found = f"tokens from {int(tokens.min())} to {int(tokens.max())}"
    else:
        return
    raise ValueError(f"sampler {name} must return {wanted}, got {found}; correct that function")


def _p_text(p_value: float) -> str:
    return "< 1e-99" if p_value < 1e-99 else f"= {p_value:.2g}"
