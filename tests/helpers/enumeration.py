"""Exact distribution of whole images under Speculative Jacobi Decoding (SJD), on the small target of `table_world`.

Every outcome of each random choice is followed as a *branch* with a probability (its weight): the drafts, the tests
that accept or reject them, and the tokens that are sampled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import torch

from helpers.table_world import Images, TableWorld


@dataclass
class Plan:
    """Replacement of a `NoiseField` that returns outcomes chosen beforehand, one batch row per branch.

    When a planned code is sampled, the weight of the branch is multiplied by the probability of the code. Codes of -1
    are not sampled. The weights of accept and reject decisions are set by the function that plans them.

    Attributes:
        weight: probability of each branch, (branches,).
        lengths: number of tokens that each branch has emitted, (branches,).
        initial: codes of the initial drafts, (branches, window).
        siblings: codes of the alternative drafts, (branches, nodes with alternatives, alternatives).
        vocab_size: number of codes.
        uniforms: decisions on the children of nodes, (branches, inner nodes, children): 0 accepts, 1 rejects.
        emitted: the code sampled after the accepted drafts, (branches,).
        keeps: decisions on keeping the drafts after the rejected one, coded as `uniforms`.
        codes: codes that replace the drafts that are not kept, (branches, window + 1).
    """

    weight: torch.Tensor
    lengths: torch.Tensor
    initial: torch.Tensor
    siblings: torch.Tensor
    vocab_size: int
    uniforms: torch.Tensor | None = None
    emitted: torch.Tensor | None = None
    keeps: torch.Tensor | None = None
    codes: torch.Tensor | None = None

    def fresh(self, stream, positions, slots):
        return (self.initial + 0.5) / self.vocab_size if stream.name == "initial" else self.keeps

    def uniform(self, stream, positions, num_slots):
        return self.uniforms.expand(-1, -1, num_slots)  # one decision, whatever slot it reads

    def gumbel(self, stream, positions):
        is_drawn = torch.arange(self.vocab_size) == self.emitted[:, None, None]
        return torch.where(is_drawn, 0.0, -1e9).expand(-1, positions.shape[1], -1)

    def sample(self, stream, probs, positions, slots):
        if stream.name == "sibling":
            codes = self.siblings[:, :, int(slots[0, 0]) - 1]
            chances = (probs.gather(2, codes[..., None]).squeeze(2) / probs.sum(2)).nan_to_num()
            none = (codes == 0) & (probs.sum(2) == 0)
            if self.uniforms is None:  # the first of two calls: the step samples the same drafts again
                self.weight = self.weight * torch.where(none, 1.0, chances).prod(1)
            return codes
        chances = probs.gather(2, self.codes.clamp(min=0)[..., None]).squeeze(2) / probs.sum(2)
        self.weight = self.weight * chances.where(self.codes >= 0, 1.0).prod(1)
        return self.codes.clamp(min=0)


def take(images: Images, rows: torch.Tensor, plan: Plan) -> Images:
    """Select branches and give them a new plan.

    Args:
        images: the branches.
        rows: indices of the selected branches; repeats are allowed.
        plan: the outcomes of their next step.
    """
    other = Images(images.world, images.drafter, images.verifier, plan, images.tokens[rows, :1], images.num_tokens)
    other.tokens, other.lengths = images.tokens[rows], images.lengths[rows]
    own = {field.name: getattr(images.state, field.name) for field in fields(images.state)}
    other.state = replace(images.state, **{name: value[rows] for name, value in own.items() if name != "noise"})
    other.state.noise = plan
    return other


def begin(images: Images, weight: torch.Tensor) -> Images:
    """Split each branch into one per combination of new drafts.

    New drafts are the initial drafts of all positions that have none yet, and all alternative drafts.

    Args:
        images: the branches before a step.
        weight: their probabilities, (branches,).
    """
    vocab_size, drafter = images.world.vocab_size, images.drafter
    window, shape = drafter.max_depth, (drafter._num_wide, drafter.num_siblings - 1)
    is_new = torch.arange(window) >= images.state.counts
    found = []
    for codes in itertools.product(range(vocab_size), repeat=window + shape[0] * shape[1]):
        codes, siblings = torch.tensor(codes[:window]), torch.tensor(codes[window:]).long().view(shape)
        rows = ((codes == 0) | is_new).all(1).nonzero().squeeze(1)
        chance = weight[rows] / vocab_size ** is_new[rows].sum(1)
        found.append((rows, codes.expand(len(rows), -1), siblings.expand(len(rows), -1, -1), chance))
    rows, codes, siblings, weight = (torch.cat(part) for part in zip(*found, strict=True))
    return take(images, rows, Plan(weight, images.lengths[rows], codes, siblings, vocab_size))


def endings(
    node: int, rejection, tree, tokens, probs, labels
) -> Iterator[tuple[dict, torch.Tensor, torch.Tensor, int]]:
    """Enumerate the nodes at which the accepted path may end: a given node, or a node below it.

    Args:
        node: the given node.
        rejection: the verifier by rejection sampling.
        tree: structure of the tree.
        tokens: drafts, (branches, nodes).
        probs: target distributions of the nodes, (branches, nodes, vocab).
        labels: draft distributions of the inner nodes, (branches, inner, vocab).

    Yields:
        (decisions by (inner node, rank), 0 for accepted and 1 for rejected; their probability, (branches,);
            distribution of the token after the path, (branches, vocab); number of accepted drafts below the given
            node).
    """
    left, passed, tests, place = probs[:, node], 1.0, {}, tree.parent_nodes.tolist()
    if node in place:
        label = labels[:, place.index(node)]
        for rank, child in enumerate(tree.children[0, place.index(node)].tolist()):
            if child < 0:
                break
            token = tokens[:, [child]].clamp(min=0)
            at_label = label.gather(1, token) * (tokens[:, [child]] >= 0)
            relaxed_prob = rejection.acceptance.relaxed_prob(left, label, token)
            accept = torch.where(at_label > 0, relaxed_prob / at_label, 0.0).clamp(max=1)[:, 0]
            for below, chance, law, count in endings(child, rejection, tree, tokens, probs, labels):
                yield {**tests, (place.index(node), rank): 0.0, **below}, passed * accept * chance, law, count + 1
            rest = (left - label).clamp(min=0)
            is_tried = (at_label > 0) & (rest.sum(1, keepdim=True) > 0)
            left = torch.where(is_tried, rest / rest.sum(1, keepdim=True), left)
            label = label.scatter(1, token, label.gather(1, token) - at_label)
            label = label / label.sum(1, keepdim=True).clamp(min=1e-30)
            passed, tests = passed * (1 - accept), {**tests, (place.index(node), rank): 1.0}
    yield tests, passed * torch.ones(len(probs)).double(), left, 0


def branch(images: Images, ends: Callable[..., Iterator] = endings) -> Images:
    """Split each branch into one per outcome of a step.

    An outcome consists of the decisions to accept or reject drafts, which `ends` enumerates as `endings` does, and of
    the sampled tokens.
    """
    drafter, window, vocab_size = images.drafter, images.drafter.max_depth, images.world.vocab_size
    proposal, scores = images.propose()
    plan, tree, probs = images.noise, proposal.tree, scores.weights.softmax(-1)
    labels, tokens = proposal.draft_probs.double(), proposal.tokens
    drafts, own = tokens[:, drafter._chain[1:], None], labels[:, drafter._chain_inner]
    accept = (probs[:, drafter._chain[:-1]].gather(2, drafts) / own.gather(2, drafts)).squeeze(2).clamp(max=1)
    is_maximal, draws = drafter.coupling == "maximal", [(0, code) for code in range(vocab_size)]
    found = []
    for tests, passed, left, stop in ends(0, images.verifier.rejection, tree, tokens, probs, labels):
        is_last = images.lengths + stop + 1 >= images.num_tokens
        options = [[(1, -1)] * is_maximal + draws] * (window - stop - 1) + [draws] * (stop < window)
        uniforms = torch.ones(tree.children.shape[1:])
        for place, value in tests.items():
            uniforms[place] = value
        for number, behind in enumerate(itertools.product(*options)):
            keeps, codes = torch.tensor([(1, -1)] * (stop + 1) + list(behind))[: window + 1].T
            chance = torch.where(keeps[:-1] == 1, accept, 1 - accept if is_maximal else 1.0)[:, stop + 1 :].prod(1)
            chance = torch.where(is_last, float(number == 0), chance) * passed
            codes = torch.where(is_last[:, None], -1, codes)
            for emitted in range(vocab_size):
                weight = plan.weight * chance * left[:, emitted]
                rows = (weight > 1e-10).nonzero().squeeze(1)
                wide = [part.expand(len(rows), *part.shape) for part in (uniforms, 1.0 - keeps[:-1])]
                found.append((weight[rows], rows, *wide, codes[rows], torch.full_like(rows, emitted)))
    weight, rows, uniforms, keeps, codes, emitted = (torch.cat(part) for part in zip(*found, strict=True))
    given = (plan.lengths[rows], plan.initial[rows], plan.siblings[rows])
    return take(images, rows, Plan(weight, *given, vocab_size, uniforms, emitted, keeps, codes))


def merge(images: Images, weight: torch.Tensor) -> tuple[Images, torch.Tensor]:
    """Merge branches that have the same future.

    Args:
        images: the branches.
        weight: their probabilities, (branches,).

    Returns:
        (one branch of each kind, the summed probabilities).
    """
    state = images.state
    columns = [images.lengths[:, None], images.tokens[:, : images.num_tokens]]
    known = torch.arange(images.drafter.max_depth) < state.counts
    columns += [state.counts, state.drafts * known, ((state.draft_probs * known[..., None]).flatten(1) * 1e6).round()]
    key = torch.cat([column.double() for column in columns], dim=1)
    unique, place = key.unique(dim=0, return_inverse=True)
    rows = torch.zeros(len(unique), dtype=torch.int64).scatter_(0, place, torch.arange(len(place)))
    return take(images, rows, images.noise), torch.zeros(len(unique)).double().index_add_(0, place, weight)


def law_of_images(
    world: TableWorld, drafter, verifier, num_tokens: int, ends: Callable[..., Iterator] = endings
) -> torch.Tensor:
    """Return the probability of each possible image.

    Args:
        world: the target.
        drafter: the drafter of SJD.
        verifier: its verifier.
        num_tokens: number of tokens of an image.
        ends: see `branch`.

    Returns:
        float64 (vocab^num_tokens,). The index of an image reads its tokens as digits, token 0 first.
    """
    vocab_size = world.vocab_size
    first = torch.arange(vocab_size)[:, None]
    images = Images(world, drafter, verifier, None, first, num_tokens)
    weight = world.logits(images.tokens[:1, None], torch.zeros(1, 1, dtype=torch.int64)).softmax(-1)[0, 0]
    law = torch.zeros(vocab_size**num_tokens, dtype=torch.float64)
    digits = vocab_size ** torch.arange(num_tokens - 1, -1, -1)
    while len(weight):
        images = branch(begin(images, weight), ends)
        images.step()
        weight, is_done = images.noise.weight, images.lengths == num_tokens
        index = (images.tokens[:, :num_tokens] * digits).sum(1)
        law.index_add_(0, index[is_done], weight[is_done])
        images, weight = merge(take(images, ~is_done, images.noise), weight[~is_done])
    return law
