"""Benchmark of decoding: time of each part of a step, and images per second of a generation job, per method.

The benchmark can compare this checkout with another version of the project.

    python benchmarks/decode.py --results results/embedded                    # trained models of a run: whole images
    python benchmarks/decode.py --case large vocab16384                       # random weights: some steps only
    python benchmarks/decode.py --case embedded large --against ../old --output found.json
    python benchmarks/decode.py --batch 1 8 48 --against ../old               # images per second of generation jobs
    python benchmarks/decode.py --threads 2 1 --against .                     # two threads compared with one

All runs are on a CPU, by default with batch 1 and one thread. Methods and checkouts take turns image by image. Each
checkout runs in a separate process. A ratio therefore compares two versions on one machine at almost the same time.

Milliseconds are medians over the steps of an image, then over images. A ratio divides this version's time by the other
version's for the same image, and the median over images is shown. Measuring the parts takes about 1 % of the smallest
step.

With --batch, whole generation jobs are measured, from prompts to stored codes. A job generates four times as many
images as the batch size, at least 16.

Run the benchmark on an idle machine. The JSON in its last line states the load of the machine before the start.
"""

from __future__ import annotations

import argparse
import heapq
import importlib
import json
import os
import resource
import runpy
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from report import ROOT, commit_of, write_report

BASELINE = "autoregressive"
TABLE_COLUMNS = 1001  # of random models: for LANTERN's k of 1000, plus one that the residuals of its public code read
LARGE = {"dim": 256, "num_layers": 8, "num_heads": 4, "vocab_size": 4096, "grid": 16}
LARGE |= {"num_text_tokens": 120, "caption_dim": 256}
XL = {**LARGE, "dim": 1024, "num_layers": 24, "num_heads": 16, "vocab_size": 16384}
# Cases with random weights. Hardly any draft is accepted, so only the first `steps` steps of an image are measured.
RANDOM_CASES: dict[str, dict[str, Any]] = {
    "large": {"sizes": LARGE, "images": 5, "steps": 16},
    "vocab16384": {"sizes": {**LARGE, "vocab_size": 16384}, "images": 4, "steps": 8},
    "xl": {"sizes": XL, "images": 2, "steps": 3},
}
SAMPLING = {"top_k": 1000, "top_p": 1.0, "filter_order": "top_k_first", "cfg_scale": 3.0}
MIN_IMAGES = 16  # smallest number of images of a job
JOB_METHODS = [{"name": BASELINE}, {"name": "jacobi"}, {"name": "eagle1", "tree": "chain3"}]
JOB_METHODS.append({"name": "lantern_pp", "tree": "chain3", "k": 10, "lambda_": 5.0})
PARTS = ("step", "draft", "target", "score", "verify", "commit", "other")


def common_methods(k: int) -> list[dict[str, Any]]:
    """Return the methods that every case measures, with the published draft trees and with trees of 4 to 14 nodes.

    Args:
        k: number of nearest codes of the preset `lantern`.
    """
    return [
        {"name": BASELINE},
        {"name": "coupled", "tree": "chain3"},
        {"name": "coupled", "tree": "chain7"},
        {"name": "jacobi", "tree": "chain9"},
        {"name": "hybrid", "tree": "chain9+chain3"},
        {"name": "eagle1", "tree": "naive_extend_57"},
        {"name": "lantern_pp", "tree": "naive_extend_57", "k": 10, "lambda_": 2.0},
        {"name": "eagle2"},
        {"name": "lantern", "k": k, "delta": 0.4},
    ]


