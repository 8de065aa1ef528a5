"""How a method's drafts are verified: which are accepted, and what is emitted behind them.

Two ideas meet here. An *acceptance* (`Exact` and its subclasses) says how much target mass s(x) a draft x stands for.
A *rule* (`Rule` and its subclasses) turns that into decisions: by comparing drafts with a token that the target draws,
or by rejection. A rule judges nodes, each by itself. All nodes are judged at once; or, on a CPU and a tree with many
more nodes than levels, those of the path alone that is taken, level after level until it ends, so that filters, noise
and relaxed sets are worked out for few rows. Elsewhere shapes are fixed, and nothing is read back to the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F

from lantern.draft_tree import StaticTree, first_leaf, inner_places, longest_path, of_all_nodes
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig
from lantern.step import Outcome, Proposal, Scores, pick_rows

MANY_LOGITS = 2**16  # of a step on a CPU: with more, the nodes of the path alone are judged


@dataclass
class Merged:
    """The target mass that some drafts x stand for.

    Attributes:
        taken: int64, (..., n): the codes whose mass it is, x last; x stands in for those that are not.
        surrogate: (..., 1): s(x).
    """

    taken: torch.Tensor
    surrogate: torch.Tensor


class Readings(NamedTuple):
    """What an acceptance may read: the sampling, nearest codes, whole numbers (vocab, columns), and the target's
    embedding of its codes, (vocab, dim).
    """

    sampling: SamplingConfig
    nearest_codes: torch.Tensor | None
    embedding: torch.Tensor | None


class Exact:
    """Exact decoding, and the base of all that relaxes it: a draft x stands for its own target mass, s(x) = t(x).

    A class of a user's own may declare `parameters`, `drafts` and `paper` as `lantern.methods.Acceptance` has them; its
    parameters become attributes of the object.

    Attributes:
        moves_mass: whether other codes' mass goes to x, so that what a rejection leaves depends on x.
        needs_rejection: whether it changes the test of rejection alone; elsewhere decoding is exact.
    """

    moves_mass: ClassVar[bool] = False
    needs_rejection: ClassVar[bool] = False

    def __init__(self, **parameters: Any) -> None:
        vars(self).update(parameters)

    @classmethod
    def make(cls, spec: MethodSpec, read: Readings) -> Exact:
        """The acceptance of a method, from its parameters and from what it reads."""
        return cls(**spec.parameters)

    def surrogate(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        """s(x), (..., n).

        Args:
            probs: target distribution t, (..., vocab).
            draft_probs: distribution p that x was drawn from, (..., vocab); None for deterministic drafts.
            tokens: int64, (..., n): drafts x.
        """
        return probs.gather(-1, tokens)

    def surrogate_of_all(self, probs: torch.Tensor, draft_probs: torch.Tensor | None) -> torch.Tensor:
        """s(x) of every code x, (..., vocab)."""
        tokens = torch.arange(probs.shape[-1], device=probs.device).expand_as(probs)
        return self.surrogate(probs, draft_probs, tokens)

    def codes_of(self, tokens: torch.Tensor) -> torch.Tensor:
        """The codes whose mass matters for drafts int64 (...), the draft last: int64 (..., n)."""
        return tokens[..., None]

    def merge(self, probs: torch.Tensor, draft_probs: torch.Tensor | None, codes: torch.Tensor) -> Merged:
        """s(x) of one draft per node, from what `codes_of` gives."""
        return Merged(codes, self.surrogate(probs, draft_probs, codes))

    def at(self, depths: torch.Tensor) -> Exact:
        """The acceptance at nodes of these depths, int64 (nodes,)."""
        return self

    def of_next_sibling(self) -> Exact:
        """The acceptance of what follows a rejected draft."""
        return self

    def make_rule(self, spec: MethodSpec, sampling: SamplingConfig) -> Rule:
        """The rule where drafts are compared with what the target draws."""
        return ByEquality()


@dataclass
class Choice:
    """What a rule makes of some nodes.

    Attributes:
        chosen: int64, (batch, n): children with this token are accepted.
        own: int64, (batch, n): the token emitted where no child is.
        best: (batch, n): the largest of the numbers by which `own` was found; not finite where the logits are not.
    """

    chosen: torch.Tensor
    own: torch.Tensor
    best: torch.Tensor


class Rule:
    """What all rules share: the way through the tree.

    Siblings that carry the same token are accepted together; the longest path wins.

    Attributes:
        noise_streams: what is read of the noise besides the target's own, at temperatures above 0.
        draws_target_tokens: whether the target draws a token of its own at every node, so that a substitution is
            defined.
        judges_by_node: whether a node can be judged without those beside it.
        follows_path: whether nodes of the path alone may be judged.
        takes_first_leaf: whether the first leaf decides between paths of one length, not the first node.
    """

    noise_streams: ClassVar[tuple[str, ...]] = ()
    draws_target_tokens: ClassVar[bool] = True
    judges_by_node: ClassVar[bool] = True
    follows_path: bool = False
    takes_first_leaf: bool = False

    def verify(self, scores: Scores, proposal: Proposal) -> Outcome:
        """Finds the path that is taken and the tokens that are emitted; scores are the target's view of all nodes."""
        tree = proposal.tree
        if tree.max_depth == 0:
            best, own = scores.keys.max(-1)
            no, nothing = torch.zeros_like(own, dtype=torch.bool), torch.zeros_like(own)
            return Outcome(proposal, scores, no, nothing, nothing[:, 0], own, no, best[:, 0].isfinite())
        # On a GPU a few wide operations take less time than many narrow ones.
        is_costly = scores.logits.device.type == "cpu" and scores.logits.numel() > MANY_LOGITS
        if self.follows_path and is_costly and tree.num_nodes > 2 * (tree.max_depth + 1):
            return self._judge_path(scores, proposal)
        is_accepted, own, best = self.judge_all(scores, proposal)
        order = first_leaf(tree) if self.takes_first_leaf else None
        path, num_accepted = longest_path(tree, is_accepted, order)
        own = own.gather(1, path)
        drafted = F.pad(proposal.tokens.gather(1, path[:, 1:]), (0, 1))
        steps = torch.arange(path.shape[1], device=path.device)
        emitted = torch.where(steps == num_accepted[:, None], own, drafted)
        is_substituted = emitted != own if self.draws_target_tokens else torch.zeros_like(emitted, dtype=torch.bool)
        is_finite = best.gather(1, path[:, -1:])[:, 0].isfinite()
        return Outcome(proposal, scores, is_accepted, path, num_accepted, emitted, is_substituted, is_finite)

    def judge_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Judges all nodes at once: (accepted by its parent, bool (batch, nodes); own and best of `Choice`)."""
        tree = proposal.tree
        choice = self.judge(scores, of_all_nodes(proposal.children, tree, -1), proposal.draft_probs)
        chosen = choice.chosen.gather(1, tree.parents.expand(proposal.tokens.shape))
        return chosen == proposal.tokens, choice.own, choice.best

    def judge(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """Judges each of some nodes by its scores: children int64 (batch, n, m) are drafted tokens, -1 where there is
        none; draft_probs, (batch, n, vocab), what they were drawn from, None unless they were sampled.
        """
        raise NotImplementedError

    def _judge_path(self, scores: Scores, proposal: Proposal) -> Outcome:
        """Judges the root, then the child that it accepts, and so on; no two siblings carry the same token here."""
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
            choice = self.judge(scores.at(node), drafted, draft_probs)
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


class ByEquality(Rule):
    """Exact decoding: a draft is accepted if it is the token that the target draws."""

    def judge_all(self, scores: Scores, proposal: Proposal) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The children need not be known."""
        best, own = scores.keys.max(-1)
        return own.gather(1, proposal.tree.parents.expand(own.shape)) == proposal.tokens, own, best

    def judge(self, scores: Scores, children: torch.Tensor, draft_probs: torch.Tensor | None) -> Choice:
        """The target's token, whatever was drafted."""
        best, own = scores.keys.max(-1)
        return Choice(own, own, best)


def token_of(rank: torch.Tensor, children: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """Token of the child of this rank, or `otherwise`, like rank, where the rank is that of no child."""
    return torch.cat([children, otherwise[..., None]], dim=-1).gather(-1, rank[..., None]).squeeze(-1)
