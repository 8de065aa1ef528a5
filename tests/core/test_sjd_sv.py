"""Tests of the example package that adds SJD-SV, whose rule stands at the top of its module."""

from __future__ import annotations

import importlib
import itertools
import os
import shutil
import subprocess
import sys
from functools import partial

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from helpers.enumeration import law_of_images
from helpers.paths import DATA, ROOT
from helpers.statistics import assert_distribution
from helpers.table_world import TableWorld, count_images
from helpers.tiny_models import generate
from lantern.acceptance.base import Exact
from lantern.acceptance.rejection import ACCEPT, Rejection
from lantern.acceptance.relaxed_sets import AdditiveBound
from lantern.draft_tree import static_tree
from lantern.extensions import load_packages
from lantern.methods import make_method
from lantern.models.config import TargetConfig
from lantern.noise import TARGET, ImageNoise, NoiseField
from lantern.registry import DRAFTS, DraftsRow
from lantern.sampling import SamplingConfig
from lantern.step import Proposal, Scores
from lantern.tree_shapes import tree_choices
from lantern_pipeline.data.tables import method_columns
from lantern_pipeline.figures import ablations
from lantern_pipeline.figures.style import SPARE_COLOURS, method_look
from lantern_pipeline.schema.methods import check_entry
from lantern_pipeline.tables.method_labels import label_method

FOLDER = ROOT / "examples" / "lantern_sjd_sv"
TENSORS = load_file(DATA / "peers" / "law.safetensors")


@pytest.fixture(autouse=True)
def package(install):
    install("lantern_sjd_sv", (FOLDER / "lantern_sjd_sv.py").read_text(encoding="utf-8"))
    load_packages()
    return importlib.import_module("lantern_sjd_sv")


def groups_of(token_probs, alpha):
    """Return (first, last) of each group of drafts that are tested together, as the rule says it in words."""
    groups, begin = [], 0
    while begin < len(token_probs):
        last = begin
        while last + 1 < len(token_probs) and token_probs[last + 1] >= token_probs[last]:
            last += 1
        first = last
        while sum(token_probs[first : last + 1]) < alpha * sum(token_probs[begin : last + 1]):
            first -= 1
        groups += [*((draft, draft) for draft in range(begin, first)), (first, last)]
        begin = last + 1
    return groups


def count_accepted(groups, is_passed):
    """Return the number of accepted drafts, if `is_passed(first, last)` says whether these drafts pass a test."""
    for first, last in groups:
        end = last
        while end >= first and not is_passed(first, end):
            end -= 1
        if end < last:
            return end + 1
    return groups[-1][1] + 1


@pytest.mark.parametrize(
    ("token_probs", "alpha", "groups"),
    [
        # Runs of 0.7 and 0.4. Suffixes hold 0.4 + 0.2 of at least 0.56, and 0.3 + 0.1 of at least 0.32.
        ([0.1, 0.2, 0.4, 0.1, 0.3], 0.8, [1, 2, 2, 3, 3]),
        ([0.1, 0.2, 0.4, 0.1, 0.3], 0.7, [1, 2, 2, 3, 4]),
        ([0.1, 0.2, 0.4, 0.1, 0.3], 1.0, [1, 1, 1, 2, 2]),
        ([0.1, 0.2, 0.4, 0.1, 0.3], 0.1, [1, 2, 3, 4, 5]),
        ([0.25, 0.25, 0.125, 0.0], 0.8, [1, 1, 2, 3]),  # equal ones are in one run
        ([0.0, 0.0], 0.8, [1, 2]),  # both are refused, together or not
    ],
)
def test_the_groups_of_a_chain(package, token_probs, alpha, groups):
    assert package.group_drafts(torch.tensor([token_probs]), alpha).tolist() == [groups]


