"""Distribution of the emitted token if the target's noise selects the drafts: coupled and Jacobi drafts.

At a node the draft is x = argmax(log p + g), and the target's sample is y = argmax(log t + g). g is the Gumbel noise of
the position that the node predicts. No earlier decision has read g, and p and t do not depend on g. So the distribution
over g is the distribution of the emitted token given everything before it.

p is the distribution of the draft model. For Jacobi drafts, p is the target's distribution at the pool entry that
supplied the draft. No pool entry is selected by the noise of its own position.

Shapes: nodes = verified nodes, pairs = nodes x possible drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lantern.acceptance.base import Verifier
from lantern.acceptance.relaxed_sets import ByProximity, RelaxedSets, WithinBound
from lantern.decoding import TreeDecoder
from lantern.methods import MethodSpec, is_chain
from lantern.prompts import Prompt
from lantern.step import Scores
from lantern.text_encoders.base import TextEncoder
from lantern.tree_shapes import DynamicTreeOptions
from lantern_pipeline.measure.output_distribution import (
    PAIRS_AT_ONCE,
    OutputDistribution,
    VerifiedNodes,
    record_nodes,
)


def knows_drafts(spec: MethodSpec) -> bool:
    """Return whether the distributions that a method's drafts are sampled from can be recorded.

    The drafts must be selected by the target's noise. A dynamic tree itself depends on the noise, hybrid drafts have
    two distributions, and Jacobi drafts of a tree with siblings have many. None of them qualifies.
    """
    if spec.drafts == "jacobi":
        return is_chain(spec.tree_shape)
    return spec.drafts == "coupled" and not isinstance(spec.tree_shape, DynamicTreeOptions)


def measure_coupled_drafts(
    decoder: TreeDecoder, prompts: Sequence[Prompt], encoder: TextEncoder, *, num_samples: int, **options: Any
) -> tuple[VerifiedNodes, str, OutputDistribution]:
    """Measure the output distribution of a method for which `knows_drafts` is true.

    Args:
        decoder: decoder of the method.
        prompts: prompts of the decoded images.
        encoder: text encoder of the prompts.
        num_samples: samples of the noise, unless the distribution is enumerated.
        options: arguments of `record_nodes`.

    Returns:
        (nodes, kind, output distribution). kind is "enumeration" for relaxed sets with one draft per node, else
        "monte_carlo".
    """
    nodes, verifier = record_nodes(decoder.with_draft_probs(), prompts, encoder, **options), decoder.verifier
    if nodes.children.shape[1] == 1 and isinstance(verifier, WithinBound | ByProximity):
        return nodes, "enumeration", distribution_of_one_coupled_draft(nodes, verifier.sets)
    found = distribution_of_coupled_siblings(nodes, verifier, num_samples=num_samples, seed=options["run_seed"])
    return nodes, "monte_carlo", found


def crossings(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the joint distribution of draft x and target sample y, as two tables F and M, float64 (nodes, vocab).

    P(x = i, y = j) = p_i t_j max(0, F_i - F_j) for i != j, and P(x = y = i) = p_i / M_i if t_i > 0.

    Derivation: let E_v = exp(-g_v), which is exponentially distributed, a = E_i / p_i and s = (E_j / t_j) / a. The
    event is E_v >= a max(p_v, s t_v) for all v. Its probability is the integral of p_i t_j / M(s)^2 over s from p_j /
    t_j to p_i / t_i. M(s) is the sum of max(p_v, s t_v), which is linear between the sorted ratios p_v / t_v. F is the
    integral of 1 / M(s)^2 from 0 to p_v / t_v.
    """
    target, draft = target_probs.double(), draft_probs.double()
    ratio = torch.where(draft > 0, draft / target, 0.0)
    ratio, order = ratio.sort(dim=-1)
    target_below, draft_below = (probs.gather(-1, order).cumsum(-1) for probs in (target, draft))
    is_finite = ratio.isfinite()
    mass = torch.where(is_finite, draft_below[:, -1:] - draft_below + ratio * target_below, torch.inf)
    before, mass_before = (
        torch.cat([first, column[:, :-1]], dim=-1)
        for first, column in ((torch.zeros_like(ratio[:, :1]), ratio), (draft_below[:, -1:], mass))
    )
    step = torch.where(is_finite, (ratio - before) / (mass_before * mass), 1 / (mass_before * target_below))
    integral = torch.zeros_like(mass).scatter(-1, order, step.cumsum(-1))
    return integral, torch.zeros_like(mass).scatter(-1, order, mass)


