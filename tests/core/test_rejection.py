"""Tests of rejection sampling: output distributions by enumeration, numbers of public code, decisions by eye."""

from __future__ import annotations

import itertools
import json
from functools import cache

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers.generation.utils import _speculative_sampling

from helpers.paths import DATA
from helpers.table_world import TableWorld
from helpers.tiny_models import generate, verifier_from
from lantern.acceptance import relaxed_sets
from lantern.acceptance.base import Exact
from lantern.acceptance.rejection import Rejection
from lantern.acceptance.relaxed_sets import AdditiveBound, MultiplicativeBound
from lantern.codebook import nearest_codes
from lantern.methods import make_method
from lantern.sampling import SamplingConfig
from lantern_methods.cool import DraftWeights
from lantern_methods.gsd import ProbabilityGroups

LAWS = json.loads((DATA / "reference" / "emission_law.json").read_text())
COOL = json.loads((DATA / "peers" / "cool.json").read_text())
COOL_TENSORS = load_file(DATA / "peers" / "cool.safetensors")
GSD = json.loads((DATA / "peers" / "gsd_verify.json").read_text())
GSD_TENSORS = load_file(DATA / "peers" / "gsd_verify.safetensors")
VOCAB = 24
EMBEDDING = torch.randn(VOCAB, 4, generator=torch.Generator().manual_seed(3))
TABLE = nearest_codes(EMBEDDING, 20)


def distribution_of(
    rejection: Rejection, target: torch.Tensor, draft: torch.Tensor, num_drafts: int = 1
) -> torch.Tensor:
    """Return the exact distribution of the token emitted at one node, (vocab,).

    Every sequence of drafts that can be sampled without replacement, and every acceptance and rejection, counts with
    its probability.
    """
    sequences = torch.tensor(list(itertools.permutations(range(len(target)), num_drafts)))
    return distribution_given(rejection, target, draft.expand(len(sequences), -1), sequences)


def distribution_given(rejection: Rejection, target, draft, sequences: torch.Tensor) -> torch.Tensor:
    """Return the same distribution for given sequences of drafts, (n, drafts), by the functions that decode."""
    tried = list(rejection.try_siblings(target.expand(len(sequences), -1), sequences, draft))
    weight, emitted = torch.ones(len(sequences), dtype=target.dtype), torch.zeros_like(target)
    for turn in tried:
        weight = weight * turn.token_draft[:, 0]
    for token, turn in zip(sequences.T, tried, strict=True):
        accept = (turn.relaxed_prob / turn.token_draft)[:, 0].clamp(max=1)
        emitted.index_add_(0, token, weight * accept)
        weight = weight * (1 - accept)
    return emitted + (weight[:, None] * tried[-1].residual).sum(0)


def accept_chain(probs, tokens, draft_probs, uniforms) -> tuple[int, torch.Tensor]:
    """Verify one chain of drafts exactly and in plain Python.

    Return the number of accepted drafts, and the distribution of the token that follows them, (vocab,). `probs` are
    those at the root and after each draft.
    """
    # `probs` has one entry more than the others, hence strict=False.
    for index, (x, t, p, u) in enumerate(zip(tokens, probs, draft_probs, uniforms, strict=False)):
        if u * p[x] > t[x] or t[x] == 0:
            residual = (t - p).clamp(min=0)
            return index, residual / residual.sum()
    return len(tokens), probs[len(tokens)]


