"""Part H of the GPU check: measurement of the time that three techniques save in a LlamaGen XL step.

The techniques are Triton's kernels, attention to the used slots of the cache only, and compiled layers.
"""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

import torch
from kernels import SAMPLING

from gpu_parts.common import Check, chains, emitted_tokens, filled_state, free, label, make_models, models_for
from lantern import stepping
from lantern.decoding import make_decoder
from lantern.methods import MethodSpec, make_method
from lantern.state import DecodingModels
from lantern_pipeline.measure.speed.clocks import clock
from lantern_pipeline.measure.speed.steps import run_step

NUM_STEPS = 30


def measure(check: Check) -> None:
    """Time decoding steps of Lantern's code, without Triton, with fewer cache slots, and with compiled layers."""
    methods = [make_method("autoregressive"), *chains(15)]
    models = make_models(check.xl(), check.device, torch.bfloat16)
    tokens = {label(spec): _measure_steps(check, models, spec, "as it is") for spec in methods}
    del models
    free(check.device)
    with check.attempt("fusion", "without Triton"), patch.dict(os.environ, {"LANTERN_FUSED": "0"}):
        models = make_models(check.xl(), check.device, torch.bfloat16)
        for spec in methods:
            _measure_steps(check, models, spec, "without Triton", tokens)
        del models
        free(check.device)
    _measure_slots(check)
    # With few sizes, because compiling takes long: steps have one graph, which reads all slots.
    with check.attempt("fusion", "compiled layers"), patch.object(stepping, "GRAPH_SLOTS", 2**30):
        models = make_models(check.xl(), check.device, torch.bfloat16)
        backend = "inductor" if check.has_graphs else "eager"  # on a CPU this only tests that the layers can be traced
        models.target.run_nodes = torch.compile(models.target.run_nodes, backend=backend, fullgraph=True, dynamic=False)
        for spec in methods:
            _measure_steps(check, models, spec, f"compiled layers ({backend})", tokens)
        del models
        free(check.device)


def _measure_steps(
    check: Check,
    models: DecodingModels,
    spec: MethodSpec,
    change: str,
    expected: dict[str, torch.Tensor | None] | None = None,
) -> torch.Tensor | None:
    """Time the steps of a method after a change of the code, compare its tokens, and write a row.

    Args:
        check: tools that measure and write the results.
        models: the models with the change, such as compiled layers.
        spec: the method.
        change: name of the change.
        expected: id of a method -> its tokens without the change. None if tokens are not compared.

    Returns:
        The tokens after some steps, as in `emitted_tokens`. None if the steps failed.
    """
    row = f"{label(spec)}, {change}"
    with check.attempt("fusion", row):
        preparation: dict[str, float] = {}
        with clock(preparation, "preparation_s", check.device):
            decoder = make_decoder(models_for(models, spec), spec, SAMPLING)
            state = filled_state(decoder, 1)
        for _ in range(2 if check.is_tiny else NUM_STEPS):
            run_step(decoder, state)
        tokens = emitted_tokens(state)
        timing = check.time(lambda: run_step(decoder, state))
        values: dict[str, Any] = {"stepping": decoder.runner.mode, "ms": 1000 * timing.median}
        before = expected and expected[label(spec)]
        if before is not None:
            values["has_same_tokens"] = torch.equal(tokens, before)
        check.write("fusion", row, **preparation, **values)
        return tokens
    return None


def _measure_slots(check: Check) -> None:
    """Time autoregressive steps whose attention is restricted to the first slots of the cache.

    The cache has slots for images of 1024 tokens.
    """
    models = make_models(check.xl(1024), check.device, torch.bfloat16)
    spec = make_method("autoregressive")
    for batch in (1,) if check.is_tiny else (1, 16):
        for num_slots in (16, None) if check.is_tiny else (256, 512, 768, None):
            row = f"batch {batch}, {num_slots or 'all'} slots"
            with check.attempt("slots", row):
                decoder = make_decoder(models_for(models, spec), spec, SAMPLING, stepping="eager")
                state = decoder.allocate(batch)
                state.cache.limit(decoder.num_slots if num_slots is None else num_slots)
                if check.has_graphs:
                    decoder = decoder.stepped("graph")
                    with stepping.without_cudnn_attention():  # as in `Decoder.allocate`
                        decoder.runner.prepare(decoder.step, state, [state.cache.num_used])
                timing = check.time(lambda decoder=decoder, state=state: run_step(decoder, state))
                check.write("slots", row, stepping=decoder.runner.mode, ms=1000 * timing.median)
