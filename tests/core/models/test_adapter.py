"""Tests of transformers models as targets: greedy codes, exact methods and whole images equal those of transformers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from helpers.captured_steps import NoHostSync, captured
from helpers.tiny_transformers import IDS, MASK, NULL, NUM_CODES, TINY, make_tiny, own_codes
from lantern.codebook import nearest_codes
from lantern.decoding import make_decoder
from lantern.methods import make_method
from lantern.models.draft import DraftModel
from lantern.models.transformer import attend
from lantern.registry import PRESETS, drafts_of
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels, Generation
from lantern_models import adapter
from lantern_models.adapter import TransformersTarget, adapt
from lantern_models.families import family_of

PARTS = {"k": 4, "delta": 0.2, "lambda_": 2.0, "omega": 1.5}
ALONE = [name for name, row in PRESETS.items() if not drafts_of(row.parts.get("drafts")).is_trained]


@pytest.fixture(params=TINY)
def family(request):
    return request.param


@pytest.fixture
def target(family) -> TransformersTarget:
    model, grids = make_tiny(family)
    return adapt(model, family, num_text_tokens=6, **NULL[family], **grids)


def scale_of(family: str) -> float:
    return 1.0 if family == "glm_image" else 3.0


def decode(target, family: str, name: str, temperature: float, rows: int = 5, **parts) -> Generation:
    table = nearest_codes(torch.randn(target.config.num_codes, 4, generator=torch.Generator().manual_seed(0)), 8)
    known = {key: value for key, value in PARTS.items() if key in PRESETS[name].parts}
    spec = make_method(name, **{**known, **parts})
    sampling = SamplingConfig(temperature, cfg_scale=scale_of(family))
    decoder = make_decoder(DecodingModels(target, nearest_codes=table), spec, sampling)
    return decoder.generate(IDS[:rows], MASK[:rows], [decoder.make_noise(0, str(row)) for row in range(rows)])


@pytest.mark.parametrize(
    ("family", "temperature"), [*((name, 1.0) for name in TINY), ("emu3", 0.0)], indirect=["family"]
)
def test_methods_without_a_draft_model_run_and_exact_ones_keep_every_token(target, family, temperature):
    expected = decode(target, family, "autoregressive", temperature).codes
    assert torch.equal(decode(target, family, "autoregressive", temperature, rows=1).codes, expected[:1])
    for name in ("jacobi", "scd_gumbel", "sjd"):
        found = decode(target, family, name, temperature)
        assert found.target_forwards.sum() < expected.numel()
        if make_method(name).keeps_tokens(temperature):
            assert torch.equal(found.codes, expected), name
    assert torch.equal(decode(target, family, "jacobi", temperature, tree="chain5k3d2").codes, expected)
    relaxed = decode(target, family, "proximity", temperature, drafts="jacobi", tree="chain3", k=4)
    assert relaxed.codes.shape == expected.shape and relaxed.codes.max() < target.config.vocab_size


def test_heads_that_share_keys_and_values_read_them_once_and_the_model_keeps_its_attention(monkeypatch):
    model, grids = make_tiny("emu3")
    target = adapt(model, "emu3", num_text_tokens=6, **NULL["emu3"], **grids)
    text, found = target.layers.config, []

    def recording_attend(query, keys, values, mask):
        found.append((query.shape[2], keys.shape[1]))
        return attend(query, keys, values, mask)

    monkeypatch.setattr(adapter, "attend", recording_attend)
    grouped = decode(target, "emu3", "jacobi", 1.0).codes
    assert set(found) == {(text.num_attention_heads, text.num_key_value_heads)}
    assert text.num_key_value_heads < text.num_attention_heads and text._attn_implementation == "sdpa"
    found.clear()
    model.set_attn_implementation("eager")
    assert torch.equal(decode(target, "emu3", "jacobi", 1.0).codes, grouped) and not found


@pytest.mark.parametrize("family", ["emu3", "glm_image"], indirect=True)
def test_every_preset_without_a_draft_model_runs(target, family):
    assert len(ALONE) >= 8
    for name in ALONE:
        parts = {"window": 2} if name in ("zipar", "pjd") else {}
        assert (decode(target, family, name, 1.0, rows=2, **parts).target_forwards > 0).all(), name


def test_a_step_reads_nothing_back_and_is_replayed_without_python(target, family, tapes):
    sampling = SamplingConfig(1.0, cfg_scale=scale_of(family))
    decoder = make_decoder(DecodingModels(target), make_method("jacobi"), sampling)
    batch = (IDS, MASK, [decoder.make_noise(0, str(row)) for row in range(5)])
    expected, graphed = decoder.generate(*batch), captured(decoder)
    assert torch.equal(graphed.generate(*batch).codes, expected.codes) and tapes[0].num_replays > 0
    state = decoder.allocate(5)
    decoder.fill(state, range(5), *batch)
    with torch.inference_mode(), NoHostSync():
        decoder.step(state)


def test_a_whole_image_at_once_is_an_image_step_by_step(target, family):
    codes = decode(target, family, "jacobi", 0.0).codes
    scale, num_text = scale_of(family), target.config.num_text_tokens
    run = target if scale == 1 else target.forward_with_null
    hidden = run(IDS, MASK, codes[:, :-1])[:, num_text - 1 :].unflatten(0, (-1, len(codes)))
    logits = target.guided_logits(hidden, scale, torch.arange(codes.shape[1]))
    assert torch.equal(logits.argmax(-1), codes)


@pytest.mark.parametrize("family", ["janus", "emu3", "glm_image"], indirect=True)
def test_greedy_codes_are_those_of_its_own_generate_in_fewer_forwards(target, family):
    scale = 3.0 if family == "janus" else 1.0
    decoder = make_decoder(DecodingModels(target), make_method("jacobi"), SamplingConfig(0.0, cfg_scale=scale))
    found = decoder.generate(IDS, MASK, [decoder.make_noise(0, str(row)) for row in range(5)])
    assert torch.equal(found.codes, own_codes(make_tiny(family)[0], family, IDS, MASK))
    assert (found.target_forwards < found.codes.shape[1]).all()


def test_chameleons_logits_are_its_heads(monkeypatch):
    """Chameleon's `generate` in transformers generates no images, so logits are compared."""
    model, grids = make_tiny("anole")
    target = adapt(model, "anole", num_text_tokens=6, **NULL["anole"], **grids)
    codes = torch.arange(15)[None] % NUM_CODES
    hidden = target(IDS[1:2], MASK[1:2], codes)[:, 5:]
    whole = torch.cat([IDS[1:2], codes + 4], dim=1)
    with torch.no_grad():
        expected = F.linear(model.model(input_ids=whole).last_hidden_state[:, 5:], model.lm_head.weight[4:24])
    torch.testing.assert_close(target.read_logits(hidden), expected, rtol=1e-4, atol=1e-4)


