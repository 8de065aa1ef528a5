"""Numbers of LlamaGen's class-conditional code (tests/data/c2i, made by LlamaGen@ce98ec4) reproduced by ours."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from conftest import DATA
from families import draw_c2i
from lantern.checkpoints.native import load_model, save_model
from lantern.checkpoints.target import read_target
from lantern.decoding import Decoder, DecodingModels, make_decoder
from lantern.methods import make_method
from lantern.models.config import target_parameters
from lantern.models.draft import DraftModel
from lantern.models.target import TargetConfig, TargetModel
from lantern.sampling import SamplingConfig, guide
from lantern_pipeline.data.model_sizes import prompt_sizes
from lantern_pipeline.training.drafter_loss import run_target, unroll
from published_layouts import refusal

CLASSES = prompt_sizes({"encoder": "classes", "num_classes": 10})
CONFIG = TargetConfig(dim=64, num_layers=3, num_heads=4, vocab_size=64, grid=4, ffn_multiple=32, **CLASSES)
GREEDY = json.loads((DATA / "c2i" / "greedy_codes.json").read_text())
CLOSE = {"atol": 1e-4, "rtol": 0}


@pytest.fixture(scope="module")
def stored() -> dict[str, torch.Tensor]:
    return load_file(DATA / "c2i" / "target_io.safetensors")


@pytest.fixture(scope="module", params=["trained in parallel", "sharded"])
def path(request, tmp_path_factory):
    """Both layouts: the small models are below the key "model", the tensors of XXL and 3B at the top."""
    path, state = tmp_path_factory.mktemp("c2i") / "c2i_tiny.pt", draw_c2i()
    torch.save({"model": state, "steps": 1} if request.param == "trained in parallel" else state, path)
    return path


def prompts_of(stored) -> tuple[torch.Tensor, torch.Tensor]:
    labels = stored["labels"][:, None].long()
    return labels, torch.ones_like(labels, dtype=torch.bool)


def test_logits(path, stored):
    target, prompts = read_target(path, CONFIG), prompts_of(stored)
    with torch.inference_mode():
        hidden = target.forward_with_null(*prompts, stored["codes"].long()[:, :-1])
        captioned, null = target.read_logits(hidden).chunk(2)
        guided = target.read_logits(guide(hidden, 4.0))
    torch.testing.assert_close(captioned, stored["logits_cond"], **CLOSE)
    torch.testing.assert_close(null, stored["logits_uncond"], **CLOSE)
    torch.testing.assert_close(guided, stored["logits_cfg_4.0"], atol=4e-4, rtol=0)
    table = torch.view_as_complex(stored["freqs_cis"])
    torch.testing.assert_close(target.rotary[: len(table)], table, atol=1e-6, rtol=0)


def decoder_of(target: TargetModel, method: str, sampling: SamplingConfig) -> Decoder:
    draft = DraftModel.from_target(target, 0).eval().prepare_for_decoding()
    return make_decoder(DecodingModels(target.prepare_for_decoding(), draft), make_method(method), sampling)


def generate(decoder: Decoder, stored) -> torch.Tensor:
    return decoder.generate(*prompts_of(stored), [decoder.make_noise(7, i) for i in "abcd"]).codes


@pytest.mark.parametrize("method", ["autoregressive", "eagle2", "jacobi", "hybrid"])
@pytest.mark.parametrize("scale", [1.0, 1.5, 2.0, 4.0])
def test_greedy_codes(path, stored, method, scale):
    """Of the target by itself, and with drafts; without guidance no null row runs."""
    sampling = SamplingConfig(temperature=0.0, cfg_scale=scale)
    assert generate(decoder_of(read_target(path, CONFIG), method, sampling), stored).tolist() == GREEDY[f"cfg{scale}"]


def test_sampled_drafts_give_the_images_of_the_target_alone(path, stored):
    sampling, codes = SamplingConfig(cfg_scale=2.0, top_k=20), []
    for method in ("autoregressive", "coupled"):
        codes.append(generate(decoder_of(read_target(path, CONFIG), method, sampling), stored))
    assert torch.equal(*codes)


def test_a_drafter_learns_on_the_rows_on_which_it_drafts(path, stored):
    """There is no row before the pair of the class's hidden state and image token 0."""
    target, codes = read_target(path, CONFIG), stored["codes"].long()
    draft = DraftModel.from_target(target, 0).eval()
    torch.nn.init.normal_(draft.layer.attention_out.weight, std=0.3)
    with torch.inference_mode():
        codes, mask, hidden = run_target(target, codes, *prompts_of(stored), with_null=True)
        (learned,) = unroll(draft, codes, mask, hidden, 1)
        expected = draft(codes[:, :-1].repeat(2, 1), hidden[:, :-1], torch.full((15, 15), -torch.inf).triu(1))
    torch.testing.assert_close(learned, expected, atol=1e-5, rtol=0)


def test_our_own_layout_and_its_size(path, tmp_path):
    target = read_target(path, CONFIG)
    save_model(tmp_path / "model.safetensors", target)
    assert load_model(tmp_path / "model.safetensors", TargetModel).config == CONFIG
    assert read_target(tmp_path / "model.safetensors", CONFIG).config == CONFIG
    assert sum(part.numel() for part in target.parameters()) == target_parameters(CONFIG)
    other = replace(CONFIG, num_prompt_ids=12)
    sentence = refusal(lambda: read_target(tmp_path / "model.safetensors", other))
    assert "num_prompt_ids should be 12 as text.num_classes says, found 11" in sentence


def test_a_target_of_other_prompts_is_refused_in_one_sentence(path):
    captions = replace(CONFIG, num_text_tokens=8, num_prompt_ids=0, null_ids=())
    sentence = refusal(lambda: read_target(path, captions))
    assert "what it draws from should be captions as text.encoder says, found classes" in sentence
