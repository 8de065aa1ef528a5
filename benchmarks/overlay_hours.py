"""GPU hours and memory of an experiment's generation, from what `full_size.py` measured.

    python benchmarks/full_size.py --size XL --device cuda --dtype bfloat16 --batch 16 | tail -1 > xl.json
    python benchmarks/overlay_hours.py experiments/llamagen_stage1.yaml --measured xl.json

Per method: batches x (prefill + target forwards x seconds a step), at `generation.batch_size`; text features, metrics
and laws come on top. The number of forwards is an assumption, `--tokens-per-forward`, since random weights accept next
to nothing; 1 is the upper bound. Without a GPU, `--microseconds 15 --tflops 150` puts a launch-bound estimate in place
of measured seconds: counted operations x time of a launch, or the floating-point operations of a step, whichever takes
longer. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from full_size import make_config
from memory import GIB, DecodingLoad, estimate_memory, nodes_of
from snakemake.utils import update_config

from lantern.methods import MethodSpec
from lantern.models.config import target_parameters
from lantern_pipeline.config.methods import expand_methods
from lantern_pipeline.config.resources import draft_sizes, target_sizes
from lantern_pipeline.config.validate import load_yaml, validate_config

ROOT = Path(__file__).resolve().parents[1]
# The measured preset whose step a method's is like.
PRESETS = {
    (None, None): "autoregressive",
    ("static", "sampled"): "lantern_pp",
    ("static", "coupled"): "proximity",
    ("dynamic", "top"): "lantern",
    ("static", "jacobi"): "jacobi",
    ("static", "sjd"): "jacobi",  # whose verification has more operations, of hundreds
    ("static", "hybrid"): "hybrid",
}


@dataclass(frozen=True)
class Estimate:
    """Seconds of a launch, and floating-point operations a second, in place of measured seconds."""

    microseconds: float
    tflops: float

    def step_s(self, row: dict[str, float], parameters: int, rows: int) -> float:
        """Seconds of one step that runs `rows` rows through the target."""
        return max(row["step_operations"] * self.microseconds * 1e-6, 2 * parameters * rows / (self.tflops * 1e12))


def load_config(overlays: list[Path]) -> dict[str, Any]:
    """The default config with overlays, checked."""
    config = load_yaml(ROOT / "config.yaml")
    for path in (ROOT / "workflow" / "resources.yaml", *overlays):
        update_config(config, load_yaml(path))
    validate_config(config)
    return config


def memory_gib(spec: MethodSpec, config: dict[str, Any]) -> float:
    """Peak of a generation job, by the formula."""
    target = target_sizes(config)
    load = DecodingLoad(
        batch=config["generation"]["batch_size"],
        num_nodes=nodes_of(spec.tree_shape),
        bytes_per_value=2 if config["generation"]["dtype"] == "bfloat16" else 4,
        is_guided=config["sampling"]["cfg_scale"] > 1,
        noise_streams=2 if spec.drafts == "sampled" else 1,
        table_columns=config["codebook"]["num_neighbours"] if spec.needs_nearest_codes else 0,
    )
    return estimate_memory(target, load, draft_sizes(config) if spec.needs_draft_model else None).total / GIB


def method_rows(config: dict[str, Any], measured: dict[str, Any], options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per method and temperature: images, seconds a step, hours, memory."""
    num_images = sum(entry["num"] for entry in config["prompts"].values() if entry)
    num_images *= len(config["repeats"]["training_seeds"]) * len(config["repeats"]["noise_seeds"])
    batch, target = config["generation"]["batch_size"], target_sizes(config)
    rows = []
    for run in expand_methods(config):
        spec = run.spec
        row = measured["presets"][
            PRESETS[spec.tree and ("dynamic" if spec.tree == "dynamic" else "static"), spec.drafts]
        ]
        nodes = nodes_of(spec.tree_shape)
        step_s = single_s = row["step_s"]  # a step of one image takes no longer than one of a batch
        prefill_s = row["prefill_s"]
        if options.microseconds:
            estimate, parameters = Estimate(options.microseconds, options.tflops), target_parameters(target)
            step_s = estimate.step_s(row, parameters, 2 * batch * nodes)
            single_s = estimate.step_s(row, parameters, 2 * nodes)
            prefill_s = estimate.step_s(row, parameters, 2 * batch * target.num_text_tokens)
        tokens = 1.0 if spec.drafts is None else options.tokens_per_forward
        seconds = math.ceil(num_images / batch) * (prefill_s + (target.num_image_tokens - 1) / tokens * step_s)
        timed = config["latency"]["num_images"] + config["latency"]["num_warmup"]
        latency = timed * len(config["latency"]["prompt_sets"]) * (target.num_image_tokens / tokens) * single_s
        rows.append(
            {
                "method": f"{spec.method_id} T{run.temperature:g}",
                "images": num_images,
                "step_ms": round(1e3 * step_s, 1),
                "generation_h": round(seconds / 3600, 3),
                "latency_h": round(latency / 3600, 3),
                "memory_gib": round(memory_gib(spec, config), 1),
            }
        )
    return rows


def check_measured(measured: dict[str, Any], config: dict[str, Any], options: argparse.Namespace) -> None:
    """The benchmark must be of this target; where its seconds count, of this batch and grid as well.

    Raises:
        ValueError: it is not; says how to run it.
    """
    sizes = (make_config(measured["settings"]["size"], None), target_sizes(config))
    found, wanted = (f"{size.num_layers} layers of width {size.dim}" for size in sizes)
    if found != wanted:
        raise ValueError(
            f"the benchmark's --size should be of {wanted}, found {found} of {measured['settings']['size']}; run "
            "full_size.py with another --size"
        )
    if options.microseconds:
        return
    for name, value in {"batch": config["generation"]["batch_size"], "grid": config["tokenizer"]["grid"]}.items():
        found = measured["settings"][name]
        if str(found) != str(value):
            raise ValueError(
                f"the benchmark's {name} should be {value}, found {found}; run full_size.py --{name} {value}"
            )


def parse_options() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overlays", nargs="+", type=Path)
    parser.add_argument("--measured", type=Path, required=True, help="last line of full_size.py")
    parser.add_argument("--tokens-per-forward", type=float, default=1.0, help="of drafting methods")
    parser.add_argument(
        "--microseconds", type=float, default=None, help="of a kernel launch: an estimate, no measurement"
    )
    parser.add_argument("--tflops", type=float, default=150.0, help="of matrix products, for the estimate")
    return parser.parse_args()


def main() -> None:
    """Prints a row per method and the sums."""
    options = parse_options()
    config, measured = load_config(options.overlays), json.loads(options.measured.read_text())
    try:
        check_measured(measured, config, options)
    except ValueError as error:
        sys.exit(str(error))
    rows = method_rows(config, measured, options)
    for row in rows:
        print(*(f"{value:>28}" if name == "method" else f"{value:>14}" for name, value in row.items()))
    total = {name: round(sum(row[name] for row in rows), 2) for name in ("generation_h", "latency_h")}
    total["memory_gib"] = max(row["memory_gib"] for row in rows)
    basis = "launch-bound estimate" if options.microseconds else "measured seconds"
    settings = {"tokens_per_forward": options.tokens_per_forward, "basis": basis}
    print(json.dumps({"benchmark": "overlay_hours", "experiment": config["experiment"], **settings, **total}))


if __name__ == "__main__":
    main()
