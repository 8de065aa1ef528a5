"""The law of whole images of a table world, by every outcome of all that is random in SJD drafts and their tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch

from helpers.table_world import Images, TableWorld


@dataclass
class Plan:
    """In the place of a `NoiseField`: outcomes chosen beforehand, one row per branch.

    Codes of -1 are not read. Drawing one multiplies the branch's weight with its probability; the weights of decisions
    by a uniform number are the planner's.
    """

    weight: torch.Tensor  # (branches,)
    lengths: torch.Tensor  # (branches,)
    initial: torch.Tensor  # codes (branches, window)
    siblings: torch.Tensor  # codes (branches, places with siblings, siblings - 1)
    vocab_size: int
    uniforms: torch.Tensor | None = None  # of the tests (branches, inner nodes, children): 0 accepts, 1 rejects
    emitted: torch.Tensor | None = None  # the code drawn behind the accepted drafts (branches,)
    keeps: torch.Tensor | None = None  # as uniforms, of the drafts behind
    codes: torch.Tensor | None = None  # what is drawn anew (branches, window + 1)

    def fresh(self, stream, positions, slots):
        return (self.initial + 0.5) / self.vocab_size if stream == "initial" else self.keeps

    def uniform(self, positions, num_slots):
        return self.uniforms

    def gumbel(self, stream, positions):
        is_drawn = torch.arange(self.vocab_size) == self.emitted[:, None, None]
        return torch.where(is_drawn, 0.0, -1e9).expand(-1, positions.shape[1], -1)

    def sample(self, stream, probs, positions, slots):
        if stream == "sibling":
            codes = self.siblings[:, :, int(slots[0, 0]) - 1]
            chances = (probs.gather(2, codes[..., None]).squeeze(2) / probs.sum(2)).nan_to_num()
            none = (codes == 0) & (probs.sum(2) == 0)
            if self.uniforms is None:  # the same drafts are asked for again when the step is made
                self.weight = self.weight * torch.where(none, 1.0, chances).prod(1)
            return codes
        chances = probs.gather(2, self.codes.clamp(min=0)[..., None]).squeeze(2) / probs.sum(2)
        self.weight = self.weight * chances.where(self.codes >= 0, 1.0).prod(1)
        return self.codes.clamp(min=0)


def take(images: Images, rows: torch.Tensor, plan: Plan) -> Images:
    """Some branches, with what is planned for them."""
    other = Images(images.world, images.drafter, images.verifier, plan, images.tokens[rows, :1], images.num_tokens)
    other.tokens, other.lengths = images.tokens[rows], images.lengths[rows]
    own = {field.name: getattr(images.state, field.name) for field in fields(images.state)}
    other.state = replace(images.state, **{name: value[rows] for name, value in own.items() if name != "noise"})
    other.state.noise = plan
    return other


def begin(images: Images, weight: torch.Tensor) -> Images:
    """Every initial draft of every place that has none, and all siblings."""
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
    """Where the accepted path may end at or below a node: the tests on the way, by (inner node, rank), the chance of
    it, (rows,), what the token behind is drawn from, (rows, vocab), and how many drafts are accepted below the node.
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


def branch(images: Images) -> Images:
    """Every outcome of the step's tests and draws that something is made of."""
    drafter, window, vocab_size = images.drafter, images.drafter.max_depth, images.world.vocab_size
    proposal, scores = images.propose()
    plan, tree, probs = images.noise, proposal.tree, scores.weights.softmax(-1)
    labels, tokens = proposal.draft_probs.double(), proposal.tokens
    drafts, own = tokens[:, drafter._chain[1:], None], labels[:, drafter._chain_inner]
    accept = (probs[:, drafter._chain[:-1]].gather(2, drafts) / own.gather(2, drafts)).squeeze(2).clamp(max=1)
    is_maximal, draws = drafter.coupling == "maximal", [(0, code) for code in range(vocab_size)]
    found = []
    for tests, passed, left, stop in endings(0, images.verifier.rejection, tree, tokens, probs, labels):
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
    """Branches whose future is the same, together."""
    state = images.state
    columns = [images.lengths[:, None], images.tokens[:, : images.num_tokens]]
    known = torch.arange(images.drafter.max_depth) < state.counts
    columns += [state.counts, state.drafts * known, ((state.draft_probs * known[..., None]).flatten(1) * 1e6).round()]
    key = torch.cat([column.double() for column in columns], dim=1)
    unique, place = key.unique(dim=0, return_inverse=True)
    rows = torch.zeros(len(unique), dtype=torch.int64).scatter_(0, place, torch.arange(len(place)))
    return take(images, rows, images.noise), torch.zeros(len(unique)).double().index_add_(0, place, weight)


def law_of_images(world: TableWorld, drafter, verifier, num_tokens: int) -> torch.Tensor:
    """Probability of each of the vocab^num_tokens images, token 0 first; filters and tokens in float64."""
    vocab_size = world.vocab_size
    first = torch.arange(vocab_size)[:, None]
    images = Images(world, drafter, verifier, None, first, num_tokens)
    weight = world.logits(images.tokens[:1, None], torch.zeros(1, 1, dtype=torch.int64)).softmax(-1)[0, 0]
    law = torch.zeros(vocab_size**num_tokens, dtype=torch.float64)
    digits = vocab_size ** torch.arange(num_tokens - 1, -1, -1)
    while len(weight):
        images = branch(begin(images, weight))
        images.step()
        weight, is_done = images.noise.weight, images.lengths == num_tokens
        index = (images.tokens[:, :num_tokens] * digits).sum(1)
        law.index_add_(0, index[is_done], weight[is_done])
        images, weight = merge(take(images, ~is_done, images.noise), weight[~is_done])
    return law