class Given:
    """Noise with given numbers of the tests, (batch, drafts, slots). The most probable token is sampled."""

    def __init__(self, uniforms):
        self.uniforms = uniforms

    def uniform(self, stream, positions, num_slots):
        assert stream == ACCEPT
        return self.uniforms[..., :num_slots]

    def gumbel(self, stream, positions):
        return torch.zeros(*positions.shape, 1)


def verify(verifier, probs, draft_probs, tokens, noise):
    """Verify a chain after token 0. Targets `probs` are (batch, drafts + 1, vocab), `tokens` (batch, drafts)."""
    tree = static_tree(tree_choices(f"chain{tokens.shape[1]}"))
    positions = torch.arange(1, tokens.shape[1] + 2).expand(len(tokens), -1)
    scores = Scores(None, probs.log(), positions, noise, SamplingConfig())
    root = torch.zeros_like(tokens[:, :1])
    return verifier.verify(scores, Proposal(torch.cat([root, tokens], dim=1), tree, draft_probs))


@pytest.mark.parametrize(
    ("numbers", "num_accepted", "last"),
    [
        # t is 0.2 and 0.4, p is 0.5 and 0.5: the suffix of both passes at 0.32, the first draft alone at 0.4.
        ([[0.99, 0.99], [0.99, 0.31]], 2, 1),  # a number for a single draft is not read
        ([[0.39, 0.99], [0.01, 0.33]], 1, 2),  # the second draft has no test of its own
        ([[0.41, 0.01], [0.01, 0.33]], 0, 2),
    ],
)
def test_a_suffix_of_two_drafts(package, numbers, num_accepted, last):
    probs = torch.tensor([[[0.2, 0.3, 0.5], [0.4, 0.05, 0.55], [0.1, 0.8, 0.1]]])
    draft_probs = torch.tensor([[[0.5, 0.4, 0.1]] * 2])
    verifier = package.BySuffix(Rejection(), 0.8)
    outcome = verify(verifier, probs, draft_probs, torch.tensor([[0, 0]]), Given(torch.tensor([numbers])))
    assert outcome.num_accepted == num_accepted and outcome.emitted[0, num_accepted] == last


@pytest.mark.parametrize(("alpha", "delta"), [(0.8, 0.0), (0.8, 0.2), (1.0, 0.0)])
def test_the_verifier_does_what_the_words_say(package, alpha, delta):
    """Chains of seven drafts. With relaxation, s(x) is compared with p(x), and t(x) alone decides what is a suffix."""
    batch, num, vocab = 400, 7, 12
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, batch, num + 1, vocab, generator=generator)
    probs, draft_probs = (2 * logits[0]).softmax(-1), (2 * logits[0] + logits[1])[:, :-1].softmax(-1)
    tokens = draft_probs.flatten(0, 1).multinomial(1, generator=generator).view(batch, num)
    noise = NoiseField(batch, num + 2, vocab, [TARGET, ACCEPT])
    noise.fill(range(batch), [ImageNoise(0, str(row), [TARGET, ACCEPT], num + 2, vocab) for row in range(batch)])
    near = torch.stack([torch.arange(vocab).roll(shift) for shift in (-1, 1, -2)], dim=1)
    acceptance = AdditiveBound(near, k=3, delta=delta) if delta else Exact()
    outcome = verify(package.BySuffix(Rejection(acceptance), alpha), probs, draft_probs, tokens, noise)

    drafts = tokens[..., None]
    t, p = (values.gather(2, drafts)[..., 0].double().tolist() for values in (probs[:, :-1], draft_probs))
    s = acceptance.relaxed_prob(probs[:, :-1], draft_probs, drafts)[..., 0].double().tolist()
    uniforms = noise.uniform(ACCEPT, torch.arange(1, num + 1).expand(batch, -1), num).tolist()
    lengths = set()

    def is_passed(row, first, last):
        lengths.add(last - first + 1)
        ratio = torch.tensor(s[row][first : last + 1]).prod() / torch.tensor(p[row][first : last + 1]).prod()
        return uniforms[row][last][last - first] <= ratio

    for row in range(batch):
        expected = count_accepted(groups_of(t[row], alpha), partial(is_passed, row))
        assert outcome.num_accepted[row] == expected
    assert lengths >= {1, 2, 3}


