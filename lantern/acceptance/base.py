"""Verification of drafts: which drafts are accepted, and which token is emitted after them.

Notation: x is a draft, p is the distribution that it was sampled from, and t is the target distribution. An
*acceptance* computes the relaxed probability s(x), which replaces t(x) when x is tested. A *verifier* tests the draft.
It either compares the draft with a token that it samples from t, or uses rejection sampling. The *bonus token* is the
token that is emitted after the last accepted draft.

A verifier decides each node of the draft tree independently. A GPU verifies all nodes at once, so that the shapes of
tensors are fixed and no result is copied to the host. A CPU usually does the same. If a step is large and the tree has
more than twice as many nodes as a path, a CPU follows the accepted drafts from the root instead, and verifies one node
per level. The verifier then computes no filters and no noise for the other nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from typing_extensions import override

from lantern.draft_tree import DraftTree, StaticTree, inner_indices, longest_path, of_all_nodes
from lantern.methods import MethodSpec
from lantern.noise import Stream
from lantern.parameters import ParameterValue
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern.step import Outcome, Proposal, Scores, pick_rows

MANY_LOGITS = 2**16  # on a CPU, a step is large if it has more logits, batch * nodes * vocab


@dataclass
class Merged:
    """The relaxed probabilities s(x) of drafts x, and the codes whose target probability moves onto x."""

    # These codes, with x itself last. If there are fewer than n, the other entries repeat x: [3, 7, 7] means that the
    # probability of code 3 moves onto the draft 7.
    taken: torch.Tensor  # (..., n)
    relaxed_prob: torch.Tensor  # s(x), (..., 1)


class Acceptance:
    """The base class of all acceptances.

    A custom class defines `relaxed_prob`. It may also declare the class attributes `parameters`, `needs` and `paper`,
    which are described in `lantern.registry.AcceptanceRow`. Each parameter becomes an attribute, as `self.delta`.

    Many functions take `probs`, the target distribution t, (..., vocab), and `draft_probs`, the distribution p that the
    drafts were sampled from, (..., vocab). `draft_probs` is None for deterministic drafts.
    """

    has_one_residual: ClassVar[bool] = True  # whether all rejected drafts leave the same residual "paper"

    def __init__(self, **parameters: ParameterValue) -> None:
        for name, value in parameters.items():
            setattr(self, name, value)

    @classmethod
    def make(cls, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Acceptance:
        """Make the acceptance of a method, by default from its parameters alone."""
        return cls(**spec.parameters)

    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        """Return s(x) >= 0 of n drafts x per node, int64 (..., n), in the same shape."""
        raise NotImplementedError

    def relaxed_prob_of_all(self, probs: torch.Tensor, draft_probs: torch.Tensor | None) -> torch.Tensor:
        """Return s(x) for every code x, (..., vocab)."""
        tokens = torch.arange(probs.shape[-1], device=probs.device).expand_as(probs)
        return self.relaxed_prob(probs, draft_probs, tokens)

    def codes_of(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return for drafts x, int64 (...), the codes whose target probabilities give s(x), (..., n), x as the last."""
        return tokens[..., None]

    def merge(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, codes: torch.Tensor) -> Merged:
        """Return s(x) of one draft x per node, and the codes that move onto x. `codes` are `codes_of` x."""
        return Merged(codes, self.relaxed_prob(probs, draft_probs, codes))

    def accepted_mass(self, probs: torch.Tensor, draft_probs: torch.Tensor) -> torch.Tensor:
        """Return the probability p(x) f(x) = min(p(x), s(x)) that a code is drafted and accepted, (..., vocab)."""
        return torch.minimum(draft_probs, self.relaxed_prob_of_all(probs, draft_probs))

    def residual(
        self, kind: str, probs: torch.Tensor, merged: Merged | None, draft_probs: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the residual distribution after one rejected draft x per node, not yet normalised, (..., vocab).

        `kind` is as in `lantern.acceptance.rejection.Rejection`. `merged` may be None if drafts are sampled and
        `has_one_residual` is True.
        """
        if draft_probs is None:  # deterministic drafts, for which `MethodSpec` refuses "matched"
            # max(0, t~ - p) of a point mass p at x: 0 at x, as s(x) <= 1, and 0 at the codes that moved onto x.
            return probs.scatter(-1, cast("Merged", merged).taken, 0.0)
        removed = self.accepted_mass(probs, draft_probs) if kind == "matched" else draft_probs
        return (probs - removed).clamp_(min=0)

    def at(self, depths: torch.Tensor) -> Acceptance:
        """Return the acceptance for children of nodes of some depths, (nodes,), 0 for the root.

        By default it is `self`. COOL-SD has a weight per depth. Only measurements call this, for nodes of many steps.
        """
        return self

    def of_next_sibling(self) -> Acceptance:
        """Return the acceptance that tests the next sibling after a rejection, by default `self`.

        A mixture leaves the residual of exact verification, from which `Exact` goes on.
        """
        return self

    def make_verifier(self, spec: MethodSpec, sampling: SamplingConfig) -> Verifier:
        """Make the verifier for drafts that are not verified by rejection sampling.

        By default a draft is accepted only if it equals the token that the target samples.
        """
        return ByEquality()


class Exact(Acceptance):
    """The exact acceptance, s(x) = t(x)."""

    @override
    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        return probs.gather(-1, tokens)


@dataclass
class Choice:
    """The decisions of a verifier at n nodes of each image, (batch, n) each."""

    chosen: torch.Tensor  # the children that hold this token are accepted
    bonus: torch.Tensor  # token that is emitted after the node if no child is accepted
    # The target's largest log-probability, with or without noise. If it is not finite, the model is broken.
    best: torch.Tensor


class Verifier:
    """The base class of all verifiers.

    Siblings that hold the same token are accepted together. Of all accepted paths the longest one is emitted. A
    subclass defines `verify_nodes`. If it can only verify all nodes at once, it defines `verify_all` instead.

    Attributes:
        noise_streams: streams that the verifier reads above temperature 0, in addition to `TARGET`.
        samples_target_tokens: whether the verifier samples a token from the target at every node. Only then can
            substitutions be counted.
        has_twins: whether two siblings may hold the same token. `lantern.decoding.make_verifier` sets it from the
            kind of drafts.
    """

    noise_streams: tuple[Stream, ...] = ()
    samples_target_tokens: ClassVar[bool] = True
    has_twins: bool = True

    def follows_path(self, sampling: SamplingConfig) -> bool:
        """Return whether this verifier may visit the nodes of the accepted path only, one after the other."""
        has_verify_nodes = type(self).verify_nodes is not Verifier.verify_nodes
        # Twins would both be accepted, but only one can be followed. Greedy decoding has no filters or noise to save.
        return has_verify_nodes and not self.has_twins and not sampling.is_greedy

    def verify(self, scores: Scores, proposal: Proposal) -> Outcome:
        """Verify the drafts of a step, all nodes at once or along the path."""
        tree = proposal.tree
        if tree.max_depth == 0:
            return _outcome_of_root(scores, proposal)
        is_costly = scores.logits.device.type == "cpu" and scores.logits.numel() > MANY_LOGITS
        if is_costly and tree.num_nodes > 2 * (tree.max_depth + 1) and self.follows_path(scores.sampling):
            is_accepted, bonus, best = self._verify_path(scores, proposal)
        else:
            is_accepted, bonus, best = self.verify_all(scores, proposal)
        path, num_accepted = self.choose_path(tree, is_accepted)
        bonus_of_path = bonus.gather(1, path)
        # Entry i of `emitted` follows node i of the path: the draft of node i + 1, or the bonus token after the last
        # node. `path` is padded with its last node, so that the entries after it are repetitions without meaning.
        next_drafts = F.pad(proposal.tokens.gather(1, path[:, 1:]), (0, 1))
        steps = torch.arange(path.shape[1], device=path.device)
        emitted = torch.where(steps == num_accepted[:, None], bonus_of_path, next_drafts)
        # If the verifier samples from the target, a node's bonus is the sample, whether or not a child was accepted.
        if self.samples_target_tokens:
            is_substituted = emitted != bonus_of_path
        else:
            is_substituted = torch.zeros_like(emitted, dtype=torch.bool)
        is_finite = best.gather(1, path).isfinite().all(1)  # each node of the path has given an emitted token
        return Outcome(proposal, scores, is_accepted, path, num_accepted, emitted, is_substituted, is_finite)

    def verify_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Verify all nodes at once.

        Returns:
            Three tensors of shape (batch, nodes): whether each node is accepted as a child of its parent, bool; the
            token that is emitted after each node if no child is accepted, int64; `Choice.best`.
        """
        tree = proposal.tree
        choice = self.verify_nodes(scores, of_all_nodes(proposal.children, tree, -1), proposal.draft_probs)
        # A node is accepted if it holds the token chosen at its parent.
        chosen = choice.chosen.gather(1, tree.parents.expand(proposal.tokens.shape))
        return chosen == proposal.tokens, choice.bonus, choice.best

    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """Verify the children of n nodes of each image.

        Args:
            scores: the target's scores of these n nodes. Where total variation is measured, `weights` and `keys` only.
            children: tokens of the nodes' children, int64 (batch, n, m), with m children per node. -1 marks a missing
                child.
            draft_probs: distributions that the children were sampled from, (batch, n, vocab). None for deterministic
                drafts.
        """
        raise NotImplementedError

    def choose_path(self, tree: DraftTree, is_accepted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the accepted path that is emitted, as `longest_path`, which is the default."""
        return longest_path(tree, is_accepted)

    def _verify_path(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Verify the root's children, then the children of the accepted child, and so on. Skip all other nodes.

        The result is that of `verify_all`. Skipped nodes are not accepted, and have no meaning otherwise.
        """
        tree = proposal.tree
        tokens = proposal.tokens
        child_nodes = of_all_nodes(tree.children, tree, 0).expand(len(tokens), -1, -1)  # (batch, nodes, m)
        child_tokens = of_all_nodes(proposal.children, tree, -1)  # (batch, nodes, m)
        inner_index = inner_indices(tree)[0]  # `draft_probs` has rows of inner nodes only
        is_accepted = torch.zeros_like(tokens, dtype=torch.bool)
        bonus = torch.zeros_like(tokens)
        best = scores.logits.new_zeros(tokens.shape)
        node = torch.zeros_like(tokens[:, :1])  # the last accepted node of each image
        is_reached = torch.ones_like(node, dtype=torch.bool)  # whether all drafts so far were accepted
        # The levels of a dynamic tree are not known on the host. Missing children are -1.
        is_static = isinstance(tree, StaticTree)
        widths = tree.level_children if is_static else tree.max_depth * [tree.children.shape[-1]]
        for width in [*widths, 0]:  # at the leaves only the bonus token is sampled
            drafted = pick_rows(child_tokens, node)[..., :width]  # (batch, 1, width)
            draft_probs = None
            if proposal.draft_probs is not None:
                draft_probs = pick_rows(proposal.draft_probs, inner_index[node])  # (batch, 1, vocab)
            choice = self.verify_nodes(scores.at(node), drafted, draft_probs)
            # Images whose path has ended stay at their last node until the others have ended, too. Its results stay.
            bonus.scatter_(1, node, torch.where(is_reached, choice.bonus, bonus.gather(1, node)))
            best.scatter_(1, node, torch.where(is_reached, choice.best, best.gather(1, node)))
            if width == 0:
                break
            # The largest bool: whether any child is accepted, and which one. Without twins, at most one is.
            has_accepted, rank = (drafted == choice.chosen[..., None]).max(dim=-1)
            is_reached = is_reached & has_accepted
            if not is_reached.any():
                break
            child = pick_rows(child_nodes, node)[:, 0].gather(1, rank)
            node = torch.where(is_reached, child, node)
            is_accepted.scatter_(1, node, True)
        return is_accepted, bonus, best


def _outcome_of_root(scores: Scores, proposal: Proposal) -> Outcome:
    """Return the outcome of a step without drafts, whose only token is the target's sample."""
    best, sampled = scores.keys.max(-1)
    none = torch.zeros_like(sampled, dtype=torch.bool)
    root = torch.zeros_like(sampled)
    return Outcome(
        proposal,
        scores,
        is_accepted=none,
        path=root,
        num_accepted=root[:, 0],
        emitted=sampled,
        is_substituted=none,
        is_finite=best[:, 0].isfinite(),
    )


class ByEquality(Verifier):
    """Exact verification: a draft is accepted if it is the token that the target samples at the draft's parent."""

    @override
    def verify_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        best, sampled = scores.keys.max(-1)
        # The same as `Verifier.verify_all`, without a tensor of all nodes' children.
        sampled_of_parent = sampled.gather(1, proposal.tree.parents.expand(sampled.shape))
        return sampled_of_parent == proposal.tokens, sampled, best

    @override
    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        best, sampled = scores.keys.max(-1)
        # If a child holds the sample, it is accepted. If none does, the same sample is the bonus token.
        return Choice(sampled, sampled, best)


def token_of(rank: torch.Tensor, children: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """Return the token of one child per node, or `otherwise` if none is selected, (...).

    `rank`, (...), is the index of the child among `children`, (..., m), or m if none is selected.
    """
    tokens = torch.cat([children, otherwise[..., None]], dim=-1)
    return tokens.gather(-1, rank[..., None]).squeeze(-1)
