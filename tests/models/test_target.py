"""Target and draft model: cached and whole passes agree, preparation changes nothing, padding has no say."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_codes import CONFIG

from lantern.attention_mask import window_table
from lantern.models.target import TargetModel
from lantern.models.transformer import RMSNorm, rotary_table


@pytest.fixture(scope="module")
def model() -> TargetModel:
    torch.manual_seed(0)
    model = TargetModel(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def run_stepwise(model: TargetModel, features, mask, codes) -> torch.Tensor:
    """The caption in one pass, then token by token against the cache."""
    n, total = CONFIG.num_text_tokens, CONFIG.num_text_tokens + codes.shape[1]
    (hidden,), cache = model.prefill(features, mask, total, is_guided=False)
    steps = [hidden]
    window = window_table(torch.ones(1, 1, 1, dtype=torch.bool), torch.float32)
    for i in range(codes.shape[1]):
        slots = torch.full((len(codes), 1), n + i)
        steps += model.extend(cache, codes[:, i : i + 1], slots, slots, cache.mask(window, slots[:, 0]))
    return torch.cat(steps, dim=1)


@pytest.mark.parametrize("is_prepared", [False, True])
def test_cached_passes_equal_the_whole_pass(model, is_prepared):
    features, codes = torch.randn(2, 3, 16), torch.randint(0, 8, (2, 4))
    mask = torch.tensor([[False, True, True], [True, True, True]])
    with torch.inference_mode():
        expected = model(features, mask, codes)
    other = copy.deepcopy(model)
    with torch.inference_mode():
        found = run_stepwise(other.prepare_for_decoding() if is_prepared else other, features, mask, codes)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


def test_guided_passes_run_the_null_caption_under_the_prompts_mask(model):
    """All four codes behind the caption, each seeing those before it."""
    features, codes = torch.randn(2, 3, 16), torch.randint(0, 8, (2, 4))
    mask = torch.tensor([[False, True, True], [True, True, True]])
    with torch.inference_mode():
        expected = torch.cat([model(part, mask, codes) for part in (features, model.null_features(2))])
        assert torch.equal(model.forward_with_null(features, mask, codes), expected)
        hidden, cache = model.prefill(features, mask, 7, is_guided=True)
        slots = torch.arange(3, 7).expand(2, 4)
        window = window_table(torch.ones(1, 4, 4, dtype=torch.bool).tril(), torch.float32)
        mask = cache.mask(window, torch.tensor([3, 3]))
        hidden = torch.cat([hidden, model.extend(cache, codes, slots, slots, mask)], dim=2)
        logits = model.guided_logits(hidden, 3.0)
        captioned, null = model.read_logits(hidden)
    assert hidden.shape[:2] == (2, 2)
    torch.testing.assert_close(hidden.flatten(0, 1), expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(logits, null + 3 * (captioned - null), atol=1e-4, rtol=1e-5)


def test_padded_caption_columns_have_no_say(model):
    features, codes = torch.randn(1, 3, 16), torch.randint(0, 8, (1, 4))
    mask = torch.tensor([[False, True, True]])
    changed = features.clone()
    changed[:, 0] = 7.0
    with torch.inference_mode():
        torch.testing.assert_close(model(features, mask, codes)[:, 1:], model(changed, mask, codes)[:, 1:])


def test_later_tokens_have_no_say(model):
    features, mask = torch.randn(1, 3, 16), torch.ones(1, 3, dtype=torch.bool)
    with torch.inference_mode():
        one = model(features, mask, torch.tensor([[1, 2, 3, 4]]))
        other = model(features, mask, torch.tensor([[1, 2, 3, 7]]))
    torch.testing.assert_close(one[:, :-1], other[:, :-1])
    assert not torch.allclose(one[:, -1], other[:, -1])


def test_rotary_table_by_eye():
    """Head width 4 has one frequency, 1: the first pair turns by the row, the second by the column, in radians."""
    table = rotary_table(num_text_tokens=1, grid=2, head_dim=4, base=100.0)
    angle = torch.angle(table[1:5])
    torch.testing.assert_close(angle, torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]))
    assert (table[0] == 0).all()
    assert (table[5:] == 0).all()


def test_folded_norm_equals_norm_then_linear():
    norm, linear = RMSNorm(8, eps=1e-2), torch.nn.Linear(8, 5, bias=False)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(3, 8)
    with torch.no_grad():
        expected = linear(norm(x))
        norm.fold_into(linear)
        torch.testing.assert_close(linear(norm(x)), expected)