class Bench:
    """Decoders of a case (models, prompts, methods and settings), and functions that measure them.

    The class imports Lantern's packages in its functions, because they may be those of another checkout. Methods that
    this checkout does not have are left out.

    Args:
        case: the description of the case, see `make_case`.
    """

    def __init__(self, case: dict[str, Any]) -> None:
        from lantern import decoding
        from lantern.prompts import Prompt
        from lantern.sampling import SamplingConfig
        from lantern_pipeline.data.text_encoders import make_text_encoder

        clocks = runpy.run_path(str(ROOT / "workflow" / "lantern_pipeline" / "measure" / "speed" / "clocks.py"))
        self.timing = SimpleNamespace(**clocks)  # of this checkout, whichever packages are measured
        torch.manual_seed(0)
        models, tables = self._load_models(case["files"]) if "files" in case else self._make_models(case["sizes"])
        sampling = SamplingConfig(temperature=case["temperature"], **case["sampling"])
        self.prompts = [Prompt(**prompt) for prompt in case["prompts"]]
        self.encoder = make_text_encoder(self._text_settings(case["text"]), case["source"])
        self.decoders = {}
        for spec in self._specs(case):
            make = getattr(decoding, "make_decoder", decoding.Decoder)  # Decoder: versions before 0.6
            with_table = replace(models, nearest_codes=tables.get(spec.neighbours))
            self.decoders[spec.method_id] = make(with_table, spec, sampling)

    @staticmethod
    def _text_settings(text: dict[str, Any]) -> Any:
        import lantern_pipeline

        # This looks for the folder. An import in an older checkout could find the module of an installed version.
        for name in ("schema", "settings"):  # of this version, of those shortly before it
            if (Path(lantern_pipeline.__file__).parent / name).is_dir():
                module = importlib.import_module(f"lantern_pipeline.{name}.run_config")
                return module.TextSettings.model_construct(**text)
        return text  # older versions take the config section itself

    @staticmethod
    def _load_models(files: dict[str, Any]) -> tuple[Any, dict[str, torch.Tensor]]:
        import lantern
        from lantern_pipeline.data.decoders import load_tables

        # By folder, as in `_text_settings`: an older checkout would find the module of an installed version.
        if (Path(lantern.__file__).parents[1] / "lantern_models").is_dir():
            from lantern_models.checkpoints.decoding_models import load_decoding_models
        else:
            from lantern.generation import load_decoding_models  # pyright: ignore[reportAttributeAccessIssue]

        return load_decoding_models(Path(files["target"]), Path(files["draft"])), load_tables(files["tables"])

    @staticmethod
    def _make_models(sizes: dict[str, int]) -> tuple[Any, dict[str, torch.Tensor]]:
        from lantern.models.draft import DraftModel
        from lantern.models.target import TargetConfig, TargetModel

        try:
            from lantern.state import DecodingModels
        except ModuleNotFoundError:  # versions before 0.6
            from lantern.decoding import DecodingModels

        target = TargetModel(TargetConfig(**sizes)).eval()
        draft = DraftModel.from_target(target, 0).eval()
        codes = torch.arange(sizes["vocab_size"])
        table = (codes[:, None] + torch.arange(1, min(TABLE_COLUMNS + 1, len(codes)))) % len(
            codes
        )  # any codes are good enough
        models = DecodingModels(target.prepare_for_decoding(), draft.prepare_for_decoding())
        return models, {"l2_normalised": table.short()}

    @staticmethod
    def _specs(case: dict[str, Any]) -> Iterator[Any]:
        """Yield the methods of a case. The id of a method names its preset and its draft tree."""
        from lantern.methods import make_method

        for entry in case["methods"]:
            try:
                preset, parts = entry["name"], {key: value for key, value in entry.items() if key != "name"}
                yield make_method(preset, **parts, method_id="-".join(filter(None, (preset, parts.get("tree")))))
            except (TypeError, ValueError) as error:
                print(f"left out: {entry}: {error}", file=sys.stderr)

    def decode(self, method: str, image: int, steps: int | None) -> dict[str, float]:
        """Decode one image, and measure the parts of its steps.

        Args:
            method: id of the method.
            image: index of the prompt.
            steps: number of steps to measure; None for the whole image.

        Returns:
            "<part>_ms" -> median milliseconds of the part. For a whole image also its seconds, `latency_s`, and its
            tokens per forward pass of the target, `tokens_per_forward`.
        """
        from lantern.generation import decode_timed

        decoder = self.decoders[method]
        clock = self.timing.PartClock(steps)
        decoder.timer, whole = clock, {}
        try:
            generation, seconds = decode_timed(decoder, [self.prompts[image]], self.encoder, run_seed=0)
            forwards = int(generation.target_forwards[0])
            whole = {"latency_s": seconds, "tokens_per_forward": decoder.num_tokens / forwards}
        except self.timing.EnoughSteps:
            pass
        finally:
            decoder.timer = nullcontext
        return {**whole, **clock.medians()}

    def job(self, method: str, batch: int, images: int) -> dict[str, float]:
        """Run a generation job, from prompts to codes with their statistics, and measure its speed.

        Args:
            method: id of the method.
            batch: number of images that are decoded together.
            images: number of images of the job.

        Returns:
            images_per_s: images per second.
            tokens_per_forward: tokens per forward pass of the target.
            steps_without_refill: number of steps if each batch waited for its slowest image, divided by the number of
                steps that the job takes. In the job, the next prompt replaces a complete image in the batch at once.
        """
        from lantern.generation import generate_records

        decoder, known = self.decoders[method], len(self.prompts)
        prompts = [replace(self.prompts[i % known], id=f"{self.prompts[i % known].id}-{i}") for i in range(images)]
        seconds: dict[str, float] = {}
        with self.timing.clock(seconds, "job", decoder.device):
            records = generate_records(decoder, prompts, self.encoder, run_seed=0, batch_size=batch)
        forwards, rows = records.target_forwards.tolist(), [0] * batch
        for steps in forwards:
            heapq.heapreplace(rows, rows[0] + steps)
        waiting = sum(max(forwards[first : first + batch]) for first in range(0, images, batch))
        length = images * decoder.num_tokens / sum(forwards)
        return {
            "images_per_s": images / seconds["job"],
            "tokens_per_forward": length,
            "steps_without_refill": waiting / max(rows),
        }


