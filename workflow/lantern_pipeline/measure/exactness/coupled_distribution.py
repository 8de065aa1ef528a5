"""Distribution of the emitted token for drafts that are sampled with the target's noise: coupled and Jacobi drafts.

A node of the draft tree predicts the token at one position. Let t be the target's distribution there, p the
distribution of the draft, and g the Gumbel noise of the position. The draft is x = argmax(log p + g). The target's
sample is y = argmax(log t + g). A relaxed method emits x instead of y for some pairs (x, y). Since p and t do not
depend on g, averaging over g gives the distribution of the emitted token given all earlier tokens.

For coupled drafts, p is the distribution of the draft model. For Jacobi drafts, p is the target's distribution in the
earlier step that sampled the draft. Which token of the pool becomes the draft does not depend on the position's noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from typing_extensions import override

from lantern.acceptance.base import Verifier
from lantern.acceptance.relaxed_sets import RelaxedSets, WithinBound
from lantern.decoding import TreeDecoder
from lantern.methods import MethodSpec, is_chain
from lantern.prompts import Prompt, TextEncoder
from lantern.step import Scores
from lantern.tree_shapes import DynamicTreeOptions
from lantern_methods.similarity import ByProximity
from lantern_pipeline.measure.exactness.output_distribution import (
    PAIRS_AT_ONCE,
    OutputDistribution,
    VerifiedNodes,
    record_nodes,
)


def knows_drafts(spec: MethodSpec) -> bool:
    """Return whether a method's drafts are sampled with the target's noise from a distribution that can be recorded."""
    if spec.drafts == "jacobi":
        # Siblings in a tree of Jacobi drafts come from the target's distributions in several steps.
        return is_chain(spec.tree_shape)
    # Hybrid drafts below the root come from two distributions. The shape of a dynamic tree depends on the noise.
    return spec.drafts == "coupled" and not isinstance(spec.tree_shape, DynamicTreeOptions)


def measure_coupled_drafts(
    decoder: TreeDecoder, prompts: Sequence[Prompt], encoder: TextEncoder, *, num_samples: int, **options: Any
) -> tuple[VerifiedNodes, str, OutputDistribution]:
    """Decode images, and compute the distribution of the emitted token at some nodes of their draft trees.

    The decoder's method must be one for which `knows_drafts` is true. `options` are further arguments of
    `record_nodes`.

    Returns:
        (recorded nodes, kind, distribution). kind is "enumeration" if the distribution is exact, else "monte_carlo".
    """
    nodes, verifier = record_nodes(decoder.with_draft_probs(), prompts, encoder, **options), decoder.verifier
    # Of these verifiers, the pair (x, y) alone decides: x is emitted if y is x or in its relaxed set.
    if nodes.children.shape[1] == 1 and isinstance(verifier, WithinBound | ByProximity):
        return nodes, "enumeration", distribution_of_one_coupled_draft(nodes, verifier.sets)
    found = distribution_of_coupled_siblings(nodes, verifier, num_samples=num_samples, seed=options["run_seed"])
    return nodes, "monte_carlo", found


def crossings(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return F_i and M_i per code i, float64 (nodes, vocab) each, which give the joint distribution of x and y.

    - P(x = i, y = j) = p_i t_j max(0, F_i - F_j) for i != j
    - P(x = y = i) = p_i / M_i if t_i > 0
    """
    # E_v = exp(-g_v) is exponentially distributed, and x = argmin(E / p), y = argmin(E / t). For x = i and y = j let
    # a = E_i / p_i and s a = E_j / t_j. The event x = i, y = j is E_v >= a max(p_v, s t_v) for all v. With M(s) =
    # sum_v max(p_v, s t_v), its probability is the integral of p_i t_j / M(s)^2 over s from p_j / t_j to p_i / t_i.
    # Hence F_i is the integral of 1 / M(s)^2 from 0 to p_i / t_i, and M_i = M(p_i / t_i).
    target, draft = target_probs.double(), draft_probs.double()
    ratio = torch.where(draft > 0, draft / target, 0.0)  # not 0 / 0 at codes that neither has; infinite if t_v = 0
    # Between the sorted ratios p_v / t_v, M is linear: M(s) = (sum of p_v with ratios above s) + s (sum of t_v below).
    ratio, order = ratio.sort(dim=-1)
    target_below, draft_below = (probs.gather(-1, order).cumsum(-1) for probs in (target, draft))
    is_finite = ratio.isfinite()
    # M at each ratio s = p_v / t_v, where v itself counts as below: p_v = s t_v.
    mass = torch.where(is_finite, draft_below[:, -1:] - draft_below + ratio * target_below, torch.inf)
    # The start of each piece: the ratio before, first 0, where M is the sum of p.
    before, mass_before = (
        torch.cat([first, column[:, :-1]], dim=-1)
        for first, column in ((torch.zeros_like(ratio[:, :1]), ratio), (draft_below[:, -1:], mass))
    )
    # The integral of 1 / M^2 over a piece where M is linear is its length / (M at its start * M at its end). Codes with
    # t_v = 0 have an infinite ratio: the last piece is 1 / (M at its start * slope), and after it 1 / inf adds nothing.
    step = torch.where(is_finite, (ratio - before) / (mass_before * mass), 1 / (mass_before * target_below))
    integral = torch.zeros_like(mass).scatter(-1, order, step.cumsum(-1))
    return integral, torch.zeros_like(mass).scatter(-1, order, mass)


