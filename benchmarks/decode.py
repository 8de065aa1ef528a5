"""Where a step's time goes, method by method, beside another version of this project.

    python benchmarks/decode.py --results results/embedded                    # trained models of a run: whole images
    python benchmarks/decode.py --case large vocab16384                       # random weights: steps alone
    python benchmarks/decode.py --case embedded large --against ../old --output benchmarks/results/decode_2core_cpu.json

Batch 1, one thread, on a CPU. Methods and checkouts take turns image by image. Milliseconds are medians over the steps
of an image, then over images; ratios (this version / the other) are medians of ratios of the same image. The clocks
of the parts cost about 1 % of the smallest step. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import side_by_side
from side_by_side import Side, take_turns

from lantern.generation import decode_timed
from lantern.methods import MethodSpec, make_method
from lantern_pipeline.config.methods import expand_methods

BASELINE = "autoregressive"
LARGE = {
    **{"dim": 256, "num_layers": 8, "num_heads": 4, "vocab_size": 4096, "grid": 16},
    **{"num_text_tokens": 120, "caption_dim": 256},
}
# Random weights; `steps` of an image are measured, in which hardly a draft is accepted.
RANDOM_CASES: dict[str, dict[str, Any]] = {
    "large": {"sizes": LARGE, "images": 5, "steps": 16},
    "vocab16384": {"sizes": {**LARGE, "vocab_size": 16384}, "images": 4, "steps": 8},
}
SAMPLING = {"top_k": 1000, "top_p": 1.0, "filter_order": "top_k_first", "cfg_scale": 3.0}
FORWARDS = {1: BASELINE, 8: "coupled-chain7"}  # nodes -> method whose target forward has as many


class EnoughSteps(Exception):
    """Ends an image of which no more steps are wanted."""


class DecodingBench(side_by_side.Bench):
    """Draws images by the clock."""

    def decode(self, method: str, image: int, steps: int | None) -> dict[str, float]:
        """Milliseconds of the parts of a step of one image, or of its first steps; of a whole image also its seconds
        and the tokens that a target forward emits.
        """
        decoder, parts = self.decoders[method], defaultdict(list)
        now: dict[str, float] = defaultdict(float)

        @contextmanager
        def clock(part: str) -> Iterator[None]:
            begun = time.perf_counter()
            yield
            now[part] += 1000 * (time.perf_counter() - begun)
            if part == "step":
                now["other"] = 2 * now["step"] - sum(now.values())
                # Versions draw the line between these two differently: some filter where verification first reads.
                now["score_verify"] = now["score"] + now.get("verify", 0.0)
                for name in now:
                    parts[name].append(now[name])
                now.clear()
                if len(parts["step"]) == steps:
                    raise EnoughSteps

        decoder.timer, whole = clock, {}
        try:
            generation, seconds = decode_timed(decoder, [self.prompts[image]], self.encoder, run_seed=0)
            forwards = int(generation.target_forwards[0])
            whole = {"latency_s": seconds, "mean_accepted_length": decoder.num_tokens / forwards}
        except EnoughSteps:
            pass
        finally:
            decoder.timer = nullcontext
        return {**whole, **{f"{part}_ms": median(values) for part, values in parts.items()}}


def common_methods(k: int) -> list[MethodSpec]:
    """What every case measures: the published trees, and chains of 4 to 13 nodes."""
    chains = [("coupled", "chain3"), ("coupled", "chain7"), ("jacobi", "chain9"), ("hybrid", "chain9+chain3")]
    tree = "naive_extend_57"
    return [
        make_method(BASELINE),
        *(make_method(name, tree=chain, method_id=f"{name}-{chain}") for name, chain in chains),
        make_method("eagle1", tree=tree, method_id=f"eagle1-{tree}"),
        make_method("lantern_pp", k=10, lambda_=2.0, tree=tree, method_id=f"lantern_pp-{tree}"),
        make_method("eagle2", method_id="eagle2-dynamic58"),
        make_method("lantern", k=k, delta=0.4, method_id="lantern-dynamic58"),
    ]


def configured_methods(config: dict[str, Any], results: Path, temperature: float) -> list[MethodSpec]:
    """The config's methods at a temperature; those with a tuned tree, where the run has chosen one."""
    from lantern_pipeline.data.decoders import resolve_tree  # not in every version that a worker runs

    trees = results / "trees" / f"s{config['repeats']['training_seeds'][0]}.json"
    specs = [run.spec for run in expand_methods(config) if run.temperature == temperature]
    return [resolve_tree(spec, temperature, trees) for spec in specs if spec.tree != "tuned" or trees.exists()]