def distribution_of_one_coupled_draft(nodes: VerifiedNodes, sets: RelaxedSets) -> OutputDistribution:
    """Compute the exact output distribution with one draft per node.

    Every pair of a draft x and a code y in its relaxed set A(x) counts with its probability. A draft that top-k or
    top-p removed from the target is accepted only if the sets allow it (`leaves_filters`).
    """
    target = nodes.target_probs.double()
    copied = torch.zeros_like(target).scatter(1, nodes.children.clamp(min=0), 1.0)
    draft = torch.where(nodes.drawn_from.sum(1, keepdim=True) > 0, nodes.drawn_from.double(), copied)
    integral, mass = crossings(target, draft)
    emitted, acceptance = target.clone(), torch.where(target > 0, draft / mass, 0.0).sum(1)
    is_possible = draft > 0 if sets.leaves_filters else (draft > 0) & (target > 0)
    for pairs in is_possible.nonzero().split(PAIRS_AT_ONCE):
        node, token = pairs.unbind(1)
        relaxed = sets.merge(target[node], None, sets.codes_of(token))
        codes = relaxed.codes.long()
        gap = (integral[node, token][:, None] - integral[node[:, None], codes]).clamp(min=0)
        moved = draft[node, token][:, None] * target[node[:, None], codes] * gap * relaxed.is_member
        emitted.index_put_((node[:, None], codes), -moved, accumulate=True)
        emitted.index_put_((node, token), moved.sum(1), accumulate=True)
        acceptance.index_add_(0, node, moved.sum(1))
    return OutputDistribution(emitted, acceptance, torch.zeros_like(acceptance))


class _GivenScores(Scores):
    """Scores of one sample of the noise.

    Attributes:
        given_weights: log-probabilities of the target, (nodes, 1, vocab).
        given_keys: log-probabilities plus noise, (nodes, 1, vocab).
    """

    def __init__(self, weights: torch.Tensor, keys: torch.Tensor) -> None:
        self.given_weights = weights
        self.given_keys = keys

    @property
    def weights(self) -> torch.Tensor:
        """Log-probabilities of the target, (nodes, 1, vocab)."""
        return self.given_weights

    @property
    def keys(self) -> torch.Tensor:
        """Log-probabilities plus noise, (nodes, 1, vocab)."""
        return self.given_keys


def distribution_of_coupled_siblings(
    nodes: VerifiedNodes, verifier: Verifier, *, num_samples: int, seed: int
) -> OutputDistribution:
    """Estimate the output distribution with several drafts per node, by Monte Carlo over the noise.

    The method's own verifier verifies them. The average is of the emitted token minus the target's sample, which differ
    only at substitutions. The estimated TV therefore exceeds the true one by noise, but never exceeds the share of
    substitutions. `error` is defined as in `distribution_of_sampled_siblings`.
    """
    generator = torch.Generator(nodes.target_probs.device).manual_seed(seed)
    sums = [torch.zeros_like(nodes.target_probs) for _ in range(2)]  # over even and over odd samples
    num_accepted, one = torch.zeros_like(nodes.target_probs[:, 0]), torch.ones_like(nodes.target_probs[:, :1])
    weights, draft_weights = nodes.target_probs.log(), nodes.drawn_from.log()
    is_copied = (nodes.drawn_from.sum(1, keepdim=True) == 0) | (nodes.children < 0)
    for number in range(num_samples):
        noise = -torch.empty_like(weights).exponential_(generator=generator).log()
        best = (draft_weights + noise).topk(nodes.children.shape[1], dim=-1)
        drawn = best.indices.masked_fill(best.values.isneginf(), -1)
        children = torch.where(is_copied, nodes.children, drawn)
        scores = _GivenScores(weights[:, None], (weights + noise)[:, None])
        choice = verifier.verify_nodes(scores, children[:, None], None)
        sums[number % 2].scatter_add_(1, choice.chosen, one).scatter_add_(1, choice.bonus, -one)
        num_accepted += (children == choice.chosen).any(1)
    counts = (num_samples - num_samples // 2, num_samples // 2)
    first, second = (part / count for part, count in zip(sums, counts, strict=True))
    error = (first - second).abs().sum(-1) / 4
    probs = nodes.target_probs + (sums[0] + sums[1]) / num_samples
    return OutputDistribution(probs, num_accepted / num_samples, error)
