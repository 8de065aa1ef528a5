"""What only a GPU can show, in one command, in under eight minutes on an H200: `make gpu-check`.

    python benchmarks/gpu_check.py --output results/gpu_check.json
    python benchmarks/gpu_check.py --device cpu --tiny        # the same code, where there is no GPU

1. capture: steps replayed from a CUDA graph give the images and accepted lengths of eager ones, for every preset.
2. near_ties: in bfloat16, how much of exact methods' images equals autoregressive decoding's, and by what margin the
   target preferred its token where they part.
3. steps: seconds of a step and the peak of memory at the sizes of LlamaGen XL with random weights, eager and as a
   graph. One-by-one steps stand beside those that `lantern predict` takes.

What cannot be measured says why. The last line of the output is JSON; the exit code is 1 where a capture failed or gave
other images.
"""

from __future__ import annotations

import argparse
import platform
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from decode import ROOT, commit_of, write_report
from full_size import GIB, RandomCaptions, make_spec, name_of, peak_gib, reset_peak

from lantern.codebook import code_dtype
from lantern.decoding import Decoder, make_decoder
from lantern.decoding_state import DecodingModels, DecodingState, Generation
from lantern.generation import synchronise
from lantern.methods import PRESETS, MethodSpec, make_method
from lantern.models.config import FFN_MULTIPLE, LLAMAGEN_SIZES, TargetConfig
from lantern.models.draft import DraftModel
from lantern.models.target import TargetModel
from lantern.models.transformer import cast_weights
from lantern.sampling import SamplingConfig
from lantern_pipeline.measure.losslessness import compare_with_autoregressive
from lantern_pipeline.tables.predict import BANDWIDTH, step_ms

XL = {**LLAMAGEN_SIZES["XL"], "ffn_multiple": FFN_MULTIPLE, "vocab_size": 16384, "grid": 16}
XL |= {"num_text_tokens": 120, "caption_dim": 2048}
SMALL = {"dim": 64, "num_layers": 2, "num_heads": 2, "ffn_multiple": 16, "vocab_size": 256, "grid": 6}
SMALL |= {"num_text_tokens": 8, "caption_dim": 16}
TINY = {**SMALL, "grid": 4}
LANTERN_K = 1000  # of the papers
NOT_AVAILABLE = "not available"
SAMPLING = SamplingConfig(1.0, 1000, 1.0, "top_k_first", 7.5)


def timed_methods(k: int) -> list[MethodSpec]:
    """What is timed: one method of each kind, with k nearest codes."""
    return [
        make_method("autoregressive"),
        make_method("eagle1", method_id="eagle1-tree57"),
        make_method("lantern", k=k, delta=0.1, method_id="lantern-dynamic58"),
        *(make_method("jacobi", tree=tree, method_id=f"jacobi-{tree}") for tree in ("chain15", "jacobi_50")),
    ]


def make_models(sizes: dict[str, int], device: torch.device, dtype: torch.dtype, scale: float = 1.0) -> DecodingModels:
    """Random models, made on the device, their matrices scaled, and a table of any other codes."""
    torch.manual_seed(0)
    with torch.device(device):
        target = TargetModel(TargetConfig(**sizes)).eval()
    draft = DraftModel.from_target(target, 0).eval()
    with torch.no_grad():
        for parameter in [*target.parameters(), *draft.parameters()] if scale != 1 else []:
            if parameter.dim() == 2:
                parameter.mul_(scale)
    codes = torch.arange(sizes["vocab_size"], device=device)
    table = (codes[:, None] + codes[1 : LANTERN_K + 2]) % len(codes)
    cast_weights(target, dtype)
    models = DecodingModels(target, cast_weights(draft, dtype), table.to(code_dtype(len(table))))
    models.target.prepare_for_decoding()
    models.draft.prepare_for_decoding()
    return models


def draw(decoder: Decoder, batch: int) -> Generation:
    """One batch of images."""
    captions = RandomCaptions(decoder.target.config).encode([""] * batch)
    return decoder.generate(*captions, [decoder.make_noise(0, str(i)) for i in range(batch)])


def check_capture(device: torch.device) -> dict[str, Any]:
    """Every preset at both temperatures, on a small model whose drafts are accepted now and then."""
    models, found = make_models(SMALL, device, torch.float32, scale=6.0), {}
    for name in PRESETS:
        for temperature in (0.0, 1.0):
            decoder = make_decoder(models, make_spec(name), SamplingConfig(temperature, 40, cfg_scale=2.0))
            expected, images = draw(decoder.stepped("eager"), 5), draw(decoder, 5)
            is_equal = all(
                torch.equal(getattr(images, part), getattr(expected, part))
                for part in ("codes", "accepted_lengths", "accepted_nodes", "is_substituted")
            )
            is_captured = decoder.runner.mode == "graph"
            answer = is_equal if is_captured else False if device.type == "cuda" else NOT_AVAILABLE
            found[f"{name} T{temperature:g}"] = answer
            print(f"capture    {name:<16} T {temperature:g}  equal to eager: {answer}", flush=True)
    return found


