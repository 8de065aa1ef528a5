"""Which token beside a hidden state a draft model was trained on: the published one, and one trained the other way."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from families import LLAMA, anole_drafter, draw_anole
from lantern.checkpoints.drafter import read_draft
from lantern.checkpoints.target import read_target
from lantern.decoding import DecodingModels, make_decoder
from lantern.methods import make_method
from lantern.models.config import TargetConfig
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern_pipeline.measure.draft_pairing import measure_pairing

STORED = load_file(LLAMA / "target_io.safetensors")


class StoredPrompts:
    """The ids of the stored prompts, by number."""

    def encode(self, texts):
        rows = [STORED[f"anole.p{text}.prompt_ids"].long() for text in texts]
        ids = torch.stack([F.pad(row, (14 - len(row), 0)) for row in rows])
        return ids, torch.stack([torch.arange(14) >= 14 - len(row) for row in rows])


@pytest.fixture
def models(tmp_path):
    save_file(draw_anole(), tmp_path / "anole.safetensors")
    save_file(anole_drafter(), tmp_path / "drafter.safetensors")
    shutil.copy(LLAMA / "anole_drafter.json", tmp_path / "config.json")
    config = TargetConfig(64, 3, 4, vocab_size=64, grid=6, num_text_tokens=14, null_ids=(0, 69), ffn_width=176)
    target = read_target(tmp_path / "anole.safetensors", config)
    return DecodingModels(target, read_draft(tmp_path / "drafter.safetensors", target.config))


def measure(models, cfg_scale=3.0, temperature=1.0):
    prompts = [Prompt(text, text) for text in ("0", "1", "2")]
    return measure_pairing(models, prompts, StoredPrompts(), {"cfg_scale": cfg_scale}, temperature)


def test_the_published_drafter_expects_the_next_token(models):
    for changes in ({}, {"cfg_scale": 1.0}, {"temperature": 0.0}):
        found = measure(models, **changes)
        assert found["trained_for"] == "next_token", found
        assert found["top1_agreement_next_token"] > 2 * found["top1_agreement_same_token"], found


def test_one_trained_the_other_way_is_found_out(models):
    """It learns the greedy images by heart as the LANTERN authors' training pairs them: the state behind token r with
    token r; without attention, so that places can be learnt one by one.
    """
    target, draft, greedy = models.target, models.draft, SamplingConfig(temperature=0.0)
    decoder = make_decoder(DecodingModels(target), make_method("autoregressive"), greedy)
    ids, mask = StoredPrompts().encode(["0", "1", "2"])
    codes = decoder.generate(ids, mask, [decoder.make_noise(0, "") for _ in ids]).codes.clone()
    with torch.no_grad():
        hidden = target(ids, mask, codes)[:, 14:]
        draft.layer.attention_out.weight.zero_()
    optimiser = torch.optim.AdamW([draft.from_hidden.weight, *draft.layer.gate_up.parameters()], lr=1e-2)
    for _ in range(40):
        drafted = draft(codes, hidden, torch.zeros(1, 1, 36, 36))
        best = target.read_logits(hidden[:, 1:]).argmax(-1)
        loss = F.cross_entropy(target.read_logits(drafted[:, :-1]).flatten(0, 1), best.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    found = measure(models, temperature=0.0, cfg_scale=1.0)
    assert found["trained_for"] == "same_token" and found["top1_agreement_same_token"] > 0.5, found


def test_one_that_knows_nothing_is_not_judged(models):
    with torch.no_grad():
        for part in models.draft.parameters():
            part.normal_()
    assert measure(models)["trained_for"] == "undecided"
