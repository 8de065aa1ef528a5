"""Part E: time of whole images, including noise, prefill and the host's reads from the GPU.

The shipped model gives speed-ups with real accepted lengths. LlamaGen XL with random weights gives the seconds of
noise, prefill and steps at several image sizes. There, noise is kept for a window of positions, or for all positions.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
from full_size import RandomCaptions
from kernels import SAMPLING

import lantern
from gpu_parts.common import Check, chains, free, label, load_embedded, make_models, models_for
from gpu_parts.equality import CAPTIONS
from gpu_parts.predicted import STEP_MS
from lantern.decoding import Decoder, make_decoder
from lantern.methods import MethodSpec, make_method
from lantern.sampling import SamplingConfig
from lantern_pipeline.measure.timing import clock

NUM_REPEATS = 5


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
    models, shipped = load_embedded(check.device), lantern.load("embedded")
    sampling = SamplingConfig(1.0, 100, 1.0, "top_k_first", 3.0)
    for batch in (1,) if check.is_tiny else (1, 16):
        texts = [CAPTIONS[index % len(CAPTIONS)] for index in range(batch)]
        captions = shipped.encoder.encode(texts)
        baseline = None
        for spec in _shipped_methods()[: 2 if check.is_tiny else None]:
            row = f"embedded, {label(spec)}, batch {batch}"
            with check.attempt("shipped model", row):
                decoder = make_decoder(models_for(models, spec), spec, sampling)
                seconds = _time_images(check, decoder, captions, 1 if check.is_tiny else NUM_REPEATS)
                total = seconds["prefill_s"] + seconds["steps_s"]
                baseline = total if spec.drafts is None else baseline
                values = {} if baseline is None else {"speed_up": baseline / total}
                check.write("shipped model", row, stepping=decoder.runner.mode, **seconds, **values)


def _measure_xl(check: Check) -> None:
    for num_tokens in (256,) if check.is_tiny else (256, 576, 1024):
        models = make_models(check.xl(num_tokens), check.device, torch.bfloat16)
        captions = RandomCaptions(models.target.config).encode([""])
        for spec in [make_method("autoregressive"), *chains(9)]:
            for held in ("as chosen", "all positions"):
                row = f"XL, {label(spec)}, {num_tokens} tokens, noise {held}"
                with check.attempt("LlamaGen XL", row):
                    decoder = make_decoder(models_for(models, spec), spec, SAMPLING)
                    decoder.noise_window = None if held == "as chosen" else decoder.num_tokens
                    seconds = _time_images(check, decoder, captions, 1)
                    predicted = STEP_MS[label(spec)] if num_tokens == 256 else None
                    seconds["predicted_ms_per_step"] = predicted
                    check.write("LlamaGen XL", row, stepping=decoder.runner.mode, **seconds)
        del models
        free(check.device)


def _time_images(
    check: Check, decoder: Decoder, captions: tuple[torch.Tensor, torch.Tensor], num_repeats: int
) -> dict[str, Any]:
    """Return the median seconds of a batch by stage, after a first run that warms up."""
    runs = [_time_batch(check, decoder, captions, repeat) for repeat in range(num_repeats + 1)][1:]
    return {name: median(run[name] for run in runs) for name in runs[0]}


@torch.inference_mode()
def _time_batch(
    check: Check, decoder: Decoder, captions: tuple[torch.Tensor, torch.Tensor], seed: int
) -> dict[str, float]:
    seconds: dict[str, float] = {}
    num_rows, device = len(captions[0]), check.device
    with clock(seconds, "make_noise_s", device):
        fields = [decoder.make_noise(seed, str(index)) for index in range(num_rows)]
    state = decoder.runner.borrow(decoder.allocate, num_rows)
    with clock(seconds, "prefill_s", device):
        decoder.fill(state, range(num_rows), *captions, fields)
    advance, num_looks = state.noise.advance, 0

    def timed_advance(*arguments: Any) -> int:
        nonlocal num_looks
        num_looks += 1
        with clock(seconds, "noise_in_steps_s", device):
            return advance(*arguments)

    state.noise.advance = timed_advance
    try:
        with clock(seconds, "steps_s", device):
            decoder.run(state, num_rows)
    finally:
        del state.noise.advance
    num_forwards = int(state.num_steps.max()) + 1
    tokens_per_forward = decoder.num_tokens / float((state.num_steps + 1).float().mean())
    return {
        **seconds,
        "forwards": num_forwards,
        "tokens_per_forward": tokens_per_forward,
        "host_looks": num_looks,
        "ms_per_step": 1000 * seconds["steps_s"] / max(1, num_forwards - 1),
    }
