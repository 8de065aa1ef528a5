"""Peers' tests of rejection and the matched residual: numbers of tests/data/peers, and laws by enumeration."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
from safetensors.torch import load_file

from conftest import DATA, make_prompts
from lantern.acceptance import relaxed_sets
from lantern.acceptance.rejection import Rejection
from lantern.acceptance.relaxed_sets import AdditiveBound, MultiplicativeBound
from lantern.acceptance.rules import make_rule
from lantern.acceptance.weights import DraftWeights
from lantern.codebook import nearest_codes
from lantern.decoding import make_decoder
from lantern.methods import MethodSpec, make_method
from lantern.sampling import SamplingConfig

COOL = json.loads((DATA / "peers" / "cool.json").read_text())
COOL_TENSORS = load_file(DATA / "peers" / "cool.safetensors")
WEIGHTS = (0.3, 0.8, 1, 1.1, 2, 5)
FALLS = {"annealed": 0.7, "uniform": 0.0, "reversed": -0.7}  # their names and ours
VOCAB = 24
TABLE = nearest_codes(torch.randn(VOCAB, 4, generator=torch.Generator().manual_seed(3)), 20)


def random_probs(rows: int = 20, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A target's distributions and a drafter's, (rows, VOCAB)."""
    logits = 1.5 * torch.randn(2, rows, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return logits[0].softmax(-1), (logits[0] + logits[1]).softmax(-1)


def emission(rule: Rejection, target: torch.Tensor, draft: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(probability that a draft is accepted, law of the emitted token), of the functions that decode: each code is
    drafted at 2,000 nodes whose uniforms lie evenly in (0, 1).
    """
    vocab, count = len(target), 2000
    children = torch.arange(vocab).repeat_interleave(count).view(1, -1, 1)
    uniforms = ((torch.arange(count, dtype=torch.float64) + 0.5) / count).repeat(vocab).view(1, -1, 1)
    rows = (probs.expand(1, vocab * count, -1) for probs in (target, draft))
    probs, draft_probs = rows
    rank, residual = rule.accept(probs, children, draft_probs, uniforms)
    accepted = draft * (rank == 0).view(vocab, count).double().mean(1)
    rejected = (draft - accepted)[:, None] * residual.view(vocab, count, -1)[:, 0]
    return accepted, accepted + rejected.sum(0)


@pytest.mark.parametrize("case", COOL["weights"], ids=str)
def test_the_weights_are_the_references(case):
    spec = make_method("cool", tree=f"chain{case['length']}", fall=0.7 if case["nu"] else 0.0, omega=case["delta"])
    weights = make_rule(spec, SamplingConfig()).rejection.acceptance
    assert weights.weights.tolist() == pytest.approx(case["omega"])
    assert weights.at(torch.tensor([1, 1])).weights.tolist() == pytest.approx([case["omega"][1]] * 2)


def test_reversed_weights_are_the_annealed_ones_from_the_end():
    annealed, reversed_ = (
        make_rule(make_method("cool", fall=fall, omega=2.0), SamplingConfig()).rejection.acceptance.weights.tolist()
        for fall in (0.7, -0.7)
    )
    assert reversed_ == pytest.approx(annealed[::-1]) and sum(annealed) == pytest.approx(10)


def weighted(*weights: float) -> Rejection:
    """COOL-SD's rejection with these weights of the nodes."""
    return Rejection(DraftWeights(torch.tensor(weights, dtype=torch.float64)), "matched")


@pytest.mark.parametrize("case", COOL["one_position"], ids=lambda case: f"{case['case']}-{case['omega']}")
def test_one_position_has_the_references_law(case):
    name = f"one.{case['case']}"
    target, draft = COOL_TENSORS[f"{name}.target"][None], COOL_TENSORS[f"{name}.draft"][None]
    name += f".{WEIGHTS.index(case['omega'])}"
    rule = weighted(case["omega"])
    accepted = rule.accepted_mass(target, draft)
    assert float(accepted.sum()) == pytest.approx(case["acceptance"])
    residual = rule.residual_probs(target, None, draft)
    if case["acceptance"] < 1 - 1e-9:
        torch.testing.assert_close(residual[0], COOL_TENSORS[f"{name}.residual"], atol=1e-9, rtol=0)
    law = accepted + (1 - accepted.sum()) * residual
    torch.testing.assert_close(law[0], COOL_TENSORS[f"{name}.law"], atol=1e-9, rtol=0)
    tv = float((law - target).abs().sum()) / 2
    assert tv == pytest.approx(case["tv"], abs=1e-9)
    assert tv <= max(0.0, 1 - 1 / case["omega"]) + 1e-9
    torch.testing.assert_close(emission(rule, target[0], draft[0])[1], law[0], atol=1e-3, rtol=0)


class StubTarget:
    """Logits at a position are a sum of table rows of the tokens before it: left, left but one, and above."""

    def __init__(self, tables: dict[str, torch.Tensor], prefix: str, width: int) -> None:
        self.width = width
        self.base, *self.rows = (tables[f"{prefix}.{name}_c"].double() for name in ("base", "left", "left2", "up"))

    def probs(self, tokens: tuple[int, ...]) -> torch.Tensor:
        """Distribution of the token behind these."""
        logits = self.base[len(tokens)].clone()
        for back, table in zip((1, 2, self.width), self.rows, strict=True):
            if len(tokens) >= back:
                logits += table[tokens[-back]]
        return logits.softmax(-1)


@pytest.mark.parametrize("number", [0, 1])
def test_whole_images_are_the_references_token_by_token(number):
    case = COOL["chain"][number]
    target, draft = (StubTarget(COOL_TENSORS, f"chain.{number}.{kind}", case["width"]) for kind in ("target", "draft"))
    noise = {kind: COOL_TENSORS[f"chain.{number}.noise.{kind}"].double() for kind in ("draft", "accept", "target")}
    spec = make_method("cool", tree=f"chain{case['length']}", omega=case["delta"])
    rejection = make_rule(spec, SamplingConfig(), None).rejection
    tokens = []
    for number_of_step, step in enumerate(case["steps"]):
        length, drafts = min(case["length"], case["N"] - len(tokens) - 1), []
        for place in range(length):
            keys = draft.probs((*tokens, *drafts)).log() + noise["draft"][number_of_step, place]
            drafts.append(int(keys.argmax()))
        assert drafts == step["drafts"]
        contexts = [(*tokens, *drafts[:place]) for place in range(length + 1)]
        probs, draft_probs = (torch.stack([model.probs(c) for c in contexts])[None] for model in (target, draft))
        rule = rejection.at(torch.arange(length))
        uniforms = noise["accept"][number_of_step, :length].view(1, -1, 1)
        children = torch.tensor(drafts).view(1, -1, 1)
        rank, residual = rule.accept(probs[:, :length], children, draft_probs[:, :length], uniforms)
        accepted = int((rank[0] == 0).long().cumprod(0).sum())
        assert accepted == step["accepted"]
        left = residual[0, accepted] if accepted < length else probs[0, -1]
        own = int((left.log() + noise["target"][number_of_step, accepted]).argmax())
        tokens = [*tokens, *drafts[:accepted], own]
    assert tokens == case["tokens"]


def make_tables(seed: int, scales: tuple[float, ...], vocab: int, positions: int) -> dict[str, torch.Tensor]:
    """The recipe of tests/data/peers for a stub's tables."""
    import numpy as np

    generator = np.random.RandomState(seed)
    tables = {}
    for name, scale in zip(("base", "left", "left2", "up"), scales, strict=True):
        for half in ("c", "u"):
            size = (positions if name == "base" else vocab, vocab)
            values = (scale * generator.standard_normal(size)).astype(np.float32)
            tables[f"stub.{name}_{half}"] = torch.from_numpy(values)
    return tables


WORLD = COOL["whole_image_law"]


@pytest.mark.parametrize("row", WORLD["rows"], ids=lambda row: row["schedule"])
def test_the_law_of_whole_images_is_the_references(row):
    vocab, count = WORLD["V"], WORLD["N"]
    tables = make_tables(WORLD["seed_target"], (1, 1.2, 0.6, 0.6), vocab, count)
    moved = make_tables(WORLD["seed_draft"], (0.6, 0.6, 0.4, 0.4), vocab, count)
    target = StubTarget(tables, "stub", WORLD["width"])
    draft = StubTarget({name: table + moved[name] for name, table in tables.items()}, "stub", WORLD["width"])
    if row["schedule"] == "exact":
        weights = [1.0] * 3
    else:
        name, omega = row["schedule"].split()
        spec = make_method("cool", tree="chain3", fall=FALLS[name], omega=float(omega))
        weights = make_rule(spec, SamplingConfig()).rejection.acceptance.weights.tolist()
    rules = [weighted(weight) for weight in weights]

    @cache
    def law(tokens: tuple[int, ...], place: int) -> torch.Tensor:
        """Of the images behind these tokens, `place` of which are drafts accepted in the step under way."""
        if len(tokens) == count:
            return torch.ones(1, dtype=torch.float64)
        probs = target.probs(tokens)
        if place == min(3, count - len(tokens) + place - 1):
            return torch.cat([probs[code] * law((*tokens, code), 0) for code in range(vocab)])
        draft_probs = draft.probs(tokens)
        accepted = rules[place].accepted_mass(probs[None], draft_probs[None])[0]
        rejected = (1 - accepted.sum()) * rules[place].residual_probs(probs[None], None, draft_probs[None])[0]
        return torch.cat(
            [
                accepted[code] * law((*tokens, code), place + 1) + rejected[code] * law((*tokens, code), 0)
                for code in range(vocab)
            ]
        )

    @cache
    def autoregressive(tokens: tuple[int, ...]) -> torch.Tensor:
        if len(tokens) == count:
            return torch.ones(1, dtype=torch.float64)
        probs = target.probs(tokens)
        return torch.cat([probs[code] * autoregressive((*tokens, code)) for code in range(vocab)])

    def num_accepted(tokens: tuple[int, ...]) -> float:
        """Expected number of the drafts behind these, all of one step, that are accepted."""
        if len(tokens) == 3:
            return 0.0
        accepted = rules[len(tokens)].accepted_mass(target.probs(tokens)[None], draft.probs(tokens)[None])[0]
        return sum(float(mass) * (1 + num_accepted((*tokens, code))) for code, mass in enumerate(accepted))

    tv = float((law((), 0) - autoregressive(())).abs().sum()) / 2
    assert tv == pytest.approx(row["tv_image"], abs=1e-7)
    assert num_accepted(()) == pytest.approx(row["accepted_first_step"], abs=1e-7)


BOUNDS = [AdditiveBound(TABLE, k=8, delta=0.1), MultiplicativeBound(TABLE, k=8, lambda_=3.0)]


@pytest.mark.parametrize("bound", BOUNDS)
def test_the_matched_residual_of_lantern_leaves_the_least_total_variation(bound):
    target, draft = random_probs()
    matched, paper = (Rejection(bound, residual) for residual in ("matched", "paper"))
    accepted = matched.accepted_mass(target, draft)
    surrogates = [bound.surrogate(target, draft, torch.full((20, 1), code)) for code in range(VOCAB)]
    torch.testing.assert_close(accepted, torch.minimum(draft, torch.cat(surrogates, dim=-1)))
    least = (accepted - target).clamp(min=0).sum(-1)
    for row in (0, 7):
        mass, law = emission(matched, target[row], draft[row])
        other_mass, other_law = emission(paper, target[row], draft[row])
        assert torch.equal(mass, other_mass)  # the residual does not change the first draft's acceptance
        tv, other_tv = (float((found - target[row]).abs().sum()) / 2 for found in (law, other_law))
        assert tv == pytest.approx(float(least[row]), abs=1e-3)
        assert 0 < tv < other_tv + 1e-3


def test_no_residual_leaves_less_than_the_matched_one():
    """Of a thousand others, at random."""
    target, draft = (probs[0] for probs in random_probs(1))
    rule = Rejection(BOUNDS[0], "matched")
    accepted = rule.accepted_mass(target, draft)
    others = torch.distributions.Dirichlet(torch.full((VOCAB,), 0.3, dtype=torch.float64)).sample((1000,))
    residuals = torch.cat([rule.residual_probs(target, None, draft)[None], others])
    tv = (accepted + (1 - accepted.sum()) * residuals - target).abs().sum(-1) / 2
    assert tv.argmin() == 0


def test_masses_are_the_same_however_many_are_held(monkeypatch):
    target, draft = random_probs()
    rule = Rejection(BOUNDS[0], "matched")
    whole = rule.accepted_mass(target, draft)
    monkeypatch.setattr(relaxed_sets, "MASSES_AT_ONCE", 20 * 9 * 5)
    assert torch.equal(rule.accepted_mass(target, draft), whole)


@pytest.mark.parametrize("weight", [0.4, 1.0])
def test_siblings_with_the_matched_residual_keep_the_targets_law(weight):
    """Every pair of siblings, by enumeration."""
    target, draft = random_probs(1)
    rule = weighted(weight)
    first = rule.accepted_mass(target, draft)
    law, left = first.clone(), rule.residual_probs(target, None, draft)
    for code in range(VOCAB):
        rest = draft.scatter(1, torch.tensor([[code]]), 0.0)
        rest /= rest.sum()
        second = rule.accepted_mass(left, rest)
        law += (draft[0, code] - first[0, code]) * (second + (1 - second.sum()) * rule.residual_probs(left, None, rest))
    torch.testing.assert_close(law, target)


GSD = json.loads((DATA / "peers" / "gsd_verify.json").read_text())
GSD_TENSORS = load_file(DATA / "peers" / "gsd_verify.safetensors")


@pytest.mark.parametrize("number", range(len(GSD)))
def test_groups_of_gsd_decide_as_the_authors_code_does(number):
    """Acceptance of each draft, how many are accepted, and the token drawn from what is left."""
    case = GSD[number]
    names = ("target", "label", "embedding", "uniform", "residual")
    target, label, embedding, uniform, noise = (GSD_TENSORS[f"{number}.{name}"].double() for name in names)
    rejection = make_rule(make_method("gsd"), SamplingConfig(), None, embedding).rejection
    drafts = torch.tensor(case["drafts"])
    probs, draft_probs = target[None, : len(drafts)], label[None, 1 : len(drafts) + 1]
    surrogate = rejection.acceptance.surrogate(probs, draft_probs, drafts.view(1, -1, 1))[..., 0]
    acceptance = (surrogate / draft_probs.gather(-1, drafts.view(1, -1, 1))[..., 0]).clamp(max=1)[0]
    assert acceptance.tolist() == pytest.approx(case["acceptance"], rel=1e-5, abs=1e-9)
    children, uniforms = drafts.view(1, -1, 1), uniform[1 : len(drafts) + 1].view(1, -1, 1)
    rank, residual = rejection.accept(probs, children, draft_probs, uniforms)
    accepted = int((rank[0] == 0).long().cumprod(0).sum())
    assert accepted == case["accepted"]
    if accepted < len(drafts):
        assert int((residual[0, accepted].log() + noise[accepted + 1]).argmax()) == case["emitted"]


def make_groups(residual: str, **parts) -> Rejection:
    embedding = torch.randn(VOCAB, 4, generator=torch.Generator().manual_seed(3))
    spec = make_method("gsd", **{"h": 3, "p_max": 0.2, "d_max": 6.0, "residual": residual, **parts})
    return make_rule(spec, SamplingConfig(), None, embedding).rejection


def test_a_group_holds_codes_as_probable_as_the_draft_and_near_it():
    """By hand: a loop over the draft's ranks."""
    target, draft = random_probs()
    rule = make_groups("paper")
    is_near = rule.acceptance.is_near
    assert 0.1 < is_near.double().mean() < 0.9 and torch.equal(is_near, is_near.T)
    for row in range(20):
        order = target[row].argsort().tolist()
        for code in range(VOCAB):
            rank, group = order.index(code), [code]
            if rank >= 3:
                near = [other for other in order[rank - 3 : rank + 3] if is_near[code, other]]
                group = [other for other in near if abs(target[row, other] - target[row, code]) < 0.2]
            found = rule.acceptance.surrogate(target[row], draft[row], torch.tensor([code])) / draft[row, code]
            assert float(found) == pytest.approx(float(target[row, group].sum() / draft[row, group].sum()))


def law_of(rule: Rejection, target: torch.Tensor, draft: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(p f, law of the emitted token e = p f + (1 - sum p f) residual)."""
    mass = rule.accepted_mass(target, draft)
    return mass, mass + (1 - mass.sum(-1, keepdim=True)) * rule.residual_probs(target, None, draft)


@pytest.mark.parametrize("residual", ["paper", "matched"])
def test_the_law_of_groups(residual):
    """As the functions emit that decode; either residual is the least where groups accept more than single codes."""
    target, draft = random_probs()
    rule = make_groups(residual)
    mass, law = law_of(rule, target, draft)
    for row in (0, 7):
        torch.testing.assert_close(emission(rule, target[row], draft[row])[1], law[row], atol=1e-3, rtol=0)
    assert (mass.sum(-1) >= torch.minimum(target, draft).sum(-1)).all()
    tv = (law - target).abs().sum(-1) / 2
    torch.testing.assert_close(tv, (mass - target).clamp(min=0).sum(-1))
    assert tv.mean() > 0.01


def test_where_groups_accept_less_than_single_codes_the_matched_residual_is_exact_and_the_plain_one_is_not():
    """Code 1 stands in a group with code 0, which is drafted far too often."""
    target, draft = (torch.tensor([row], dtype=torch.float64) for row in ([0.1, 0.3, 0.6], [0.6, 0.1, 0.3]))
    for residual, expected in (("paper", [0.1, 0.2743, 0.6257]), ("matched", [0.1, 0.3, 0.6])):
        spec = make_method("gsd", h=1, p_max=1.0, residual=residual)
        rule = make_rule(spec, SamplingConfig(), None, torch.zeros(3, 2)).rejection
        mass, law = law_of(rule, target, draft)
        assert mass[0].tolist() == pytest.approx([0.1, 0.1 * 0.4 / 0.7, 0.3])
        assert law[0].tolist() == pytest.approx(expected, abs=1e-4)


def test_groups_of_no_width_are_exact():
    target, draft = random_probs()
    for parts in ({"h": VOCAB}, {"d_max": 1e-9}, {"p_max": 1e-12}):
        rule = make_groups("paper", **parts)
        torch.testing.assert_close(rule.accepted_mass(target, draft), torch.minimum(target, draft))


def generate(models, spec: MethodSpec) -> torch.Tensor:
    decoder = make_decoder(models, spec, SamplingConfig(cfg_scale=2.0))
    features, mask = make_prompts(models, 5)
    return decoder.generate(features, mask, [decoder.make_noise(7, f"p{i}") for i in range(5)])


def test_a_weight_of_1_and_the_matched_residual_of_eagle_1_change_no_token(models):
    eagle = generate(models, make_method("eagle1", tree="chain3"))
    for spec in (
        make_method("cool", tree="chain3", fall=0.0, omega=1.0),
        make_method("eagle1", tree="chain3", residual="matched"),
    ):
        assert torch.equal(generate(models, spec).codes, eagle.codes)
    bushy = [generate(models, make_method("eagle1", residual=residual)).codes for residual in ("paper", "matched")]
    assert torch.equal(*bushy)


def test_heavy_weights_accept_more_and_light_ones_less(models):
    forwards = [
        int(generate(models, make_method("cool", tree="chain3", fall=0.0, omega=omega)).target_forwards.sum())
        for omega in (0.3, 1.0, 5.0)
    ]
    assert forwards == sorted(forwards, reverse=True) and len(set(forwards)) == 3


def test_groups_need_the_targets_embedding():
    with pytest.raises(ValueError, match="method gsd needs the target's token embedding, got none"):
        make_rule(make_method("gsd"), SamplingConfig(), None)
    make_rule(make_method("gsd"), SamplingConfig(temperature=0.0), None)
