"""Verification of drafts: which drafts are accepted, and which token follows them.

An *acceptance* (`Acceptance` and its subclasses) gives the relaxed probability s(x) of a draft x. A *verifier*
(`Verifier` and its subclasses) decides with it. It either compares drafts with the token that the target samples, or
tests them by rejection sampling. The *bonus* token is the token that is emitted after the last accepted draft.

A verifier decides each node independently. Usually it verifies all nodes at once. On a CPU, if a tree has many more
nodes than levels, it follows the accepted path instead and verifies one node per level. This computes filters, noise
and relaxed sets for fewer nodes. On a GPU shapes are fixed, and nothing is read back to the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F

from lantern.draft_tree import DraftTree, StaticTree, inner_indices, longest_path, of_all_nodes
from lantern.methods import MethodSpec
from lantern.parameters import ParameterValue
from lantern.sampling import SamplingConfig
from lantern.step import Outcome, Proposal, Scores, pick_rows

MANY_LOGITS = 2**16  # if a step on a CPU has more logits, only the nodes of the path are verified


@dataclass
class Merged:
    """Relaxed probability s(x) of drafts x, and the codes that add to it.

    Attributes:
        taken: codes whose probabilities add up to s(x), x last, int64 (..., n). Entries that do not count are replaced
            by x.
        relaxed_prob: s(x), (..., 1).
    """

    taken: torch.Tensor
    relaxed_prob: torch.Tensor


class Readings(NamedTuple):
    """The inputs from which an acceptance is made.

    Attributes:
        sampling: temperature and filters.
        nearest_codes: integer table (vocab, columns), or None.
        embedding: the target's code embeddings, (vocab, dim), or None.
    """

    sampling: SamplingConfig
    nearest_codes: torch.Tensor | None
    embedding: torch.Tensor | None


class Acceptance:
    """The base class of all acceptances, which give the relaxed probability s(x) of a draft x.

    A custom class defines `relaxed_prob`. It may declare `parameters`, `drafts` and `paper`, which are described in
    `lantern.methods.AcceptanceRow`.

    Args:
        parameters: values of the declared parameters. Each becomes an attribute, for example `self.delta`.
    """

    def __init__(self, **parameters: ParameterValue) -> None:
        for name, value in parameters.items():
            setattr(self, name, value)

    @classmethod
    def make(cls, spec: MethodSpec, read: Readings) -> Acceptance:
        """Make the acceptance of a method from its parameters and its inputs."""
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

    def move_mass(self, probs: torch.Tensor, merged: Merged | None) -> torch.Tensor:
        """Return the target distribution after the probabilities that add up to s(x) have moved onto x.

        By default only x itself adds to s(x), so that `probs` is returned unchanged.

        Args:
            probs: target distribution, (..., vocab).
            merged: s(x) of one draft x per node. None only if `has_one_residual` returns True.
        """
        return probs

    def has_one_residual(self) -> bool:
        """Return whether the residual distribution is the same for every rejected draft x.

        This holds if `move_mass` moves nothing.
        """
        return True

    def at(self, depths: torch.Tensor) -> Acceptance:
        """Return the acceptance at nodes of given depths, int64 (nodes,)."""
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
        chosen: the token of the accepted child, int64 (batch, n). Children with this token are accepted.
        bonus: the token that is emitted if no child is accepted, int64 (batch, n).
        best: score of `bonus`, the largest of all codes, (batch, n). Not finite if the logits are not finite.
    """

    chosen: torch.Tensor
    bonus: torch.Tensor
    best: torch.Tensor