def test_a_draft_model_is_made_for_it(target, family):
    draft = DraftModel.from_target(target, seed=0).prepare_for_decoding()
    models = DecodingModels(target, draft)
    sampling = SamplingConfig(1.0, cfg_scale=scale_of(family))
    if family == "glm_image":
        for name in ("eagle1", "eagle2", "coupled", "hybrid"):
            with pytest.raises(ValueError, match="images without a smaller image before them, got small_grid 2"):
                make_decoder(models, make_method(name), sampling)
        return
    codes = []
    for name in ("autoregressive", "coupled", "eagle2"):
        decoder = make_decoder(models, make_method(name), sampling)
        codes.append(decoder.generate(IDS, MASK, [decoder.make_noise(0, str(row)) for row in range(5)]).codes)
    assert torch.equal(codes[0], codes[1]) and torch.equal(codes[0], codes[2])


def test_a_model_in_bfloat16_is_decoded_in_it_and_left_as_it_was():
    model, grids = make_tiny("janus")
    model = model.bfloat16()
    target = adapt(model, "janus", num_text_tokens=6, **NULL["janus"], **grids)
    found = decode(target, "janus", "jacobi", 1.0)
    assert target.dtype == torch.bfloat16 and (found.target_forwards < 16).all()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_class_without_a_row_is_named():
    with pytest.raises(ValueError, match=r"must be one of Chameleon.*, GlmImage.* to generate images, got Linear"):
        family_of("Linear")


def test_the_lines_of_an_image_that_is_no_square_are_placed_by_their_width():
    """Compared with positions written by hand: three prompt positions, a small grid of 2 x 1, a grid of 2 x 3."""
    model, _ = make_tiny("glm_image")
    target = adapt(model, "glm_image", num_text_tokens=3, grid=2, columns=3, small_grid=2, small_columns=1)
    assert target.config.num_image_tokens == 2 * 1 + 2 * 3
    times, rows, columns = target.positions[:, :12].tolist()
    assert times == [0, 1, 2, 3, 3, *[5] * 6, 8]
    assert rows == [0, 1, 2, 3, 4, 5, 5, 5, 6, 6, 6, 8]
    assert columns == [0, 1, 2, 3, 3, 5, 6, 7, 5, 6, 7, 8]
    model, _ = make_tiny("emu3")
    target = adapt(model, "emu3", num_text_tokens=6, grid=4, columns=6, null_ids=(1, 8))
    codes = decode(target, "emu3", "jacobi", 1.0).codes.view(5, 4, 7)
    assert (codes[..., 6] == NUM_CODES).all() and (codes[..., :6] < NUM_CODES).all()
