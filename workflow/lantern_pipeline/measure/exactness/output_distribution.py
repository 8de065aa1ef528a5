"""Distribution of the token that a method emits at a node of the draft tree, and its distance from the target's.

At a node of the draft tree, let t be the target's distribution and p the draft model's. The drafts are the children of
the node. Verification emits a random token, whose distribution is called the *output distribution*. This module
computes it and compares it with t in total variation (TV). A limit of what an acceptance adds to t(x), such as
LANTERN's delta, does not bound the TV, see docs/methods.md.

Shapes: nodes = verified nodes, m = largest number of children of a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lantern.acceptance.rejection import Rejection
from lantern.acceptance.relaxed_sets import RelaxedSets
from lantern.decoding import Decoder
from lantern.draft_tree import reached_nodes
from lantern.generation import decode_timed
from lantern.models.config import TargetConfig
from lantern.prompts import Prompt, TextEncoder
from lantern.sampling import filter_logits
from lantern.step import Outcome, Scores
from lantern_pipeline.measure.exactness.likelihood import walk_logits
from lantern_pipeline.measure.intervals import bootstrap_interval, ratio_statistic

PAIRS_AT_ONCE = 2048  # number of vectors of length vocab in memory at once, while drafts are enumerated


@dataclass(frozen=True)
class VerifiedNodes:
    """Nodes of draft trees at which a method verified drafts.

    Attributes:
        target_probs: t, after guidance, temperature, top-k and top-p, (nodes, vocab).
        draft_probs: p, that the children were sampled from, (nodes, vocab). All 0 at a node whose children were not
            sampled. None if no children are, or if p was not recorded.
        children: drafts in the order of drafting, int64 (nodes, m). -1 marks a missing draft.
        image: index of the image to which the node belongs, int64 (nodes,).
        depths: depth of each node in its tree, int64 (nodes,).
    """

    target_probs: torch.Tensor
    draft_probs: torch.Tensor | None
    children: torch.Tensor
    image: torch.Tensor
    depths: torch.Tensor

    def __len__(self) -> int:
        return len(self.target_probs)

    @property
    def drawn_from(self) -> torch.Tensor:
        """The distribution p. A ValueError if it is not known."""
        if self.draft_probs is None:
            raise ValueError("draft_probs must be known, got None: drafts are deterministic, or were not recorded")
        return self.draft_probs


@dataclass(frozen=True)
class OutputDistribution:
    """Output distributions `probs`, (nodes, vocab), at some nodes.

    Attributes:
        acceptance: probability that a draft is accepted, (nodes,).
        error: TV that Monte Carlo noise of `probs` adds at most on average, (nodes,). 0 if `probs` is exact.
    """

    probs: torch.Tensor
    acceptance: torch.Tensor
    error: torch.Tensor

    def tv_from(self, target_probs: torch.Tensor) -> torch.Tensor:
        """Return the TV from the target's distribution, (nodes,)."""
        return (self.probs - target_probs).abs().sum(-1) / 2


