"""Janus-Pro in transformers' layout, in shards, and in its authors': the same target and the same image tokenizer."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from lantern.checkpoints.names import janus_names
from lantern.checkpoints.target import read_target
from lantern.checkpoints.tokenizers import read_image_tokenizer
from lantern.models.target import TargetConfig
from published_layouts import refusal

CONFIG = TargetConfig(64, 2, 4, vocab_size=64, grid=4, num_text_tokens=6, null_ids=(0, 7), null_filler=2)
LANGUAGE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 176}
VISION = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 64}
CODES = {"embed_dim": 8, "num_embeddings": 64, "base_channels": 32, "channel_multiplier": [1, 1, 2, 2, 1]}
CODES |= {"num_res_blocks": 1, "latent_channels": 32, "image_token_embed_dim": 64, "projection_dim": 64}


@pytest.fixture(scope="module")
def janus() -> transformers.JanusForConditionalGeneration:
    """A tiny random model of transformers' class."""
    torch.manual_seed(0)
    text = {"model_type": "llama", "vocab_size": 96, "rms_norm_eps": 1e-4, **LANGUAGE}
    config = transformers.JanusConfig(text_config=text, vision_config=VISION, vq_config=CODES)
    return transformers.JanusForConditionalGeneration(config).eval()


@pytest.fixture(scope="module", params=["transformers", "authors"])
def folder(request, janus, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "transformers":
        janus.save_pretrained(folder, max_shard_size="2MB")
        assert len(list(folder.glob("*-0000*"))) > 1
    else:
        torch.save(janus_names(janus.state_dict()), folder / "pytorch_model.bin")
        settings = {"language_config": {"num_attention_heads": 4, "rms_norm_eps": 1e-4}}
        (folder / "config.json").write_text(json.dumps(settings))
    return folder


@torch.inference_mode()
def test_target_and_image_tokenizer_are_those_of_transformers(janus, folder):
    target = read_target(folder, CONFIG)
    assert target.config.norm_eps == 1e-4 and target.config.has_mlp_head
    ids, codes = torch.randint(96, (2, 6)), torch.randint(64, (2, 16))
    hidden = target(ids, torch.ones_like(ids, dtype=torch.bool), codes)
    embedded, prompts = janus.prepare_embeddings_for_image_generation(codes), janus.get_input_embeddings()(ids)
    expected = janus.model.language_model(inputs_embeds=torch.cat([prompts, embedded], 1)).last_hidden_state
    torch.testing.assert_close(hidden, expected, atol=1e-4, rtol=0)
    logits = janus.model.generation_head(expected)
    torch.testing.assert_close(target.read_logits(hidden), logits, atol=1e-4, rtol=0)
    tokenizer = read_image_tokenizer(folder, 64)
    assert tokenizer.config.channel_multipliers == (1, 1, 2, 2, 1) and tokenizer.config.num_blocks == 1
    pixels = janus.model.vqmodel.decode(codes)
    torch.testing.assert_close(tokenizer.decode(codes), pixels.clamp(-1, 1), atol=1e-4, rtol=0)


def test_authors_names_and_a_missing_part(janus, tmp_path):
    names = janus_names(janus.state_dict())
    assert {"gen_vision_model.decoder.conv_blocks.0.attn.1.q.weight", "gen_aligner.layers.2.bias"} <= names.keys()
    assert {"gen_vision_model.encoder.mid.1.proj_out.bias", "gen_head.output_mlp_projector.bias"} <= names.keys()
    state = {name: value for name, value in janus.state_dict().items() if "aligner.fc1" not in name}
    torch.save(state, tmp_path / "cut.bin")
    assert "lacks the tensor gen_aligner.layers.0.weight" in refusal(lambda: read_target(tmp_path / "cut.bin", CONFIG))
