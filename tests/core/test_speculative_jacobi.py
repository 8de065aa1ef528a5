"""Tests of SJD and PathRelax: tokens of the public functions under their noise, and distributions of images."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from helpers.enumeration import law_of_images
from helpers.paths import DATA
from helpers.table_world import Images, TableWorld, count_images
from helpers.tiny_models import generate, verifier_from
from lantern.decoding import make_decoder
from lantern.draft_tree import static_tree
from lantern.methods import make_method
from lantern.models.config import TargetConfig
from lantern.noise import DRAFT, Gumbel, Uniform
from lantern.registry import PRESETS
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern.tree_shapes import tree_choices
from lantern_methods.path_relax import ParallelChainsDrafter
from lantern_methods.sjd import SpeculativeJacobiDrafter

FOLDER = DATA / "peers"


def make_parts(world: TableWorld, name: str, embedding: torch.Tensor | None = None, **parts):
    """Return drafter and verifier of a preset.

    Args:
        world: table world that serves as target.
        embedding: code embeddings of this target.
    """
    spec = make_method(name, **parts)
    config = TargetConfig(vocab_size=world.vocab_size, grid=world.width)
    return SpeculativeJacobiDrafter(static_tree(spec.tree_shape), spec, config), verifier_from(
        spec, world.sampling, None, embedding
    )


class RecordedNoise:
    """Noise that the public functions used for one image, by step and position.

    `length` is the length of the image before the step.
    """

    def __init__(self, noise: dict[str, torch.Tensor], coupling: str) -> None:
        self.noise, self.coupling, self.step, self.length = noise, coupling, -1, 1

    def advance(self, length: int) -> None:
        self.step, self.length = self.step + 1, length

    def rows(self, positions: torch.Tensor) -> torch.Tensor:
        return positions - self.length

    def residual(self) -> torch.Tensor:
        """Return the residual noise of the draft that each position verifies.

        The last position gets the noise of its own sample.
        """
        last = self.noise["draw"][self.step, -1:]
        return torch.cat([self.noise["residual"][self.step, 1:], last])

    def by_position(self, positions: torch.Tensor) -> torch.Tensor:
        return self.noise["by_position"][positions.clamp(max=len(self.noise["by_position"]) - 1)]

    def gumbel(self, stream: Gumbel, positions: torch.Tensor) -> torch.Tensor:
        if stream == DRAFT:
            return self.by_position(positions)
        found = self.residual()[self.rows(positions)]
        is_last = self.rows(positions) == self.noise["draw"].shape[1] - 1
        return (
            torch.where(is_last[..., None], self.by_position(positions), found) if self.coupling == "gumbel" else found
        )

    def uniform(self, stream: Uniform, positions: torch.Tensor, num_slots: int) -> torch.Tensor:
        return self.noise["uniform"][self.step][self.rows(positions) + 1][..., None]

    def fresh(self, stream: Uniform, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        if stream.name == "keep":
            return self.uniform(stream, positions, 1).squeeze(-1)
        codes = self.noise["init"][positions.clamp(max=len(self.noise["init"]) - 1)]
        return (codes + 0.5) / self.noise["first"].shape[0]

    def sample(
        self, stream: Uniform, probs: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        noise = self.residual() if self.coupling == "maximal" else self.noise["draw"][self.step]
        return (probs.log() + noise[self.rows(positions)]).argmax(-1)


RUNS = {
    "sjd_random": ("sjd", {}),
    "scd_gumbel": ("scd_gumbel", {}),
    "scd_maximal_exact": ("scd", {}),
    "scd_maximal_uniform_label": ("scd", {"labels": "uniform"}),
    "sjdpp_tau0.5": ("sjd_pp", {}),
    "gsd": ("gsd", {}),
}


@pytest.mark.parametrize(
    ("run", "number"), [(run, number) for run in RUNS for number in (0, 1) if (run, number) != ("gsd", 0)]
)
def test_the_public_functions_tokens_and_drafts(number, run):
    """Public windows end with the image and its last token is sampled; here it is verified, so it is left out."""
    reference = json.loads((FOLDER / f"jacobi_{number}.json").read_text())
    model, expected = reference["model"], reference["runs"][run]
    tables = load_file(FOLDER / f"jacobi_{number}_model.safetensors")
    noise = load_file(FOLDER / f"jacobi_{number}_noise.safetensors")
    world = TableWorld(tables, model["width"], SamplingConfig(cfg_scale=model["cfg_scale"], top_k=model["top_k"]))
    name, parts = RUNS[run]
    drafter, verifier = make_parts(world, name, tables.get("embedding"), tree=f"chain{model['window'] - 1}", **parts)
    recorded = RecordedNoise(noise, drafter.coupling)
    first = torch.tensor([[expected["tokens"][0]]])
    images = Images(world, drafter, verifier, recorded, first, model["N"])
    for step in expected["steps"]:
        recorded.advance(int(images.lengths))
        assert images.lengths == step["committed_before"]
        outcome = images.step()
        window, left = outcome.proposal.tokens[0, 1:], images.state.drafts[0]
        for found, wanted, begin in ((window, step["window"], recorded.length), (left, step["next"], images.lengths)):
            count = max(0, min(len(wanted), model["N"] - 1 - int(begin)))
            assert found[:count].tolist() == wanted[:count]
        assert min(int(outcome.num_accepted), len(step["window"])) == step["accepted"]
    assert images.tokens[0, : model["N"] - 1].tolist() == expected["tokens"][:-1]


TENSORS = load_file(FOLDER / "law.safetensors")
CASES = {case.get("name", str(case["seed"])): case for case in json.loads((FOLDER / "law.json").read_text())}


def law_world(case: str, dtype: torch.dtype) -> TableWorld:
    names = ("base_c", "left_c", "left2_c", "up_c")
    return TableWorld({name: TENSORS[f"{case}.{name}"].to(dtype) for name in names}, 2, SamplingConfig())


def distance(law: torch.Tensor, case: str, name: str = "autoregressive") -> float:
    return float((law - TENSORS[f"{case}.{name}"]).abs().sum()) / 2


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("sjd", {"tree": "chain2"}),
        ("sjd", {"tree": "chain2", "labels": "uniform"}),
        ("scd", {"tree": "chain2"}),
        ("scd", {"tree": "chain2", "labels": "uniform"}),
        ("sjd_pac", {"tree": "chain2k2d1"}),
        ("sjd_pac", {"tree": "chain1k3d1"}),
    ],
)
def test_whole_images_have_the_targets_distribution(name, parts):
    """All outcomes are enumerated; draft distributions are kept in float32."""
    world = law_world("small", torch.float64)
    assert distance(law_of_images(world, *make_parts(world, name, **parts), 4), "small") < 1e-7


def test_a_threshold_leaves_the_targets_law_as_far_as_is_stated():
    """The stated numbers have windows that end with the image. Lantern's go beyond it, in few outcomes."""
    world, run = law_world("0", torch.float64), "sjdpp_tau0.5"
    law = law_of_images(world, *make_parts(world, "sjd_pp", tree="chain2"), 6)
    assert distance(law, "0") == pytest.approx(CASES["0"]["tv"][run], abs=1e-4)
    assert float((law - TENSORS[f"0.{run}"]).view(-1, 3).sum(1).abs().sum()) / 2 < 1e-6  # all tokens but the last


