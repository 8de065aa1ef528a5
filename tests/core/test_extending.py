"""The example of docs/extending.md: a user's own verifier in a file beside an overlay, with no edit of ours."""

import os
import re
import subprocess
import sys

import pytest
import torch

from helpers.paths import ROOT
from helpers.tiny_models import generate
from lantern.acceptance.relaxed_sets import AdditiveBound, MultiplicativeBound
from lantern.acceptance.verifiers import make_verifier
from lantern.codebook import nearest_codes
from lantern.methods import MethodSpec
from lantern.sampling import SamplingConfig
from lantern_pipeline.measure.output_distribution import VerifiedNodes
from lantern_pipeline.measure.total_variation import distribution_of_method
from lantern_pipeline.tables.method_labels import label_method

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
PARTS = {"tree": "chain3", "drafts": "sampled", "acceptance": "capped:Capped", "k": 4, "lambda_": 3.0, "cap": 0.2}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With the page's two files."""
    for name, kind in (("capped.py", "python"), ("mine.yaml", "yaml")):
        (code,) = re.findall(rf"`{name}`.*?:\n\n```{kind}\n(.*?)```", PAGE, re.S)
        (tmp_path / name).write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "capped", raising=False)
    return tmp_path


def test_the_rule_takes_the_smaller_set_and_has_a_label_and_a_total_variation(folder):
    spec = MethodSpec.of("capped", **PARTS)
    table = nearest_codes(torch.randn(24, 4, generator=torch.Generator().manual_seed(3)), 20)
    verifier = make_verifier(spec, SamplingConfig(), table)
    logits = 1.5 * torch.randn(2, 20, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target, draft = logits[0].softmax(-1), (logits[0] + logits[1]).softmax(-1)
    children = draft.topk(1).indices
    sets = (
        verifier.rejection.acceptance,
        AdditiveBound(table, k=4, delta=0.2),
        MultiplicativeBound(table, k=4, lambda_=3),
    )
    own, *ours = (part.merge(target, None, part.codes_of(children[:, 0])).is_member for part in sets)
    assert torch.equal(own, ours[0] & ours[1])
    assert own.any() and not torch.equal(own, ours[0]) and not torch.equal(own, ours[1])
    nodes = VerifiedNodes(target, draft, children, torch.arange(20) % 5, torch.zeros(20).long())
    kind, found = distribution_of_method(nodes, verifier, 10, 0)
    assert kind == "enumeration" and 0 < found.tv_from(target).mean() < 1
    assert label_method(spec.to_dict()) == "capped (chain3, sampled, capped:Capped) k 4, λ 3, cap 0.2"
    with pytest.raises(ValueError, match=r"cap of capped must be in \[0, 1\], got 2"):
        MethodSpec.of("capped", **PARTS | {"cap": 2})


def test_it_decodes_and_its_code_is_part_of_the_method(models, folder):
    spec = MethodSpec.of("capped", **PARTS)
    codes, expected = (
        generate(models, each).codes for each in (spec, MethodSpec.of("eagle1", tree="chain3", drafts="sampled"))
    )
    assert codes.shape == expected.shape and not torch.equal(codes, expected)
    with (folder / "capped.py").open("a") as file:
        file.write("# edited\n")
    assert MethodSpec.of("capped", **PARTS).code != spec.code != ""


def test_the_workflow_plans_the_overlay(folder):
    """From the project's folder, with nothing but the overlay named."""
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "-n", "-p", "--configfile", str(folder / "mine.yaml")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "capped-k20-lambda5-cap0.05" in found.stdout + found.stderr


def test_what_else_lies_beside_an_overlay_is_never_run(folder, tmp_path):
    """Neither in place of a library nor as Python starts, by Snakemake or by a job; a named class is found."""
    for name in ("random", "sitecustomize", "usercustomize"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'was_run')!r}, 'a').write({name!r})\n")
    (folder / "models").symlink_to(ROOT / "models")
    arguments = ["--snakefile", ROOT / "Snakefile", "--directory", folder, "--cores", "1"]
    arguments += ["--configfile", ROOT / "config.yaml", folder / "mine.yaml"]
    wanted = "results/capped/prompts/seen.jsonl"
    command = [sys.executable, "-m", "snakemake", *map(str, arguments), "--", wanted]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert found.returncode == 0 and (folder / wanted).exists(), found.stderr
    assert not (tmp_path / "was_run").exists()
