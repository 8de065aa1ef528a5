"""Janus-Pro in transformers' layout and in its authors': the same target, and the image tokenizer beside it."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file

from lantern.checkpoints.janus import official_names
from lantern.checkpoints.llamagen import read_target, read_vq16
from lantern.models.target import TargetConfig
from published_layouts import refusal

CONFIG = TargetConfig(64, 2, 4, vocab_size=64, grid=4, num_text_tokens=6, null_ids=(0, 7), null_filler=2)


@pytest.fixture(scope="module")
def janus() -> transformers.JanusForConditionalGeneration:
    """A tiny random model of transformers' class."""
    torch.manual_seed(0)
    config = transformers.JanusConfig(
        text_config={
            "model_type": "llama",
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 176,
            "vocab_size": 96,
            "rms_norm_eps": 1e-4,
        },
        vision_config={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 64},
        vq_config={
            "embed_dim": 8,
            "num_embeddings": 64,
            "base_channels": 32,
            "channel_multiplier": [1, 1, 2, 2, 1],
            "num_res_blocks": 1,
            "latent_channels": 32,
            "image_token_embed_dim": 64,
            "projection_dim": 64,
        },
    )
    return transformers.JanusForConditionalGeneration(config).eval()


@pytest.fixture(scope="module")
def folders(janus, tmp_path_factory):
    """The same weights in transformers' layout, in shards, and in the authors', as pickles in shards."""
    shards, official = tmp_path_factory.mktemp("shards"), tmp_path_factory.mktemp("official")
    janus.save_pretrained(shards, max_shard_size="2MB")
    state = official_names(janus.state_dict())
    places = {name: f"pytorch_model-0000{1 + name.startswith('gen_')}-of-00002.bin" for name in state}
    for file in set(places.values()):
        torch.save({name: value for name, value in state.items() if places[name] == file}, official / file)
    (official / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    language = {"num_attention_heads": 4, "rms_norm_eps": 1e-4, "num_hidden_layers": 2}
    (official / "config.json").write_text(json.dumps({"language_config": language}))
    return {"transformers": shards, "authors": official}


@pytest.mark.parametrize("layout", ["transformers", "authors"])
def test_logits_of_images_are_those_of_transformers(janus, folders, layout):
    assert len(list(folders[layout].glob("*-0000*"))) > 1
    target = read_target(folders[layout], CONFIG)
    assert target.config.norm_eps == 1e-4 and target.config.has_mlp_head
    ids, codes = torch.randint(96, (2, 6)), torch.randint(64, (2, 16))
    with torch.inference_mode():
        hidden = target(ids, torch.ones_like(ids, dtype=torch.bool), codes)
        embedded = janus.prepare_embeddings_for_image_generation(codes)
        prompts = janus.get_input_embeddings()(ids)
        expected = janus.model.language_model(inputs_embeds=torch.cat([prompts, embedded], 1)).last_hidden_state
        torch.testing.assert_close(hidden, expected, atol=1e-4, rtol=0)
        logits = janus.model.generation_head(expected)
        torch.testing.assert_close(target.read_logits(hidden), logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("layout", ["transformers", "authors"])
def test_the_image_tokenizer_is_found_among_the_other_weights(janus, folders, layout):
    tokenizer = read_vq16(folders[layout], 64, (64, 8))
    assert tokenizer.config.channel_multipliers == (1, 1, 2, 2, 1) and tokenizer.config.num_blocks == 1
    codes = torch.randint(64, (2, 16))
    with torch.inference_mode():
        pixels = janus.model.vqmodel.decode(codes)
    torch.testing.assert_close(tokenizer.decode(codes), pixels.clamp(-1, 1), atol=1e-4, rtol=0)


def test_names_of_the_full_models(janus):
    """Every name of the authors' list is made from transformers' names."""
    renamed = official_names({name: torch.zeros(0) for name in janus.state_dict()})
    assert {name.split(".")[0] for name in renamed} == {"gen_vision_model", "gen_embed", "gen_aligner", "gen_head"} | {
        "language_model",
        "lm_head",
        "model",  # what reads images
    }
    assert {"gen_vision_model.decoder.conv_blocks.0.attn.1.q.weight", "gen_aligner.layers.2.bias"} <= renamed.keys()
    assert {"gen_vision_model.encoder.mid.1.proj_out.bias", "gen_head.output_mlp_projector.bias"} <= renamed.keys()


def test_another_codebook_and_a_missing_part_are_named(folders, tmp_path):
    sentence = refusal(lambda: read_vq16(folders["transformers"], 64, (128, 8)))
    assert "quantize.embedding.weight should have shape (128, 8)" in sentence
    shards = [load_file(path) for path in folders["transformers"].glob("*.safetensors")]
    state = {name: value for shard in shards for name, value in shard.items() if "aligner.fc1" not in name}
    torch.save(state, tmp_path / "cut.bin")
    assert "lacks the tensor gen_aligner.layers.0.weight" in refusal(lambda: read_target(tmp_path / "cut.bin", CONFIG))
