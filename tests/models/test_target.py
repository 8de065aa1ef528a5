"""Target and draft model: cached and whole passes agree, preparation changes nothing, padding has no say."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_codes import CONFIG

from lantern.attention_mask import window_table
from lantern.models.draft import DraftModel
from lantern.models.target import TargetModel
from lantern.models.transformer import RMSNorm, cast_weights, rotary_table


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
    (hidden,), cache = model.prefill(features[None], mask[None], total)
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
        expected = torch.cat([model(part, mask, codes) for part in (features, model.null_prompt(mask)[0])])
        assert torch.equal(model.forward_with_null(features, mask, codes), expected)
        hidden, cache = model.prefill(*model.with_null(features, mask), 7)
        slots = torch.arange(3, 7).expand(2, 4)
        window = window_table(torch.ones(1, 4, 4, dtype=torch.bool).tril(), torch.float32)
        mask = cache.mask(window, torch.tensor([3, 3]))
        hidden = torch.cat([hidden, model.extend(cache, codes, slots, slots, mask)], dim=2)
        logits = model.guided_logits(hidden, 3.0)
        captioned, null = model.read_logits(hidden)
    assert hidden.shape[:2] == (2, 2)
    torch.testing.assert_close(hidden.flatten(0, 1), expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(logits, null + 3 * (captioned - null), atol=1e-4, rtol=1e-5)


def test_images_prefilled_in_a_small_cache_go_on_in_a_row_of_a_larger_one(model):
    """The rows held other images before, whose keys stay behind the captions."""
    features, codes = torch.randn(2, 3, 16), torch.randint(0, 8, (2, 4))
    mask = torch.tensor([[False, True, True], [True, True, True]])
    rows = torch.tensor([2, 0])
    with torch.inference_mode():
        expected = torch.stack([model(part, mask, codes)[:, 3:] for part in (features, model.null_prompt(mask)[0])])
        cache = model.make_cache(torch.tensor([[True, False, True]]).expand(2, 3, 3), 8)
        cache.entries.normal_(std=30)
        cache.copy_rows(rows, model.prefill(*model.with_null(features, mask), 3)[1])
        slots = torch.arange(3, 7).expand(3, 4)
        seen = cache.mask(window_table(torch.ones(1, 4, 4, dtype=torch.bool).tril(), torch.float32), slots[:, 0])
        tokens = torch.zeros(3, 4, dtype=torch.int64).index_copy(0, rows, codes)
        found = model.extend(cache, tokens, slots, slots, seen)
    torch.testing.assert_close(found[:, rows], expected, atol=2e-5, rtol=1e-5)
    assert found.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cached_passes_can_be_traced_whole_and_give_the_same(model, dtype):
    """No break in the graph: nothing is read back to the host, no shape depends on data."""
    target = cast_weights(copy.deepcopy(model), dtype)
    draft = cast_weights(DraftModel.from_target(model, 0), dtype).prepare_for_decoding()
    target.prepare_for_decoding()
    window = window_table(torch.ones(1, 2, 2, dtype=torch.bool).tril(), dtype)
    mask = torch.tensor([[False, True, True], [True, True, True]])

    def run(cache, draft_cache, begin, tokens):
        slots = begin[:, None] + torch.arange(2)
        hidden = target.extend(cache, tokens, slots, slots, cache.mask(window, begin))
        return draft.extend(draft_cache, tokens, hidden, slots, slots, draft_cache.mask(window, begin))

    with torch.inference_mode():
        features, mask = target.with_null(torch.randn(2, 3, 16, dtype=dtype), mask)
        hidden, cache = target.prefill(features, mask, 8)
        draft_cache = draft.prefill(hidden[:, :, :2], mask[:, :, :2], 8)
        given = cache, draft_cache, torch.tensor([3, 4]), torch.tensor([[1, 2]] * 2)
        expected = run(*given)
        traced = torch.compile(run, backend="eager", fullgraph=True)
        assert torch.equal(traced(*given), expected)
    assert expected.dtype == dtype and expected.isfinite().all()


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
    table = rotary_table(num_text_tokens=1, lines=(2, 2), head_dim=4, base=100.0)
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
