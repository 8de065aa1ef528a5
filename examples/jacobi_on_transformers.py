"""Example: generate an image with an unchanged model of transformers.

The model's `generate` runs first. Then Jacobi decoding generates the same tokens in fewer forward passes.

python examples/jacobi_on_transformers.py                         a tiny Janus with random weights, no network
python examples/jacobi_on_transformers.py path/to/Janus-Pro-1B    weights and processor in transformers' layout
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, JanusConfig, JanusForConditionalGeneration, PreTrainedTokenizerFast

import lantern

PROMPT = "a red fox in the snow"
NAMES = ["<｜begin▁of▁sentence｜>", "<|User|>", "<|Assistant|>", "<begin_of_image>", "<｜▁pad▁｜>", "<unk>"]


def tiny_model() -> JanusForConditionalGeneration:
    """Return a tiny random Janus. Its images have 64 tokens, out of 64 codes."""
    torch.manual_seed(0)
    text = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "vocab_size": 64}
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 128, "num_image_tokens": 64}
    images = {"num_embeddings": 64, "embed_dim": 8, "image_token_embed_dim": 64, "projection_dim": 64}
    images |= {"base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1, "latent_channels": 32}
    model = JanusForConditionalGeneration(JanusConfig(text_config=text, vision_config=vision, vq_config=images))
    with torch.no_grad():
        for weight in model.model.generation_head.parameters():
            weight.mul_(8)  # far from uniform
    known = model.generation_config
    known.bos_token_id, known.pad_token_id, known.generation_kwargs = 0, 4, {"boi_token_id": 3}
    known.do_sample, known.guidance_scale = True, 5.0
    return model.eval()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per word. The special tokens of Janus' prompts come first."""
    words = [*NAMES, *PROMPT.split(), ":"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(NAMES)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(str(Path(folder, "tokenizer.json")))
        return PreTrainedTokenizerFast(tokenizer_file=str(Path(folder, "tokenizer.json")))


def main(path: str | None = None) -> None:
    """Generate PROMPT by the model's `generate` and by Jacobi decoding, and compare the tokens.

    Args:
        path: folder or hub id of a Janus; None for the tiny model.
    """
    if path is None:
        model, tokenizer, grid = tiny_model(), tiny_tokenizer(), 8
    else:
        model = JanusForConditionalGeneration.from_pretrained(path).eval()
        tokenizer, grid = AutoTokenizer.from_pretrained(path), None
    ours = lantern.from_transformers(model, tokenizer, grid=grid)
    images = ours.generate(
        PROMPT, method="jacobi", temperature=0.0
    )  # without `temperature`, that of the generation config applies

    ids, mask = ours.encoder.encode([PROMPT])
    options = {"generation_mode": "image", "do_sample": False, "guidance_scale": ours.sampling.cfg_scale}
    theirs = model.generate(ids, attention_mask=mask.long(), **options)

    print(f"its own generate: {theirs.shape[1]} forwards")
    print(f"Jacobi decoding:  {int(images.steps[0])} forwards, {float(images.tokens_per_forward[0]):.2f} tokens each")
    print(f"equal tokens:     {torch.equal(theirs, images.codes.long())}")
    images.save("image.png")


if __name__ == "__main__":
    main(*sys.argv[1:2])
