"""Images per second of batched generation, method by method, beside another version of this project.

    python benchmarks/throughput.py --results results/embedded      # trained models of a run
    python benchmarks/throughput.py                                 # random weights: hardly a draft is accepted
    python benchmarks/throughput.py --results results/embedded --against ../old --batch 1 8 48 --output found.json

A measurement is a generation job as the workflow runs it, from texts to records: four times as many prompts as rows of
the batch, at least 16, noise and text encoding included. Checkouts take turns job by job. Numbers are medians over
rounds, ratios (this version / the other, above 1: faster) medians of ratios of the same round. The last line of the
output is JSON.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import side_by_side
from side_by_side import Side, take_turns

from lantern.methods import MethodSpec, make_method

SIZES = {
    **{"dim": 128, "num_layers": 16, "num_heads": 4, "vocab_size": 1024, "grid": 8},
    **{"num_text_tokens": 16, "caption_dim": 64},
}
MIN_IMAGES = 16  # of a job
SAMPLING = {"top_k": 100, "top_p": 1.0, "filter_order": "top_k_first", "cfg_scale": 3.0}


class ThroughputBench(side_by_side.Bench):
    """Runs generation jobs by the clock."""

    def job(self, method: str, batch: int, images: int) -> dict[str, float]:
        """Images per second of a job from texts to records, and of its decoding alone by the records' seconds; tokens
        that a target forward emits.
        """
        from lantern.generation import generate_records

        decoder, known = self.decoders[method], len(self.prompts)
        prompts = [replace(self.prompts[i % known], id=f"{self.prompts[i % known].id}-{i}") for i in range(images)]
        begun = time.perf_counter()
        records = generate_records(decoder, prompts, self.encoder, run_seed=0, batch_size=batch)
        seconds = time.perf_counter() - begun
        return {
            "images_per_s": images / seconds,
            "decoded_per_s": images / float(records.seconds.sum()),
            "mean_accepted_length": images * decoder.num_tokens / float(records.target_forwards.sum()),
        }


def choose_methods(temperature: float) -> list[MethodSpec]:
    """One method of each kind."""
    chain = {"tree": "chain5", "drafts": "sampled"} if temperature > 0 else {}
    return [
        make_method("autoregressive"),
        *(make_method(name, tree="chain3", method_id=f"{name}-chain3") for name in ("eagle1", "coupled")),
        make_method("jacobi"),
        make_method("lantern", k=20, delta=0.1, method_id="lantern-delta0.1", **chain),
    ]


def make_case(options: argparse.Namespace) -> dict[str, Any]:
    """What the workers are told before they start."""
    methods = [asdict(spec) for spec in choose_methods(options.temperature)]
    if options.results:
        case = side_by_side.trained_case(side_by_side.read_config(options.config), options.results, methods)
    else:
        case = side_by_side.random_case(SIZES, SAMPLING, methods)
    return case | {"temperature": options.temperature, "threads": options.threads}


def measure(sides: list[Side], batch: int, rounds: int) -> dict[str, dict[str, list[dict[str, float]]]]:
    """What every side answers in every round: method -> side -> answers. The round before the first is one batch long
    and does not count.
    """
    answers: dict[str, dict[str, list]] = {method: defaultdict(list) for method in sides[0].methods}
    for turn in range(-1, rounds):
        size = {"batch": batch, "images": max(MIN_IMAGES, 4 * batch) if turn >= 0 else batch}
        for place, method in enumerate(answers):
            for name, answer in take_turns(sides, turn + place, "job", method=method, **size).items():
                if turn >= 0:
                    answers[method][name].append(answer)
    return answers


def summarise(answers: dict[str, dict[str, list[dict[str, float]]]]) -> dict[str, dict[str, Any]]:
    """Method -> side -> numbers; "ratio" is this version over the other."""
    rows: dict[str, dict[str, Any]] = defaultdict(dict)
    for method, sides in answers.items():
        for name, jobs in sides.items():
            rows[method][name] = {key: median(job[key] for job in jobs) for key in jobs[0]}
        if len(sides) == 2:
            pairs = list(zip(sides["this"], sides["against"], strict=True))
            rows[method]["ratio"] = {key: median(new[key] / old[key] for new, old in pairs) for key in pairs[0][0]}
    return rows


def show(batch: int, rows: dict[str, dict[str, Any]]) -> None:
    """A table for people."""
    print(f"\nbatch {batch:<22} images/s   against     ratio   tokens a forward")
    for method, row in rows.items():
        sides = (row.get(name, {}).get("images_per_s") for name in ("this", "against", "ratio"))
        cells = ("" if value is None else f"{value:.2f}" for value in sides)
        print(f"{method:<28}", *(f"{cell:>8} " for cell in cells), f"{row['this']['mean_accepted_length']:>8.2f}")


def main() -> None:
    """Command line."""
    if sys.argv[1:] == ["--worker"]:
        side_by_side.serve(ThroughputBench)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, help="folder of a run whose models draw; without it, random weights")
    parser.add_argument("--config", type=Path, default=side_by_side.ROOT / "config.yaml", help="of that run")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 48], help="images decoded together")
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each method, batch and checkout")
    side_by_side.add_options(parser)
    options = parser.parse_args()
    report = {"benchmark": "throughput", **side_by_side.describe_run(options)}
    report["settings"] = {"temperature": options.temperature, "rounds": options.rounds}
    report["batches"] = {}
    with side_by_side.open_sides(Path(__file__), make_case(options), options.against) as sides:
        for batch in options.batch:
            rows = summarise(measure(sides, batch, options.rounds))
            show(batch, rows)
            report["batches"][batch] = rows
    side_by_side.write_report(report, options.output)


if __name__ == "__main__":
    main()
