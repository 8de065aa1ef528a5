"""Where a step's time goes, for every method of a configuration, against autoregressive decoding in the same process.

    python benchmarks/decode.py                        # models of results/embedded, config.yaml's methods
    python benchmarks/decode.py --images 20 --temperature 0
    python benchmarks/decode.py --random-weights       # no run needed: true costs, meaningless accepted lengths
    python benchmarks/decode.py --compile              # the target's layers through torch.compile (needs a C++
    compiler)

Batch 1, one thread. Whole images are timed first, methods interleaved; the parts of a step in a second pass over a
quarter of the images, since the clocks themselves cost something. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from lantern.codebook import nearest_codes
from lantern.decoding import Decoder, DecodingModels
from lantern.generation import load_decoding_models
from lantern.methods import MethodSpec
from lantern.models.draft import DraftModel
from lantern.models.target import TargetConfig, TargetModel
from lantern.models.text import TextEncoder
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern_pipeline.config.methods import expand_methods, table_file
from lantern_pipeline.config.validate import load_yaml
from lantern_pipeline.data.decoders import load_tables
from lantern_pipeline.data.prompt_files import read_prompts
from lantern_pipeline.data.text_encoders import make_text_encoder
from lantern_pipeline.metrics.latency import PARTS, measure_latency, profile_steps

BASELINE = MethodSpec(name="autoregressive", method_id="autoregressive")


def choose_specs(config: dict[str, Any], temperature: float) -> list[MethodSpec]:
    """Methods of the configuration at this temperature, autoregressive decoding first."""
    found = [run.spec for run in expand_methods(config) if run.temperature == temperature]
    return [BASELINE, *(spec for spec in found if spec != BASELINE)]


def load_models(config: dict[str, Any], folder: Path) -> DecodingModels:
    """Target and draft model of the run's first training seed."""
    seed = config["repeats"]["training_seeds"][0]
    return load_decoding_models(*(folder / name / f"s{seed}" / "model.safetensors" for name in ("target", "drafter")))


def load_used_tables(config: dict[str, Any], folder: Path, specs: list[MethodSpec]) -> dict[str, torch.Tensor]:
    """Tables of nearest codes that the methods read, by neighbours."""
    seed = config["repeats"]["training_seeds"][0]
    used = sorted({table_file(spec.neighbours, seed) for spec in specs if spec.neighbours})
    return load_tables([folder / "codebook" / name for name in used])


def make_random_models(config: dict[str, Any]) -> tuple[DecodingModels, dict[str, torch.Tensor]]:
    """Random models and one table of the configured sizes."""
    sizes = {key: config["target"][key] for key in ("dim", "num_layers", "num_heads")}
    codes = {"vocab_size": config["tokenizer"]["codebook_size"], "grid": config["tokenizer"]["grid"]}
    text = {"num_text_tokens": config["text"]["max_tokens"], "caption_dim": config["text"]["caption_dim"]}
    target = TargetModel(TargetConfig(**sizes, **codes, **text))
    draft = DraftModel.from_target(target, 0)
    table = nearest_codes(torch.randn(target.config.vocab_size, 8), config["codebook"]["num_neighbours"])
    models = DecodingModels(target.prepare_for_decoding(), draft.prepare_for_decoding())
    return models, defaultdict(lambda: table)


def load_prompts(config: dict[str, Any], folder: Path, is_random: bool) -> tuple[list[Prompt], TextEncoder]:
    """What is drawn, and the encoder that reads it: the run's own prompts, or any words for random weights."""
    if is_random:
        prompts = [Prompt(f"random-{i}", f"caption number {i}") for i in range(32)]
        return prompts, make_text_encoder(config["text"], "folder", config["seed"])
    prompts = read_prompts(folder / "prompts" / f"{config['metrics']['headline_prompt_set']}.jsonl")
    return prompts, make_text_encoder(config["text"], config["data"]["source"], config["seed"])


