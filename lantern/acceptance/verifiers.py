"""Construction of verifiers from the declarations in `lantern.method_tables`."""

from __future__ import annotations

import torch

from lantern.acceptance.base import Acceptance, Exact, Readings, Verifier
from lantern.acceptance.rejection import ByRejection, Rejection
from lantern.custom_parts import named, watch_acceptance, watch_verifier
from lantern.import_paths import load_class
from lantern.methods import MethodSpec, verifies_by_rejection
from lantern.sampling import SamplingConfig


def make_verifier(
    spec: MethodSpec,
    sampling: SamplingConfig,
    nearest_codes: torch.Tensor | None = None,
    embedding: torch.Tensor | None = None,
) -> Verifier:
    """Make the verifier that a method's drafts, acceptance and residual determine.

    A table that the method does not use may be None.

    Args:
        nearest_codes: integers (vocab, columns), nearest first.
        embedding: the target's code embeddings, (vocab, dim).

    Raises:
        ValueError: a table that the method needs is missing or has too few columns.
    """
    acceptance = _make_acceptance(spec, Readings(sampling, nearest_codes, embedding))
    verifier: Verifier
    # At temperature 0 nothing is sampled, hence no draft is rejected at random.
    if not sampling.is_greedy and verifies_by_rejection(spec.to_dict()):
        verifier = ByRejection(Rejection(acceptance, spec.residual))
    else:
        verifier = acceptance.make_verifier(spec, sampling)
    # A custom class, "module:Class", whose results are checked.
    if ":" in spec.acceptance:
        watch_verifier(verifier, spec)
    verifier.has_twins = spec.drafts_row.has_twins
    return verifier


def _make_acceptance(spec: MethodSpec, read: Readings) -> Acceptance:
    """Make the acceptance, `Exact` if a parameter makes it exact, such as delta = 0."""
    row = spec.acceptance_row
    if any(spec[name] == value for name, value in row.exact_at.items()):
        return Exact()
    kind: type[Acceptance] = load_class(row.path)
    if ":" not in spec.acceptance:
        return kind.make(spec, read)
    # Errors of a custom class name it.
    acceptance = named(kind.make, spec.acceptance, spec)(spec, read)
    watch_acceptance(acceptance, spec)
    return acceptance
