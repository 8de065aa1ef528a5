"""Run by test_extending.py in a copy of the project that knows the rule `capped`."""

import os
import sys
from dataclasses import fields
from pathlib import Path

import torch

import lantern
from conftest import make_models, make_prompts
from lantern.codebook import nearest_codes
from lantern.decoding import Decoder
from lantern.methods import PRESETS, RELAXATIONS, make_method
from lantern.relaxation import CLASSES, AdditiveBound, MultiplicativeBound, relaxed_set
from lantern.rules import make_rule
from lantern.sampling import SamplingConfig
from lantern_pipeline.analysis.method_labels import method_colour, method_name
from lantern_pipeline.analysis.total_variation import distribution_of_method, tv_row
from lantern_pipeline.config.methods import expand_methods
from lantern_pipeline.config.validate import load_yaml, validate_config
from lantern_pipeline.metrics.output_distribution import VerifiedNodes

PROJECT = Path(sys.argv[1])
assert Path(lantern.__file__).is_relative_to(PROJECT)
TABLE = nearest_codes(torch.randn(24, 4, generator=torch.Generator().manual_seed(3)), 20)
TREES = {"sampled": "chain3", "top": "dynamic", "coupled": "chain3", "jacobi": "chain3", "hybrid": "chain3+chain3"}


def capped(drafts="sampled", **parts):
    parts = {"k": 4, "delta": 0.2, "lambda_": 2.0, "tree": TREES[drafts], "drafts": drafts, **parts}
    return make_method("capped", **parts)


def generate(models, spec, temperature=1.0):
    decoder = Decoder(models, spec, SamplingConfig(cfg_scale=2.0, temperature=temperature))
    return decoder.generate(*make_prompts(models, 5), [decoder.make_noise(7, f"prompt-{i}") for i in range(5)])


def random_nodes(children):
    generator = torch.Generator().manual_seed(0)
    logits = 1.5 * torch.randn(2, 20, 24, generator=generator, dtype=torch.float64)
    target, draft = logits[0].softmax(-1), (logits[0] + logits[1]).softmax(-1)
    return VerifiedNodes(target, draft, draft.topk(children).indices, torch.arange(20) % 5)


def check_rule():
    """The smaller of the two sets; what tests of the project hold of every declared relaxation."""
    nodes = random_nodes(1)
    tokens, nothing_spent = nodes.children[:, 0], torch.zeros(len(nodes), dtype=torch.float64)
    sets = [
        relaxed_set(nodes.target_probs, tokens, TABLE, bound, nothing_spent).is_member
        for bound in (CLASSES["capped"](8, 0.2, 2.0), AdditiveBound(8, 0.2), MultiplicativeBound(8, 2.0))
    ]
    assert torch.equal(sets[0], sets[1] & sets[2])
    assert sets[0].any() and not torch.equal(sets[0], sets[1]) and not torch.equal(sets[0], sets[2])
    parameters = {name: tuple(field.name for field in fields(cls)) for name, cls in CLASSES.items()}
    assert parameters == {name: RELAXATIONS[name].parameters for name in CLASSES}


def check_decoding():
    """Images come out of all kinds of drafts; with a bound of nothing they are the exact method's."""
    models = make_models()
    for drafts in TREES:
        exact = make_method("eagle1", tree=TREES[drafts], drafts=drafts)
        expected, relaxed = generate(models, exact), generate(models, capped(drafts, delta=0.6, lambda_=5.0))
        assert (relaxed.step_lengths.sum(1) == 16).all()
        assert not torch.equal(relaxed.codes, expected.codes)
        for nothing in ({"delta": 0.0}, {"lambda_": 1.0}):
            assert torch.equal(generate(models, capped(drafts, **nothing)).codes, expected.codes)


def check_output_distribution():
    """The distance from the target is computed without another edit; a top draft moves at most delta."""
    options = {"num_resamples": 100, "seed": 0}
    for drafts in ("top", "sampled"):
        nodes = random_nodes(1)
        spec = capped(drafts)
        kind, found = distribution_of_method(nodes, spec, make_rule(spec, SamplingConfig(), TABLE), 10, 0)
        row = tv_row(nodes, found, 0.2, options)
        assert kind == "enumeration" and 0 < row["tv_mean"] < 1
        assert drafts == "sampled" or row["tv_max"] <= 0.2
    kind, found = distribution_of_method(random_nodes(3), spec, make_rule(spec, SamplingConfig(), TABLE), 10, 0)
    assert kind == "monte_carlo"


def check_config():
    """The config takes it, the schema and its page name it, figures have a look for it."""
    config = load_yaml(PROJECT / "config.yaml") | load_yaml(PROJECT / "workflow" / "resources.yaml")
    config["methods"] = [*config["methods"], {"preset": "capped", "k": 4, "delta": 0.2, "lambda_": 2}]
    validate_config(config)
    run = expand_methods(config)[-1]
    assert run.spec.method_id == "capped-k4-delta0.2-lambda2" and run.spec.relaxation == "capped"
    assert method_name("capped") == "capped"
    assert len({method_colour(name) for name in PRESETS}) == len(PRESETS)


check_rule()
check_decoding()
check_output_distribution()
os.chdir(PROJECT)  # whose weights the config names
check_config()
