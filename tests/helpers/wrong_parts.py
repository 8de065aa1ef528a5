"""Custom drafters and acceptances, as a user may write them. Some are wrong on purpose.

Classes with an attribute `change` pass their result through this function, so that a test can make them wrong.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from lantern.acceptance.base import Acceptance, ByEquality, Exact, Verifier
from lantern.acceptance.relaxed_sets import AdditiveBound, RelaxedSets
from lantern.draft_tree import static_tree
from lantern.drafters.base import Drafter
from lantern.drafters.jacobi import JacobiDrafter
from lantern.noise import Uniform
from lantern.parameters import PARAMETERS
from lantern.step import Proposal

LOTS = Uniform("lots", slots=100)


class Guesses(JacobiDrafter):
    """Jacobi drafter whose proposal a test changes."""

    is_coupled = True
    has_twins = True
    change = staticmethod(lambda proposal: proposal)

    def propose(self, state, root, lengths):
        return type(self).change(super().propose(state, root, lengths))


class Sampled(Guesses):
    """Drafter that claims to sample its drafts, and whose proposal a test changes."""

    is_sampled = True


class Lots(Drafter):
    """Drafter of random codes, from the last slots of a stream of its own. Its state is the noise."""

    trees = ("static",)
    noise_streams = (LOTS,)

    def __init__(self, tree, num_codes):
        self.tree, self.max_depth, self.num_codes = tree, tree.max_depth, num_codes

    @classmethod
    def make(cls, models, spec, sampling):
        return cls(static_tree(spec.tree_shape, models.target.device), models.target.config.num_codes)

    def allocate(self, num_rows, noise):
        return noise

    def propose(self, state, root, lengths):
        depths = self.tree.depths[:, 1:]
        numbers = state.fresh(LOTS, lengths[:, None] + depths - 1, LOTS.slots - depths)
        return Proposal(torch.cat([root, (numbers * self.num_codes).long()], dim=1), self.tree)


class Treeless(Drafter):
    """Drafter that is wrong: it has no tree."""

    @classmethod
    def make(cls, models, spec, sampling):
        return cls()


class Shallow(JacobiDrafter):
    """Drafter that is wrong: its `max_depth` differs from its tree."""

    @classmethod
    def make(cls, models, spec, sampling):
        drafter = super().make(models, spec, sampling)
        drafter.max_depth = 2
        return drafter


class Shift(torch.nn.Module):
    """A trained part of a user: the next code is the last one plus a number."""

    def __init__(self, step):
        super().__init__()
        self.step = step


class Shifts(JacobiDrafter):
    """Drafter that declares a trained part of its own and drafts by it."""

    is_coupled = True
    has_twins = True
    trained = {"shift": "helpers.wrong_parts:Shift"}  # noqa: RUF012

    @classmethod
    def make(cls, models, spec, sampling):
        drafter = super().make(models, spec, sampling)
        drafter.shift = models.parts["shift"]
        drafter.vocab_size = models.target.config.vocab_size
        return drafter

    def propose(self, state, root, lengths):
        proposal = super().propose(state, root, lengths)
        drafts = (root + self.shift.step * proposal.tree.depths) % self.vocab_size
        return replace(proposal, tokens=drafts)


class Broken(JacobiDrafter):
    """Drafter that is wrong: making it raises a KeyError."""

    @classmethod
    def make(cls, models, spec, sampling):
        raise KeyError("weights")


class Wide(Exact):
    """Acceptance whose relaxed probability s(x) a test changes."""

    needs = ("sampled",)
    change = staticmethod(lambda found: found)

    def relaxed_prob(self, probs, draft_probs, tokens):
        return type(self).change(super().relaxed_prob(probs, draft_probs, tokens))


class Sets(RelaxedSets):
    """Relaxed acceptance that admits similar codes up to a total probability of 0.3, whatever its parameters are.

    A test changes its answer.
    """

    parameters = {"k": PARAMETERS["k"], "delta": PARAMETERS["delta"]}  # noqa: RUF012
    change = staticmethod(lambda found: found)

    def admits(self, mass, token_probs, spent):
        return type(self).change(mass <= 0.3)


class Additive(AdditiveBound):
    """Additive acceptance with a larger bound."""

    parameters = Sets.parameters

    def admits(self, mass, token_probs, spent):
        return mass <= 0.4 + self.delta


class Mixed(Acceptance):
    """Acceptance that mixes the target and draft probabilities."""

    needs = ("sampled",)

    def relaxed_prob(self, probs, draft_probs, tokens):
        return (probs.gather(-1, tokens) + draft_probs.gather(-1, tokens)) / 2


class AllAtOnce(Verifier):
    """Exact verifier that verifies whole proposals, but has no `verify_nodes`."""

    def verify_all(self, scores, proposal):
        return ByEquality().verify_all(scores, proposal)


class NodeByNode(Verifier):
    """Exact verifier with `verify_nodes` only."""

    def verify_nodes(self, scores, children, draft_probs):
        return ByEquality().verify_nodes(scores, children, draft_probs)


class OwnVerifier(Acceptance):
    """Acceptance that makes a verifier which a test chooses.

    Attributes:
        kind: class of the verifier.
    """

    needs = ("independent",)
    kind = NodeByNode

    def make_verifier(self, spec, sampling):
        return type(self).kind()


class MixedFromExact(Exact):
    """Acceptance that inherits from `Exact`, but has the relaxed probability of `Mixed`, so it is not exact."""

    needs = ("sampled",)
    relaxed_prob = Mixed.relaxed_prob


class Plain(Exact):
    """Exact custom acceptance."""

    needs = ("sampled",)
