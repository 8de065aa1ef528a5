"""Construction of a method's verifier. The table of acceptances is in `lantern.methods`."""

from __future__ import annotations

import torch

from lantern.acceptance.base import Acceptance, Exact, Readings, Verifier
from lantern.acceptance.rejection import ByRejection, Rejection
from lantern.custom_parts import named, watch_acceptance, watch_verifier
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
    acceptance = _make_acceptance(spec, Readings(sampling, nearest_codes, embedding))
    verifier: Verifier
    if not sampling.is_greedy and verifies_by_rejection(spec.to_dict()):
        verifier = ByRejection(Rejection(acceptance, spec.residual))
    else:
        verifier = acceptance.make_verifier(spec, sampling)
    if ":" in spec.acceptance:
        watch_verifier(verifier, spec)
    verifier.has_twins = spec.drafts_row.has_twins
    return verifier


def _make_acceptance(spec: MethodSpec, read: Readings) -> Acceptance:
    """Make the acceptance of a method.

    It is `Exact` if a parameter has a value at which the acceptance is exact.
    """
    row = spec.acceptance_row
    if any(spec[name] == value for name, value in row.exact_at.items()):
        return Exact()
    kind: type[Acceptance] = load_class(row.path)
    if ":" not in spec.acceptance:
        return kind.make(spec, read)
    acceptance = named(kind.make, spec.acceptance, spec)(spec, read)
    watch_acceptance(acceptance, spec)
    return acceptance
