"""Verification of drafts: which are accepted, and which token follows.

An *acceptance* (`Acceptance` and its subclasses) gives the relaxed probability s(x) of a draft x. A *verifier*
(`Verifier` and its subclasses) decides with it: it compares drafts with the token that the target samples, or tests
them by rejection.

A verifier decides each node without the others. Usually it verifies all nodes at once. On a CPU, if a tree has many
more nodes than levels, it verifies only the nodes of the accepted path, level after level, so that filters, noise and
relaxed sets are computed for few rows. Elsewhere shapes are fixed, and nothing is read back to the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F

from lantern.draft_tree import DraftTree, StaticTree, inner_places, longest_path, of_all_nodes
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig
from lantern.step import Outcome, Proposal, Scores, pick_rows

MANY_LOGITS = 2**16  # of a step on a CPU: with more, only the nodes of the path are verified


@dataclass
class Merged:
    """Relaxed probability s(x) of drafts x, and the codes that add to it.

    Attributes:
        taken: int64, (..., n): the codes whose probabilities add up to s(x), x last. x replaces those that do not
            count.
        relaxed_prob: (..., 1): s(x).
    """

    taken: torch.Tensor
    relaxed_prob: torch.Tensor


class Readings(NamedTuple):
    """Inputs from which an acceptance is made.

    Attributes:
        sampling: temperature and filters.
        nearest_codes: integer table (vocab, columns), or None.
        embedding: the target's code embeddings, (vocab, dim), or None.
    """

    sampling: SamplingConfig
    nearest_codes: torch.Tensor | None
    embedding: torch.Tensor | None


class Acceptance:
    """The base class of all acceptances: what gives the relaxed probability s(x) of a draft x.

    A custom class defines `relaxed_prob`. It may declare `parameters`, `drafts` and `paper` as
    `lantern.methods.AcceptanceRow` has them. Its parameters become attributes of the object.

    Attributes:
        moves_mass: whether other codes' mass goes to x, so that the residual distribution depends on x.
        needs_rejection: whether it applies to rejection sampling only. Elsewhere decoding is exact.
    """

    moves_mass: ClassVar[bool] = False
    needs_rejection: ClassVar[bool] = False

    def __init__(self, **parameters: Any) -> None:
        vars(self).update(parameters)

    @classmethod
    def make(cls, spec: MethodSpec, read: Readings) -> Acceptance:
        """Make the acceptance of a method, from its parameters and from what it reads."""
        return cls(**spec.parameters)

    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        """Return s(x), (..., n).

        Args:
            probs: target distribution t, (..., vocab).
            draft_probs: distribution p that x was sampled from, (..., vocab); None for deterministic drafts.
            tokens: drafts x, int64 (..., n).
        """
        raise NotImplementedError

    def relaxed_prob_of_all(self, probs: torch.Tensor, draft_probs: torch.Tensor | None) -> torch.Tensor:
        """Return s(x) of every code x, (..., vocab)."""
        tokens = torch.arange(probs.shape[-1], device=probs.device).expand_as(probs)
        return self.relaxed_prob(probs, draft_probs, tokens)

    def codes_of(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the codes whose probabilities determine s(x).

        Args:
            tokens: drafts x, int64 (...).

        Returns:
            int64 (..., n), x last.
        """
        return tokens[..., None]

    def merge(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, codes: torch.Tensor) -> Merged:
        """Return s(x) of one draft per node, from the codes that `codes_of` returns."""
        return Merged(codes, self.relaxed_prob(probs, draft_probs, codes))

    def at(self, depths: torch.Tensor) -> Acceptance:
        """Return the acceptance at nodes of these depths, int64 (nodes,)."""
        return self

    def of_next_sibling(self) -> Acceptance:
        """Return the acceptance of the sibling that follows a rejected draft."""
        return self

    def make_verifier(self, spec: MethodSpec, sampling: SamplingConfig) -> Verifier:
        """Make the verifier that compares drafts with the token that the target samples."""
        return ByEquality()


