"""Tests of target and draft model: cached and uncached passes agree, and padding changes nothing."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from helpers.tiny_codes import CONFIG
from helpers.tiny_models import make_models
from lantern.kv_cache import KVCache, round_slots, window_table
from lantern.models.target import TargetModel
from lantern.models.transformer import RMSNorm, attend, group_mask, rotary_table

MASK = torch.tensor([[False, True, True], [True, True, True]])
CLOSE = {"atol": 2e-5, "rtol": 1e-5}


@pytest.fixture(scope="module")
def model() -> TargetModel:
    torch.manual_seed(0)
    model = TargetModel(CONFIG).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.fixture
def prompts() -> tuple[torch.Tensor, torch.Tensor]:
    """Return features of two prompts and codes of their images."""
    return torch.randn(2, 3, 16), torch.randint(0, 8, (2, 4))


def window(nodes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the attention window of nodes in a chain, each of which attends to earlier ones."""
    return window_table(torch.ones(1, nodes, nodes, dtype=torch.bool).tril(), dtype)


@pytest.mark.parametrize("is_prepared", [False, True])
@torch.inference_mode()
def test_cached_passes_equal_the_whole_pass(model, prompts, is_prepared):
    """The caption runs in one pass, then token by token with the cache."""
    features, codes = prompts
    expected = model(features, MASK, codes)
    other = copy.deepcopy(model)
    other = other.prepare_for_decoding() if is_prepared else other
    (hidden,), cache = other.prefill(features[None], MASK[None], 3 + 4)
    steps = [hidden]
    for i in range(4):
        slots = torch.full((2, 1), 3 + i)
        steps += other.extend(cache, codes[:, i : i + 1], slots, slots, cache.mask(window(1), slots[:, 0]))
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, **CLOSE)


@pytest.mark.sensitive
@torch.inference_mode()
def test_guided_passes_run_the_null_caption_under_the_prompts_mask(model, prompts):
    """Four codes after the caption, each attending to earlier ones."""
    features, codes = prompts
    expected = torch.cat([model(part, MASK, codes) for part in (features, model.null_prompt(MASK)[0])])
    # Twice the number of rows may use another kernel. A mask of ones for the null caption would be noticed.
    torch.testing.assert_close(model.forward_with_null(features, MASK, codes), expected, **CLOSE)
    hidden, cache = model.prefill(*model.with_null(features, MASK), 7)
    slots = torch.arange(3, 7).expand(2, 4)
    mask = cache.mask(window(4), torch.tensor([3, 3]))
    hidden = torch.cat([hidden, model.extend(cache, codes, slots, slots, mask)], dim=2)
    captioned, null = model.read_logits(hidden)
    assert hidden.shape[:2] == (2, 2)
    torch.testing.assert_close(hidden.flatten(0, 1), expected, **CLOSE)
    guided = model.guided_logits(hidden, 3.0)
    torch.testing.assert_close(guided, null + 3 * (captioned - null), atol=1e-4, rtol=1e-5)


@torch.inference_mode()
def test_images_prefilled_in_a_small_cache_go_on_in_a_row_of_a_larger_one(model, prompts):
    """The batch rows held other images before. Their keys are still in the slots after the captions."""
    (features, codes), rows = prompts, torch.tensor([2, 0])
    expected = torch.stack([model(part, MASK, codes)[:, 3:] for part in (features, model.null_prompt(MASK)[0])])
    cache = model.make_cache(torch.tensor([[True, False, True]]).expand(2, 3, 3), 8)
    cache.entries.normal_(std=30)
    cache.copy_rows(rows, model.prefill(*model.with_null(features, MASK), 3)[1])
    slots = torch.arange(3, 7).expand(3, 4)
    tokens = torch.zeros(3, 4, dtype=torch.int64).index_copy(0, rows, codes)
    found = model.extend(cache, tokens, slots, slots, cache.mask(window(4), slots[:, 0]))
    torch.testing.assert_close(found[:, rows], expected, **CLOSE)
    assert found.isfinite().all()