def random_probs(rows: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random distributions of a target and a drafter, (rows, VOCAB) each."""
    logits = 1.5 * torch.randn(2, rows, VOCAB, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return logits[0].softmax(-1), (logits[0] + logits[1]).softmax(-1)


def weighted(*weights: float) -> Rejection:
    """Return COOL-SD's rejection with these weights of the nodes."""
    return Rejection(DraftWeights(torch.tensor(weights, dtype=torch.float64)), "matched")


def grouped(residual: str, embedding: torch.Tensor = EMBEDDING, **parts) -> Rejection:
    """Return GSD's rejection."""
    spec = make_method("gsd", **{"h": 3, "p_max": 0.2, "d_max": 6.0, "residual": residual, **parts})
    return verifier_from(spec, SamplingConfig(), None, embedding).rejection


def mixture(name: str, value: float, residual: str = "paper") -> Rejection:
    """Return rejection against a mixture of the target's distribution and that of the drafts."""
    parameter = {"ensemble": "weight", "mixing": "budget"}[name]
    return verifier_from(make_method(name, residual=residual, **{parameter: value}), SamplingConfig()).rejection


def acceptance_of(case: dict) -> Exact:
    """Return the acceptance of a stored case.

    The reference packs both bounds into one number: 0 is exact, up to 1 it is delta, above 1 it is lambda.
    """
    table = torch.tensor(case["neighbours"])
    if case["delta"] == 0:
        return Exact()
    if case["delta"] > 1:
        return MultiplicativeBound(table, k=case["k"], lambda_=case["delta"])
    return AdditiveBound(table, k=case["k"], delta=case["delta"])


@pytest.mark.parametrize("rule", ["paper", "static", "static_lumina", "dyn"])
@pytest.mark.parametrize("siblings", [1, 2, 3])
def test_the_distribution_is_the_references(rule, siblings):
    residual = {"paper": "paper", "static_lumina": "official_lumina"}.get(rule, "official")
    for case in [case for case in LAWS if (case["rule"], case["siblings"]) == (rule, siblings)]:
        target, draft, expected = (torch.tensor(case[name], dtype=torch.float64) for name in ("q", "p", "law"))
        rejection = Rejection(acceptance_of(case), residual)
        if case["deterministic_draft"]:
            found = distribution_given(rejection, target, None, draft.topk(siblings).indices[None])
        else:
            found = distribution_of(rejection, target, draft, siblings)
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=0, msg=lambda text, case=case: f"{case}: {text}")


class HalfFirst(Exact):
    """An acceptance s(x) = t(x) / 2 of the first sibling, and the exact one of all others."""

    def relaxed_prob(self, probs, draft_probs, tokens):
        return super().relaxed_prob(probs, draft_probs, tokens) / 2

    def of_next_sibling(self):
        return Exact()


@pytest.mark.parametrize(
    "rejection",
    [Rejection(), Rejection(residual="matched"), weighted(0.4), weighted(1.0), Rejection(HalfFirst(), "matched")],
)
def test_siblings_of_exact_rejections_keep_the_targets_distribution(rejection):
    target, draft = (probs[0] for probs in random_probs())
    for num_drafts in (1, 3):
        torch.testing.assert_close(distribution_of(rejection, target, draft, num_drafts), target)


@pytest.mark.parametrize("drafts", [0, 1, 4])
def test_a_chain_is_verified_as_a_reader_would_write_it(drafts):
    """Batched verification of a chain is compared with a plain loop over its drafts."""
    generator = torch.Generator().manual_seed(drafts)
    rejected = 0
    for _ in range(200):
        probs = (2 * torch.randn(drafts + 1, 6, generator=generator, dtype=torch.float64)).softmax(-1)
        draft_probs = (2 * torch.randn(drafts, 6, generator=generator, dtype=torch.float64)).softmax(-1)
        tokens = [int(torch.multinomial(row, 1, generator=generator)) for row in draft_probs]
        uniforms = torch.rand(drafts, generator=generator, dtype=torch.float64)
        expected, left = accept_chain(probs, tokens, draft_probs, uniforms.tolist())
        accepted, found = accept_batched(Rejection(), probs, draft_probs, tokens, uniforms)
        assert accepted == expected
        rejected += accepted < drafts
        torch.testing.assert_close(found, left)
    assert (rejected > 20) == (drafts > 0)


def accept_batched(rejection: Rejection, probs, draft_probs, tokens: list[int], uniforms) -> tuple[int, torch.Tensor]:
    """Return (number of accepted drafts, residual distribution after them) of a chain."""
    count, children = len(tokens), torch.tensor(tokens, dtype=torch.int64).view(1, -1, 1)
    rank, residual = rejection.accept(probs[None, :count], children, draft_probs[None, :count], uniforms.view(1, -1, 1))
    accepted = int((rank[0] == 0).long().cumprod(0).sum())
    return accepted, residual[0, accepted] if accepted < count else probs[count]