def test_groups_leave_the_targets_law_as_far_as_is_stated():
    """The last token is left out, because only Lantern verifies it. Distances are given without an embedding."""
    world = law_world("0", torch.float64)
    drafter, verifier = make_parts(world, "gsd", torch.zeros(3, 1), tree="chain2", h=1)
    verifier.rejection.acceptance.is_near = TENSORS["0.gsd_distance"] < 0.5
    law = law_of_images(world, drafter, verifier, 6).view(-1, 3).sum(1)
    expected, target = (TENSORS[f"0.{name}"].view(-1, 3).sum(1) for name in ("gsd_half1", "autoregressive"))
    assert float((law - expected).abs().sum()) / 2 < 1e-6
    assert float((law - target).abs().sum()) / 2 == pytest.approx(CASES["0"]["tv"]["gsd_half1"], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "parts", "is_exact"),
    [
        ("scd", {}, True),
        ("sjd_pp", {}, False),
        ("sjd_pac", {"tree": "chain3k3d2"}, True),
        pytest.param("scd_gumbel", {"labels": "uniform"}, True, marks=pytest.mark.slow),
        pytest.param("sjd_pac", {"tree": "chain2k2d2", "labels": "point"}, True, marks=pytest.mark.slow),
    ],
)
def test_many_images_have_the_targets_distribution(name, parts, is_exact):
    """Chi-square test with 80 degrees of freedom (mean 80, deviation 13). The noise is keyed as for images."""
    world, num_images = law_world("small", torch.float32), 2**15
    drafter, verifier = make_parts(world, name, **{"tree": "chain3", **parts})
    counts = count_images(world, drafter, verifier, num_images, 4)
    expected = num_images * TENSORS["small.autoregressive"]
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert (chi_square < 130) if is_exact else (chi_square > 150)