def serve() -> None:
    """Run as a worker: read JSON lines from stdin, and print a JSON answer to each, until stdin ends.

    The first line describes the case: models, prompts, methods and settings. Every other line is the name of a function
    of `Bench` and its arguments.
    """
    import lantern

    lines, answers = sys.stdin, sys.stdout
    sys.stdout = sys.stderr  # whatever the packages print
    case = json.loads(lines.readline())
    torch.set_num_threads(case["threads"])
    bench = Bench(case)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answer: Any = {"package": lantern.__file__, "methods": list(bench.decoders), "peak_mib": peak_mib}
    while True:
        print(json.dumps(answer), file=answers, flush=True)
        line = lines.readline()
        if not line:
            return
        command = json.loads(line)
        answer = getattr(bench, command.pop("do"))(**command)


class Side:
    """Worker process for one of the two checkouts of the project that are compared.

    Args:
        name: "this" or "against".
        checkout: folder of the checkout.
        case: models, prompts, methods and settings, from `make_case`.

    Attributes:
        methods: ids of the methods that the checkout knows.
        peak_mib: peak memory of the worker when its models are prepared, in MiB.

    Raises:
        ValueError: the worker imports Lantern from another folder than `checkout`.
    """

    def __init__(self, name: str, checkout: Path, case: dict[str, Any]) -> None:
        self.name, self.checkout = name, checkout.resolve()
        packages = os.pathsep.join(map(str, (self.checkout, self.checkout / "workflow")))
        environment = {**os.environ, "PYTHONPATH": packages, "OMP_NUM_THREADS": str(case["threads"])}
        command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)
        answer = self.ask(case)
        self.methods: list[str] = answer["methods"]
        self.peak_mib: float = answer["peak_mib"]
        if not Path(answer["package"]).is_relative_to(self.checkout):
            raise ValueError(f"{name} must run the code of {self.checkout}, found {answer['package']}")

    def ask(self, line: dict[str, Any]) -> Any:
        """Send the case or a command, and wait for the answer.

        Raises:
            RuntimeError: the worker has ended.
        """
        print(json.dumps(line), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of {self.checkout} ended; its message is above")
        return json.loads(answer)


@contextmanager
def open_sides(case: dict[str, Any], against: Path | None, threads: list[int]) -> Iterator[list[Side]]:
    """Start a worker for this checkout and one for the other checkout, as a context manager.

    Args:
        case: models, prompts, methods and settings, from `make_case`.
        against: folder of the other checkout, or None.
        threads: number of threads. The first number is for this checkout, the last one for the other checkout.
    """
    checkouts = {"this": (ROOT, threads[0])} | ({"against": (against, threads[-1])} if against else {})
    with ExitStack() as stack:
        sides = []
        for name, (checkout, number) in checkouts.items():
            sides.append(Side(name, checkout, {**case, "threads": number}))
            stack.callback(sides[-1].process.communicate)  # closes stdin, so that the worker ends
        yield sides


def measure(sides: list[Side], turns: int, command: str, **arguments: Any) -> dict[str, dict[str, list[dict]]]:
    """Measure every method with both checkouts, which take turns.

    A further turn before the others is a warm-up and not counted. The checkout that is first in one turn is last in the
    next.

    Args:
        sides: the workers of the checkouts.
        turns: number of turns.
        command: "decode" or "job", a function of `Bench`.
        arguments: further arguments of this function.

    Returns:
        Id of the method -> name of the checkout -> numbers of each turn.
    """
    answers: dict[str, dict[str, list]] = {method: defaultdict(list) for method in sides[0].methods}
    for turn in range(-1, turns):
        of_image = {"image": max(turn, 0)} if command == "decode" else {}
        for place, (method, found) in enumerate(answers.items()):
            for side in sides if (turn + place) % 2 == 0 else sides[::-1]:
                if method in side.methods:
                    answer = side.ask({"do": command, "method": method, **of_image, **arguments})
                    found[side.name] += [answer] if turn >= 0 else []
        print(f"turn {turn + 1} of {turns}", file=sys.stderr)
    return answers


def summarise(answers: dict[str, dict[str, list[dict[str, float]]]]) -> dict[str, dict[str, Any]]:
    """Return the medians over turns of all measured numbers, per method and checkout.

    Key "ratio" of a method has the numbers of this checkout divided by those of the other checkout.
    """
    rows: dict[str, dict[str, Any]] = defaultdict(dict)
    for method, sides in answers.items():
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


def make_case(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the description of a case, which is sent to workers first: models, prompts, methods and settings."""
    case = {"temperature": options.temperature}
    if name != "embedded":
        sizes = RANDOM_CASES[name]["sizes"]
        prompts = [{"id": f"random-{i}", "text": f"caption number {i}"} for i in range(64)]
        text = {"encoder": "words", "caption_dim": sizes["caption_dim"], "max_tokens": sizes["num_text_tokens"]}
        text |= {"seed": 0, "phrase_words": 1}
        case |= {"prompts": prompts, "text": text, "source": "folder", "sampling": SAMPLING}
        return case | RANDOM_CASES[name] | {"methods": common_methods(1000)}
    config, results = yaml.safe_load(options.config.read_text()), options.results
    seed = config["repeats"]["training_seeds"][0]
    tables = (results / "codebook").glob("*.safetensors")
    models = {"target": results / "target", "draft": results / "drafter"}
    files = {name: str(folder / f"s{seed}" / "model.safetensors") for name, folder in models.items()}
    sets = [name for name, entry in config["prompts"].items() if entry]
    headline = config["metrics"]["headline_prompt_set"] or sets[0]
    prompts = results / "prompts" / f"{headline}.jsonl"
    lines = [json.loads(line) for line in prompts.read_text().splitlines()]
    case |= {"prompts": [{key: line[key] for key in ("id", "text")} for line in lines]}
    case |= {"files": {**files, "tables": sorted(map(str, tables))}, "methods": common_methods(20)}
    case |= {"text": config["text"], "sampling": config["sampling"], "source": config["data"]["source"]}
    return case | {"images": 8, "steps": None}


def show(case: str, rows: dict[str, dict[str, Any]]) -> None:
    """Print a table of the milliseconds of a step and of its parts. The ratio to the other version is in brackets."""
    print(f"\n{case:<42}", *(f"{part:>15}" for part in PARTS))
    for method, row in rows.items():
        cells = []
        for key in (f"{part}_ms" for part in PARTS):
            value, ratio = row["this"].get(key), row.get("ratio", {}).get(key)
            cells.append(("" if value is None else f"{value:.2f}") + (f" ({ratio:.2f})" if ratio else ""))
        print(f"{method:<42}", *(f"{cell:>15}" for cell in cells))
        if "speedup" in row["this"]:
            print(
                f"    {row['this']['tokens_per_forward']:.2f} tokens a forward, speed-up {row['this']['speedup']:.2f}"
            )


def show_jobs(batch: int, rows: dict[str, dict[str, Any]]) -> None:
    """Print a table of images per second of generation jobs, with one line per method."""
    print(f"\nbatch {batch:<36} images/s   against     ratio   tokens a forward   steps without refill")
    for method, row in rows.items():
        sides = (row.get(name, {}).get("images_per_s") for name in ("this", "against", "ratio"))
        cells = ("" if value is None else f"{value:.2f}" for value in sides)
        more = (row["this"][name] for name in ("tokens_per_forward", "steps_without_refill"))
        print(f"{method:<42}", *(f"{cell:>8} " for cell in cells), *(f"{value:>8.2f}" for value in more))


def describe_run(options: argparse.Namespace) -> dict[str, Any]:
    """Return the machine, its load average before the start, and the commits."""
    from lantern_pipeline.job.machine import describe_machine

    checkouts = {"this": ROOT} | ({"against": options.against} if options.against else {})
    machine = {"processor": describe_machine()["cpu"], "cores": os.cpu_count()}
    machine |= {"torch": torch.__version__, "threads": options.threads, "load_average": os.getloadavg()[0]}
    commits = {name: commit_of(checkout) for name, checkout in checkouts.items()}
    return {"machine": machine, "commits": commits, "temperature": options.temperature}


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["--worker"]:
        serve()
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="+", choices=["embedded", *RANDOM_CASES], default=["embedded"])
    parser.add_argument("--results", type=Path, default=Path("results/embedded"), help="the run of the case embedded")
    parser.add_argument("--config", type=Path, default=ROOT / "config.yaml", help="of that run")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--images", type=int, help="images per method, or jobs; default: as the case says, 3 jobs")
    parser.add_argument("--batch", type=int, nargs="+", default=[], help="images decoded together, in jobs")
    parser.add_argument("--against", type=Path, help="another checkout of this project, measured in turns with this")
    parser.add_argument("--output", type=Path, help="file for the results")
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="of this side, and of the other")
    options = parser.parse_args()
    report = {"benchmark": "decode", **describe_run(options), "cases": {}}
    for name in options.case:
        case = make_case(name, options)
        if options.batch:
            case["methods"] = JOB_METHODS
        with open_sides(case, options.against, options.threads) as sides:
            found: dict[str, Any] = {
                "steps": case["steps"],
                "images": case["images"] if options.images is None else options.images,
            }
            found["peak_mib"] = {side.name: side.peak_mib for side in sides}
            if not options.batch:
                found["methods"] = summarise(measure(sides, found["images"], "decode", steps=case["steps"]))
                show(name, found["methods"])
            for batch in options.batch:
                job = {"batch": batch, "images": max(MIN_IMAGES, 4 * batch)}
                rows = found[f"batch {batch}"] = summarise(
                    measure(sides, 3 if options.images is None else options.images, "job", **job)
                )
                show_jobs(batch, rows)
        report["cases"][name] = found
    write_report(report, options.output)


if __name__ == "__main__":
    main()
