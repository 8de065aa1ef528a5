"""Part G of the GPU check: compare Lantern's code with that of transformers, on layers of large models.

The models have their published width, but only a few layers. If transformers is not installed, the rows of the page
state this instead of times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from kernels import SAMPLING

from gpu_parts.common import Check, chains, emitted_tokens, filled_state, free, label
from lantern.decoding import make_decoder
from lantern.methods import make_method
from lantern_models.cards.published import CARDS
from lantern_pipeline.measure.speed.random_models import random_models, target_config, tiny_sizes
from lantern_pipeline.measure.speed.steps import run_step

NUM_LAYERS = 8
# (name of the model, whether the project's layers run it)
MODELS = (("janus-pro-7b", True), ("janus-pro-7b", False), ("emu3-gen", False), ("glm-image", False))


def measure(check: Check) -> None:
    """Measure steps of autoregressive decoding and of a chain of 15 Jacobi drafts, eagerly and as a CUDA graph."""
    for size, has_own_layers in MODELS:
        layers = "Lantern's layers" if has_own_layers else "layers of transformers"
        with check.attempt("layers", f"{size}, {layers}"):
            _measure_model(check, f"{size}, {layers}", size, has_own_layers)
        free(check.device)


def _measure_model(check: Check, name: str, size: str, has_own_layers: bool) -> None:
    card = CARDS[size]
    config = target_config(card, **(tiny_sizes(card) if check.is_tiny else {"num_layers": NUM_LAYERS}))
    models = random_models(config, check.device, torch.bfloat16, has_own_layers=has_own_layers)
    models.draft = None
    models.target.prepare_for_decoding()
    sampling = replace(SAMPLING, cfg_scale=5.0 if config.null_ids else 1.0)
    for spec in [make_method("autoregressive"), *chains(15)]:
        tokens = {}
        for mode in check.modes:
            row = f"{name}, {label(spec)}, {mode}"
            with check.attempt("layers", row):
                decoder = make_decoder(models, spec, sampling, stepping=mode)
                state = filled_state(decoder, 1)
                for _ in range(20 if not check.is_tiny else 2):
                    run_step(decoder, state)
                tokens[mode] = emitted_tokens(state)
                values: dict[str, Any] = {"stepping": decoder.runner.mode}
                if mode == "graph":
                    is_equal = torch.equal(tokens["graph"], tokens["eager"])
                    values["is_right"] = is_equal and decoder.runner.mode == "graph"
                timing = check.time(lambda decoder=decoder, state=state: run_step(decoder, state), 20)
                check.write("layers", row, ms=1000 * timing.median, layers=config.num_layers, **values)
