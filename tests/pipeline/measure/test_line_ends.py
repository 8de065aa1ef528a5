"""Tests of measurements with line-end tokens: only codes count, in the context of all tokens."""

from __future__ import annotations

import pytest
import torch

from helpers.configs import load_config, typed_config
from helpers.figure_tables import COUPLED, make_records
from helpers.paths import ROOT
from helpers.tiny_models import make_models, make_prompts
from lantern.codebook import add_line_ends
from lantern.decoding import make_decoder
from lantern.likelihood import teacher_forced_logits
from lantern.methods import make_method
from lantern.models.draft import DraftModel
from lantern.models.target import TargetModel
from lantern.sampling import SamplingConfig
from lantern_pipeline.data.model_cards import card_of
from lantern_pipeline.measure.exactness.likelihood import measure_ambiguity, score_tokens
from lantern_pipeline.measure.exactness.losslessness import substitution_row
from lantern_pipeline.training.drafter_loss import unroll
from lantern_pipeline.training.target import next_token_loss


@pytest.fixture(scope="module")
def drawn():
    """Return a target with 11 codes in four lines of four, prompts, their encoder, and the sampled tokens."""
    models = make_models(line_end=0)
    features, mask = make_prompts(models, 2)

    class Encoder:
        def encode(self, texts):
            rows = [int(text) for text in texts]
            return features[rows], mask[rows]

    decoder = make_decoder(models, make_method("autoregressive"), SamplingConfig(cfg_scale=2.0))
    tokens = decoder.generate(features, mask, [decoder.make_noise(0, name) for name in "ab"]).codes
    target = TargetModel(models.target.config).eval()
    return target, Encoder(), tokens


def test_likelihood_and_ambiguity_are_of_codes(drawn):
    target, encoder, tokens = drawn
    nll = score_tokens(target, encoder, tokens, ["0", "1"], cfg_scale=2.0)
    logits = teacher_forced_logits(target, *encoder.encode(["0", "1"]), tokens, 2.0)
    wanted = -logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    assert nll.shape == (2, 16)
    torch.testing.assert_close(nll, target.config.code_grids(wanted).flatten(1))
    assert not wanted.view(2, 4, 5)[..., 4].any()  # a line end is certain
    frame = measure_ambiguity(target, encoder, tokens, ["0", "1"], cfg_scales=[2.0])
    assert sorted(set(frame["position"])) == list(range(16)) and frame["top1"].max() < 1


def test_substitutions_are_of_codes(drawn):
    _, _, tokens = drawn
    steps = torch.tensor([[1] * 10 + [2] * 5 + [0] * 5] * 2, dtype=torch.int16)
    is_substituted = torch.zeros(2, 20, dtype=torch.bool).index_fill(1, torch.tensor([0, 6]), True)
    records = make_records(COUPLED, tokens.int(), step_lengths=steps, is_substituted=is_substituted)
    row = substitution_row(records, tokens, torch.zeros(11, 4), {"num_resamples": 10, "seed": 0})
    assert row["substitution_rate"] == 2 / 16 and row["substitution_distance"] == 0


def test_images_get_their_line_ends_for_training(drawn):
    target, encoder, _ = drawn
    codes = torch.arange(32).view(2, 16) % 11
    tokens = add_line_ends(codes, (4, 4), line_end=11)
    features, mask = encoder.encode(["0", "1"])
    assert next_token_loss(target, tokens, features, mask).isfinite()
    draft = DraftModel.from_target(target, seed=0)
    hidden = target(features, mask, tokens[:, :-1])
    assert [part.shape for part in unroll(draft, tokens, mask, hidden, 2)] == [(2, 19, 32)] * 2


def test_sizes_of_jobs_count_the_token():
    sizes = card_of(
        typed_config(load_config([ROOT / "config.yaml", ROOT / "experiments" / "lumina_mgpt.yaml"]))
    ).target_config()
    assert (sizes.vocab_size, sizes.num_codes, sizes.num_image_tokens) == (8193, 8192, 2352)
