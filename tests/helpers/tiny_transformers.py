"""Tiny random models of transformers that generate images of at most 16 tokens, with few codes."""

from __future__ import annotations

import torch
import transformers

NUM_CODES = 20
TEXT = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 120}
VQ = {"num_embeddings": NUM_CODES, "embed_dim": 8, "base_channels": 32, "channel_multiplier": [1, 1]}
VQ |= {"num_res_blocks": 1}
VISION = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 64, "patch_size": 16}
LETTERS = "ABCDEFGHIJ"
# Words of the tiny Emu3: its special tokens, what `tiny_processors` reads, and its codes.
WORDS = ["<unk>", "a", "red", "fox", "in", "the", "snow", "cat", "low", "quality", *map(str, range(10)), "*"]
EMU3 = {"<|endoftext|>": 0, "<|extra_203|>": 1, "<|extra_204|>": 2, "<image>": 3, "<|image start|>": 4}
EMU3 |= {"<|image token|>": 5, "<|extra_200|>": 6, "<|extra_201|>": 7, "<|image end|>": 8}
FIRST_WORD = 70


def tiny_janus() -> transformers.PreTrainedModel:
    """Return a tiny Janus."""
    text = {**TEXT, "model_type": "llama", "num_key_value_heads": 2, "bos_token_id": 0, "pad_token_id": 2}
    vq = {**VQ, "image_token_embed_dim": 64, "projection_dim": 64, "latent_channels": 32}
    vision = {**VISION, "num_image_tokens": 16, "projection_dim": 64}
    config = transformers.JanusConfig(text_config=text, vision_config=vision, vq_config=vq)
    model = transformers.JanusForConditionalGeneration(config)
    known = model.generation_config
    known.bos_token_id, known.pad_token_id, known.generation_kwargs = 0, 2, {"boi_token_id": 7}
    known.guidance_scale, known.do_sample = 5.0, True
    return model


def tiny_emu3() -> transformers.PreTrainedModel:
    """Return a tiny Emu3."""
    words = EMU3 | {word: FIRST_WORD + place for place, word in enumerate(WORDS)}
    words |= {f"<|visual token {i:06d}|>": 40 + i for i in range(NUM_CODES)}
    vq = {"codebook_size": NUM_CODES, "embed_dim": 4, "latent_channels": 4, "base_channels": 32, "hidden_size": 32}
    vq |= {"channel_multiplier": [1, 1], "num_res_blocks": 1, "attn_resolutions": []}
    text = {**TEXT, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.Emu3Config(vocabulary_map=words, text_config=text, vq_config=vq)
    return transformers.Emu3ForConditionalGeneration(config)


def tiny_chameleon() -> transformers.PreTrainedModel:
    """Return a tiny Chameleon, the class that Anole uses."""
    words = {f"IMGIMG{''.join(LETTERS[int(digit)] for digit in str(i))}Z": 4 + i for i in range(NUM_CODES)}
    vq = {**VQ, "latent_channels": 8, "resolution": 8}
    config = transformers.ChameleonConfig(
        vocabulary_map=words | {"<image>": 30}, vq_config=vq, **TEXT, num_key_value_heads=4
    )
    return transformers.ChameleonForConditionalGeneration(config)


def tiny_glm_image(num_codes: int = NUM_CODES) -> transformers.PreTrainedModel:
    """Return a tiny GLM-Image."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3], "partial_rotary_factor": 1.0}
    text = {**TEXT, "num_key_value_heads": 2, "vision_vocab_size": num_codes + 2, "pad_token_id": 50}
    text |= {"eos_token_id": num_codes + 1, "rope_parameters": rope}
    vision = {"hidden_size": 32, "depth": 1, "num_heads": 2, "image_size": 32, "out_hidden_size": 64}
    vision |= {"patch_size": 16, "intermediate_size": 32}
    ids = {"image_token_id": 60, "image_start_token_id": num_codes, "image_end_token_id": num_codes + 1}
    vq = {"embed_dim": 8, "num_embeddings": num_codes, "latent_channels": vision["hidden_size"]}
    config = transformers.GlmImageConfig(text_config=text, vision_config=vision, vq_config=vq, **ids)
    return transformers.GlmImageForConditionalGeneration(config)


TINY = {"janus": tiny_janus, "emu3": tiny_emu3, "anole": tiny_chameleon, "glm_image": tiny_glm_image}
GRIDS = {"grid": 4, "small_grid": 0}, {"grid": 3, "small_grid": 2}  # GLM-Image's are the second


def make_tiny(name: str, **options: int) -> tuple[transformers.PreTrainedModel, dict[str, int]]:
    """Return a model in evaluation mode, and the sizes of its image.

    Matrices are scaled up, so that distributions are far from uniform.

    Args:
        name: key of TINY.
        options: options of the function in TINY.

    Returns:
        (model, {"grid": lines of the image, "small_grid": lines of the smaller image before it, 0 for none}).
    """
    torch.manual_seed(0)
    model = TINY[name](**options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
    return model, GRIDS[name == "glm_image"]


# Prompts for the tiny models: ids, left padding, and the null prompt of each family.
IDS = torch.tensor(
    [[2, 2, 0, 10, 20, 7], [0, 11, 12, 13, 14, 7], [2, 0, 31, 32, 33, 7], [0, 14, 12, 13, 11, 7], [2, 2, 2, 0, 9, 7]]
)
MASK = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6, [0, 1, 1, 1, 1, 1], [1] * 6, [0, 0, 0, 1, 1, 1]]).bool()
NULL = {
    "janus": {"null_ids": (0, 7), "null_filler": 2},
    "emu3": {"null_ids": (1, 8)},
    "anole": {"null_ids": (0, 9)},
    "glm_image": {},
}


def own_codes(model: transformers.PreTrainedModel, name: str, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the codes that a tiny model's `generate` samples greedily, with line ends numbered as in Lantern.

    Args:
        model: the model, also with adapters or offloaded layers.
        name: its key in TINY, other than "anole". Janus has a guidance scale of 3, the others have no guidance.
        ids: ids of prompts, int64 (batch, tokens).
        mask: True for prompt tokens, False for padding, shaped like `ids`.
    """
    options, start = {"do_sample": False, "attention_mask": mask.long()}, ids.shape[1]
    if name == "janus":
        return model.generate(ids, generation_mode="image", guidance_scale=3.0, **options)
    if name == "glm_image":
        grids = torch.tensor([[1, side, side] for side in GRIDS[1].values()])
        num = int(grids.prod(1).sum())
        options |= {"image_grid_thw": grids.repeat(len(ids), 1), "images_per_sample": torch.tensor([2] * len(ids))}
        options |= {"min_new_tokens": num, "suppress_tokens": [NUM_CODES, NUM_CODES + 1]}
        return model.generate(ids, max_new_tokens=num, **options)[:, start:]
    codes, end = list(range(40, 40 + NUM_CODES)), 6

    def allowed(_: int, sequence: torch.Tensor) -> list[int]:
        return [end] if (len(sequence) - start) % 5 == 4 else codes

    drawn = model.generate(ids, max_new_tokens=20, prefix_allowed_tokens_fn=allowed, min_new_tokens=20, **options)
    drawn = drawn[:, start:]
    return torch.where(drawn == end, NUM_CODES, drawn - 40)
