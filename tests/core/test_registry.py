"""Tests of methods that installed packages declare."""

from __future__ import annotations

import hashlib
import logging

import pytest
import torch
from pydantic import ValidationError

from helpers.tiny_models import generate, make_models
from lantern.methods import make_method
from lantern.parameters import PARAMETERS
from lantern.registry import PRESETS, AcceptanceRow, DraftsRow, PresetRow, ResidualRow, declare
from lantern_audit.samplers import make_sampler
from lantern_pipeline.figures.style import SPARE_COLOURS, method_look
from lantern_pipeline.schema.methods import check_entry
from lantern_pipeline.tables.method_labels import label_method

MODULE = """
from lantern.acceptance.base import Acceptance
from lantern.registry import AcceptanceRow, PresetRow, declare
from lantern.parameters import Parameter

class Flat(Acceptance):
    def relaxed_prob(self, probs, draft_probs, tokens):
        return probs.gather(-1, tokens).clamp(min=self.floor)

declare("flat", AcceptanceRow("a_package:Flat", {"floor": Parameter("f", "least s(x)", 0, 1)}))
declare("flattened", PresetRow("Flattened", {"tree": "chain3", "drafts": "sampled", "acceptance": "flat"}))
"""


def test_a_packages_preset_is_known_by_name_everywhere(install):
    file = install("a_package", MODULE)
    spec = make_method("flattened", floor=0.5)
    models = make_models()
    codes, exact = (generate(models, each).codes for each in (spec, make_method("eagle1", tree="chain3")))
    assert codes.shape == exact.shape and not torch.equal(codes, exact)
    assert label_method(spec.to_dict()) == "Flattened f 0.5" and method_look("flattened")["color"] in SPARE_COLOURS
    assert [*PRESETS][-1] == "flattened" and make_sampler("flattened", {"floor": 0.5})
    entry = {"preset": ["flattened", "sjd"], "floor": [0.1, 0.5]}
    assert check_entry(entry) == entry
    with pytest.raises(ValidationError, match="less than or equal to 1"):
        check_entry({"preset": "flattened", "floor": 2.0})
    # columns of other methods are the same without the package
    assert "floor" in spec.to_dict() and "floor" not in {**PARAMETERS, **make_method("sjd").to_dict()}
    file.write_text(MODULE + "# edited\n")
    assert make_method("flattened", floor=0.5).code != spec.code != ""


RESIDUAL = """
from lantern.registry import ResidualRow, declare

def target(sets, probs, merged, draft_probs):
    return probs.scatter(-1, merged.taken[..., -1:], 0.0)

declare("target", ResidualRow("r_package:target", acceptances=("additive",), extra_codes=2))
"""


def test_a_packages_residual_replaces_the_papers(install):
    file = install("r_package", RESIDUAL)
    methods = {
        name: make_method("lantern", k=3, delta=0.9, tree="chain3", residual=name) for name in ("paper", "target")
    }
    found = {name: generate(make_models(), spec).codes for name, spec in methods.items()}
    assert not torch.equal(*found.values())
    assert [spec.code for spec in methods.values()] == ["", hashlib.sha256(file.read_bytes()).hexdigest()[:16]]
    assert check_entry({"preset": "lantern", "residual": "target"})
    with pytest.raises(
        ValueError, match="residual target needs acceptance additive, got multiplicative for lantern_pp"
    ):
        make_method("lantern_pp", k=3, lambda_=2.0, residual="target")


def test_a_broken_package_is_named_and_leaves_the_rest(install, caplog):
    install("z_package", MODULE.replace("a_package", "z_package"))
    install("broken", "import no_such_library")
    install("twice", 'from lantern.registry import PresetRow, declare\ndeclare("sjd", PresetRow("mine", {}))')
    with caplog.at_level(logging.WARNING):
        assert "flattened" in PRESETS
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "package broken are left out, since broken fails: ModuleNotFoundError" in said[0]
    assert "package twice" in said[1] and "a preset must have a name that is free, got sjd; choose another" in said[1]
    assert PRESETS["sjd"].label == "SJD"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("sjd", DraftsRow("mine:Drafter")),
        ("paper", ResidualRow()),
        ("additive", AcceptanceRow("mine:Acceptance")),
        ("sjd", PresetRow("mine", {})),
    ],
)
def test_a_name_is_declared_once(name, row):
    with pytest.raises(ValueError, match=rf"an? \w+ must have a name that is free, got {name}"):
        declare(name, row)