@pytest.mark.parametrize(("uniform", "rank"), [(0.39, 0), (0.41, 1), (0.95, 2)])
def test_children_are_tried_in_order_against_what_is_left(uniform, rank):
    probs = torch.tensor([[[0.4, 0.3, 0.3]]], dtype=torch.float64)
    children, uniforms = torch.tensor([[[0, 1]]]), torch.full((1, 1, 2), uniform, dtype=torch.float64)
    assert Rejection().accept(probs, children, None, uniforms)[0].item() == rank  # 0.4, then 0.3 / 0.6
    cannot_be_drawn = torch.tensor([[[0.0, 0.6, 0.4]]], dtype=torch.float64)
    assert Rejection().accept(probs, children, cannot_be_drawn, uniforms)[0].item() == max(rank, 1)  # 0.3 / 0.6


def test_a_draft_that_the_target_never_emits_is_not_accepted_though_its_test_rounds_to_0():
    """In float32, u p(x) is 0, and so is t(x)."""
    probs, draft = torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[1e-40, 1.0]]])
    rank, _ = Rejection().accept(probs, torch.tensor([[[0]]]), draft, torch.full((1, 1, 1), 1e-10))
    assert rank.item() == 1


def test_a_missing_sibling_takes_nothing_from_what_the_next_one_was_drawn_from():
    probs, children = torch.tensor([[[0.5, 0.5]]]), torch.tensor([[[-1, 0]]])
    rank, _ = Rejection().accept(probs, children, probs, torch.full((1, 1, 2), 0.1))
    assert rank.item() == 1


@pytest.mark.parametrize("bound", [AdditiveBound(TABLE, k=8, delta=0.1), MultiplicativeBound(TABLE, k=8, lambda_=3.0)])
def test_the_matched_residual_of_lantern_leaves_the_least_total_variation(bound, monkeypatch):
    target, draft = random_probs()
    rejection = Rejection(bound, "matched")
    accepted = rejection.acceptance.accepted_mass(target, draft)
    relaxed_probs = [bound.relaxed_prob(target, draft, torch.full((20, 1), code)) for code in range(VOCAB)]
    torch.testing.assert_close(accepted, torch.minimum(draft, torch.cat(relaxed_probs, dim=-1)))
    monkeypatch.setattr(relaxed_sets, "MASSES_AT_ONCE", 20 * 9 * 5)  # however many are held
    torch.testing.assert_close(rejection.acceptance.accepted_mass(target, draft), accepted)
    for t, p, least in zip(target, draft, (accepted - target).clamp(min=0).sum(-1), strict=True):
        tv, other = (float((distribution_of(r, t, p) - t).abs().sum()) / 2 for r in (rejection, Rejection(bound)))
        assert tv == pytest.approx(float(least)) and 0 < tv < other + 1e-9


def test_the_weights_of_cool_are_the_references():
    for case in COOL["weights"]:
        spec = make_method("cool", tree=f"chain{case['length']}", fall=0.7 if case["nu"] else 0.0, omega=case["delta"])
        weights = verifier_from(spec, SamplingConfig()).rejection.acceptance
        assert weights.weights.tolist() == pytest.approx(case["omega"])
        assert weights.at(torch.tensor([1, 1])).weights.tolist() == pytest.approx([case["omega"][1]] * 2)


@pytest.mark.parametrize("omega", [0.3, 0.8, 1.0, 1.1, 2.0, 5.0])
def test_one_position_has_the_distribution_of_cool(omega):
    for case in [case for case in COOL["one_position"] if case["omega"] == omega]:
        compare_one_position(case)


def compare_one_position(case: dict) -> None:
    name, omega = f"one.{case['case']}", case["omega"]
    target, draft = COOL_TENSORS[f"{name}.target"], COOL_TENSORS[f"{name}.draft"]
    name += f".{(0.3, 0.8, 1, 1.1, 2, 5).index(omega)}"
    rejection = weighted(omega)
    assert float(rejection.acceptance.accepted_mass(target, draft).sum()) == pytest.approx(case["acceptance"])
    if case["acceptance"] < 1 - 1e-9:
        residual = rejection.residual_probs(target, None, draft)
        torch.testing.assert_close(residual.view(-1), COOL_TENSORS[f"{name}.residual"], atol=1e-9, rtol=0)
    found = distribution_of(rejection, target, draft)
    torch.testing.assert_close(found, COOL_TENSORS[f"{name}.law"], atol=1e-9, rtol=0)
    tv = float((found - target).abs().sum()) / 2
    assert tv == pytest.approx(case["tv"], abs=1e-9) and tv <= max(0.0, 1 - 1 / omega) + 1e-9


