"""Tests of the training of the image tokenizer: k-means, dead codes, falling loss, exact resume."""

import copy

import pytest
import torch
import torch.nn.functional as F

from lantern_models.images.shapes import TokenizerConfig, nearest_rows
from lantern_pipeline.data.image_sources import SceneSource
from lantern_pipeline.training.tokenizer import (
    TokenizerTrainer,
    TokenizerTraining,
    count_and_sum,
    reseed_dead_codes,
    spherical_kmeans,
)
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, AttributeClassifierConfig

SMALL = TokenizerConfig(codebook_size=64, encoder_width=16, decoder_width=16, decoder_blocks=1)


SETTINGS = {
    "num_steps": 12,
    "batch_size": 8,
    "matrix_learning_rate": 4e-3,
    "learning_rate": 2e-3,
    "continuous_steps": 3,
    "codebook_decay": 0.985,
    "dead_share": 0.05,
    "commitment_weight": 0.25,
    "gradient_weight": 0.5,
    "perceptual_weight": 0.1,
}


def make_trainer(**settings):
    torch.manual_seed(0)
    attribute_classifier = AttributeClassifier(AttributeClassifierConfig(width=8)).eval()
    settings = TokenizerTraining(**SETTINGS | settings)
    return TokenizerTrainer(SceneSource(0, 48, 64), attribute_classifier, SMALL, settings, seed=0)


def test_kmeans_finds_separate_clusters():
    generator = torch.Generator().manual_seed(0)
    centres = torch.eye(4)
    vectors = F.normalize(centres.repeat(50, 1) + 0.05 * torch.randn(200, 4, generator=generator), dim=-1)
    rows = spherical_kmeans(vectors, 4, 10, generator)
    assert (rows @ centres.T).max(0).values.min() > 0.99
    with pytest.raises(ValueError, match="codebook_size = 300"):
        spherical_kmeans(vectors, 300, 1, generator)


def test_kmeans_leaves_no_row_unused():
    generator = torch.Generator().manual_seed(0)
    vectors = F.normalize(torch.randn(500, 8, generator=generator), dim=-1)
    rows = spherical_kmeans(vectors, 100, 8, generator)
    assert len(nearest_rows(vectors, rows).unique()) >= 98


def test_counts_and_sums_by_eye():
    latents = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    use, sums = count_and_sum(latents, torch.tensor([2, 0, 2]), 3)
    assert use.tolist() == [1, 0, 2]
    assert torch.allclose(sums, torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.6, 0.8]]))


def test_only_dead_codes_move_and_they_move_to_latents():
    use, sums = torch.tensor([5.0, 0.01, 3.0]), torch.eye(3)
    latents = F.normalize(torch.randn(7, 3, generator=torch.Generator().manual_seed(1)), dim=-1)
    moved = reseed_dead_codes(use, sums, latents, 0.1, torch.Generator().manual_seed(2))
    assert moved == 1 and use.tolist() == [5.0, 1.0, 3.0]
    assert torch.equal(sums[[0, 2]], torch.eye(3)[[0, 2]])
    assert (latents @ F.normalize(sums[1], dim=0)).max() > 0.9999
    assert reseed_dead_codes(use, sums, latents, 0.1, torch.Generator()) == 0


def test_loss_falls_and_the_codebook_is_used():
    trainer = make_trainer(num_steps=24, continuous_steps=12)
    losses = [trainer.step(i)["loss"] for i in range(24)]
    assert losses[-1] < 0.8 * losses[0]
    assert torch.allclose(trainer.model.embedding.norm(dim=-1), torch.ones(64), atol=1e-5)
    images = trainer.source.images("val", range(32))
    assert len(trainer.model.encode(images).unique()) > 48


def test_resumed_training_equals_undisturbed_training():
    whole = make_trainer()
    for i in range(8):
        if i == 5:  # after the codebook has started
            saved = copy.deepcopy(whole.state_dict())
        expected = whole.step(i)
    resumed = make_trainer()
    resumed.load_state_dict(saved)
    for i in range(5, 8):
        found = resumed.step(i)
    assert found == expected
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


def test_training_works_without_a_attribute_classifier():
    trainer = TokenizerTrainer(
        SceneSource(0, 32, 64),
        None,
        TokenizerConfig(image_size=32, codebook_size=64, encoder_width=16, decoder_width=16, decoder_blocks=1),
        TokenizerTraining(**SETTINGS | {"num_steps": 2, "batch_size": 4, "continuous_steps": 1}),
        seed=0,
    )
    assert "perceptual" not in trainer.step(0) and trainer.step(1)["loss"] > 0


@pytest.mark.parametrize(("continuous_steps", "first"), [(1, 1), (100, 2)])
def test_codes_begin_after_the_continuous_steps_or_half_of_all(continuous_steps, first, monkeypatch):
    trainer, started = make_trainer(num_steps=4, continuous_steps=continuous_steps), []
    monkeypatch.setattr(trainer, "_start_codebook", started.append)
    for i in range(4):
        trainer.step(i)
    assert started == [first]
