"""Part G: layers of large models of transformers, with Lantern's code compared with that of transformers.

Models have their true width, but only a few layers. If transformers is not installed, the rows say so.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from full_size import make_decoding_models, make_sampling

from gpu_parts.common import Check, chains, emitted_tokens, fill, free, label
from gpu_parts.steps import run_step
from lantern.decoding import make_decoder
from lantern.methods import make_method

NUM_LAYERS = 8
# (name of the model, whether the project's layers run it)
MODELS = (("janus-pro-7b", True), ("janus-pro-7b", False), ("emu3-gen", False), ("glm-image", False))
TINY = {"dim": 256, "num_layers": 1, "num_heads": 2, "num_kv_heads": 2, "ffn_width": 64, "num_prompt_ids": 64}


def measure(check: Check) -> None:
    """Measure steps of autoregressive decoding and of a chain of 15 Jacobi drafts, eagerly and as a CUDA graph."""
    for size, has_own_layers in MODELS:
        layers = "Lantern's layers" if has_own_layers else "layers of transformers"
        with check.attempt("layers", f"{size}, {layers}"):
            _measure_model(check, f"{size}, {layers}", size, has_own_layers)
        free(check.device)


def _measure_model(check: Check, name: str, size: str, has_own_layers: bool) -> None:
    options = Namespace(size=size, own_layers=has_own_layers, dtype="bfloat16", cfg_scale=5.0, temperature=1.0)
    options.grid = 2 if check.is_tiny else None
    options.sizes = TINY if check.is_tiny else {"num_layers": NUM_LAYERS}
    with torch.inference_mode():
        models = make_decoding_models(options, check.device)
    models.draft = None
    models.target.prepare_for_decoding()
    sampling = make_sampling(models.target.config, options)
    for spec in [make_method("autoregressive"), *chains(15)]:
        tokens = {}
        for mode in check.modes:
            row = f"{name}, {label(spec)}, {mode}"
            with check.attempt("layers", row):
                decoder = make_decoder(models, spec, sampling, stepping=mode)
                state = fill(decoder, 1)
                for _ in range(20 if not check.is_tiny else 2):
                    run_step(decoder, state)
                tokens[mode] = emitted_tokens(state)
                values: dict[str, Any] = {"stepping": decoder.runner.mode}
                if mode == "graph":
                    is_equal = torch.equal(tokens["graph"], tokens["eager"])
                    values["is_right"] = is_equal and decoder.runner.mode == "graph"
                timing = check.time(lambda decoder=decoder, state=state: run_step(decoder, state), 20)
                check.write("layers", row, ms=1000 * timing.median, layers=options.sizes["num_layers"], **values)