def probs_of(world: TableWorld, tokens: tuple[int, ...]) -> torch.Tensor:
    """Return the distribution of the token after these tokens."""
    contexts = torch.nn.functional.pad(torch.tensor(tokens, dtype=torch.int64), (0, 1)).view(1, 1, -1)
    return world.logits(contexts, torch.tensor([[len(tokens)]]))[0, 0].softmax(-1)


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_whole_images_of_cool_are_the_references_token_by_token(number):
    case = COOL["chain"][number]
    stored = {
        name.split(".", 2)[2]: tensor.double() for name, tensor in COOL_TENSORS.items() if f"chain.{number}" in name
    }
    target, draft = (
        TableWorld({name: stored[f"{kind}.{name}"] for name in TABLES}, case["width"], SamplingConfig())
        for kind in ("target", "draft")
    )
    spec = make_method("cool", tree=f"chain{case['length']}", omega=case["delta"])
    rejection, tokens = verifier_from(spec, SamplingConfig(), None).rejection, []
    for number_of_step, step in enumerate(case["steps"]):
        noise = {kind: stored[f"noise.{kind}"][number_of_step] for kind in ("draft", "accept", "target")}
        length, drafts = min(case["length"], case["N"] - len(tokens) - 1), []
        for place in range(length):
            drafts.append(int((probs_of(draft, (*tokens, *drafts)).log() + noise["draft"][place]).argmax()))
        assert drafts == step["drafts"]
        contexts = [(*tokens, *drafts[:place]) for place in range(length + 1)]
        probs, draft_probs = (torch.stack([probs_of(world, c) for c in contexts]) for world in (target, draft))
        on_chain = rejection.at(torch.arange(length))
        accepted, left = accept_batched(on_chain, probs, draft_probs, drafts, noise["accept"][:length])
        assert accepted == step["accepted"]
        tokens = [*tokens, *drafts[:accepted], int((left.log() + noise["target"][accepted]).argmax())]
    assert tokens == case["tokens"]


TABLES = ("base_c", "left_c", "left2_c", "up_c")


def make_tables(seed: int, scales: tuple[float, ...], vocab: int, positions: int) -> dict[str, torch.Tensor]:
    """Make the tables of a stub target by the recipe of tests/data/peers.

    The tables of the null branch are sampled in between and not kept.
    """
    generator, tables = np.random.RandomState(seed), {}
    for name, scale in zip(TABLES, scales, strict=True):
        size = (positions if name == "base_c" else vocab, vocab)
        values = (scale * generator.standard_normal(size)).astype(np.float32)
        tables[name] = torch.from_numpy(values).double()
        generator.standard_normal(size)
    return tables


