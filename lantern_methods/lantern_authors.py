"""Residuals and the choice of paths in the code of LANTERN (arXiv 2410.03355), needed to reproduce its numbers.

Let t be the target distribution and p the distribution that a rejected draft was sampled from. The residual is max(0,
t - p). For a deterministic draft it is t without the draft.

In the paper, the residual is also 0 at the codes of the draft's relaxed set. The authors' code differs in two ways:

- If the relaxed set has any code, t is first set to 0 at all k + 1 nearest codes of the draft. For LlamaGen's sampled
  drafts, p instead of t is set to 0 there.
- If the residual would be 0 at all codes, the uniform distribution replaces it.

At temperature 0, their code orders the paths of a dynamic tree by their leaves, and emits the first of the longest.

Source: jadohu/LANTERN models/kv_variants/utils.py (evaluate_posterior, evaluate_posterior_v1).
"""

from __future__ import annotations

import torch
from typing_extensions import override

from lantern.acceptance.base import Merged
from lantern.acceptance.relaxed_sets import GreedyWithinBound, RelaxedSets
from lantern.draft_tree import DraftTree, StaticTree, reached_nodes


def llamagen(sets: RelaxedSets, probs: torch.Tensor, merged: Merged, draft_probs: torch.Tensor | None) -> torch.Tensor:
    """Return LlamaGen's residual after one rejected draft per node, not yet normalised, (..., vocab)."""
    if draft_probs is None:
        return lumina(sets, probs, merged, None)
    return _residual(probs, merged, _without_nearest(sets, draft_probs, merged))


def lumina(sets: RelaxedSets, probs: torch.Tensor, merged: Merged, draft_probs: torch.Tensor | None) -> torch.Tensor:
    """Return the same of Lumina-mGPT."""
    return _residual(_without_nearest(sets, probs, merged), merged, draft_probs)


def _without_nearest(sets: RelaxedSets, probs: torch.Tensor, merged: Merged) -> torch.Tensor:
    """Return `probs` with 0 at the k + 1 nearest codes of drafts whose relaxed sets have any code."""
    token = merged.taken[..., -1:]
    wide = sets.codes_of(token[..., 0], sets.k + 1)[..., :-1]  # without the draft, which is the last
    has_code = merged.taken[..., :1] != token  # if A(x) has any code, it has the nearest one
    return probs.scatter(-1, wide, torch.where(has_code, 0.0, probs.gather(-1, wide)))


def _residual(probs: torch.Tensor, merged: Merged, draft_probs: torch.Tensor | None) -> torch.Tensor:
    # A deterministic draft has p = 1, hence max(0, t - p) is t without it.
    token = merged.taken[..., -1:]
    residual = probs.scatter(-1, token, 0.0) if draft_probs is None else (probs - draft_probs).clamp(min=0)
    return torch.where(residual.sum(-1, keepdim=True) > 0, residual, 1.0)


class GreedyByFirstLeaf(GreedyWithinBound):
    """The verifier at temperature 0. Greedy relaxed decoding has ties, since it may accept several siblings.

    Of the longest accepted paths in a dynamic tree, it takes the one whose end has the lowest-numbered leaf among
    itself and its descendants.
    """

    @override
    def choose_path(self, tree: DraftTree, is_accepted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(tree, StaticTree):
            return super().choose_path(tree, is_accepted)
        is_leaf = ~(tree.children >= 0).any(-1)  # (batch, nodes)
        node = torch.arange(tree.num_nodes, device=is_leaf.device)
        below = tree.ancestors & is_leaf[:, :, None]  # (batch, leaf, node)
        # The fill is the largest node number, and changes no minimum.
        first_leaf = torch.where(below, node[None, :, None], tree.num_nodes - 1).amin(dim=1)
        depths = tree.depths.masked_fill(~reached_nodes(tree, is_accepted), -1)
        # Depth first: `first_leaf` is smaller than one unit of depth, num_nodes.
        best = (depths * tree.num_nodes - first_leaf).argmax(dim=1)
        image = torch.arange(len(best), device=best.device)
        return tree.paths[image, best], depths[image, best]
