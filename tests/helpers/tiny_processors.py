"""In-memory processors for the tiny models, of transformers' classes. Their tokenizers make each word one token."""

from __future__ import annotations

import transformers
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from helpers.tiny_transformers import EMU3, FIRST_WORD, WORDS

JANUS = {"<｜begin▁of▁sentence｜>": 0, "<｜▁pad▁｜>": 2, "<|User|>": 3, "<|Assistant|>": 4, "<image_placeholder>": 5}
JANUS |= {"<begin_of_image>": 7, "<end_of_image>": 8, ":": 9}
GLM = {"<|endoftext|>": 50, "<|image|>": 60, "<sop>": 61, "<eop>": 62}


def make_tokenizer(specials: dict[str, int], **names: str) -> transformers.PreTrainedTokenizerFast:
    """Return a tokenizer of special tokens and of the words WORDS. It pads on the left.

    Args:
        specials: special token -> id.
        names: special tokens by role, such as `bos_token`.
    """
    known = specials | {word: FIRST_WORD + place for place, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), digits])
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in specials])
    own = {name: names.pop(name) for name in list(names) if name not in ("bos_token", "pad_token", "eos_token")}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, padding_side="left", extra_special_tokens=own, unk_token="<unk>", **names
    )


def make_emu3_processor() -> transformers.Emu3Processor:
    """Return a processor of `tiny_emu3`."""
    tokenizer = make_tokenizer(
        EMU3,
        bos_token="<|extra_203|>",
        eos_token="<|extra_204|>",
        pad_token="<|endoftext|>",
        image_token="<image>",
        boi_token="<|image start|>",
        eoi_token="<|image end|>",
        image_wrapper_token="<|image token|>",
        eof_token="<|extra_201|>",
    )
    return transformers.Emu3Processor(transformers.Emu3ImageProcessor(), tokenizer)


def make_glm_processor(start: int) -> transformers.GlmImageProcessor:
    """Return a processor of `tiny_glm_image`. A source picture of 64 x 96 pixels has 2 x 3 codes.

    Args:
        start: id of the token before an image. The id of the token after a source picture is `start` + 1.
    """
    tokenizer = make_tokenizer(
        GLM | {"<bos>": start, "<eoi>": start + 1},
        bos_token="<bos>",
        pad_token="<|endoftext|>",
        image_token="<|image|>",
        grid_bos_token="<sop>",
        grid_eos_token="<eop>",
    )
    sizes = {"shortest_edge": 64**2, "longest_edge": 512**2}  # pixels, squared
    images = transformers.GlmImageImageProcessor(patch_size=16, merge_size=1, temporal_patch_size=1, size=sizes)
    return transformers.GlmImageProcessor(images, tokenizer)


def make_janus_processor() -> transformers.JanusProcessor:
    """Return a processor of `tiny_janus`."""
    begin = "<｜begin▁of▁sentence｜>"
    tokenizer = make_tokenizer(
        JANUS,
        bos_token=begin,
        pad_token="<｜▁pad▁｜>",
        image_token="<image_placeholder>",
        boi_token="<begin_of_image>",
        eoi_token="<end_of_image>",
    )
    with_begin = processors.TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, JANUS[begin])])
    tokenizer.backend_tokenizer.post_processor = with_begin
    return transformers.JanusProcessor(transformers.JanusImageProcessor(), tokenizer)
