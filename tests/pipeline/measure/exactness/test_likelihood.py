import copy
import math

import numpy as np
import pytest
import torch

from lantern.likelihood import teacher_forced_logits
from lantern.models.target import TargetConfig, TargetModel
from lantern_models.text.words import WordEmbeddingEncoder
from lantern_pipeline.measure.exactness import likelihood
from lantern_pipeline.measure.exactness.likelihood import (
    measure_ambiguity,
    score_tokens,
    token_negative_log_likelihood,
    top_masses,
    walk_logits,
)

CONFIG = TargetConfig(
    dim=16, num_layers=2, num_heads=2, vocab_size=11, grid=2, num_text_tokens=4, caption_dim=8, ffn_multiple=8
)
ENCODER = WordEmbeddingEncoder(None, caption_dim=8, max_tokens=4)
TEXTS = ["a red ring", "blue", "one two three four"]


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(0)
    model = TargetModel(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
    return model


@pytest.fixture(scope="module")
def codes():
    return torch.randint(11, (3, 4), generator=torch.Generator().manual_seed(1))


def test_against_an_explicit_softmax_loop(target, codes):
    scale = 3.0
    features, mask = ENCODER.encode(TEXTS)
    expected = []
    with torch.no_grad():
        for row in range(3):
            expected.append([])
            for position in range(4):
                logits = {}
                null, _ = target.null_prompt(mask[row : row + 1])
                for name, rows in (("caption", features[row : row + 1]), ("null", null)):
                    hidden = target(rows, mask[row : row + 1], codes[row : row + 1, :position])
                    logits[name] = target.head(hidden)[0, -1].double()
                guided = logits["null"] + scale * (logits["caption"] - logits["null"])
                weights = [math.exp(v) for v in guided.tolist()]
                expected[-1].append(-math.log(weights[codes[row, position]] / sum(weights)))
    result = score_tokens(target, ENCODER, codes.int(), TEXTS, cfg_scale=scale, batch_size=2)
    assert result.numpy() == pytest.approx(np.array(expected), abs=1e-4)


def test_guidance_scale_one_is_the_conditional_distribution(target, codes):
    features, mask = ENCODER.encode(TEXTS)
    with torch.no_grad():
        hidden = target(features, mask, codes)[:, 3:-1]  # row 3 is the last caption row
        expected = target.head(hidden)
    assert torch.allclose(teacher_forced_logits(target, features, mask, codes, 1.0), expected, atol=1e-5)
    # and the guided formula at s = 1 gives the same
    assert torch.allclose(teacher_forced_logits(target, features, mask, codes, 1.0 + 1e-7), expected, atol=1e-4)


def test_a_token_cannot_change_the_distribution_of_its_own_position(target, codes):
    features, mask = ENCODER.encode(TEXTS)
    changed = codes.clone()
    changed[:, 2] = (changed[:, 2] + 1) % 11
    before, after = (teacher_forced_logits(target, features, mask, c, 2.0) for c in (codes, changed))
    assert torch.allclose(before[:, :3], after[:, :3], atol=1e-6)
    assert not torch.allclose(before[:, 3], after[:, 3])


def test_uniform_logits_give_the_logarithm_of_the_vocabulary():
    codes = torch.tensor([[0, 5, 3]])
    assert token_negative_log_likelihood(codes, torch.zeros(1, 3, 8))[0].tolist() == pytest.approx([math.log(8)] * 3)


def test_batch_size_does_not_matter(target, codes):
    whole = score_tokens(target, ENCODER, codes, TEXTS, cfg_scale=3.0, batch_size=3)
    single = score_tokens(target, ENCODER, codes, TEXTS, cfg_scale=3.0, batch_size=1)
    assert torch.allclose(whole, single, atol=1e-5)


@pytest.mark.parametrize(("images", "sizes"), [(2, [2, 1]), (0, [1, 1, 1]), (9, [3])])
def test_no_more_logits_are_held_than_allowed(images, sizes, target, codes, monkeypatch):
    monkeypatch.setattr(likelihood, "LOGITS_AT_ONCE", images * 4 * 11 + 1)
    found = [
        (rows, logits) for rows, _, logits in walk_logits(target, ENCODER, codes, TEXTS, cfg_scale=3, batch_size=8)
    ]
    assert [len(logits) for _, logits in found] == sizes
    features, mask = ENCODER.encode(TEXTS)
    whole = teacher_forced_logits(target, features, mask, codes, 3.0)
    assert torch.allclose(torch.cat([logits for _, logits in found]), whole, atol=1e-5)
    assert torch.equal(torch.cat([torch.arange(3)[rows] for rows, _ in found]), torch.arange(3))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
def test_one_logit_among_good_ones_that_is_not_finite_is_found(codes, value):
    logits = torch.zeros(3, 4, 11)
    logits[1, 2, 3] = value
    with pytest.raises(ValueError, match="logits hold nan or infinity"):
        token_negative_log_likelihood(codes, logits)


def test_bfloat16_models_have_float32_likelihoods(target, codes):
    features, mask = ENCODER.encode(TEXTS)
    logits = teacher_forced_logits(copy.deepcopy(target).bfloat16(), features.bfloat16(), mask, codes, 3.0)
    assert logits.dtype == torch.float32
    low = logits.bfloat16()
    found = token_negative_log_likelihood(codes, low)
    assert found.dtype == torch.float32 and torch.equal(found, token_negative_log_likelihood(codes, low.float()))


@pytest.mark.parametrize(("probs", "best", "few"), [([0.5, 0.25, 0.125, 0.125], 0.5, 0.75), ([0.01] * 100, 0.01, 0.02)])
def test_top_masses_by_hand(probs, best, few):
    logits = torch.tensor([probs]).log()
    assert [mass.item() for mass in top_masses(logits, num_best=2)] == pytest.approx([best, few], rel=1e-5)
    assert top_masses(logits)[1].item() == pytest.approx(min(1.0, 10 * best), rel=1e-5)  # of the best ten, or of fewer


def test_ambiguity_has_one_row_per_scale_image_and_position(target, codes):
    frame = measure_ambiguity(target, ENCODER, codes, TEXTS, cfg_scales=(1.0, 3.0), batch_size=2)
    assert len(frame) == 2 * 3 * 4
    assert not frame.duplicated(["cfg_scale", "image", "position"]).any()
    assert ((frame.top1 > 0) & (frame.top1 <= frame.top10 + 1e-6) & (frame.top10 <= 1 + 1e-6)).all()
    ((_, _, logits),) = walk_logits(target, ENCODER, codes, TEXTS, cfg_scale=3.0, batch_size=3)
    probs = logits.double().softmax(dim=-1)
    entropy = -(probs * probs.log()).sum(dim=-1).flatten()
    assert frame.entropy[frame.cfg_scale == 3.0].to_numpy() == pytest.approx(entropy.numpy(), abs=1e-4)
    once = measure_ambiguity(target, ENCODER, codes, TEXTS, cfg_scales=(3.0, 3.0), batch_size=3)
    same = frame[frame.cfg_scale == 3.0].sort_values(["image", "position"])
    assert once.sort_values(["image", "position"]).top1.to_numpy() == pytest.approx(same.top1.to_numpy(), abs=1e-5)