def make_case(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What the workers of a case are told before they start."""
    if name == "embedded":
        config = side_by_side.read_config(options.config)
        specs = [*configured_methods(config, options.results, options.temperature), *common_methods(k=20)]
        unlike: dict[MethodSpec, dict] = {}  # each method once, by the config's name where it has one
        for spec in specs:
            unlike.setdefault(replace(spec, name="any", method_id=""), asdict(spec))
        methods = list(unlike.values())
        case = side_by_side.trained_case(config, options.results, methods) | {"images": 8, "steps": None}
    else:
        methods = [asdict(spec) for spec in common_methods(k=1000)]
        case = side_by_side.random_case(RANDOM_CASES[name]["sizes"], SAMPLING, methods) | RANDOM_CASES[name]
    return case | {"temperature": options.temperature, "threads": options.threads}


def measure(sides: list[Side], images: int, steps: int | None) -> dict[str, dict[str, list[dict[str, float]]]]:
    """What every side answers for every image: method -> side -> answers. The image before the first does not count."""
    answers: dict[str, dict[str, list]] = {method: defaultdict(list) for method in sides[0].methods}
    for image in range(-1, images):
        for place, method in enumerate(answers):
            found = take_turns(sides, image + place, "decode", method=method, image=max(image, 0), steps=steps)
            for name, answer in found.items():
                if image >= 0:
                    answers[method][name].append(answer)
        print(f"image {image + 1} of {images}", file=sys.stderr)
    return answers


def summarise(answers: dict[str, dict[str, list[dict[str, float]]]]) -> dict[str, dict[str, Any]]:
    """Method -> side -> numbers; "ratio" is this version over the other."""
    rows: dict[str, dict[str, Any]] = {}
    for method, sides in answers.items():
        rows[method] = {}
        for name, images in sides.items():
            row = {key: median(image[key] for image in images) for key in images[0]}
            if "latency_s" in row:
                pairs = zip(answers[BASELINE][name], images, strict=True)
                row["speedup"] = median(base["latency_s"] / image["latency_s"] for base, image in pairs)
            rows[method][name] = row
        if len(sides) == 2:
            pairs = list(zip(sides["this"], sides["against"], strict=True))
            keys = [key for key in sides["this"][0] if sides["against"][0].get(key)]
            rows[method]["ratio"] = {key: median(new[key] / old[key] for new, old in pairs) for key in keys}
    return rows


def show(case: str, rows: dict[str, dict[str, Any]]) -> None:
    """Tables for people: milliseconds of a step and its parts, and in brackets their ratio to the other version."""
    parts = ("step", "draft", "target", "score", "verify", "score_verify", "commit", "other")
    keys = [f"{part}_ms" for part in parts]
    print(f"\n{case:<42}", *(f"{part:>15}" for part in parts))

    def cell(row: dict[str, dict[str, float]], key: str) -> str:
        value, ratio = row["this"].get(key), row.get("ratio", {}).get(key)
        return ("" if value is None else f"{value:.2f}") + (f" ({ratio:.2f})" if ratio else "")

    for method, row in rows.items():
        print(f"{method:<42}", *(f"{cell(row, key):>15}" for key in keys))
    for nodes, method in FORWARDS.items():
        print(f"target forward, nodes: {nodes}  {cell(rows[method], 'target_ms')} ms")
    for method, row in rows.items():
        if "speedup" in row["this"]:
            speedups = ", ".join(f"{name} {row[name]['speedup']:.2f}" for name in ("this", "against") if name in row)
            print(f"{method:<42} {row['this']['mean_accepted_length']:.2f} tokens a forward; speed-up: {speedups}")


def main() -> None:
    """Command line."""
    if sys.argv[1:] == ["--worker"]:
        side_by_side.serve(DecodingBench)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="+", choices=["embedded", *RANDOM_CASES], default=["embedded"])
    parser.add_argument("--config", type=Path, default=side_by_side.ROOT / "config.yaml", help="of the case embedded")
    parser.add_argument("--results", type=Path, default=Path("results/embedded"), help="the run of the case embedded")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--images", type=int, help="images per method; default: as the case says")
    side_by_side.add_options(parser)
    options = parser.parse_args()
    report = {"benchmark": "decode", **side_by_side.describe_run(options)}
    report["settings"] = {"temperature": options.temperature}
    report["cases"] = {}
    for name in options.case:
        case = make_case(name, options)
        images = options.images or case["images"]
        with side_by_side.open_sides(Path(__file__), case, options.against) as sides:
            answers = measure(sides, images, case["steps"])
        rows = summarise(answers)
        show(name, rows)
        report["cases"][name] = {"images": images, "steps": case["steps"], "methods": rows}
    side_by_side.write_report(report, options.output)


if __name__ == "__main__":
    main()