def test_tokens_that_the_filters_took_away_are_not_emitted(models):
    """Uniform draft distributions propose them. With one code left, the image is that of greedy decoding."""
    bare = DecodingModels(models.target)
    greedy = generate(bare, make_method("autoregressive"), temperature=0.0)
    for name in (name for name, row in PRESETS.items() if row.parts.get("drafts") in ("sjd", "sjd_pp")):
        assert torch.equal(generate(bare, make_method(name), top_k=1).codes, greedy.codes)


@pytest.mark.parametrize(("threshold", "is_kept"), [(0.5, False), (0.49, True)])
def test_a_draft_is_kept_where_its_probability_exceeds_the_threshold_times_its_label_s(threshold, is_kept):
    spec = make_method("sjd_pp", tree="chain1", threshold=threshold)
    drafter = SpeculativeJacobiDrafter(static_tree(tree_choices("chain1")), spec, TargetConfig(vocab_size=2, grid=2))
    probs, label, drafts = torch.tensor([[[0.25, 0.75]]]), torch.tensor([[[0.5, 0.5]]]), torch.tensor([[0]])
    found, redrawn_from = drafter._keep(None, probs, drafts, label, None)
    assert found.tolist() == [[is_kept]] and torch.equal(redrawn_from, probs)


def test_a_tree_may_have_more_than_a_block_of_siblings(models):
    """9 siblings at 8 depths read 72 slots."""
    spec = make_method("sjd_pac", tree="wide", tree_shape=[[0] * n + [rank] for n in range(8) for rank in range(9)])
    decoder = make_decoder(DecodingModels(models.target), spec, SamplingConfig())
    assert Uniform("sibling", 72) in decoder.noise_streams
    assert generate(models, spec).step_lengths.sum(1).eq(16).all()


def make_chains(world: TableWorld, num_chains: int, length: int, delta: float):
    spec = make_method("path_relax", tree=f"chain{length}x{num_chains}", delta=delta)
    config = TargetConfig(vocab_size=world.vocab_size, grid=world.width)
    chain = SpeculativeJacobiDrafter(static_tree(tree_choices(f"chain{length}")), spec, config)
    drafter = ParallelChainsDrafter(static_tree(spec.tree_shape), chain, delta)
    return drafter, drafter.verifier


