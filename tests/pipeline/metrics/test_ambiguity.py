import pytest
import torch

from lantern.models.target import TargetConfig, TargetModel
from lantern_pipeline.data.text_encoders import WordEmbeddingEncoder
from lantern_pipeline.metrics.ambiguity import measure_ambiguity, top_masses


def test_top_masses_by_hand():
    probs = torch.tensor([[0.5, 0.25, 0.125, 0.125]])
    top1, top2 = top_masses(probs.log(), num_best=2)
    assert top1.tolist() == pytest.approx([0.5])
    assert top2.tolist() == pytest.approx([0.75])
    assert top_masses(probs.log())[1].tolist() == pytest.approx([1.0])  # fewer than ten tokens


def test_a_uniform_distribution_has_the_least_mass():
    top1, top10 = top_masses(torch.zeros(3, 100))
    assert top1.tolist() == pytest.approx([0.01] * 3)
    assert top10.tolist() == pytest.approx([0.1] * 3)


def test_one_row_per_scale_image_and_position():
    torch.manual_seed(0)
    config = TargetConfig(
        dim=16, num_layers=1, num_heads=2, vocab_size=11, grid=2, num_text_tokens=16, caption_dim=8, ffn_multiple=8
    )
    target = TargetModel(config).eval()
    codes = torch.randint(11, (3, 4), generator=torch.Generator().manual_seed(1))
    arguments = (target, WordEmbeddingEncoder(None, 8, 16), codes, ["a red circle", "a tree", "water"])
    frame = measure_ambiguity(*arguments, cfg_scales=(1.0, 3.0), batch_size=2)
    assert len(frame) == 2 * 3 * 4
    assert not frame.duplicated(["cfg_scale", "image", "position"]).any()
    assert ((frame.top1 > 0) & (frame.top1 <= frame.top10 + 1e-6) & (frame.top10 <= 1 + 1e-6)).all()
    once = measure_ambiguity(*arguments, cfg_scales=(3.0, 3.0), batch_size=3)
    same = frame[frame.cfg_scale == 3.0].sort_values(["image", "position"])
    assert once.sort_values(["image", "position"]).top1.to_numpy() == pytest.approx(same.top1.to_numpy(), abs=1e-5)