WORLD = COOL["whole_image_law"]


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=[] if "2" in row["schedule"] else pytest.mark.slow) for row in WORLD["rows"]],
    ids=lambda row: row["schedule"],
)
def test_the_distribution_of_whole_images_of_cool_is_the_references(row):
    vocab, count = WORLD["V"], WORLD["N"]
    tables = make_tables(WORLD["seed_target"], (1, 1.2, 0.6, 0.6), vocab, count)
    moved = make_tables(WORLD["seed_draft"], (0.6, 0.6, 0.4, 0.4), vocab, count)
    target = TableWorld(tables, WORLD["width"], SamplingConfig())
    draft = TableWorld({name: table + moved[name] for name, table in tables.items()}, WORLD["width"], SamplingConfig())
    weights = [1.0] * 3
    if row["schedule"] != "exact":
        name, omega = row["schedule"].split()
        fall = {"annealed": 0.7, "uniform": 0.0, "reversed": -0.7}[name]
        spec = make_method("cool", tree="chain3", fall=fall, omega=float(omega))
        weights = verifier_from(spec, SamplingConfig()).rejection.acceptance.weights.tolist()
    rejections = [weighted(weight) for weight in weights]

    @cache
    def masses(tokens: tuple[int, ...], place: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the target's probabilities, and the probabilities that a code is accepted, and emitted otherwise."""
        probs, draft_probs = probs_of(target, tokens), probs_of(draft, tokens)
        accepted = rejections[place].acceptance.accepted_mass(probs, draft_probs).view(-1)
        residual = rejections[place].residual_probs(probs, None, draft_probs).view(-1)
        return probs, accepted, (1 - accepted.sum()) * residual

    @cache
    def images_behind(tokens: tuple[int, ...], place: int) -> torch.Tensor:
        """Return the distribution of whole images that begin with these tokens.

        Args:
            place: how many of the tokens are drafts that were accepted in this step.
        """
        if len(tokens) == count:
            return torch.ones(1, dtype=torch.float64)
        if place == min(3, count - len(tokens) + place - 1):
            probs = probs_of(target, tokens)
            return torch.cat([probs[code] * images_behind((*tokens, code), 0) for code in range(vocab)])
        _, accepted, rejected = masses(tokens, place)
        following = [[images_behind((*tokens, code), behind) for behind in (place + 1, 0)] for code in range(vocab)]
        return torch.cat(
            [a * kept + r * other for a, r, (kept, other) in zip(accepted, rejected, following, strict=True)]
        )

    def num_accepted(tokens: tuple[int, ...]) -> float:
        """Return the expected number of accepted drafts after these tokens, all of one step."""
        if len(tokens) == 3:
            return 0.0
        accepted = masses(tokens, len(tokens))[1]
        return sum(float(mass) * (1 + num_accepted((*tokens, code))) for code, mass in enumerate(accepted))

    images = torch.cartesian_prod(*[torch.arange(vocab)] * count)
    contexts, positions = images[:, None].expand(-1, count, -1), torch.arange(count).expand(len(images), -1)
    probs = target.logits(contexts, positions).softmax(-1).gather(2, images[..., None]).squeeze(2).prod(1)
    assert float((images_behind((), 0) - probs).abs().sum()) / 2 == pytest.approx(row["tv_image"], abs=1e-7)
    assert num_accepted(()) == pytest.approx(row["accepted_first_step"], abs=1e-7)


@pytest.mark.parametrize("residual", ["paper", "matched"])
@pytest.mark.parametrize(("name", "value"), [("ensemble", 0.8), ("ensemble", 0.1), ("mixing", 0.1), ("mixing", 0.9)])
def test_a_mixture_is_emitted_as_it_stands_however_many_drafts_are_tried(name, value, residual):
    rejection = mixture(name, value, residual)
    for t, p, num_drafts in zip(*random_probs(2), (1, 3), strict=True):
        distance = float((t - p).abs().sum()) / 2
        expected = (1 - value) * distance if name == "ensemble" else min(value, distance)
        mixed = t + (p - t) * expected / distance
        assert 0.1 < distance < 0.9
        torch.testing.assert_close(distribution_of(rejection, t, p, num_drafts), mixed)
        assert float(rejection.acceptance.accepted_mass(t, p).sum()) == pytest.approx(1 - distance + expected)


@pytest.mark.parametrize(("name", "value"), [("ensemble", 1.0), ("mixing", 0.0)])
def test_a_mixture_of_the_target_alone_is_exact(name, value, models):
    target, draft = (probs[0] for probs in random_probs())
    for drawn_from in (draft, target):
        torch.testing.assert_close(distribution_of(mixture(name, value), target, drawn_from, 2), target)
    spec = make_method(name, tree="chain3", **({"weight": value} if name == "ensemble" else {"budget": value}))
    assert torch.equal(generate(models, spec).codes, generate(models, make_method("eagle1", tree="chain3")).codes)


@pytest.mark.parametrize(
    "rejection",
    [
        *(Rejection(MultiplicativeBound(TABLE, k=8, lambda_=3.0), residual) for residual in ("paper", "matched")),
        *(Rejection(AdditiveBound(TABLE, k=8, delta=0.1), residual) for residual in ("paper", "matched")),
        grouped("matched"),
        weighted(2.0),
    ],
)
def test_no_rejection_accepts_more_of_one_draft_than_mixing_at_its_total_variation(rejection):
    for t, p in zip(*random_probs(), strict=True):
        tv = float((distribution_of(rejection, t, p) - t).abs().sum()) / 2
        accepted, most = (float(r.acceptance.accepted_mass(t, p).sum()) for r in (rejection, mixture("mixing", tv)))
        assert accepted <= most + 1e-9
        if rejection.residual == "matched" and (rejection.acceptance.relaxed_prob_of_all(t, p) >= t).all():
            assert accepted == pytest.approx(most)


@pytest.mark.parametrize("weight", [0.3, 0.8])
def test_the_ensemble_decides_as_transformers_does(weight, monkeypatch):
    """Compares the number of accepted drafts of a chain, and the distribution after them."""
    generator, seen, counts = torch.Generator().manual_seed(0), [], set()
    monkeypatch.setattr(torch, "multinomial", lambda probs, num_samples: seen.append(probs) or torch.zeros(1, 1).long())
    for _ in range(50):
        target, draft = (2 * torch.randn(2, 1, 5, 6, generator=generator, dtype=torch.float64)).unbind()
        tokens, uniforms = torch.randint(6, (1, 4), generator=generator), torch.rand(4, generator=generator).double()
        monkeypatch.setattr(torch, "rand_like", lambda ratio, drawn=uniforms: drawn.view_as(ratio))
        _, expected = _speculative_sampling(tokens, draft[:, :4], 4, target, assistant_ensemble_weight=weight)
        probs, draft_probs = target[0].softmax(-1), draft[0, :4].softmax(-1)
        accepted, left = accept_batched(mixture("ensemble", weight), probs, draft_probs, tokens[0].tolist(), uniforms)
        assert accepted == int(expected)
        torch.testing.assert_close(left, seen[-1].view(-1))
        counts.add(accepted)
    assert len(counts) > 3


def test_groups_of_gsd_decide_as_the_authors_code_does():
    for number in range(len(GSD)):
        compare_groups(number)


def compare_groups(number: int) -> None:
    """Compare the acceptance of each draft, the number of accepted ones, and the token sampled after them."""
    case, names = GSD[number], ("target", "label", "embedding", "uniform", "residual")
    target, label, embedding, uniform, noise = (GSD_TENSORS[f"{number}.{name}"].double() for name in names)
    rejection = verifier_from(make_method("gsd"), SamplingConfig(), None, embedding).rejection
    drafts = torch.tensor(case["drafts"])[:, None]
    probs, draft_probs = target[: len(drafts)], label[1 : len(drafts) + 1]
    relaxed_prob = rejection.acceptance.relaxed_prob(probs, draft_probs, drafts)
    acceptance = (relaxed_prob / draft_probs.gather(-1, drafts)).clamp(max=1)[:, 0]
    assert acceptance.tolist() == pytest.approx(case["acceptance"], rel=1e-5, abs=1e-9)
    accepted, left = accept_batched(rejection, target, draft_probs, case["drafts"], uniform[1 : len(drafts) + 1])
    assert accepted == case["accepted"]
    if accepted < len(drafts):
        assert int((left.log() + noise[accepted + 1]).argmax()) == case["emitted"]


def test_a_group_holds_codes_as_probable_as_the_draft_and_near_it():
    """Compared with a loop over the ranks around the draft."""
    target, draft = random_probs()
    acceptance = grouped("paper").acceptance
    is_near = acceptance.is_near
    assert 0.1 < is_near.double().mean() < 0.9 and torch.equal(is_near, is_near.T)
    for t, p in zip(target, draft, strict=True):
        order = t.argsort().tolist()
        for code in range(VOCAB):
            rank, group = order.index(code), [code]
            if rank >= 3:
                near = [other for other in order[rank - 3 : rank + 3] if is_near[code, other]]
                group = [other for other in near if abs(t[other] - t[code]) < 0.2]
            found = acceptance.relaxed_prob(t, p, torch.tensor([code])) / p[code]
            assert float(found) == pytest.approx(float(t[group].sum() / p[group].sum()))


@pytest.mark.parametrize("residual", ["paper", "matched"])
def test_either_residual_is_the_least_where_groups_accept_more_than_single_codes(residual):
    target, draft = random_probs()
    rejection = grouped(residual)
    mass = rejection.acceptance.accepted_mass(target, draft)
    assert (mass.sum(-1) >= torch.minimum(target, draft).sum(-1)).all()
    found = torch.stack([distribution_of(rejection, t, p) for t, p in zip(target, draft, strict=True)])
    tv = (found - target).abs().sum(-1) / 2
    torch.testing.assert_close(tv, (mass - target).clamp(min=0).sum(-1))
    assert tv.mean() > 0.01


@pytest.mark.parametrize(("residual", "expected"), [("paper", [0.1, 0.2743, 0.6257]), ("matched", [0.1, 0.3, 0.6])])
def test_where_groups_accept_less_the_matched_residual_is_exact_and_the_plain_one_is_not(residual, expected):
    """Code 1 is in a group with code 0, which is drafted far too often."""
    target, draft = (torch.tensor(row, dtype=torch.float64) for row in ([0.1, 0.3, 0.6], [0.6, 0.1, 0.3]))
    rejection = grouped(residual, torch.zeros(3, 2), h=1, p_max=1.0)
    assert rejection.acceptance.accepted_mass(target, draft).tolist() == pytest.approx([0.1, 0.1 * 0.4 / 0.7, 0.3])
    assert distribution_of(rejection, target, draft).tolist() == pytest.approx(expected, abs=1e-4)


def test_a_group_leaves_out_a_code_whose_probability_differs_by_p_max():
    target, draft = torch.tensor([0.125, 0.375, 0.5]), torch.tensor([0.5, 0.25, 0.25])
    for p_max, expected in ((0.25, 0.375), (0.26, 0.25 * 0.5 / 0.75)):  # code 1 only, or with code 0
        acceptance = grouped("paper", torch.zeros(3, 2), h=1, p_max=p_max).acceptance
        assert float(acceptance.relaxed_prob(target, draft, torch.tensor([1]))) == pytest.approx(expected)


def test_groups_of_no_width_are_exact():
    target, draft = random_probs()
    for parts in ({"h": VOCAB}, {"d_max": 1e-9}, {"p_max": 1e-12}):
        mass = grouped("paper", **parts).acceptance.accepted_mass(target, draft)
        torch.testing.assert_close(mass, torch.minimum(target, draft))


def test_a_weight_of_1_and_the_matched_residual_change_no_token_and_heavy_weights_accept_more(models):
    cool = [generate(models, make_method("cool", tree="chain3", fall=0.0, omega=omega)) for omega in (0.3, 1.0, 5.0)]
    forwards = [int(generation.target_forwards.sum()) for generation in cool]
    assert forwards[0] > forwards[1] > forwards[2]
    chain, bushy = (
        [
            generate(models, make_method("eagle1", tree=tree, residual=residual)).codes
            for residual in ("paper", "matched")
        ]
        for tree in ("chain3", "naive_extend_57")
    )
    assert torch.equal(*chain) and torch.equal(*bushy) and torch.equal(cool[1].codes, chain[0])


def test_distances_of_groups_are_exact_far_from_the_origin_and_at_d_max():
    """In float32, squares of 3,000 are rounded to 1. A distance of exactly d_max is not near. Codes run in chunks."""
    embedding = torch.zeros(1030, 2)
    embedding[:, 0], embedding[1:, 1] = 3000.0, torch.arange(1029) * 64.0
    embedding[1028:] = torch.tensor([[3000.5, 0.0], [3000.75, 0.0]])
    groups = ProbabilityGroups(embedding, h=1, p_max=1.0, d_max=0.25)
    assert groups.is_near.shape == (1030, 1030) and groups.is_near.diagonal().all()
    assert not groups.is_near[0, 1028] and groups.is_near[1028, 1029] and not groups.is_near[0, 1029]
    assert ProbabilityGroups(embedding, h=1, p_max=1.0, d_max=0.26).is_near[0, [1, 1028, 1029]].tolist() == [
        True,
        True,
        False,
    ]
