"""Tests of optimisers: clipping and schedule cover all parts; Muon for convolutions descends."""

import torch
from torch import nn

from lantern.models.target import TargetConfig, TargetModel
from lantern_pipeline.training.optimisers import ConvolutionMuon, Optimiser, make_muon, orthogonalise


def test_parts_share_one_clipping_and_one_course_of_the_rate():
    first, second, other = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    parts = [torch.optim.SGD([first], lr=1.0), torch.optim.SGD([second], lr=2.0)]
    optimiser = Optimiser(parts, max_norm=1.0)
    for _ in range(2):  # the factor is of the highest rates, whatever the step before had
        assert optimiser.step(3 * first.sum() + 4 * second.sum(), 0.5) == 5.0
    torch.testing.assert_close(torch.cat([first, second]).detach(), torch.tensor([-2 * 0.3, -2 * 0.8]))
    unclipped = Optimiser([torch.optim.SGD([other], lr=1.0)])
    assert unclipped.step(5 * other.sum(), 1.0) == 5.0 and other.item() == -5.0


def test_singular_values_come_near_one_and_vectors_stay():
    generator = torch.Generator().manual_seed(0)
    for shape in ((16, 40), (40, 16)):
        matrix = torch.randn(shape, generator=generator)
        result = orthogonalise(matrix)
        values = torch.linalg.svdvals(result)
        assert values.min() > 0.5 and values.max() < 1.3
        u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
        aligned = u.T @ result @ vh.T  # diagonal where the singular vectors agree
        assert (aligned - aligned.diagonal().diag()).abs().max() < 1e-3


def test_norms_of_queries_and_keys_are_no_matrices():
    torch.manual_seed(0)
    model = TargetModel(TargetConfig(dim=16, num_layers=1, num_heads=2, vocab_size=8, grid=2, has_qk_norm=True))
    muon, adamw = (
        {id(parameter) for group in part.param_groups for parameter in group["params"]}
        for part in make_muon(model, 0.01, 0.01).parts
    )
    assert {id(parameter) for parameter in model.layers[0].qk_norm.parameters()} <= adamw
    assert id(model.layers[0].qkv.weight) in muon


def test_update_has_the_stated_size_and_descends():
    torch.manual_seed(0)
    layer, wanted = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.Conv2d(16, 16, 3, padding=1, bias=False)
    optimiser = ConvolutionMuon(layer.parameters(), learning_rate=0.02)
    losses = []
    for _ in range(60):
        images = torch.randn(4, 16, 8, 8)
        loss = (layer(images) - wanted(images)).square().mean()
        layer.zero_grad()
        loss.backward()
        before = layer.weight.detach().clone()
        optimiser.step()
        losses.append(float(loss.detach()))
    change = (layer.weight.detach() - before).square().mean().sqrt()
    assert 0.1 * 0.02 < change < 0.3 * 0.02
    assert losses[-1] < 0.3 * losses[0]