class Exact(Acceptance):
    """Exact decoding: s(x) = t(x)."""

    def relaxed_prob(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        """Return t(x)."""
        return probs.gather(-1, tokens)


@dataclass
class Choice:
    """The decisions of a verifier at some nodes.

    Attributes:
        chosen: int64, (batch, n): children with this token are accepted.
        own: int64, (batch, n): the token emitted where no child is.
        best: (batch, n): the largest of the numbers by which `own` was found; not finite where the logits are not.
    """

    chosen: torch.Tensor
    own: torch.Tensor
    best: torch.Tensor


class Verifier:
    """The base class of all verifiers: decides which drafts are accepted, and which token follows.

    Siblings that hold the same token are accepted together; the longest path wins. A subclass defines `verify_nodes`.
    One that needs all nodes at once defines `verify_all` instead.

    Attributes:
        noise_streams: what is read of the noise besides the target's own, at temperatures above 0.
        draws_target_tokens: whether the target draws a token of its own at every node, so that a substitution is
            defined.
        follows_path: whether only the nodes of the path may be verified: no two siblings hold the same token.
    """

    noise_streams: ClassVar[tuple[str, ...]] = ()
    draws_target_tokens: ClassVar[bool] = True
    follows_path: bool = False

    def verify(self, scores: Scores, proposal: Proposal) -> Outcome:
        """Find the accepted path and the emitted tokens.

        Args:
            scores: the target's scores of all nodes.
            proposal: the drafts.
        """
        tree = proposal.tree
        if tree.max_depth == 0:
            best, own = scores.keys.max(-1)
            no, nothing = torch.zeros_like(own, dtype=torch.bool), torch.zeros_like(own)
            return Outcome(proposal, scores, no, nothing, nothing[:, 0], own, no, best[:, 0].isfinite())
        # On a GPU a few wide operations take less time than many narrow ones.
        is_costly = scores.logits.device.type == "cpu" and scores.logits.numel() > MANY_LOGITS
        if self.follows_path and is_costly and tree.num_nodes > 2 * (tree.max_depth + 1):
            return self._verify_path(scores, proposal)
        is_accepted, own, best = self.verify_all(scores, proposal)
        path, num_accepted = longest_path(tree, is_accepted, self.order_of_nodes(tree))
        own = own.gather(1, path)
        drafted = F.pad(proposal.tokens.gather(1, path[:, 1:]), (0, 1))
        steps = torch.arange(path.shape[1], device=path.device)
        emitted = torch.where(steps == num_accepted[:, None], own, drafted)
        is_substituted = emitted != own if self.draws_target_tokens else torch.zeros_like(emitted, dtype=torch.bool)
        is_finite = best.gather(1, path[:, -1:])[:, 0].isfinite()
        return Outcome(proposal, scores, is_accepted, path, num_accepted, emitted, is_substituted, is_finite)

    def verify_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Verify all nodes at once: (accepted by its parent, bool (batch, nodes); own and best of `Choice`)."""
        tree = proposal.tree
        choice = self.verify_nodes(scores, of_all_nodes(proposal.children, tree, -1), proposal.draft_probs)
        chosen = choice.chosen.gather(1, tree.parents.expand(proposal.tokens.shape))
        return chosen == proposal.tokens, choice.own, choice.best

    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """Verify the children of some nodes.

        Args:
            scores: the target's scores of the nodes.
            children: drafted tokens, int64 (batch, n, m); -1 marks a missing draft.
            draft_probs: distributions that they were sampled from, (batch, n, vocab), or None.
        """
        raise NotImplementedError

    def order_of_nodes(self, tree: DraftTree) -> torch.Tensor | None:
        """Return which of several paths of one length comes first, as `longest_path` takes it. None: by node number."""
        return None

    def _verify_path(self, scores: Scores, proposal: Proposal) -> Outcome:
        """Verify the root, then the child that it accepts, and so on; no two siblings may hold the same token."""
        tree, tokens, drawn_from = proposal.tree, proposal.tokens, proposal.draft_probs
        children = of_all_nodes(tree.children, tree, 0).expand(len(tokens), -1, -1)
        drafts = of_all_nodes(proposal.children, tree, -1)  # (batch, nodes, m)
        places = None if drawn_from is None else inner_places(tree)[0]
        widths = tree.level_children if isinstance(tree, StaticTree) else tree.max_depth * [children.shape[-1]]
        node, is_reached = torch.zeros_like(tokens[:, :1]), torch.ones_like(tokens[:, :1], dtype=torch.bool)
        path, emitted, is_substituted, num_accepted = [node], [], [], torch.zeros_like(node)
        own, best = node, scores.logits[:, :1, 0]
        for width in [*widths, 0]:
            drafted = pick_rows(drafts, node)[..., :width]  # (batch, 1, width)
            draft_probs = None if drawn_from is None else pick_rows(drawn_from, places[node])
            choice = self.verify_nodes(scores.at(node), drafted, draft_probs)
            own, best = torch.where(is_reached, choice.own, own), torch.where(is_reached, choice.best, best)
            if width == 0:
                break
            is_fit, rank = (drafted == choice.chosen[..., None]).max(dim=-1)
            is_reached = is_reached & is_fit
            child = pick_rows(children, node)[:, 0].gather(1, rank)
            node, num_accepted = torch.where(is_reached, child, node), num_accepted + is_reached
            path.append(node)
            emitted.append(torch.where(is_reached, choice.chosen, own))
            is_substituted.append(emitted[-1] != own)
            if not is_reached.any():
                break
        num_left = tree.max_depth - len(emitted)  # levels that nothing reached
        path, emitted = torch.cat(path + num_left * [node], dim=1), torch.cat(emitted + (num_left + 1) * [own], dim=1)
        return Outcome(
            proposal,
            scores,
            torch.zeros_like(tokens, dtype=torch.bool).scatter(1, path, True),
            path,
            num_accepted[:, 0],
            emitted,
            torch.cat(is_substituted + (num_left + 1) * [node != node], dim=1) & self.draws_target_tokens,
            best[:, 0].isfinite(),
        )


class ByEquality(Verifier):
    """Exact decoding: a draft is accepted if it is the token that the target samples."""

    def verify_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The children need not be known."""
        best, own = scores.keys.max(-1)
        return own.gather(1, proposal.tree.parents.expand(own.shape)) == proposal.tokens, own, best

    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """The target's token, whatever was drafted."""
        best, own = scores.keys.max(-1)
        return Choice(own, own, best)


def token_of(rank: torch.Tensor, children: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """Token of the child of this rank, or `otherwise`, like rank, where the rank is that of no child."""
    return torch.cat([children, otherwise[..., None]], dim=-1).gather(-1, rank[..., None]).squeeze(-1)