def distribution_of_one_coupled_draft(nodes: VerifiedNodes, sets: RelaxedSets) -> OutputDistribution:
    """Compute the exact distribution of the emitted token if each node has one draft.

    It is t, in which P(x, y) moves from y to x for every draft x and every code y in its relaxed set A(x).
    """
    target = nodes.target_probs.double()
    # A draft that does not depend on the noise has no recorded distribution (all 0). Its p is 1 at the draft.
    copied = torch.zeros_like(target).scatter(1, nodes.children.clamp(min=0), 1.0)
    draft = torch.where(nodes.drawn_from.sum(1, keepdim=True) > 0, nodes.drawn_from.double(), copied)
    integral, mass = crossings(target, draft)
    # The draft is accepted if x = y, with probability p_x / M_x, and for the pairs (x, y) below.
    emitted, acceptance = target.clone(), torch.where(target > 0, draft / mass, 0.0).sum(1)
    # A draft that top-k or top-p removed from t can be accepted only if the sets leave the filters.
    is_possible = draft > 0 if sets.leaves_filters else (draft > 0) & (target > 0)
    for pairs in is_possible.nonzero().split(PAIRS_AT_ONCE):
        node, token = pairs.unbind(1)
        near = sets.codes_of(token)
        relaxed = sets.grow(near, target[node].gather(-1, near))
        codes = relaxed.codes.long()  # the k nearest codes of x, (pairs, k)
        # P(x, y) of `crossings` for y in A(x), max(0, F_x - F_y) first.
        gap = (integral[node, token][:, None] - integral[node[:, None], codes]).clamp(min=0)
        moved = draft[node, token][:, None] * target[node[:, None], codes] * gap * relaxed.is_member
        emitted.index_put_((node[:, None], codes), -moved, accumulate=True)
        emitted.index_put_((node, token), moved.sum(1), accumulate=True)
        acceptance.index_add_(0, node, moved.sum(1))
    return OutputDistribution(emitted, acceptance, torch.zeros_like(acceptance))


class _GivenScores(Scores):
    """Scores from given log-probabilities and keys, (nodes, 1, vocab): to a verifier, each node is an image."""

    def __init__(self, weights: torch.Tensor, keys: torch.Tensor) -> None:
        self.given_weights = weights
        self.given_keys = keys

    @property
    @override
    def weights(self) -> torch.Tensor:
        return self.given_weights

    @property
    @override
    def keys(self) -> torch.Tensor:
        return self.given_keys

    def __getattr__(self, name: str) -> NoReturn:
        # Only what is not set here, which no verifier of Lantern reads. A user's may.
        raise ValueError(
            f"verify_nodes may read only scores.weights and scores.keys, got scores.{name}; total variation is "
            "measured without the other scores, so read these two in your verifier"
        )


def distribution_of_coupled_siblings(
    nodes: VerifiedNodes, verifier: Verifier, *, num_samples: int, seed: int
) -> OutputDistribution:
    """Estimate the distribution of the emitted token by Monte Carlo, if each node has several drafts.

    The verifier decides in each sample of the noise. The estimate is t + mean(onehot(emitted) - onehot(y)), in
    which only substitutions add noise. So the estimated TV is too large, but never larger than the substituted share of
    the samples. `error` is half the TV between two estimates, each from half of the samples. `num_samples` >= 2.
    """
    generator = torch.Generator(nodes.target_probs.device).manual_seed(seed)
    sums = [torch.zeros_like(nodes.target_probs) for _ in range(2)]  # sums over even and over odd samples
    num_accepted, one = torch.zeros_like(nodes.target_probs[:, 0]), torch.ones_like(nodes.target_probs[:, :1])
    weights, draft_weights = nodes.target_probs.log(), nodes.drawn_from.log()
    # Drafts without a recorded distribution do not depend on the noise: every sample has the same children. A missing
    # draft stays missing.
    is_copied = (nodes.drawn_from.sum(1, keepdim=True) == 0) | (nodes.children < 0)
    for number in range(num_samples):
        noise = -torch.empty_like(weights).exponential_(generator=generator).log()  # -log E is Gumbel noise
        # The m largest keys are m drafts sampled without replacement. Keys of codes with p = 0 are -inf.
        best = (draft_weights + noise).topk(nodes.children.shape[1], dim=-1)
        drawn = best.indices.masked_fill(best.values.isneginf(), -1)
        children = torch.where(is_copied, nodes.children, drawn)
        keys = (weights + noise)[:, None]
        choice = verifier.verify_nodes(_GivenScores(weights[:, None], keys), children[:, None], None)
        is_accepted = (children == choice.chosen).any(1)
        emitted = torch.where(is_accepted[:, None], choice.chosen, choice.bonus)
        sums[number % 2].scatter_add_(1, emitted, one).scatter_add_(1, keys.argmax(-1), -one)
        num_accepted += is_accepted
    counts = (num_samples - num_samples // 2, num_samples // 2)  # of an odd number, the even samples are one more
    first, second = (part / count for part, count in zip(sums, counts, strict=True))
    # Half the TV, which is half the sum of the differences.
    error = (first - second).abs().sum(-1) / 4
    probs = nodes.target_probs + (sums[0] + sums[1]) / num_samples
    return OutputDistribution(probs, num_accepted / num_samples, error)
