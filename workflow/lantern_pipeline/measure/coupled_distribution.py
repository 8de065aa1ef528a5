"""Distribution of the emitted token for drafts that are sampled with the target's noise: coupled and Jacobi drafts.

A node of the draft tree predicts the token at one position. Let t be the target's distribution there, p the
distribution of the draft, and g the Gumbel noise of the position. The draft is x = argmax(log p + g). The token that
the target samples is y = argmax(log t + g). Since p and t do not depend on g, averaging over g gives the distribution
of the emitted token given all earlier tokens.

For coupled drafts, p is the distribution of the draft model. Jacobi drafts are tokens that the target sampled for this
position in earlier steps, and that were kept in a pool. For them, p is the target's distribution in that earlier step.
Which of the pool's tokens becomes the draft does not depend on the noise of its position.

Shapes: nodes = verified nodes.
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
    """Return whether this module can compute the distribution of the tokens that a method emits.

    The method's drafts must be sampled with the target's noise, from distributions that can be recorded. This is true
    for coupled drafts in a tree of fixed shape, and for Jacobi drafts in a chain. It is false for all other methods,
    among them:

    - Jacobi drafts in a tree with siblings: the siblings come from many distributions.
    - hybrid drafts: drafts below the root come from two distributions.
    - dynamic trees: their shape depends on the noise.

    Args:
        spec: the method.
    """
    if spec.drafts == "jacobi":
        return is_chain(spec.tree_shape)
    return spec.drafts == "coupled" and not isinstance(spec.tree_shape, DynamicTreeOptions)


def measure_coupled_drafts(
    decoder: TreeDecoder, prompts: Sequence[Prompt], encoder: TextEncoder, *, num_samples: int, **options: Any
) -> tuple[VerifiedNodes, str, OutputDistribution]:
    """Decode images, and compute the distribution of the emitted token at some nodes of their draft trees.

    The method's drafts must be sampled with the target's noise, from distributions that can be recorded. For such a
    method, `knows_drafts` returns True.

    Args:
        decoder: decoder of the method.
        prompts: prompts of the images that are decoded.
        encoder: text encoder of the prompts.
        num_samples: number of samples of the target's noise per node. Not used if the distribution is enumerated.
        options: further arguments of `record_nodes`.

    Returns:
        (recorded nodes, kind, distribution of the emitted token). kind is "enumeration" if the distribution is exact.
        This is so if each node has one draft, and the verifier accepts it whenever the target's sample is in its
        relaxed set. Otherwise kind is "monte_carlo".
    """
    nodes, verifier = record_nodes(decoder.with_draft_probs(), prompts, encoder, **options), decoder.verifier
    if nodes.children.shape[1] == 1 and isinstance(verifier, WithinBound | ByProximity):
        return nodes, "enumeration", distribution_of_one_coupled_draft(nodes, verifier.sets)
    found = distribution_of_coupled_siblings(nodes, verifier, num_samples=num_samples, seed=options["run_seed"])
    return nodes, "monte_carlo", found


def crossings(target_probs: torch.Tensor, draft_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute two numbers F_i and M_i per code i, from which the joint distribution of two coupled samples follows.

    The draft x is sampled from distribution p, and the target's sample y from distribution t, both with the same Gumbel
    noise g. A relaxed method emits x instead of y for some pairs (x, y). The probabilities of pairs are:

    - P(x = i, y = j) = p_i t_j max(0, F_i - F_j) for i != j
    - P(x = y = i) = p_i / M_i if t_i > 0

    Derivation: let E_v = exp(-g_v), which is exponentially distributed. For x = i and y = j let a = E_i / p_i and s =
    (E_j / t_j) / a. The event x = i, y = j is E_v >= a max(p_v, s t_v) for all v. Its probability is the integral of
    p_i t_j / M(s)^2 over s from p_j / t_j to p_i / t_i. M(s) is the sum of max(p_v, s t_v) over all v. Between the
    sorted ratios p_v / t_v, M is linear in s. M_i is M(p_i / t_i). F_i is the integral of 1 / M(s)^2 from 0 to
    p_i / t_i.

    Args:
        target_probs: t, (nodes, vocab).
        draft_probs: p, (nodes, vocab).

    Returns:
        (F, M), float64 (nodes, vocab) each.
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
    """Compute the exact distribution of the emitted token if each node has one draft, sampled with the target's noise.

    The relaxed set A(x) holds the codes in whose place draft x may be emitted. The result is the target's distribution,
    in which some probability is moved. For every draft x and every code y in A(x), the joint probability of draft x and
    target sample y moves from y to x. A draft that top-k or top-p removed from the target is accepted only if
    `sets.leaves_filters` is true.

    Args:
        nodes: nodes at which the method verified a draft. If `nodes.drawn_from` is 0 for all codes at a node, the draft
            there does not depend on the noise.
        sets: relaxed sets of the method.
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
    """Scores of all codes at some nodes, from given log-probabilities of the target and one sample of Gumbel noise.

    They are the input of a verifier, which expects axes (batch, nodes, vocab). Each node is therefore a batch row with
    a single node.

    Attributes:
        given_weights: the target's log-probabilities of all codes, (nodes, 1, vocab).
        given_keys: these log-probabilities plus the noise, (nodes, 1, vocab).
    """

    def __init__(self, weights: torch.Tensor, keys: torch.Tensor) -> None:
        self.given_weights = weights
        self.given_keys = keys

    @property
    def weights(self) -> torch.Tensor:
        """The target's log-probabilities of all codes, (nodes, 1, vocab). Each batch row has a single node."""
        return self.given_weights

    @property
    def keys(self) -> torch.Tensor:
        """Log-probability plus Gumbel noise of each code, (nodes, 1, vocab). The target samples the argmax."""
        return self.given_keys


def distribution_of_coupled_siblings(
    nodes: VerifiedNodes, verifier: Verifier, *, num_samples: int, seed: int
) -> OutputDistribution:
    """Estimate the distribution of the emitted token by Monte Carlo, if each node has several coupled drafts.

    Coupled drafts are sampled with the target's Gumbel noise. In each sample of the noise, the method's verifier
    decides which token is emitted. The estimate is the target's distribution plus a mean difference: the emitted token
    minus the target's sample, as one-hot vectors. The two tokens differ only if the verifier substitutes one for the
    other. Monte Carlo noise makes the estimated total variation (TV) too large, but never larger than the share of
    substitutions.

    Args:
        nodes: nodes at which the method verified drafts. New drafts are sampled from `nodes.drawn_from`. If that is 0
            for all codes at a node, the drafts there do not depend on the noise. Then every sample uses
            `nodes.children`.
        verifier: the verifier of the method.
        num_samples: number of samples of the target's Gumbel noise per node, at least 2.
        seed: random seed of the noise.

    Returns:
        The estimate. Its `error` is half the TV between two estimates, each from half of the samples.
    """
    generator = torch.Generator(nodes.target_probs.device).manual_seed(seed)
    sums = [torch.zeros_like(nodes.target_probs) for _ in range(2)]  # sums over even and over odd samples
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
