"""Part E of the GPU check: time of whole images, including noise, prefill and the host's reads from the GPU.

The shipped model gives real speed-ups, measured by the code of `lantern bench`. LlamaGen XL with random weights gives
the seconds of noise, prefill and steps at several image sizes. Noise is stored either for all positions of an image, or
only for a window of them.
"""

from __future__ import annotations

from typing import Any

import torch
from kernels import SAMPLING

import lantern
from gpu_parts.common import Check, chains, free, label, load_embedded, make_models, models_for
from gpu_parts.equality import CAPTIONS
from gpu_parts.predicted import STEP_MS
from lantern.decoding import Decoder, make_decoder
from lantern.methods import MethodSpec, make_method
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern_pipeline.measure.columns import with_ends
from lantern_pipeline.measure.speed.bench import Row, bench_rounds
from lantern_pipeline.measure.speed.clocks import clock
from lantern_pipeline.measure.speed.random_models import RandomPrompts
from lantern_pipeline.tables.predict import predict_speedup

NUM_ROUNDS = 2


def measure(check: Check) -> None:
    """Time images of the shipped model, then images at the sizes of LlamaGen XL."""
    _measure_shipped(check)
    _measure_xl(check)


def _shipped_methods() -> list[MethodSpec]:
    return [
        make_method("autoregressive"),
        *chains(9, 15),
        make_method("eagle1", tree="chain3", method_id="eagle1-chain3"),
        make_method("eagle1", method_id="eagle1-tree57"),
        make_method("lantern_pp", k=10, lambda_=2.0, method_id="lantern_pp-tree57"),
    ]


def _measure_shipped(check: Check) -> None:
    """Measure the shipped model as `lantern bench` does. After each round, write a table of all rounds so far."""
    models, shipped = load_embedded(check.device), lantern.load("embedded")
    sampling = SamplingConfig(1.0, 100, 1.0, "top_k_first", 3.0)
    specs = _shipped_methods()[: 2 if check.is_tiny else None]
    prompts = [Prompt(str(index), text) for index, text in enumerate(CAPTIONS[: 1 if check.is_tiny else None])]
    batch_size, num_rounds = (1, 1) if check.is_tiny else (16, NUM_ROUNDS)
    with check.attempt("shipped model", "all methods"), shipped.limited_threads():
        decoders = [make_decoder(models_for(models, spec), spec, sampling) for spec in specs]
        rounds = bench_rounds(decoders, prompts, shipped.encoder, batch_size=batch_size, num_rounds=num_rounds)
        for number, found in enumerate(rounds, start=1):
            for decoder, row in zip(decoders, found.rows, strict=True):
                _write_shipped(check, f"shipped model, round {number}", decoder, row)


def _write_shipped(check: Check, table: str, decoder: Decoder, row: Row) -> None:
    stepping, predicted = decoder.runner.mode, {}
    if decoder.spec.drafts is not None:
        bounds = predict_speedup(row["tokens_per_forward"], decoder.spec.needs_draft_model, stepping)
        predicted["predicted_speedup"] = "{:.2f} to {:.2f}".format(*bounds)
    names = ("tokens_per_forward", "relative_step_cost", *with_ends("speedup"), "num_equal", "num_images")
    names += ("images_per_s", "peak_memory_gib")
    values = {name: row[name] for name in names if row[name] == row[name]}  # one image has no interval, only nan
    values["ms"] = 1000 * row["forward_s"]
    check.write(table, f"embedded, {label(decoder.spec)}", stepping=stepping, **values, **predicted)


def _measure_xl(check: Check) -> None:
    for num_tokens in (256,) if check.is_tiny else (256, 576, 1024):
        models = make_models(check.xl(num_tokens), check.device, torch.bfloat16)
        captions = RandomPrompts(models.target.config).encode([""])
        for spec in [make_method("autoregressive"), *chains(9)]:
            for held in ("as chosen", "all positions"):
                row = f"XL, {label(spec)}, {num_tokens} tokens, noise {held}"
                with check.attempt("LlamaGen XL", row):
                    decoder = make_decoder(models_for(models, spec), spec, SAMPLING)
                    decoder.noise_window = None if held == "as chosen" else decoder.num_tokens
                    seconds = _time_image(check, decoder, captions)
                    predicted = STEP_MS[label(spec)] if num_tokens == 256 else None
                    seconds["predicted_ms_per_step"] = predicted
                    check.write("LlamaGen XL", row, stepping=decoder.runner.mode, **seconds)
        del models
        free(check.device)


def _time_image(check: Check, decoder: Decoder, captions: tuple[torch.Tensor, torch.Tensor]) -> dict[str, Any]:
    """Return the seconds of each stage of an image: noise, prefill and steps. A first image is a warm-up."""
    for seed in range(2):
        found = _time_stages(check, decoder, captions, seed)
    return found


@torch.inference_mode()
def _time_stages(
    check: Check, decoder: Decoder, captions: tuple[torch.Tensor, torch.Tensor], seed: int
) -> dict[str, float]:
    seconds: dict[str, float] = {}
    device = check.device
    with clock(seconds, "make_noise_s", device):
        noise = decoder.make_noise(seed, "0")
    state = decoder.runner.borrow(decoder.allocate, 1)
    with clock(seconds, "prefill_s", device):
        decoder.fill(state, range(1), *captions, [noise])
    advance, num_looks = state.noise.advance, 0

    def timed_advance(*arguments: Any) -> int:
        nonlocal num_looks
        num_looks += 1
        with clock(seconds, "noise_in_steps_s", device):
            return advance(*arguments)

    state.noise.advance = timed_advance
    try:
        with clock(seconds, "steps_s", device):
            decoder.run(state, 1)
    finally:
        del state.noise.advance
    num_forwards = int(state.num_steps) + 1
    return {
        **seconds,
        "forwards": num_forwards,
        "tokens_per_forward": decoder.num_tokens / num_forwards,
        "host_looks": num_looks,
        "ms_per_step": 1000 * seconds["steps_s"] / max(1, num_forwards - 1),
    }