def test_small_probabilities_do_not_underflow(package):
    """Each is 1e-20, in t and in p: the product of t is 0 in float32."""
    probs = torch.tensor([1e-20, 1.0]).expand(1, 6, 2)
    tokens = torch.zeros(1, 5, dtype=torch.int64)
    noise = Given(torch.full((1, 5, 5), 0.99))
    assert verify(package.BySuffix(Rejection(), 1.0), probs, probs[:, 1:], tokens, noise).num_accepted == 5


def small_world():
    names = ("base_c", "left_c", "left2_c", "up_c")
    return TableWorld({name: TENSORS[f"small.{name}"].double() for name in names}, 2, SamplingConfig())


def suffix_endings(alpha, node, rejection, tree, tokens, probs, labels):
    """Enumerate as `enumeration.endings`. The decision on draft e is that of the test that ends there."""
    drafts, num = tokens[:, 1:, None], tokens.shape[1] - 1
    t, p = (values.gather(2, drafts)[..., 0] for values in (probs[:, :-1], labels))
    groups = [groups_of(row, alpha) for row in t.tolist()]
    begins = torch.tensor([[first for first, last in row for _ in range(first, last + 1)] for row in groups])
    steps = torch.arange(num)
    is_tested = (steps >= begins[..., None]) & (steps <= steps[:, None])
    accept = torch.where(is_tested, (t / p)[:, None], 1.0).prod(2).clamp(max=1)
    for decisions in itertools.product((0.0, 1.0), repeat=num):
        chance = torch.where(torch.tensor(decisions) == 0, accept, 1 - accept).prod(1)
        counts = [count_accepted(row, lambda first, last, given=decisions: given[last] == 0) for row in groups]
        for stop in range(num + 1):
            law = probs[:, num] if stop == num else residual(probs[:, stop], labels[:, stop])
            is_stop = torch.tensor([count == stop for count in counts])
            yield {(draft, 0): value for draft, value in enumerate(decisions)}, chance * is_stop, law, stop


def residual(t, p):
    left = (t - p).clamp(min=0)
    return left / left.sum(-1, keepdim=True).clamp(min=1e-30)


def make_parts(package, alpha):
    """Return drafter and verifier of two drafts per step."""
    spec = make_method("sjd_sv", tree="chain2", alpha=alpha)
    drafter = package.SuffixDrafter(static_tree(spec.tree_shape), spec, TargetConfig(vocab_size=3, grid=2))
    return drafter, package.BySuffix(Rejection(), alpha)


def law_of(package, alpha):
    """Return the law of three tokens with two drafts per step, (27,)."""
    return law_of_images(small_world(), *make_parts(package, alpha), 3, partial(suffix_endings, alpha))


@pytest.mark.parametrize(
    ("alpha", "first", "both"), [(1e-6, 0.0, 0.0), (0.8, 0.015095, 0.065197), (1.0, 0.018000, 0.083968)]
)
def test_the_deviation_from_the_target_is_as_stated(package, alpha, first, both):
    """All outcomes of the drafter and the verifier are enumerated. Draft distributions are kept in float32.

    `first` is the total variation of the two tokens up to the first that was drafted, `both` that of three tokens.
    """
    found = law_of(package, alpha).view(3, 3, 3)
    changes = found - TENSORS["small.autoregressive"].view(3, 3, 3, 3).sum(3)
    distances = [float(change.abs().sum()) / 2 for change in (changes.sum(2), changes)]
    assert float(found.sum()) == pytest.approx(1, abs=1e-7) and distances == pytest.approx([first, both], abs=1e-6)


def test_many_images_have_the_enumerated_law(package):
    """With the noise of images: each test reads a number that no other one has read."""
    counts = count_images(small_world(), *make_parts(package, 0.8), 2**15, 3)
    assert_distribution(counts, law_of(package, 0.8))


