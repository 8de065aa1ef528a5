"""Construction of verifiers from the declarations in `lantern.method_tables`."""

from __future__ import annotations

from lantern.acceptance.base import Acceptance, Exact, Verifier
from lantern.acceptance.rejection import ByRejection, Rejection
from lantern.custom_parts import named, watch_acceptance, watch_verifier
from lantern.decoding_state import DecodingModels
from lantern.import_paths import load_class
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig


def make_verifier(models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Verifier:
    """Make the verifier that a method's drafts, acceptance and residual determine.

    Raises:
        ValueError: the table of nearest codes is missing or has too few columns, and the method needs it.
    """
    acceptance = _make_acceptance(models, spec, sampling)
    verifier: Verifier
    # At temperature 0 nothing is sampled, hence no draft is rejected at random.
    if not sampling.is_greedy and spec.verifies_by_rejection:
        verifier = ByRejection(Rejection(acceptance, spec.residual))
    else:
        verifier = acceptance.make_verifier(spec, sampling)
    # A custom class, "module:Class", whose results are checked.
    if ":" in spec.acceptance:
        watch_verifier(verifier, spec)
    verifier.has_twins = spec.drafts_row.has_twins
    return verifier


def _make_acceptance(models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Acceptance:
    """Make the acceptance, `Exact` if a parameter makes it exact, such as delta = 0."""
    row = spec.acceptance_row
    if any(spec[name] == value for name, value in row.exact_at.items()):
        return Exact()
    kind: type[Acceptance] = load_class(row.path)
    if ":" not in spec.acceptance:
        return kind.make(models, spec, sampling)
    # Errors of a custom class name it.
    acceptance = named(kind.make, spec.acceptance, spec)(models, spec, sampling)
    watch_acceptance(acceptance, spec)
    return acceptance
