"""Every preset (method that has a name), and methods with other combinations of drafts, tree and acceptance.

Tests and the GPU check run all of them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from lantern.methods import MethodSpec, make_method
from lantern.parameters import Parameter
from lantern.registry import PRESETS, acceptance_of, drafts_of, preset_of
from lantern.state import DecodingModels
from lantern_methods.state_head import StateHead

VALUES = {"k": 4, "delta": 0.1, "lambda_": 2.0, "omega": 1.1, "threshold": 0.5, "window": 2}
VALUES |= {"weight": 0.8, "budget": 0.1}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    # delta is not 0.2. A residual that is uniform over five codes has 0.2 each, so rounding would decide the test.
    "lantern_official": ("lantern", {"residual": "official", "delta": 0.19}),
    "lantern_matched": ("lantern", {"drafts": "sampled", "tree": "static", "residual": "matched"}),
    "lantern_jensen_shannon": ("lantern", {"acceptance": "jensen_shannon"}),
    "group_of_eagle": ("eagle1", {"acceptance": "group", "h": 2, "p_max": 0.5, "d_max": 1e9}),
    "mixing_of_siblings": ("sjd_pac", {"acceptance": "mixing", "tree": "chain3k2d2"}),
    "proximity_of_hybrid": ("hybrid", {"acceptance": "proximity", "k": 3}),
    "heads": ("eagle1", {"drafts": "heads", "tree": "chain4"}),
    "heads_of_jacobi": ("jacobi", {"drafts": "jacobi_heads", "tree": "chain4k2d1"}),
    "hybrid_head": ("hybrid", {"drafts": "hybrid_head", "tree": "chain4k2d1"}),
    "ssd_without_rounds": ("ssd", {"rounds": 0}),
    "additive_of_jacobi": ("jacobi", {"acceptance": "additive", "k": 4, "delta": 0.2, "tree": "chain9k3d1"}),
}
METHODS = [*PRESETS, *VARIANTS]


def spec_of(name: str) -> MethodSpec:
    """Return a method of METHODS by its name, with allowed values for the parameters that it requires."""
    preset, parts = VARIANTS.get(name, (name, {}))
    known = {key: value for key, value in preset_of(preset).items() if key != "window"} | parts
    wanted = {**drafts_of(known.get("drafts")).parameters}
    wanted |= acceptance_of(known.get("acceptance", "exact")).parameters
    values = {key: VALUES.get(key, example_of(row)) for key, row in wanted.items() if key not in known}
    return make_method(preset, method_id=name, **values, **parts)


def with_heads(models: DecodingModels, spec: MethodSpec) -> DecodingModels:
    """Return models for a method. If it needs a state head, an untrained one replaces the shift heads."""
    if "lantern_methods.state_head:StateHead" not in spec.drafts_row.trained.values():
        return models
    head = StateHead.from_target(models.target.config, seed=0).eval().to(models.target.device)
    return replace(models, parts={"heads": head.prepare_for_decoding()})


def example_of(parameter: Parameter) -> float | str:
    """Return an allowed value of a method's parameter: a word, or a number between its bounds."""
    if parameter.choices:
        return parameter.choices[0]
    low = max(parameter.low, 0)
    return int(low) + 1 if parameter.is_integer or math.isinf(parameter.high) else (low + parameter.high) / 2