class NoiseOfChains:
    """Noise that the public functions used for one image, by step, chain and position."""

    def __init__(self, noise: dict[str, torch.Tensor]) -> None:
        self.noise, self.step, self.length = noise, -1, 1
        self.num_chains, self.num_rows = noise["uniform"].shape[1:]

    def by_row(self, name: str, chains: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self.noise[name][self.step][chains, rows]

    def gumbel(self, stream: Gumbel, positions: torch.Tensor) -> torch.Tensor:
        """Return the noise of the nodes in order: the root, then chain by chain at every depth."""
        rows = positions - self.length
        chains = (torch.arange(positions.shape[1]) - 1).clamp(min=0) % self.num_chains
        residual = self.by_row("residual", chains.expand_as(rows), (rows + 1).clamp(max=self.num_rows - 1))
        own = self.by_row("draw", chains.expand_as(rows), rows)
        return torch.where((rows == self.num_rows - 1)[..., None], own, residual)

    def uniform(self, stream: Uniform, positions: torch.Tensor, num_slots: int) -> torch.Tensor:
        rows = positions - self.length + 1
        return self.by_row("uniform", torch.arange(num_slots), rows[..., None])

    def fresh(self, stream: Uniform, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        init = self.noise["init"]
        codes = init[(slots // self.num_rows).expand_as(positions), positions.clamp(max=init.shape[1] - 1)]
        return (codes + 0.5) / len(self.noise["first"])

    def sample(
        self, stream: Uniform, probs: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> torch.Tensor:
        noise = self.by_row("draw", slots // self.num_rows, slots % self.num_rows)
        return (probs.log() + noise).argmax(-1)


@pytest.mark.parametrize("number", [0, 1])
def test_the_public_functions_tokens_and_drafts_of_path_relax(number):
    case = json.loads((FOLDER / "paths.json").read_text())[number]
    tensors = load_file(FOLDER / "paths.safetensors")
    tables = {name[2:]: tensor for name, tensor in tensors.items() if name.startswith(f"{number}.")}
    world = TableWorld(tables, case["width"], SamplingConfig(cfg_scale=case["cfg_scale"], top_k=case["top_k"]))
    drafter, verifier = make_chains(world, case["K"], case["window"] - 1, case["delta"])
    noise = NoiseOfChains(tables)
    images = Images(world, drafter, verifier, noise, torch.tensor([[case["tokens"][0]]]), case["N"])
    for step in case["steps"]:
        noise.step, noise.length = noise.step + 1, int(images.lengths)
        left = case["N"] - 1 - noise.length  # drafts in the public window
        outcome = images.step()
        assert min(int(outcome.num_accepted), left) == step["accepted"]
        if step["accepted"] > 0:
            assert (int(outcome.path[0, 1]) - 1) % case["K"] == step["path"]
        for chain, wanted in enumerate(step["next"]):
            count = max(0, min(len(wanted), case["N"] - 1 - int(images.lengths)))
            assert images.state.drafts[chain, :count].tolist() == wanted[:count]
    assert images.tokens[0, : case["N"] - 1].tolist() == case["tokens"][:-1]


@pytest.mark.parametrize("delta", [0.0, 0.3])
def test_path_relax_leaves_the_targets_distribution_as_far_as_is_stated(delta):
    """All tokens except the last, by 2^16 images, where chance alone gives a distance of about 0.007."""
    world = law_world("small", torch.float32)
    law = count_images(world, *make_chains(world, 2, 1, delta), 2**16, 4) / 2**16
    names = ("autoregressive", f"paths_K2_delta{delta}")
    found, target, stated = (part.view(27, 3).sum(1) for part in (law, *(TENSORS[f"small.{name}"] for name in names)))
    assert float((found - stated).abs().sum()) / 2 < 0.01
    assert float((target - stated).abs().sum()) / 2 > 0.03


@pytest.mark.parametrize(("tree", "num_slots"), [("chain15x4", 64), ("chain12x5", 65)])
def test_every_chain_has_slots_of_its_own(models, tree, num_slots):
    """One for each of its nodes and for the root."""
    spec = make_method("path_relax", tree=tree)
    drafter = ParallelChainsDrafter.make(models, spec, SamplingConfig())
    assert drafter.noise_streams == (Uniform("initial", num_slots), Uniform("redraw", num_slots))
    assert generate(models, spec).step_lengths.sum(1).eq(16).all()