@torch.inference_mode()
def test_pads_and_later_tokens_have_no_say(model, prompts):
    features, codes = prompts
    changed = features.clone()
    changed[0, 0] = 7.0
    hidden = model(features, MASK, codes)
    torch.testing.assert_close(model(changed, MASK, codes)[0, 1:], hidden[0, 1:])
    other = torch.cat([codes[:, :-1], (codes[:, -1:] + 1) % 8], dim=1)
    torch.testing.assert_close(model(features, MASK, other)[:, :-1], hidden[:, :-1])
    assert not torch.allclose(model(features, MASK, other)[:, -1], hidden[:, -1])


def test_a_cache_has_a_multiple_of_eight_slots():
    assert [round_slots(count) for count in (1, 8, 9)] == [8, 8, 16]


def test_a_padded_caption_row_is_seen_by_itself_alone():
    visible = torch.tensor([[[False, True]]])
    mask = KVCache(visible, 2, 6, (1, 1), torch.float32).text_mask(visible)
    assert (mask == 0).int().tolist() == [[[[1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]]]]


def test_folded_norm_equals_norm_then_linear():
    norm, linear = RMSNorm(8, eps=1e-2), torch.nn.Linear(8, 5, bias=False)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(3, 8)
    with torch.no_grad():
        expected = linear(norm(x))
        norm.fold_into(linear)
        torch.testing.assert_close(linear(norm(x)), expected)
        torch.testing.assert_close(linear(norm.function()(x)), expected)


def test_lines_of_another_number_than_their_codes():
    config = replace(make_models().target.config, grid=3, columns=5, line_end=0, vocab_size=9)
    assert (config.line_width, config.num_image_tokens, config.num_codes) == (6, 18, 8)
    assert [place for place in range(18) if config.ends_line(place)] == [5, 11, 17]
    model = TargetModel(config)
    logits = model.guided_logits(torch.zeros(1, 6, config.dim), 1.0, torch.arange(6))
    assert logits.isneginf().tolist() == 5 * [8 * [False] + [True]] + [8 * [True] + [False]]
    table = rotary_table(1, (2, 3), 4, 100.0)
    # Head width 4 has one frequency, 1: the first pair turns by the row, the second by the column, in radians.
    expected = torch.tensor([[row, column] for row in (0.0, 1.0) for column in (0.0, 1.0, 2.0)])
    torch.testing.assert_close(table[1:7].angle(), expected, atol=1e-6, rtol=0)
    assert (table[0] == 0).all() and (table[7:] == 0).all()


@torch.inference_mode()
def test_torch_compile_copies_no_layer_of_the_cache(model):
    """Overlapping views of one buffer would become one base, which is copied whole in every pass."""
    counts = []

    def keep_count(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        counts.append(Counter(str(node.target) for node in graph.graph.nodes))
        return make_boxed_func(graph.forward)

    model = copy.deepcopy(model).prepare_for_decoding()
    _, cache = model.prefill(*model.with_null(torch.randn(2, 3, 16), MASK), 7)
    torch.compiler.reset()
    backend = aot_autograd(fw_compiler=keep_count, inference_compiler=keep_count)
    slots = torch.arange(3, 7).expand(2, 4)
    arguments = (cache, torch.zeros_like(slots), slots, slots, cache.mask(window(4), torch.tensor([3, 3])))
    compiled = torch.compile(model.extend, fullgraph=True, backend=backend)
    found = [compiled(*arguments) for _ in range(2)]
    (count,) = counts  # it was compiled once
    torch.testing.assert_close(found, 2 * [model.extend(*arguments)])
    assert count["aten.index_put.default"] == len(model.layers)
    assert count["aten.as_strided.default"] == count["aten.as_strided_scatter.default"] == 0


@torch.inference_mode()
def test_heads_that_share_keys_equal_heads_that_have_their_own():
    """Grouped attention is computed as nodes of one head, with a different mask per node."""
    torch.manual_seed(0)
    query, mask = torch.randn(2, 3, 6, 8), torch.randn(2, 1, 3, 5)
    keys, values = torch.randn(2, 2, 2, 5, 8)
    found = attend(query, keys, values, group_mask(mask, groups=3))
    own = [part.repeat_interleave(3, dim=1) for part in (keys, values)]
    expected = torch.nn.functional.scaled_dot_product_attention(query.transpose(1, 2), *own, attn_mask=mask)
    torch.testing.assert_close(found.reshape(2, 3, 6, 8), expected.transpose(1, 2), **CLOSE)