def make_decoders(
    config: dict[str, Any],
    models: DecodingModels,
    tables: dict[str, torch.Tensor],
    specs: list[MethodSpec],
    temperature: float,
) -> list[Decoder]:
    """One decoder per method."""
    sampling = SamplingConfig(temperature=temperature, **config["sampling"])
    decoders = []
    for spec in specs:
        parts = DecodingModels(models.target, models.draft, tables[spec.neighbours] if spec.is_relaxed else None)
        decoders.append(Decoder(parts, spec, sampling))
    return decoders


def measure(
    decoders: list[Decoder], prompts: list[Prompt], encoder: TextEncoder, num_warmup: int
) -> dict[str, dict[str, float]]:
    """Interleaved whole-image times, then the parts of a step: method id -> its numbers."""
    images = measure_latency(decoders, prompts, encoder, run_seed=0, num_warmup=num_warmup)
    some = prompts[: max(1, len(prompts) // 4)]
    parts = profile_steps(decoders, some, encoder, run_seed=0, num_resamples=2)
    seconds = images.pivot(index="prompt_id", columns="method_id", values="seconds")
    rows = {}
    for decoder in decoders:
        method_id = decoder.spec.method_id
        forwards = images.loc[images["method_id"] == method_id, "target_forwards"].sum()
        length = len(prompts) * decoder.num_tokens / float(forwards)
        speedup = float((seconds[BASELINE.method_id] / seconds[method_id]).median())
        rows[method_id] = {
            "latency_s": float(seconds[method_id].median()),
            "speedup": speedup,
            "mean_accepted_length": length,
            "step_cost": length / speedup,
            **parts_of(parts, method_id),
        }
    return rows


def parts_of(parts: pd.DataFrame, method_id: str) -> dict[str, float]:
    """Milliseconds per step of each part, their sum, and what is left of the step."""
    mine = parts[parts["method_id"] == method_id].set_index("part")["milliseconds"]
    values = {f"{part}_ms": float(mine[part]) for part in PARTS}
    return {**values, "step_ms": float(mine.sum()), "other_ms": float(mine["other"])}


def show(rows: dict[str, dict[str, float]]) -> None:
    """A table for people: milliseconds per step, ratios over autoregressive."""
    columns = list(next(iter(rows.values())))
    width = max(len(name) for name in rows)
    print(" " * width, *(f"{name.removesuffix('_ms'):>10.10}" for name in columns))
    for name, row in rows.items():
        print(f"{name:<{width}}", *(f"{row[column]:>10.3f}" for column in columns))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, default=Path("config.yaml"), help="configuration to take methods from")
    parser.add_argument("--results", type=Path, help="folder of the run; default results/<experiment>")
    parser.add_argument("--random-weights", action="store_true", help="measure costs without a run")
    parser.add_argument("--compile", action="store_true", help="compile the layers (needs a C++ compiler)")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--images", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    config = load_yaml(options.config)
    folder = options.results or Path("results") / config["experiment"]
    specs = choose_specs(config, options.temperature)
    if options.random_weights:
        models, tables = make_random_models(config)
    else:
        models, tables = load_models(config, folder), load_used_tables(config, folder, specs)
    if options.compile:
        models.target.extend = torch.compile(models.target.extend, dynamic=False)
        models.draft.extend = torch.compile(models.draft.extend, dynamic=False)
    decoders = make_decoders(config, models, tables, specs, options.temperature)
    prompts, encoder = load_prompts(config, folder, options.random_weights)
    rows = measure(decoders, prompts[: options.images], encoder, options.warmup)
    show(rows)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "threads": options.threads,
    }
    settings = {"temperature": options.temperature, "images": options.images, "compile": options.compile}
    print(json.dumps({"benchmark": "decode", "machine": machine, "settings": settings, "methods": rows}))


if __name__ == "__main__":
    main()