def test_shares_that_leave_no_suffix_of_two_are_sjd(models):
    """The same drafts and tests of them, of the same numbers."""
    codes = generate(models, make_method("sjd_sv", alpha=1e-6)).codes
    assert torch.equal(codes, generate(models, make_method("sjd")).codes)
    assert not torch.equal(codes, generate(models, make_method("sjd_sv")).codes)


def test_it_combines_with_relaxed_acceptance(models):
    exact, relaxed, almost = (
        generate(models, make_method("sjd_sv", acceptance="additive", k=4, delta=delta)) for delta in (0.0, 0.4, 1e-6)
    )
    assert torch.equal(exact.codes, generate(models, make_method("sjd_sv")).codes)
    assert torch.equal(exact.codes, almost.codes)
    assert relaxed.target_forwards.sum() < exact.target_forwards.sum()
    make_method("sjd_sv", acceptance="group", h=2, p_max=0.1, d_max=1.0)
    with pytest.raises(ValueError, match="proximity needs drafts that are known before the target samples, got sjd_sv"):
        make_method("sjd_sv", acceptance="proximity", k=4)


def test_drafts_that_are_not_exact_are_relaxable_if_they_say_so():
    rows = [DraftsRow("mine:Drafter", is_exact=False, is_relaxable=is_relaxable) for is_relaxable in (False, True)]
    assert [row.meets() for row in rows] == [False, True]
    assert [name for name, row in DRAFTS.items() if row.is_relaxable] == ["sjd_sv"]


@pytest.mark.parametrize("parts", [{}, {"acceptance": "additive", "k": 4, "delta": 0.0}])
def test_greedy_decoding_keeps_the_tokens(models, parts):
    specs = (make_method("sjd_sv", **parts), make_method("autoregressive"))
    found, expected = (generate(models, spec, temperature=0.0) for spec in specs)
    assert torch.equal(found.codes, expected.codes) and found.target_forwards.sum() < expected.target_forwards.sum()


def test_the_config_knows_its_parameter_and_the_tables_its_label():
    with pytest.raises(ValueError, match="greater than 0"):
        check_entry({"preset": "sjd_sv", "alpha": 0.0})
    with pytest.raises(ValueError, match=r"alpha of sjd_sv must be in \(0, 1\], got 2"):
        make_method("sjd_sv", alpha=2)
    specs = [make_method("sjd_sv", alpha=alpha) for alpha in (0.8, 0.5)]
    assert [label_method(spec.to_dict()) for spec in specs] == ["SJD-SV (unverified)", "SJD-SV (unverified) α 0.5"]
    settings = {"temperature": 1.0, "cfg_scale": 3.0, "top_k": 0, "drafter_steps": None}
    rows = pd.DataFrame([method_columns(spec.to_dict()) | settings for spec in specs])
    assert ablations._label(rows)["label"].tolist() == ["α 0.8", "α 0.5"]
    assert method_look("sjd_sv")["color"] in SPARE_COLOURS and not specs[0].is_exact


def test_trees_with_siblings_are_refused(models):
    with pytest.raises(ValueError, match="drafts sjd_sv need a chain, got tree chain3k2d1 for sjd_sv"):
        generate(models, make_method("sjd_sv", tree="chain3k2d1"))


@pytest.mark.slow
def test_pip_installs_it(tmp_path):
    """In a copy, since pip writes into the folder."""
    shutil.copytree(FOLDER, tmp_path / "source")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(tmp_path / "site")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(tmp_path / "source")], check=True)
    code = "from lantern_pipeline.cli import app; app(['audit', 'sjd_sv', '--tree', 'chain3', '--num', '20000'])"
    folders = [tmp_path / "site", ROOT, ROOT / "workflow"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert found.returncode == 1, found.stderr  # a difference was found
    assert "sjd_sv is not lossless" in found.stdout
