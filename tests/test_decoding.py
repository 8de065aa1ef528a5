"""Decoding: exactness as an equality, laws by chi-square, independence of batch and order, no host synchronisation."""

from __future__ import annotations

import pytest
import torch

from conftest import make_prompts
from lantern.decoding import Decoder, DecodingModels, Generation
from lantern.draft_tree import tree_choices
from lantern.drafting import DynamicTreeOptions
from lantern.methods import MethodSpec
from lantern.sampling import NoiseField, SamplingConfig

TREES = {
    "chain3": tree_choices("chain3"),
    "bushy": [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1)],
    "mc_sim_7b_63": tree_choices("mc_sim_7b_63"),
    "dynamic": DynamicTreeOptions(num_nodes=9, depth=2, top_k=4),
}
AUTOREGRESSIVE = MethodSpec(name="autoregressive")


def generate(
    models: DecodingModels,
    spec: MethodSpec,
    batch: int = 5,
    tree: str = "chain3",
    ids: list[str] | None = None,
    **sampling,
) -> Generation:
    sampling = SamplingConfig(**{"cfg_scale": 2.0, **sampling})
    features, mask = make_prompts(models, 5)
    ids = ids or [f"prompt-{i}" for i in range(batch)]
    rows = torch.tensor([int(i.split("-")[1]) % 5 for i in ids])
    config = models.target.config
    noise = NoiseField(7, ids, config.num_image_tokens, config.vocab_size)
    decoder = Decoder(models, spec, sampling, TREES[tree] if spec.drafts else None)
    return decoder.generate(features[rows], mask[rows], noise)


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 6, "top_p": 0.9}]
)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("drafts", ["top", "coupled"])
def test_exact_decoding_emits_the_autoregressive_tokens(models, drafts, tree, sampling, batch):
    expected = generate(models, AUTOREGRESSIVE, batch, **sampling)
    spec = MethodSpec(name="exact", tree=tree, drafts=drafts)
    result = generate(models, spec, batch, tree, **sampling)
    assert torch.equal(result.codes, expected.codes)
    assert (result.step_lengths.sum(1) == 16).all()
    assert batch == 1 or (result.target_forwards < 16).any()  # the equality is not won by never accepting a draft
    assert not result.is_substituted.any()