class Verifier:
    """The base class of all verifiers, which decide which drafts are accepted and which token follows.

    Siblings that hold the same token are accepted together, and the longest path wins. A subclass defines
    `verify_nodes`. If it needs all nodes at once, it defines `verify_all` instead.

    Attributes:
        noise_streams: names of the noise that it reads above temperature 0, besides the target's.
        samples_target_tokens: whether the target samples a token at every node. Only then are substitutions defined.
        has_twins: whether two siblings may hold the same token. `make_verifier` sets it from the kind of drafts.
    """

    noise_streams: ClassVar[tuple[str, ...]] = ()
    samples_target_tokens: ClassVar[bool] = True
    has_twins: bool = True

    def follows_path(self, sampling: SamplingConfig) -> bool:
        """Return whether it is enough to verify the nodes of the accepted path, one after the other."""
        has_verify_nodes = type(self).verify_nodes is not Verifier.verify_nodes
        return has_verify_nodes and not self.has_twins and not sampling.is_greedy

    def verify(self, scores: Scores, proposal: Proposal) -> Outcome:
        """Find the accepted path and the emitted tokens.

        Args:
            scores: the target's scores of all nodes.
            proposal: the drafts.
        """
        tree = proposal.tree
        if tree.max_depth == 0:
            return _outcome_of_root(scores, proposal)
        # On a GPU a few wide operations take less time than many narrow ones.
        is_costly = scores.logits.device.type == "cpu" and scores.logits.numel() > MANY_LOGITS
        if is_costly and tree.num_nodes > 2 * (tree.max_depth + 1) and self.follows_path(scores.sampling):
            return self._verify_path(scores, proposal)
        is_accepted, bonus, best = self.verify_all(scores, proposal)
        path, num_accepted = longest_path(tree, is_accepted, self.order_of_nodes(tree))
        bonus_of_path = bonus.gather(1, path)
        next_drafts = F.pad(proposal.tokens.gather(1, path[:, 1:]), (0, 1))
        steps = torch.arange(path.shape[1], device=path.device)
        emitted = torch.where(steps == num_accepted[:, None], bonus_of_path, next_drafts)
        if self.samples_target_tokens:
            is_substituted = emitted != bonus_of_path
        else:
            is_substituted = torch.zeros_like(emitted, dtype=torch.bool)
        is_finite = best.gather(1, path[:, -1:])[:, 0].isfinite()
        return Outcome(proposal, scores, is_accepted, path, num_accepted, emitted, is_substituted, is_finite)

    def verify_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Verify all nodes at once.

        Returns:
            (whether each node is accepted by its parent, bool (batch, nodes); `Choice.bonus` and `Choice.best` of all
            nodes, (batch, nodes)).
        """
        tree = proposal.tree
        choice = self.verify_nodes(scores, of_all_nodes(proposal.children, tree, -1), proposal.draft_probs)
        chosen = choice.chosen.gather(1, tree.parents.expand(proposal.tokens.shape))
        return chosen == proposal.tokens, choice.bonus, choice.best

    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """Verify the children of some nodes.

        Args:
            scores: the target's scores of the nodes.
            children: drafted tokens, int64 (batch, n, m); -1 marks a missing draft.
            draft_probs: distributions that they were sampled from, (batch, n, vocab), or None.
        """
        raise NotImplementedError

    def order_of_nodes(self, tree: DraftTree) -> torch.Tensor | None:
        """Return the argument `order` of `longest_path`, which chooses between paths of the same length.

        None chooses by node number.
        """
        return None

    def _verify_path(self, scores: Scores, proposal: Proposal) -> Outcome:
        """Verify the root, then the child that it accepts, and so on.

        No two siblings may hold the same token.
        """
        tree = proposal.tree
        tokens = proposal.tokens
        child_nodes = of_all_nodes(tree.children, tree, 0).expand(len(tokens), -1, -1)  # (batch, nodes, m)
        child_tokens = of_all_nodes(proposal.children, tree, -1)  # (batch, nodes, m)
        inner_index = inner_indices(tree)[0]
        node = torch.zeros_like(tokens[:, :1])  # the last accepted node of each image
        is_reached = torch.ones_like(node, dtype=torch.bool)  # whether all drafts so far were accepted
        num_accepted = torch.zeros_like(node)
        bonus = node
        best = scores.logits[:, :1, 0]
        path = [node]
        emitted: list[torch.Tensor] = []
        is_substituted: list[torch.Tensor] = []
        for width in [*_widths_of_levels(tree), 0]:  # leaves have no children
            drafted = pick_rows(child_tokens, node)[..., :width]  # (batch, 1, width)
            draft_probs = None
            if proposal.draft_probs is not None:
                draft_probs = pick_rows(proposal.draft_probs, inner_index[node])
            choice = self.verify_nodes(scores.at(node), drafted, draft_probs)
            bonus = torch.where(is_reached, choice.bonus, bonus)
            best = torch.where(is_reached, choice.best, best)
            if width == 0:
                break
            has_accepted, rank = (drafted == choice.chosen[..., None]).max(dim=-1)
            is_reached = is_reached & has_accepted
            num_accepted = num_accepted + is_reached
            child = pick_rows(child_nodes, node)[:, 0].gather(1, rank)
            node = torch.where(is_reached, child, node)
            token = torch.where(is_reached, choice.chosen, bonus)
            path.append(node)
            emitted.append(token)
            is_substituted.append(token != bonus)
            if not is_reached.any():
                break
        num_skipped = tree.max_depth - len(emitted)  # levels that no image reached
        path += num_skipped * [node]
        emitted += (num_skipped + 1) * [bonus]
        is_substituted += (num_skipped + 1) * [torch.zeros_like(is_reached)]
        nodes = torch.cat(path, dim=1)
        return Outcome(
            proposal,
            scores,
            is_accepted=torch.zeros_like(tokens, dtype=torch.bool).scatter(1, nodes, True),
            path=nodes,
            num_accepted=num_accepted[:, 0],
            emitted=torch.cat(emitted, dim=1),
            is_substituted=torch.cat(is_substituted, dim=1) & self.samples_target_tokens,
            is_finite=best[:, 0].isfinite(),
        )


def _outcome_of_root(scores: Scores, proposal: Proposal) -> Outcome:
    """Return the outcome of a step without drafts, which emits the token that the target samples."""
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


def _widths_of_levels(tree: DraftTree) -> list[int]:
    """Return the largest number of children of a node per level, without the last level, which has none."""
    if isinstance(tree, StaticTree):
        return tree.level_children
    return tree.max_depth * [tree.children.shape[-1]]


class ByEquality(Verifier):
    """Exact verification: a draft is accepted if it is the token that the target samples."""

    def verify_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Compare every draft with the target's token at its parent."""
        best, sampled = scores.keys.max(-1)
        sampled_of_parent = sampled.gather(1, proposal.tree.parents.expand(sampled.shape))
        return sampled_of_parent == proposal.tokens, sampled, best

    def verify_nodes(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """Sample a token from the target at each node. The child with that token is accepted, if there is one."""
        best, sampled = scores.keys.max(-1)
        return Choice(sampled, sampled, best)


def token_of(rank: torch.Tensor, children: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """Return the token of the child with a given rank.

    Args:
        rank: rank of the child, int64 (...), from 0 to m.
        children: tokens of the children, int64 (..., m).
        otherwise: token to return if the rank is m, int64 (...).
    """
    tokens = torch.cat([children, otherwise[..., None]], dim=-1)
    return tokens.gather(-1, rank[..., None]).squeeze(-1)
