"""PathRelax: the public functions' tokens under their noise, and how far the law of images is from the target's."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from table_world import Images, TableWorld, count_images

from conftest import DATA
from lantern.draft_tree import static_tree
from lantern.drafters.path_relax import ParallelChainsDrafter
from lantern.drafters.sjd import SpeculativeJacobiDrafter
from lantern.methods import make_method
from lantern.models.config import TargetConfig
from lantern.sampling import SamplingConfig
from lantern.tree_shapes import tree_choices

FOLDER = DATA / "peers"


def make_parts(world: TableWorld, num_chains: int, length: int, delta: float):
    spec = make_method("path_relax", tree=f"chain{length}x{num_chains}", delta=delta)
    config = TargetConfig(vocab_size=world.vocab_size, grid=world.width)
    chain = SpeculativeJacobiDrafter(static_tree(tree_choices(f"chain{length}")), spec, config)
    drafter = ParallelChainsDrafter(static_tree(spec.tree_shape), chain, delta)
    return drafter, drafter.rule


class RecordedNoise:
    """The public functions' noise of one image, by step, chain and row."""

    def __init__(self, noise: dict[str, torch.Tensor]) -> None:
        self.noise, self.step, self.length = noise, -1, 1
        self.num_chains, self.num_rows = noise["uniform"].shape[1:]

    def by_row(self, name: str, chains: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self.noise[name][self.step][chains, rows]

    def gumbel(self, stream: str, positions: torch.Tensor) -> torch.Tensor:
        """Of nodes in order: the root, then chain by chain at every depth."""
        rows = positions - self.length
        chains = (torch.arange(positions.shape[1]) - 1).clamp(min=0) % self.num_chains
        residual = self.by_row("residual", chains.expand_as(rows), (rows + 1).clamp(max=self.num_rows - 1))
        own = self.by_row("draw", chains.expand_as(rows), rows)
        return torch.where((rows == self.num_rows - 1)[..., None], own, residual)

    def uniform(self, positions: torch.Tensor, num_slots: int) -> torch.Tensor:
        rows = positions - self.length + 1
        return self.by_row("uniform", torch.arange(num_slots), rows[..., None])

    def fresh(self, stream: str, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        init = self.noise["init"]
        codes = init[(slots // self.num_rows).expand_as(positions), positions.clamp(max=init.shape[1] - 1)]
        return (codes + 0.5) / len(self.noise["first"])

    def draw(self, stream: str, probs: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        noise = self.by_row("draw", slots // self.num_rows, slots % self.num_rows)
        return (probs.log() + noise).argmax(-1)


@pytest.mark.parametrize("number", [0, 1])
def test_the_public_functions_tokens_and_drafts(number):
    """Their windows end with the image, so that its last token is drawn there, and judged here: it is left out."""
    case = json.loads((FOLDER / "paths.json").read_text())[number]
    tensors = load_file(FOLDER / "paths.safetensors")
    tables = {name[2:]: tensor for name, tensor in tensors.items() if name.startswith(f"{number}.")}
    world = TableWorld(tables, case["width"], SamplingConfig(cfg_scale=case["cfg_scale"], top_k=case["top_k"]))
    drafter, rule = make_parts(world, case["K"], case["window"] - 1, case["delta"])
    noise = RecordedNoise(tables)
    images = Images(world, drafter, rule, noise, torch.tensor([[case["tokens"][0]]]), case["N"])
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
def test_the_law_of_images_is_as_far_from_the_targets_as_is_stated(delta):
    """Of all tokens but the last, see above; by 2^16 images, where chance alone is a distance of about 0.007."""
    tensors = load_file(FOLDER / "law.safetensors")
    tables = {name: tensors[f"small.{name}"] for name in ("base_c", "left_c", "left2_c", "up_c")}
    world = TableWorld(tables, 2, SamplingConfig())
    law = count_images(world, *make_parts(world, 2, 1, delta), 2**16, 4) / 2**16
    names = ("autoregressive", f"paths_K2_delta{delta}")
    found, target, stated = (part.view(27, 3).sum(1) for part in (law, *(tensors[f"small.{name}"] for name in names)))
    assert float((found - stated).abs().sum()) / 2 < 0.01
    assert float((target - stated).abs().sum()) / 2 > 0.03


@pytest.mark.parametrize(("tree", "is_allowed"), [("chain15x4", True), ("chain12x5", False)])
def test_chains_have_at_most_as_many_nodes_as_a_position_has_noise(models, tree, is_allowed):
    """4 x 16 = 64 slots, and 5 x 13 = 65; each chain has a root."""
    spec = make_method("path_relax", tree=tree)
    if is_allowed:
        assert ParallelChainsDrafter.make(models, spec, SamplingConfig()).num_chains == 4
    else:
        with pytest.raises(ValueError, match="must have at most 64 nodes, each with a root, got 5 of 13"):
            ParallelChainsDrafter.make(models, spec, SamplingConfig())
