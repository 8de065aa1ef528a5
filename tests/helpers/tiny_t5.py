"""A tiny random T5 with a tokenizer of a few words, saved in the published layout."""

from __future__ import annotations

import torch
import transformers

WORDS = ["a", "red", "cat", "on", "the", "grass", "blue", "dog"]
DIM = 16


def save_tokenizer(folder):
    """Write the tokenizer.json of a few words into a folder, and return its number of tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -4.0), *((f"▁{word}", -2.0) for word in WORDS)]
    pieces += [(letter, -6.0) for letter in "abcdefghijklmnopqrstuvwxyz"]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(pieces)


def save_t5(folder, dim=DIM, **options):
    """Write a model with encoder and decoder, like the published one, into a folder.

    Args:
        folder: the folder.
        dim: channels of a hidden state.
        options: options of `save_pretrained`.
    """
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=save_tokenizer(folder) + 4,  # the published embedding is longer than its tokenizer, too
        d_model=dim,
        d_kv=4,
        d_ff=24,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder, **options)