class NodeRecorder:
    """Observer of a decoder that records the nodes which predict the tokens at randomly chosen positions.

    The positions depend on the seed only, so they are the same for every method. `max_nodes` positions are spread
    evenly over all images of the measurement, but each image has at least one.

    Attributes:
        first_image: index of the first image in the batch that is being decoded.
        parts: the recorded nodes, one entry per decoding step.
    """

    def __init__(self, num_images: int, config: TargetConfig, max_nodes: int, seed: int) -> None:
        self.num_tokens, self.first_image = config.num_image_tokens, 0
        per_image = min(self.num_tokens, max(1, max_nodes // num_images))
        noise = torch.rand(num_images, self.num_tokens, generator=torch.Generator().manual_seed(seed))
        is_end = config.ends_line(torch.arange(self.num_tokens))
        # A random order of the positions. Line-end tokens are certain: they come last, and are not chosen even if few
        # codes remain.
        order = noise.masked_fill(is_end, torch.inf).argsort(dim=1)
        # (images, tokens)
        self.is_chosen = torch.zeros_like(is_end).repeat(num_images, 1).scatter(1, order[:, :per_image], True) & ~is_end
        self.parts: list[VerifiedNodes] = []

    def __call__(self, outcome: Outcome) -> None:
        """Add nodes of one decoding step to `parts`."""
        drafts, positions, weights = outcome.proposal, outcome.scores.positions, outcome.scores.weights
        inner, reached = drafts.tree.parent_nodes, reached_nodes(drafts.tree, outcome.is_accepted)
        depths = drafts.tree.depths.expand_as(reached)
        # `drafts.children` has only the inner nodes, if the tree has others.
        if inner is not None:
            reached, positions, weights, depths = (
                part.index_select(1, inner) for part in (reached, positions, weights, depths)
            )
        children = drafts.children
        image = torch.arange(len(reached))[:, None] + self.first_image  # (batch, 1)
        # The drafts of the last step may reach beyond the end of the image.
        inside = positions.cpu() < self.num_tokens
        chosen = self.is_chosen[image, positions.cpu().clamp(max=self.num_tokens - 1)] & inside
        # Only nodes whose path from the root was accepted, and at which at least one draft was verified.
        rows, nodes = (chosen.to(reached.device) & reached & (children >= 0).any(-1)).nonzero(as_tuple=True)
        draft_probs = None if drafts.draft_probs is None else drafts.draft_probs[rows, nodes]
        probs = weights[rows, nodes].softmax(-1)
        found = children[rows, nodes], rows.cpu() + self.first_image, depths[rows, nodes]
        self.parts.append(VerifiedNodes(probs, draft_probs, *found))

    def collect(self) -> VerifiedNodes:
        """Return the nodes of all steps, of which there must be one."""
        columns = {}
        for name in ("target_probs", "draft_probs", "children", "image", "depths"):
            parts = [getattr(part, name) for part in self.parts]
            columns[name] = None if parts[0] is None else torch.cat(parts)
        return VerifiedNodes(**columns)


def record_nodes(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    encoder: TextEncoder,
    *,
    run_seed: int,
    max_nodes: int,
    batch_size: int,
) -> VerifiedNodes:
    """Generate images, and return the nodes that a `NodeRecorder` chooses, on the decoder's device."""
    parts: list[VerifiedNodes] = []
    try:
        for begin in range(0, len(prompts), batch_size):
            # Every batch chooses for all images, so that the choice does not depend on the batch size. All recorders
            # share `parts`, hence the last one collects the nodes of all batches.
            recorder = NodeRecorder(len(prompts), decoder.target.config, max_nodes, run_seed)
            recorder.first_image, recorder.parts, decoder.observer = begin, parts, recorder
            decode_timed(decoder, prompts[begin : begin + batch_size], encoder, run_seed)
    finally:
        decoder.observer = None
    return recorder.collect()


@torch.inference_mode()
def measure_missing_context(
    decoder: Decoder, prompts: Sequence[Prompt], encoder: TextEncoder, *, run_seed: int, max_nodes: int, batch_size: int
) -> tuple[VerifiedNodes, OutputDistribution]:
    """Measure how a method differs from the target if it generates several lines of an image in parallel.

    Such a method samples tokens before all previous tokens of the image are known. Each chosen token is one node: t is
    the target's distribution given all previous tokens, and the output distribution is the one that the token was
    sampled from.
    """

    def keep(scores: Scores) -> None:
        steps.append((scores.positions, scores.weights.softmax(-1)))

    is_chosen = NodeRecorder(len(prompts), decoder.target.config, max_nodes, run_seed).is_chosen.to(decoder.device)
    # The context of position 0 is always complete.
    is_chosen[:, 0] = False
    options = {"cfg_scale": decoder.sampling.cfg_scale, "batch_size": batch_size}
    drawn_from, target, steps = [], [], []
    try:
        for begin in range(0, len(prompts), batch_size):
            batch = prompts[begin : begin + batch_size]
            steps.clear()
            decoder.score_observer = keep
            generation, _ = decode_timed(decoder, batch, encoder, run_seed)
            chosen = is_chosen[begin : begin + batch_size]
            drawn_from.append(_in_order(steps, decoder.num_tokens)[chosen])
            texts = [prompt.text for prompt in batch]
            # Teacher forcing gives t in full context.
            for rows, _, logits in walk_logits(decoder.target, encoder, generation.codes, texts, **options):
                target.append(filter_logits(logits[chosen[rows]], decoder.sampling).softmax(-1))
    finally:
        decoder.score_observer = None
    # Image by image, as the masks above select. `nonzero` gives (image, position).
    image = is_chosen.nonzero()[:, 0].cpu()
    # Without drafts there are no children, and every node is a root.
    nodes = VerifiedNodes(torch.cat(target), None, image.new_zeros(len(image), 0), image, torch.zeros_like(image))
    nothing = torch.zeros(len(image))  # no draft is accepted, and no Monte Carlo is used
    return nodes, OutputDistribution(torch.cat(drawn_from), nothing, nothing)


def _in_order(steps: Sequence[tuple[torch.Tensor, torch.Tensor]], num_tokens: int) -> torch.Tensor:
    """Return the distribution of each token, (images, tokens, vocab), from the steps' results."""
    positions, probs = (torch.cat(part, dim=1) for part in zip(*steps, strict=True))
    # Steps may sample tokens beyond the end of the image. They are cut off.
    ordered = probs.new_zeros(len(probs), int(positions.max()) + 1, probs.shape[-1])
    return ordered.scatter_(1, positions[..., None].expand_as(probs), probs)[:, :num_tokens]


def distribution_given_children(
    target_probs: torch.Tensor, draft_probs: torch.Tensor | None, children: torch.Tensor, rejection: Rejection
) -> OutputDistribution:
    """Compute the exact output distribution of rejection sampling for given children x_1 to x_m, tried in this order.

    P(c) = sum_i w_i a_i [c = x_i] + w_(m+1) residual(c), where a_i = min(1, s(x_i) / p(x_i)) is the probability that
    x_i is accepted if it is tried, and w_i = prod_(j<i) (1 - a_j) that it is tried. Without `draft_probs`, p(x_i) = 1.
    """
    emitted, weight = torch.zeros_like(target_probs), torch.ones_like(target_probs[:, :1])
    probs, tiny = target_probs, torch.finfo(target_probs.dtype).tiny
    # `weight` is w_i and `probs` the residual that x_i is tested against, of which the last is emitted.
    for rank, tried in enumerate(rejection.try_siblings(target_probs, children, draft_probs)):
        # A missing child adds 0 at code 0.
        token = children[:, rank : rank + 1].clamp(min=0)
        accept = (tried.relaxed_prob / tried.token_draft.clamp(min=tiny)).clamp(max=1)
        accept = accept.where(tried.is_tried, 0.0)  # else nan if p has fewer possible codes than there are children
        emitted.scatter_add_(1, token, weight * accept)
        weight, probs = weight * (1 - accept), tried.residual
    weight = weight.squeeze(1)
    return OutputDistribution(emitted + weight[:, None] * probs, 1 - weight, torch.zeros_like(weight))


def distribution_of_one_sampled_draft(
    target_probs: torch.Tensor, draft_probs: torch.Tensor, rejection: Rejection
) -> OutputDistribution:
    """Compute the exact output distribution if each node has one draft, sampled from p.

    It is sum_x p(x) P(c | x), with P(c | x) from `distribution_given_children`.
    """
    if rejection.has_one_residual:
        # If all rejected drafts have one residual, P = accepted + (1 - sum(accepted)) residual, without a sum over x.
        accepted = rejection.acceptance.accepted_mass(target_probs, draft_probs)
        acceptance = accepted.sum(-1)
        residual = rejection.residual_probs(target_probs, None, draft_probs)
        emitted = accepted + (1 - acceptance)[:, None] * residual
        return OutputDistribution(emitted, acceptance, torch.zeros_like(acceptance))
    emitted, acceptance = torch.zeros_like(target_probs), torch.zeros_like(target_probs[:, 0])
    for pairs in draft_probs.nonzero().split(PAIRS_AT_ONCE):  # each possible draft of a node is one pair
        node, token = pairs.unbind(1)
        given = distribution_given_children(target_probs[node], draft_probs[node], token[:, None], rejection)
        weight = draft_probs[node, token]
        emitted.index_add_(0, node, weight[:, None] * given.probs)
        acceptance.index_add_(0, node, weight * given.acceptance)
    return OutputDistribution(emitted, acceptance, torch.zeros_like(acceptance))


def distribution_of_sampled_siblings(
    nodes: VerifiedNodes, rejection: Rejection, *, num_samples: int, seed: int
) -> OutputDistribution:
    """Estimate the output distribution by Monte Carlo, if each node has several sampled drafts.

    The estimate is t + mean(P(. | children) - P_exact(. | children)) over newly sampled children, where P_exact has
    exact acceptance. It is correct, because P_exact is t on average over the children. It has little noise, because
    both terms have the same children: for an exact method it has none.

    Noise makes the estimated TV too large, on average by at most `error`: half the TV between two estimates, each from
    half of the samples. `num_samples` >= 2.
    """
    generator = torch.Generator(nodes.target_probs.device).manual_seed(seed)
    sums = [torch.zeros_like(nodes.target_probs) for _ in range(2)]  # sums over even and over odd samples
    acceptance = torch.zeros_like(nodes.target_probs[:, 0])
    for number in range(num_samples):
        exponential = torch.empty_like(nodes.drawn_from).exponential_(generator=generator)
        keys = nodes.drawn_from / exponential  # the m largest are a sample without replacement
        drawn = keys.topk(nodes.children.shape[1], dim=-1).indices.masked_fill(nodes.children < 0, -1)
        given = distribution_given_children(nodes.target_probs, nodes.draft_probs, drawn, rejection)
        exact = distribution_given_children(nodes.target_probs, nodes.draft_probs, drawn, Rejection())
        sums[number % 2] += nodes.target_probs + (given.probs - exact.probs)
        acceptance += given.acceptance
    # Every sample sums to 1, so this divides by the number of samples.
    first, second = (part / part.sum(-1, keepdim=True) for part in sums)
    # Half the TV, which is half the sum of the differences.
    error = (first - second).abs().sum(-1) / 4
    return OutputDistribution((sums[0] + sums[1]) / num_samples, acceptance / num_samples, error)


def distribution_of_relaxed_sets(
    target_probs: torch.Tensor, children: torch.Tensor, sets: RelaxedSets
) -> OutputDistribution:
    """Compute the exact output distribution for deterministic drafts that relaxed sets accept, as in `WithinBound`.

    A draft x is accepted if the target's sample is x or in A(x). So the target probability of A(x) moves to x. If a
    code is in the sets of several siblings, its probability moves to the first of them.
    """
    emitted, left = target_probs.clone(), target_probs.clone()  # left: probability that no draft has received yet
    # What `walk` leaves may be rescaled after a rejection, which `left` is not.
    for token, relaxed, _ in sets.walk(target_probs, children):
        is_drafted, token = token[:, None] >= 0, token[:, None].clamp(min=0)
        # The codes of a missing draft are no indices, so they become 0, and nothing is taken there.
        codes = torch.where(is_drafted, relaxed.codes, 0)
        taken = left.gather(1, codes) * (relaxed.is_member & is_drafted)
        emitted.scatter_add_(1, codes, -taken).scatter_add_(1, token, taken.sum(1, keepdim=True))
        # x itself keeps its probability, but no later sibling may take it.
        left.scatter_add_(1, codes, -taken).scatter_add_(1, token, -left.gather(1, token) * is_drafted)
    return OutputDistribution(emitted, 1 - left.sum(1), torch.zeros_like(left[:, 0]))


def mean_over_nodes(
    name: str,
    values: torch.Tensor,
    image: torch.Tensor,
    options: Mapping[str, int],
    ends: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> dict[str, float]:
    """Return {name: mean, name_low: lower end, name_high: upper end} of values at nodes; nan if any value is nan.

    `ends` has other values for the lower and the upper end, if `values` are biased by Monte Carlo noise.
    """
    if values.isnan().any():
        return {name: np.nan, f"{name}_low": np.nan, f"{name}_high": np.nan}
    # The nodes of one image are dependent, so the bootstrap resamples images: the mean is the ratio of two sums over
    # images, of values and of numbers of nodes.
    _, index = image.unique(return_inverse=True)
    counts = index.bincount().numpy()

    def interval(values: torch.Tensor) -> tuple[float, float]:
        sums = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, index, values.double()).numpy()
        return bootstrap_interval(ratio_statistic, sums, counts, **options)

    low, high = interval(values) if ends is None else (interval(ends[0])[0], interval(ends[1])[1])
    return {name: float(values.mean()), f"{name}_low": low, f"{name}_high": high}
