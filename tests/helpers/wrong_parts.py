"""A user's own drafters and acceptances, some of which err; a test changes what the others return."""

from __future__ import annotations

from lantern.acceptance.base import Acceptance, ByEquality, Exact, Verifier
from lantern.acceptance.relaxed_sets import AdditiveBound, RelaxedSets
from lantern.drafters.base import Drafter
from lantern.drafters.jacobi import JacobiDrafter
from lantern.methods import PARAMETERS


class Guesses(JacobiDrafter):
    """Jacobi's, whose proposal a test changes."""

    is_coupled = True
    has_twins = True
    change = staticmethod(lambda proposal: proposal)

    def propose(self, state, root, lengths):
        return type(self).change(super().propose(state, root, lengths))


class Sampled(Guesses):
    is_sampled = True


class Treeless(Drafter):
    @classmethod
    def make(cls, models, spec, sampling):
        return cls()


class Shallow(JacobiDrafter):
    @classmethod
    def make(cls, models, spec, sampling):
        drafter = super().make(models, spec, sampling)
        drafter.max_depth = 2
        return drafter


class Broken(JacobiDrafter):
    @classmethod
    def make(cls, models, spec, sampling):
        raise KeyError("weights")


class Wide(Exact):
    """s(x) of all codes in place of the drafts'."""

    drafts = ("sampled",)
    change = staticmethod(lambda found: found)

    def relaxed_prob(self, probs, draft_probs, tokens):
        return type(self).change(super().relaxed_prob(probs, draft_probs, tokens))


class Sets(RelaxedSets):
    parameters = {"k": PARAMETERS["k"], "delta": PARAMETERS["delta"]}  # noqa: RUF012
    change = staticmethod(lambda found: found)

    def admits(self, mass, token_probs, spent):
        return type(self).change(mass <= 0.3)


class Additive(AdditiveBound):
    parameters = Sets.parameters

    def admits(self, mass, token_probs, spent):
        return mass <= 0.4 + self.delta


class Mixed(Acceptance):
    drafts = ("sampled",)

    def relaxed_prob(self, probs, draft_probs, tokens):
        return (probs.gather(-1, tokens) + draft_probs.gather(-1, tokens)) / 2


class AllAtOnce(Verifier):
    """Exact, and nothing is said of single nodes."""

    def verify_all(self, scores, proposal):
        return ByEquality().verify_all(scores, proposal)


class NodeByNode(Verifier):
    """Exact."""

    def verify_nodes(self, scores, children, draft_probs):
        return ByEquality().verify_nodes(scores, children, draft_probs)


class OwnVerifier(Acceptance):
    """Makes a verifier that a test chooses."""

    drafts = ("top",)
    kind = NodeByNode

    def make_verifier(self, spec, sampling):
        return type(self).kind()


class MixedFromExact(Exact):
    drafts = ("sampled",)
    relaxed_prob = Mixed.relaxed_prob


class Plain(Exact):
    """Exact, and a user's."""

    drafts = ("sampled",)
