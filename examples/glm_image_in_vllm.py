"""Example: a tiny GLM-Image with random weights in vLLM, and whether its tokens are those of `lantern.custom_generate`.

The images have two grids, a preview of 3 x 4 codes and 6 x 8 codes. It needs `vllm-omni` beside what docs/serving.md
installs, without what that depends on, and ends with an error if one token differs:

pip install --no-deps vllm-omni==0.30.0
python examples/glm_image_in_vllm.py
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("VLLM_PLUGINS", "lantern")  # not that of vLLM-Omni

import torch
from jacobi_in_vllm import DRAFTS, count_accepted
from transformers import GlmImageConfig, GlmImageForConditionalGeneration
from vllm import LLM, SamplingParams

import lantern

NUM_CODES = 200
GRID, PREVIEW = (6, 8), (3, 4)
NUM_TOKENS = 6 * 8 + 3 * 4
GRID_BEGIN, GRID_END = 270, 271  # <sop> and <eop>
SAMPLING = {"temperature": 0.9, "top_p": 0.75}  # of vLLM-Omni's deploy/glm_image.yaml


def tiny_model() -> GlmImageForConditionalGeneration:
    """Return a tiny random GLM-Image. vLLM has no CPU kernels for heads with fewer than 32 channels."""
    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6], "partial_rotary_factor": 1.0}
    text = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 2, "vocab_size": 320, "vision_vocab_size": NUM_CODES + 2, "pad_token_id": 250}
    text |= {"eos_token_id": NUM_CODES + 1, "max_position_embeddings": 512, "rope_parameters": rope}
    vision = {"hidden_size": 32, "depth": 1, "num_heads": 2, "image_size": 32, "out_hidden_size": 128}
    vision |= {"patch_size": 16, "intermediate_size": 32}
    codes = {"embed_dim": 8, "num_embeddings": NUM_CODES, "latent_channels": 32}
    ids = {"image_token_id": 260, "image_start_token_id": NUM_CODES, "image_end_token_id": NUM_CODES + 1}
    config = GlmImageConfig(text_config=text, vision_config=vision, vq_config=codes, **ids)
    model = GlmImageForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.mul_(4)  # far from uniform
    return model


def generate_here(model: GlmImageForConditionalGeneration, prompt: list[int]) -> list[int]:
    """Return the tokens of an image by transformers, with Lantern's decoding."""
    ids = torch.tensor([prompt])
    grids = {"image_grid_thw": torch.tensor([[1, *GRID], [1, *PREVIEW]]), "images_per_sample": torch.tensor([2])}
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": NUM_TOKENS, **SAMPLING, **grids}
    decode = lantern.custom_generate("jacobi", tree="chain9", seed=0)
    return model.generate(ids, attention_mask=torch.ones_like(ids), custom_generate=decode, **options)[
        0, len(prompt) :
    ].tolist()


def main() -> None:
    """Generate the images of some prompts of various lengths with both, and compare."""
    model = tiny_model()
    grids = [GRID_BEGIN, *GRID, GRID_END, GRID_BEGIN, *PREVIEW, GRID_END, NUM_CODES]
    prompts = [[*range(210 + 3 * i, 212 + 4 * i), *grids] for i in range(8)]
    expected = [generate_here(model, prompt) for prompt in prompts]
    num_wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        file = Path(folder, "config.json")
        more = {"architectures": ["LanternGlmImage"], "num_codes": NUM_CODES}
        more |= {"grid_bos_token_id": GRID_BEGIN, "grid_eos_token_id": GRID_END}
        file.write_text(json.dumps({**json.loads(file.read_text()), **more}))
        for drafts in (None, DRAFTS):
            options = {"skip_tokenizer_init": True, "dtype": "float32", "max_num_seqs": 8, "max_model_len": 128}
            options |= {"enforce_eager": True, "enable_prefix_caching": False, "disable_log_stats": False}
            engine = LLM(folder, **options, speculative_config=drafts)
            # Each image is the first of its call of `generate` above, hence the prompt id.
            own = {"seed": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True, "extra_args": {"prompt_id": "0"}}
            params = SamplingParams(**SAMPLING, **own, detokenize=False)
            outputs = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
            tokens = [list(output.outputs[0].token_ids) for output in outputs]
            equal = sum(a == b for a, b in zip(tokens, expected, strict=True))
            num_wrong += len(prompts) - equal
            rate = len(prompts) * NUM_TOKENS / (len(prompts) * NUM_TOKENS - count_accepted(engine))
            name = "with drafts" if drafts else "without drafts"
            print(f"{name}: {equal} of {len(prompts)} images equal, {rate:.2f} tokens / forward", flush=True)
            engine.llm_engine.engine_core.shutdown()
    if num_wrong:
        sys.exit(f"{num_wrong} images have another token than with lantern.custom_generate")


if __name__ == "__main__":
    main()
