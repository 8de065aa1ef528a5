"""Part F of the GPU check: decoding steps of several images of 1024 tokens, at the sizes of LlamaGen XL.

This part measures time, images per second and memory. Steps read all slots of the cache, as the last steps of an image
do. Part H shows how much time reading fewer slots saves.
"""

from __future__ import annotations

import torch
from kernels import SAMPLING

from gpu_parts.common import Check, chains, filled_state, free, label, make_models, models_for
from gpu_parts.predicted import BATCH_MS
from lantern.decoding import make_decoder
from lantern.methods import MethodSpec, make_method
from lantern.state import DecodingModels
from lantern_pipeline.measure.speed.memory import GIB, peak_gib, reset_peak
from lantern_pipeline.measure.speed.steps import run_step


def measure(check: Check) -> None:
    """Time the steps of some methods at three batch sizes."""
    models = make_models(check.xl(1024), check.device, torch.bfloat16)
    methods = [
        make_method("autoregressive"),
        *chains(3, 9, 15),
        make_method("jacobi", tree="jacobi_50", method_id="jacobi-50"),
        make_method("lantern_pp", tree="chain3", k=10, lambda_=2.0, method_id="lantern_pp-chain3"),
    ]
    for batch in (2,) if check.is_tiny else (4, 16, 64):
        baseline = None
        for spec in methods[:2] if check.is_tiny else methods:
            baseline = _measure_method(check, models, spec, batch, baseline)


def _measure_method(
    check: Check, models: DecodingModels, spec: MethodSpec, batch: int, baseline: float | None
) -> float | None:
    """Time the steps of a method, and write a row with the result.

    Args:
        check: tools that measure and write the results.
        models: the models.
        spec: the method.
        batch: number of images that are decoded together.
        baseline: seconds of an autoregressive step of this batch, or None before it is measured.

    Returns:
        Seconds of an autoregressive step, or None if it is not measured.
    """
    row = f"{label(spec)}, batch {batch}"
    with check.attempt("batches", row):
        free(check.device)
        reset_peak(check.device)
        decoder = make_decoder(models_for(models, spec), spec, SAMPLING)
        state = filled_state(decoder, batch)
        timing = check.time(lambda: run_step(decoder, state), 20)
        baseline = timing.median if spec.drafts is None else baseline
        values: dict[str, float | None] = {
            "ms": 1000 * timing.median,
            "predicted_ms": BATCH_MS.get((label(spec), batch)),
        }
        values |= {"steps_of_images_per_s": batch / timing.median}
        if baseline is not None:
            values["relative_step_cost"] = timing.median / baseline
        if check.has_graphs:
            values["peak_gib"] = peak_gib(check.device)
            values["reserved_gib"] = torch.cuda.max_memory_reserved(check.device) / GIB
        check.write("batches", row, stepping=decoder.runner.mode, **values)
    return baseline
