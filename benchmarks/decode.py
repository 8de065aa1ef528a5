"""Where a step's time goes, for every method of a configuration, against autoregressive decoding in the same process.

    python benchmarks/decode.py                        # models of results/embedded, config.yaml's methods
    python benchmarks/decode.py --images 20 --temperature 0
    python benchmarks/decode.py --random-weights       # no run needed: true costs, meaningless accepted lengths
    python benchmarks/decode.py --compile              # the target's layers through torch.compile (needs a C++
    compiler)

Batch 1, one thread. Whole images are timed first, methods interleaved; the parts of a step in a second pass, since the
clocks themselves cost something. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from lantern.assembly import make_text_encoder
from lantern.codebook import nearest_codes
from lantern.config import load_yaml
from lantern.decoding import Decoder, DecodingModels
from lantern.generation import load_decoding_models, load_nearest_codes, make_tree
from lantern.io import read_prompts
from lantern.methods import MethodSpec, expand_methods
from lantern.models.target import TargetConfig, TargetModel
from lantern.sampling import NoiseField, SamplingConfig
from lantern.training.drafter import new_draft_model

Caption = tuple[str, torch.Tensor, torch.Tensor]
PARTS = {
    "draft": ("drafter", "grow"),
    "target": (None, "_run_target"),
    "score": (None, "_score"),
    "commit": (None, "_commit_path"),
}


def load_models(
    config: dict[str, Any], folder: Path, is_random: bool
) -> tuple[DecodingModels, dict[str, torch.Tensor]]:
    """Models and nearest-code tables by neighbours; random ones of the configured size if asked for."""
    if is_random:
        section = {key: config["target"][key] for key in ("dim", "num_layers", "num_heads")}
        target = TargetModel(TargetConfig(**section))
        draft = new_draft_model(target, 0)
        table = nearest_codes(torch.randn(target.config.vocab_size, 8), config["codebook"]["num_neighbours"])
        models = DecodingModels(target.prepare_for_decoding(), draft.prepare_for_decoding())
        return models, defaultdict(lambda: table)
    models = load_decoding_models(folder / "target" / "model.safetensors", folder / "drafter" / "model.safetensors")
    tables = {path.stem: load_nearest_codes(path) for path in (folder / "codebook").glob("*.safetensors")}
    return models, tables


def make_decoders(
    config: dict[str, Any], models: DecodingModels, tables: dict[str, torch.Tensor], temperature: float
) -> dict[str, Decoder]:
    """One decoder per method of the configuration at this temperature, autoregressive first."""
    runs = [run.spec for run in expand_methods(config) if run.temperature == temperature]
    specs = {spec.method_id: spec for spec in [MethodSpec(name="autoregressive", method_id="autoregressive"), *runs]}
    sampling = SamplingConfig(temperature=temperature, **config["sampling"])
    decoders = {}
    for method_id, spec in specs.items():
        settings = config["draft_tree"]["dynamic"] if spec.tree == "dynamic" else config["trees"].get(spec.tree)
        parts = DecodingModels(models.target, models.draft, tables[spec.neighbours] if spec.is_relaxed else None)
        decoders[method_id] = Decoder(parts, spec, sampling, make_tree(spec, settings))
    return decoders


def load_captions(config: dict[str, Any], folder: Path, is_random: bool) -> list[Caption]:
    """(prompt id, features, mask) of what is drawn: the run's own prompts, or random features for random weights."""
    text = config["text"]
    if is_random:
        mask = torch.ones(1, text["max_tokens"], dtype=torch.bool)
        return [(f"random-{i}", torch.randn(1, text["max_tokens"], text["caption_dim"]), mask) for i in range(32)]
    prompts = read_prompts(folder / "prompts" / f"{config['metrics']['headline_prompt_set']}.jsonl")
    encoder = make_text_encoder(text, config["data"]["source"], config["seed"])
    return [(prompt.id, *encoder.encode([prompt.text])) for prompt in prompts]


def draw(decoder: Decoder, caption: Caption) -> tuple[float, int]:
    """Seconds and target forwards of one image."""
    prompt_id, features, mask = caption
    noise = NoiseField(0, [prompt_id], decoder.num_tokens, decoder.target.config.vocab_size)
    noise.prepare(decoder.noise_streams)
    begun = time.perf_counter()
    generation = decoder.generate(features, mask, noise)
    return time.perf_counter() - begun, int(generation.target_forwards)


def time_parts(decoder: Decoder, captions: list[Caption]) -> dict[str, float]:
    """Milliseconds per step of each part; "other" is what is left of the step."""
    spent: dict[str, float] = defaultdict(float)

    def clocked(owner: object, name: str, part: str) -> None:
        inner = getattr(owner, name)

        def outer(*args, **kwargs):
            begun = time.perf_counter()
            result = inner(*args, **kwargs)
            spent[part] += time.perf_counter() - begun
            return result

        setattr(owner, name, outer)

    clocked(decoder, "step", "step")
    for part, (owner, name) in PARTS.items():
        holder = decoder if owner is None else getattr(decoder, owner)
        if holder is not None:
            clocked(holder, name, part)
    clocked(decoder.verifier, "verify", "verify")
    steps = sum(draw(decoder, caption)[1] - 1 for caption in captions)
    for owner in (decoder, decoder.drafter, decoder.verifier):
        for name in ("step", "grow", "_run_target", "_score", "_commit_path", "verify"):
            if owner is not None and name in vars(owner):
                delattr(owner, name)
    parts = {part: spent[part] / steps * 1e3 for part in ("draft", "target", "score", "verify", "commit", "step")}
    parts["other"] = parts["step"] - sum(parts[part] for part in ("draft", "target", "score", "verify", "commit"))
    return parts


def measure(decoders: dict[str, Decoder], captions: list[Caption], num_warmup: int) -> dict[str, dict[str, float]]:
    """Interleaved whole-image times, then the parts of a step."""
    seconds, forwards = defaultdict(list), defaultdict(int)
    for number in range(-num_warmup, len(captions)):
        for method_id, decoder in decoders.items():
            took, count = draw(decoder, captions[max(number, 0)])
            if number >= 0:
                seconds[method_id].append(took)
                forwards[method_id] += count
    rows = {}
    for method_id, decoder in decoders.items():
        ratios = [a / b for a, b in zip(seconds["autoregressive"], seconds[method_id], strict=True)]
        length = len(captions) * decoder.num_tokens / forwards[method_id]
        rows[method_id] = {
            "latency_s": statistics.median(seconds[method_id]),
            "speedup": statistics.median(ratios),
            "mean_accepted_length": length,
            "step_cost": length / statistics.median(ratios),
            **{
                f"{part}_ms": value
                for part, value in time_parts(decoder, captions[: max(1, len(captions) // 4)]).items()
            },
        }
    return rows


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
    models, tables = load_models(config, folder, options.random_weights)
    if options.compile:
        models.target.run_cached = torch.compile(models.target.run_cached, dynamic=False)
        models.draft.run_cached = torch.compile(models.draft.run_cached, dynamic=False)
    decoders = make_decoders(config, models, tables, options.temperature)
    captions = load_captions(config, folder, options.random_weights)[: options.images]
    rows = measure(decoders, captions, options.warmup)
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
