"""Checkouts of this project measured in turns on one machine, and whether that machine is idle.

    with open_sides(Path(__file__), case, options.against) as sides:
        answers = take_turns(sides, turn, "decode", method="eagle1", image=0)

Every checkout, this one too, runs in a process of its own. All are alive at once, but one works while the others
wait for their turn, so that a ratio compares two versions on one machine in one run. A script that measures is its
own worker: `python script.py --worker` calls `serve` with a `Bench`, which builds decoders from a case (a dictionary
of JSON values) and whose public methods are the commands. A worker runs this checkout's script on another checkout's
packages: all that it needs of them is imported in `Bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import yaml

ROOT = Path(__file__).resolve().parents[1]
IDLE_LOAD = 0.5  # highest 1-minute load average of a machine that does nothing else
TABLE_COLUMNS = 1001  # of random models: LANTERN's k of 1000, and one more that the authors' residuals read


class Bench:
    """The decoders of a case on the packages at hand; the only place that knows how versions differ.

    Attributes:
        decoders: by method id; methods that this version does not know are missing.
        prompts: what is drawn.
        encoder: text features.
    """

    def __init__(self, case: dict[str, Any]) -> None:
        from lantern.decoding import make_decoder
        from lantern.prompts import Prompt
        from lantern.sampling import SamplingConfig
        from lantern_pipeline.data.text_encoders import make_text_encoder

        torch.manual_seed(0)
        models, tables = self._load_models(case["files"]) if "files" in case else self._make_models(case["sizes"])
        sampling = SamplingConfig(temperature=case["temperature"], **case["sampling"])
        self.prompts = [Prompt(**prompt) for prompt in case["prompts"]]
        # An earlier version has the seed of the features beside section `text`.
        is_earlier = "seed" in signature(make_text_encoder).parameters
        self.encoder = make_text_encoder(case["text"], case["source"], *([case["text"]["seed"]] if is_earlier else []))
        self.decoders = {}
        for spec in self._known_specs(case["methods"]):
            table = tables.get(spec.neighbours) if spec.needs_nearest_codes else None
            self.decoders[spec.method_id] = make_decoder(replace(models, nearest_codes=table), spec, sampling)

    @staticmethod
    def _load_models(files: dict[str, Any]) -> tuple[Any, dict[str, torch.Tensor]]:
        from lantern.generation import load_decoding_models
        from lantern_pipeline.data.decoders import load_tables

        return load_decoding_models(Path(files["target"]), Path(files["draft"])), load_tables(files["tables"])

    @staticmethod
    def _make_models(sizes: dict[str, int]) -> tuple[Any, dict[str, torch.Tensor]]:
        from lantern import codebook
        from lantern.decoding import DecodingModels
        from lantern.models.draft import DraftModel
        from lantern.models.target import TargetConfig, TargetModel

        target = TargetModel(TargetConfig(**sizes)).eval()
        draft = DraftModel.from_target(target, 0).eval()
        codes = torch.arange(sizes["vocab_size"])
        offsets = torch.arange(1, min(TABLE_COLUMNS + 1, len(codes)))
        dtype = codebook.code_dtype(len(codes)) if hasattr(codebook, "code_dtype") else torch.int64
        table = ((codes[:, None] + offsets) % len(codes)).to(dtype)  # any other codes will do
        models = DecodingModels(target.prepare_for_decoding(), draft.prepare_for_decoding())
        return models, {"l2_normalised": table}

    @staticmethod
    def _known_specs(methods: list[dict[str, Any]]) -> Iterator[Any]:
        from lantern.methods import MethodSpec

        for fields in methods:
            try:
                yield MethodSpec.of(**{name: value for name, value in fields.items() if value is not None})
            except (TypeError, ValueError) as error:
                print(f"left out: {fields['method_id']}: {error}", file=sys.stderr)


def serve(bench: type[Bench]) -> None:
    """Answers the commands that arrive as JSON lines until there are no more; the first line is the case."""
    import lantern

    lines, answers = sys.stdin, sys.stdout
    sys.stdout = sys.stderr  # whatever the packages print
    case = json.loads(lines.readline())
    torch.set_num_threads(case["threads"])
    worker = bench(case)
    answer = {"package": lantern.__file__, "methods": list(worker.decoders)}
    while True:
        print(json.dumps(answer), file=answers, flush=True)
        line = lines.readline()
        if not line:
            return
        command = json.loads(line)
        answer = getattr(worker, command["do"])(**command["with"])


class Side:
    """A checkout in a process of its own, which does what it is told and then waits.

    Attributes:
        name: "this" or "against".
        methods: ids of the case's methods that this checkout has.
    """

    def __init__(self, name: str, script: Path, checkout: Path, case: dict[str, Any]) -> None:
        self.name, self.checkout = name, checkout.resolve()
        packages = os.pathsep.join(map(str, (self.checkout, self.checkout / "workflow")))
        environment = {**os.environ, "PYTHONPATH": packages, "OMP_NUM_THREADS": str(case["threads"])}
        command = [sys.executable, str(script), "--worker"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, env=environment, **pipes)
        self._send(case)

    def __enter__(self) -> Side:
        """Waits until the models stand."""
        answer = self._receive()
        self.methods: list[str] = answer["methods"]
        if not Path(answer["package"]).is_relative_to(self.checkout):
            raise ValueError(f"{self.name} must run the code of {self.checkout}, found {answer['package']}")
        return self

    def __exit__(self, *failure: object) -> None:
        """Ends the process: it has nothing more to read."""
        self._process.communicate()

    def __call__(self, command: str, **arguments: Any) -> Any:
        """Gives a command and waits for its answer."""
        self._send({"do": command, "with": arguments})
        return self._receive()

    def _send(self, line: Any) -> None:
        print(json.dumps(line), file=self._process.stdin, flush=True)

    def _receive(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self.checkout} ended; its message stands above")
        return json.loads(line)


@contextmanager
def open_sides(script: Path, case: dict[str, Any], against: Path | None) -> Iterator[list[Side]]:
    """This checkout and, where asked for, another one, each in its process, ready to measure a case."""
    checkouts = {"this": ROOT} | ({"against": against} if against else {})
    with ExitStack() as stack:
        sides = [Side(name, script.resolve(), checkout, case) for name, checkout in checkouts.items()]
        yield [stack.enter_context(side) for side in sides]


def take_turns(sides: list[Side], turn: int, command: str, **arguments: Any) -> dict[str, Any]:
    """Gives a command to one side after the other, the first of an even turn last in an odd one: answers by name.

    A side that does not have the method in question is passed over.
    """
    ordered = sides if turn % 2 == 0 else sides[::-1]
    return {side.name: side(command, **arguments) for side in ordered if arguments["method"] in side.methods}


def trained_case(config: dict[str, Any], results: Path, methods: list[dict[str, Any]]) -> dict[str, Any]:
    """The models, tables and prompts of a finished run, of its first training seed."""
    seed = config["repeats"]["training_seeds"][0]
    tables = [
        path for path in (results / "codebook").glob("*.safetensors") if path.suffixes[:-1] in ([], [f".s{seed}"])
    ]
    prompts = results / "prompts" / f"{config['metrics']['headline_prompt_set']}.jsonl"
    return {
        "files": {
            "target": str(results / "target" / f"s{seed}" / "model.safetensors"),
            "draft": str(results / "drafter" / f"s{seed}" / "model.safetensors"),
            "tables": sorted(map(str, tables)),
        },
        "prompts": [{key: line[key] for key in ("id", "text")} for line in read_lines(prompts)],
        "text": {"seed": config["seed"], "phrase_words": 1, **config["text"]},  # where an earlier version made the run
        "source": config["data"]["source"],
        "sampling": config["sampling"],
        "methods": methods,
    }


def random_case(sizes: dict[str, int], sampling: dict[str, Any], methods: list[dict[str, Any]]) -> dict[str, Any]:
    """Random models of some sizes, a `TargetConfig`'s: true costs, but hardly a draft is accepted."""
    text = {"encoder": "words", "caption_dim": sizes["caption_dim"], "max_tokens": sizes["num_text_tokens"]}
    text |= {"seed": 0, "phrase_words": 1}
    return {
        "sizes": sizes,
        "prompts": [{"id": f"random-{i}", "text": f"caption number {i}"} for i in range(64)],
        "text": text,
        "source": "folder",  # its captions may hold any words
        "sampling": sampling,
        "methods": methods,
    }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_config(path: Path) -> dict[str, Any]:
    """A configuration file."""
    return yaml.safe_load(path.read_text())


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that every script takes which measures side by side."""
    parser.add_argument(
        "--against", type=Path, help="another checkout of this project, measured in turns with this one"
    )
    parser.add_argument("--output", type=Path, help="file for the results; refused on a machine that is not idle")
    parser.add_argument("--mark-load", action="store_true", help="write results of a busy machine, marked as such")
    parser.add_argument("--threads", type=int, default=1)


def describe_run(options: argparse.Namespace) -> dict[str, Any]:
    """The machine, its load before the start, and the commits; ends the program where `--output` must be refused."""
    load = os.getloadavg()[0]
    is_idle = load <= IDLE_LOAD
    if options.output and not (is_idle or options.mark_load):
        raise SystemExit(
            f"the load average must be <= {IDLE_LOAD} before the start, got {load:.2f}: wait, or mark the results by "
            "--mark-load"
        )
    commits = {"this": commit_of(ROOT)} | ({"against": commit_of(options.against)} if options.against else {})
    return {
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
            "threads": options.threads,
            "load_average": round(load, 2),
            "is_idle": is_idle,
        },
        "commits": commits,
    }


def commit_of(checkout: Path) -> str | None:
    """A checkout's commit, with "-dirty" behind it where files differ from it; None outside of git."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude", "*"]
    answer = subprocess.run(command, capture_output=True, text=True)
    return answer.stdout.strip() or None


def write_report(report: dict[str, Any], output: Path | None) -> None:
    """Prints the report as the last line, floats to four digits, and writes it where asked for."""
    rounded = json.loads(json.dumps(report), parse_float=lambda digits: float(f"{float(digits):.4g}"))
    if output:
        output.write_text(json.dumps(rounded, indent=1) + "\n")
    print(json.dumps(rounded))
