"""The law of whole images of a table world, by every outcome of all that is random in a chain's drafts and tests."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields, replace

import torch
from table_world import Images, TableWorld


@dataclass
class Plan:
    """In the place of a `NoiseField`: outcomes chosen beforehand, one row per branch.

    Codes of -1 are not read. Drawing one multiplies the branch's weight with its probability; the weights of decisions
    by a uniform number are the planner's.
    """

    weight: torch.Tensor  # (branches,)
    lengths: torch.Tensor  # (branches,)
    initial: torch.Tensor  # codes (branches, window)
    vocab_size: int
    uniforms: torch.Tensor | None = None  # of the tests (branches, window): 0 accepts, 1 rejects where it can
    emitted: torch.Tensor | None = None  # the code drawn behind the accepted drafts (branches,)
    keeps: torch.Tensor | None = None  # as uniforms, of the drafts behind
    codes: torch.Tensor | None = None  # what is drawn anew (branches, window + 1)

    def fresh(self, stream, positions, slots):
        return (self.initial + 0.5) / self.vocab_size if stream == "initial" else self.keeps

    def uniform(self, positions, num_slots):
        return self.uniforms[..., None]

    def gumbel(self, stream, positions):
        is_drawn = torch.arange(self.vocab_size) == self.emitted[:, None, None]
        return torch.where(is_drawn, 0.0, -1e9).expand(-1, positions.shape[1], -1)

    def draw(self, stream, probs, positions, slots):
        chances = probs.gather(2, self.codes.clamp(min=0)[..., None]).squeeze(2) / probs.sum(2)
        self.weight = self.weight * chances.where(self.codes >= 0, 1.0).prod(1)
        return self.codes.clamp(min=0)


def take(images: Images, rows: torch.Tensor, plan: Plan) -> Images:
    """Some branches, with what is planned for them."""
    other = Images(images.world, images.drafter, images.rule, plan, images.tokens[rows, :1], images.num_tokens)
    other.tokens, other.lengths = images.tokens[rows], images.lengths[rows]
    own = {field.name: getattr(images.state, field.name) for field in fields(images.state)}
    other.state = replace(images.state, **{name: value[rows] for name, value in own.items() if name != "noise"})
    other.state.noise = plan
    return other


def begin(images: Images, weight: torch.Tensor) -> Images:
    """Every initial draft of every place that has none."""
    vocab_size, window = images.world.vocab_size, images.drafter.max_depth
    is_new = torch.arange(window) >= images.state.counts
    found = [(torch.arange(len(weight))[:0], torch.zeros(0, window, dtype=torch.int64), weight[:0])]
    for codes in itertools.product(range(vocab_size), repeat=window):
        codes = torch.tensor(codes)
        rows = ((codes == 0) | is_new).all(1).nonzero().squeeze(1)
        chance = weight[rows] / vocab_size ** is_new[rows].sum(1)
        found.append((rows, codes.expand(len(rows), -1), chance))
    rows, codes, weight = (torch.cat(part) for part in zip(*found, strict=True))
    return take(images, rows, Plan(weight, images.lengths[rows], codes, vocab_size))


def branch(images: Images) -> Images:
    """Every outcome of the step's tests and draws that something is made of."""
    plan, window, vocab_size = images.noise, images.drafter.max_depth, images.world.vocab_size
    proposal, scores = images.propose()
    probs, labels = scores.weights.softmax(-1), proposal.draft_probs.double()
    drafts = proposal.tokens[:, 1:, None]
    surrogate = images.rule.rejection.relax(probs[:, :-1], drafts, labels).surrogate
    accept = (surrogate / labels.gather(2, drafts)).squeeze(2).clamp(max=1)
    left = (probs[:, :-1] - labels).clamp(min=0)
    left = torch.cat([left / left.sum(2, keepdim=True).clamp(min=1e-30), probs[:, -1:]], dim=1)
    is_maximal, draws = images.drafter.spec.coupling == "maximal", [(0, code) for code in range(vocab_size)]
    found = []
    for stop in range(window + 1):
        is_last = images.lengths + stop + 1 >= images.num_tokens
        options = [[(1, -1)] * is_maximal + draws] * (window - stop - 1) + [draws] * (stop < window)
        passed = accept[:, :stop].prod(1) * (1 - accept[:, stop] if stop < window else 1)
        uniforms = torch.tensor([0.0] * stop + [1.0] * (window - stop))
        for number, behind in enumerate(itertools.product(*options)):
            keeps, codes = torch.tensor([(1, -1)] * (stop + 1) + list(behind))[: window + 1].T
            chance = torch.where(keeps[:-1] == 1, accept, 1 - accept if is_maximal else 1.0)[:, stop + 1 :].prod(1)
            chance = torch.where(is_last, float(number == 0), chance) * passed
            codes = torch.where(is_last[:, None], -1, codes)
            for emitted in range(vocab_size):
                weight = plan.weight * chance * left[:, stop, emitted]
                rows = (weight > 1e-10).nonzero().squeeze(1)
                wide = [part.expand(len(rows), -1) for part in (uniforms, 1.0 - keeps[:-1])]
                found.append((weight[rows], rows, *wide, codes[rows], torch.full_like(rows, emitted)))
    weight, rows, uniforms, keeps, codes, emitted = (torch.cat(part) for part in zip(*found, strict=True))
    chosen = Plan(weight, plan.lengths[rows], plan.initial[rows], vocab_size, uniforms, emitted, keeps, codes)
    return take(images, rows, chosen)


def merge(images: Images, weight: torch.Tensor) -> tuple[Images, torch.Tensor]:
    """Branches whose future is the same, together."""
    state = images.state
    columns = [images.lengths[:, None], images.tokens[:, : images.num_tokens]]
    known = torch.arange(images.drafter.max_depth) < state.counts
    columns += [state.counts, state.drafts * known, ((state.labels * known[..., None]).flatten(1) * 1e6).round()]
    key = torch.cat([column.double() for column in columns], dim=1)
    unique, place = key.unique(dim=0, return_inverse=True)
    rows = torch.zeros(len(unique), dtype=torch.int64).scatter_(0, place, torch.arange(len(place)))
    return take(images, rows, images.noise), torch.zeros(len(unique)).double().index_add_(0, place, weight)


def law_of_images(world: TableWorld, drafter, rule, num_tokens: int) -> torch.Tensor:
    """Probability of each of the vocab^num_tokens images, token 0 first; filters and tokens in float64."""
    vocab_size = world.vocab_size
    first = torch.arange(vocab_size)[:, None]
    images = Images(world, drafter, rule, None, first, num_tokens)
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