def check_near_ties(models: DecodingModels, batch: int) -> dict[str, Any]:
    """Exact methods against autoregressive decoding under the same noise, in the models' number format."""
    expected = draw(make_decoder(models, make_method("autoregressive"), SAMPLING, records_margins=True), batch)
    found: dict[str, Any] = {"median_margin": float(expected.margins.median())}
    for spec in (make_method("coupled"), make_method("jacobi", tree="chain15"), make_method("hybrid")):
        images = draw(make_decoder(models, spec, SAMPLING), batch)
        equality = compare_with_autoregressive(images.codes, expected.codes, expected.margins)
        margins = equality.margin_at_difference[~equality.is_equal].tolist()
        row = {
            "tokens_up_to_a_difference": float(equality.first_difference.sum() / images.codes.numel()),
            "equal_images": float(equality.is_equal.float().mean()),
            "margins_where_they_part": margins,
        }
        found[spec.name] = row
        shares = f"images {row['equal_images']:.2f}, tokens {row['tokens_up_to_a_difference']:.3f}"
        print(f"near ties  {spec.name:<16} equal: {shares}; margins {[round(m, 4) for m in margins]}", flush=True)
    return found


def fill(decoder: Decoder, batch: int) -> DecodingState:
    """A batch that has begun; all rows have one image's noise, which takes long to make."""
    state, noise = decoder.allocate(batch), decoder.make_noise(0, "0")
    decoder.fill(state, range(batch), *RandomCaptions(decoder.target.config).encode([""] * batch), [noise] * batch)
    return state


@torch.inference_mode()
def step_seconds(decoder: Decoder, state: DecodingState, num_steps: int) -> float:
    """Mean seconds of a step, after three that do not count."""
    for _ in range(3):
        decoder.runner.step(decoder.step, state)
    synchronise(decoder.device)
    begun = time.perf_counter()
    for _ in range(num_steps):
        decoder.runner.step(decoder.step, state)
    synchronise(decoder.device)
    return (time.perf_counter() - begun) / num_steps


def measure_steps(decoder: Decoder, batch: int, num_steps: int) -> dict[str, Any]:
    """One method at one batch size in one way of stepping."""
    device, mode = decoder.device, decoder.runner.mode
    if device.type == "cuda":
        torch.cuda.empty_cache()
    reset_peak(device)
    state = fill(decoder, batch)
    seconds = step_seconds(decoder, state, num_steps)
    if decoder.runner.mode != mode:
        return {"failed": f"steps were run {decoder.runner.mode}"}
    found = {"seconds": seconds, "preparation_s": decoder.runner.preparation_s}
    if device.type == "cuda":  # on a CPU the process holds much else
        found["peak_gib"] = peak_gib(device)
        found["reserved_gib"] = torch.cuda.max_memory_reserved(device) / GIB  # graphs' pool included
    return found


def show(row: dict[str, Any]) -> None:
    """A line for people."""
    line = f"steps      {row['method']:<18} batch {row['batch']:>2}  {row['stepping']:<8}"
    if "failed" in row:
        print(line, row["failed"], flush=True)
        return
    line += f"{1000 * row['seconds']:9.2f} ms"
    if row.get("predicted_ms"):
        line += f" (predicted {row['predicted_ms']:.2f})"
    if "peak_gib" in row:
        line += f"  peak {row['peak_gib']:.2f} GiB, reserved {row['reserved_gib']:.2f}"
    print(f"{line}  prepared in {row['preparation_s']:.1f} s", flush=True)


def check_steps(models: DecodingModels, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every timed method, batch size and way of stepping, each with a decoder made anew, so that no state is kept."""
    rows, specs = [], timed_methods(min(LANTERN_K, models.nearest_codes.shape[1] - 1))
    for batch, mode, spec in product(options.batches, ("eager", "graph"), specs):
        row: dict[str, Any] = {"method": spec.method_id, "batch": batch, "stepping": mode}
        try:
            if mode == "graph" and options.device == "cpu":
                row["failed"] = NOT_AVAILABLE
            else:
                parts = models if spec.needs_nearest_codes else replace(models, nearest_codes=None)
                decoder = make_decoder(parts, spec, SAMPLING, stepping=mode)
                row |= measure_steps(decoder, batch, options.steps)
                if options.card and batch == 1 and spec.name == "autoregressive":
                    row["predicted_ms"] = step_ms("llamagen_stage1", options.card, mode)
        except RuntimeError as error:  # too little memory, say: the others are measured all the same
            row["failed"] = f"{type(error).__name__}: {error}"[:200]
        rows.append(row)
        show(row)
    return rows


def parse_options() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models, two batch sizes, few steps")
    parser.add_argument("--output", type=Path, help="file for the results")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("gpu_check needs a CUDA device; to try the code without one: --device cpu --tiny")
    options.batches, options.steps = ([1, 2], 2) if options.tiny else ([1, 4, 16, 64], 20)
    return options


def main() -> None:
    """Runs all checks."""
    options, begun = parse_options(), time.perf_counter()
    device = torch.device(options.device)
    machine = {"device": name_of(device), "torch": torch.__version__, "python": platform.python_version()}
    print("machine   ", ", ".join(f"{key} {value}" for key, value in machine.items()), flush=True)
    options.card = next((gpu for gpu in BANDWIDTH if gpu.upper() in machine["device"] and not options.tiny), None)
    report = {"benchmark": "gpu_check", "machine": machine, "commit": commit_of(ROOT)}
    report |= {"sizes": TINY if options.tiny else XL, "capture": check_capture(device)}
    models = make_models(report["sizes"], device, torch.bfloat16)
    report["near_ties"] = check_near_ties(models, 2 if options.tiny else 4)
    report["steps"] = check_steps(models, options)
    report["seconds"] = time.perf_counter() - begun
    write_report(report, options.output)
    if False in report["capture"].values():
        raise SystemExit(1)


if __name__ == "__main__":
    main()
