"""The rule of a method; see `lantern.methods` for the table of them."""

from __future__ import annotations

import torch

from lantern.acceptance.base import Exact, Readings, Rule
from lantern.acceptance.rejection import ByRejection, Rejection
from lantern.custom_parts import named, watch_acceptance
from lantern.methods import MethodSpec, load_class, verifies_by_rejection
from lantern.sampling import SamplingConfig


def make_rule(
    spec: MethodSpec,
    sampling: SamplingConfig,
    nearest_codes: torch.Tensor | None = None,
    embedding: torch.Tensor | None = None,
) -> Rule:
    """The rule of a method, from nearest codes, whole numbers (vocab, columns), and the target's embedding of its
    codes, (vocab, dim), each None where the acceptance does not read it; the temperature decides between greedy and
    sampled rules.

    Raises:
        ValueError: the table is missing or too narrow, or the embedding is missing.
    """
    rejects = not sampling.is_greedy and verifies_by_rejection(spec.to_dict())
    kind = load_class(spec.rule.path)
    bounds_nothing = any(spec.parameters[name] == value for name, value in spec.rule.exact_at.items())
    if bounds_nothing or (kind.needs_rejection and not rejects):
        kind = Exact
    is_custom = ":" in spec.acceptance and kind is not Exact
    make = named(kind.make, spec.acceptance, spec) if is_custom else kind.make
    acceptance = make(spec, Readings(sampling, nearest_codes, embedding))
    if is_custom:
        watch_acceptance(acceptance, spec)
    rule = ByRejection(Rejection(acceptance, spec.residual)) if rejects else acceptance.make_rule(spec, sampling)
    if is_custom:
        vars(rule)["verify"] = named(rule.verify, spec.acceptance, spec)
    rule.follows_path = rule.judges_by_node and not (sampling.is_greedy or spec.drafter.has_twins)
    return rule
