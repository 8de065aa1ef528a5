"""The verifier of a method; see `lantern.methods` for the table of acceptances."""

from __future__ import annotations

import torch

from lantern.acceptance.base import Exact, Readings, Verifier
from lantern.acceptance.rejection import ByRejection, Rejection
from lantern.custom_parts import named, watch_acceptance
from lantern.methods import MethodSpec, load_class, verifies_by_rejection
from lantern.sampling import SamplingConfig


def make_verifier(
    spec: MethodSpec,
    sampling: SamplingConfig,
    nearest_codes: torch.Tensor | None = None,
    embedding: torch.Tensor | None = None,
) -> Verifier:
    """Make the verifier of a method.

    Args:
        spec: the method.
        sampling: the temperature decides between greedy and sampling verifiers.
        nearest_codes: integer table (vocab, columns), or None if the acceptance does not use it.
        embedding: the target's code embeddings, (vocab, dim), or None if the acceptance does not use them.

    Raises:
        ValueError: the table is missing or too narrow, or the embedding is missing.
    """
    row, rejects = spec.acceptance_row, not sampling.is_greedy and verifies_by_rejection(spec.to_dict())
    kind = load_class(row.path)
    is_exact = any(spec.parameters[name] == value for name, value in row.exact_at.items())
    if is_exact or (kind.needs_rejection and not rejects):
        kind = Exact
    is_custom = ":" in spec.acceptance and kind is not Exact
    make = named(kind.make, spec.acceptance, spec) if is_custom else kind.make
    acceptance = make(spec, Readings(sampling, nearest_codes, embedding))
    if is_custom:
        watch_acceptance(acceptance, spec)
    if rejects:
        verifier: Verifier = ByRejection(Rejection(acceptance, spec.residual))
    else:
        verifier = acceptance.make_verifier(spec, sampling)
    if is_custom:
        vars(verifier)["verify"] = named(verifier.verify, spec.acceptance, spec)
    has_verify_nodes = type(verifier).verify_nodes is not Verifier.verify_nodes
    verifier.follows_path = has_verify_nodes and not (sampling.is_greedy or spec.drafts_row.has_twins)
    return verifier
