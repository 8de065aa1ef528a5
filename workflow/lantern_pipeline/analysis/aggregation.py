"""What aggregating nearest codes does to acceptance, at nodes that exact decoding visited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from lantern.relaxation import AdditiveBound
from lantern_pipeline.metrics.output_distribution import VerifiedNodes, mean_over_nodes

MASSES_AT_ONCE = 2**23  # neighbours' masses of pairs of node and draft; 64 MiB an int64 array of their codes


def acceptance_table(
    nodes: VerifiedNodes,
    tables: Mapping[str, torch.Tensor],
    *,
    counts: Sequence[int],
    deltas: Sequence[float],
    options: Mapping[str, int],
) -> pd.DataFrame:
    """Probability that a node's first draft is accepted, before and after its k nearest codes lend it their mass.

    Args:
        nodes: with draft_probs.
        tables: neighbours -> int64 (vocab, columns).
        counts: values of k; 0 is always added, and what a table cannot serve is left out.
        deltas: bounds of the additive rule; no bound (delta = 1) is always added.
        options: num_resamples and seed of the bootstrap over images.

    Returns:
        One row per drafts ("sampled": x ~ p, accepted with min(1, s(x) / p(x)); "top": the most probable x, with s(x))
        x neighbours x delta (nan: no bound) x k: acceptance with _low and _high, num_nodes.
    """
    rows = []
    for neighbours, table in tables.items():
        for k in sorted({0, *(count for count in counts if count <= table.shape[1])}):
            for delta in (*deltas, np.nan):
                bound = AdditiveBound(k, 1.0 if np.isnan(delta) else delta)
                for drafts, accepted in _acceptances(nodes, table, bound).items():
                    mean = mean_over_nodes("acceptance", accepted, nodes.image.cpu(), options)
                    head = {"drafts": drafts, "neighbours": neighbours, "k": k, "delta": delta}
                    rows.append({**head, **mean, "num_nodes": len(nodes)})
    return pd.DataFrame(rows)


def _acceptances(nodes: VerifiedNodes, table: torch.Tensor, bound: AdditiveBound) -> dict[str, torch.Tensor]:
    """Acceptance of the first draft at each node, (nodes,), by kind of draft."""
    pairs = nodes.draft_probs.nonzero()
    node, token = pairs.unbind(1)
    size = max(1, MASSES_AT_ONCE // max(1, bound.k))
    parts = [_surrogate(nodes.target_probs, *part.unbind(1), table, bound) for part in pairs.split(size)]
    surrogate = torch.cat(parts)
    accepted = torch.minimum(surrogate, nodes.draft_probs[node, token])  # p(x) min(1, s(x) / p(x))
    sampled = torch.zeros_like(nodes.target_probs[:, 0]).index_add_(0, node, accepted)
    every = torch.arange(len(nodes), device=node.device)
    top = _surrogate(nodes.target_probs, every, nodes.draft_probs.argmax(-1), table, bound)
    return {"sampled": sampled.cpu(), "top": top.cpu()}


def _surrogate(
    target_probs: torch.Tensor, node: torch.Tensor, token: torch.Tensor, table: torch.Tensor, bound: AdditiveBound
) -> torch.Tensor:
    """s(x) = t(x) + mass of A(x) of some (node, token) pairs, (pairs,)."""
    own = target_probs[node, token]
    if bound.k == 0:
        return own
    masses = target_probs[node[:, None], table[:, : bound.k][token]].cumsum(-1)  # (pairs, k)
    admitted = bound.admits(masses, own[:, None], torch.zeros_like(own)[:, None])
    return own + (masses * admitted).amax(-1)
