"""Check and measurement of decoding on a GPU. The machine needs little more than PyTorch.

    make gpu-check
    PYTHONPATH=.:workflow python3 benchmarks/gpu_check.py --parts ABCDE --budget 560 --output FOLDER
    PYTHONPATH=.:workflow python3 benchmarks/gpu_check.py --device cpu --tiny --output FOLDER    # tries the code

It needs torch 2.11 or later, numpy, safetensors, tqdm, pandas, scipy and yaml. It needs neither the network nor git.

The check consists of parts, see `gpu_parts`. Each part runs in a separate process with a time limit, so a failure ends
that part only. A part is skipped if the rest of the budget is too short for it. These files in FOLDER are updated after
every measurement or part:

    rows.jsonl     one line per measurement
    page.md        the measurements as tables, next to their predictions
    summary.json   machine, commit, how each part ended, and all measurements
    profile.csv    the ten longest kernels of each profiled step
    log.txt        the output of the parts

The exit code is 1 if a part failed, or if a check failed. An example of a failed check is a CUDA graph that emits other
tokens than eager steps. This process does not import torch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gpu_parts import PARTS
from gpu_parts.page import write_page
from report import ROOT, commit_of

RESULTS = ("rows.jsonl", "page.md", "summary.json", "profile.csv", "log.txt")


def run_part(letter: str, options: argparse.Namespace, limit_s: float) -> dict[str, Any]:
    """Run one part of the check in a separate process.

    Args:
        letter: letter of the part.
        options: options of the command line.
        limit_s: seconds after which the process is killed.

    Returns:
        state: "complete", or why the part ended early.
        seconds: its duration.
    """
    command = [sys.executable, "-m", "gpu_parts", letter, "--output", str(options.output), "--device", options.device]
    if options.tiny:
        command.append("--tiny")
    folders = [ROOT / "benchmarks", ROOT, ROOT / "workflow"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONUNBUFFERED": "1"}
    begun = time.monotonic()
    with (options.output / "log.txt").open("a", encoding="utf-8") as log:
        log.write(f"part {letter}\n")
        log.flush()
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(timeout=limit_s)
            state = "complete" if code == 0 else f"failed with exit code {code}, see log.txt"
        except subprocess.TimeoutExpired:
            state = f"ended at its limit of {limit_s:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return {"state": state, "seconds": round(time.monotonic() - begun, 1)}


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the measurements so far. An incomplete line, written by a process that was killed, is ignored."""
    path = folder / "rows.jsonl"
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def write_summary(options: argparse.Namespace, parts: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Write summary.json and page.md, and return the measurements.

    Args:
        options: options of the command line.
        parts: letter -> how the part ended, and its seconds.
    """
    rows = read_rows(options.output)
    machine = next((row for row in rows if row["table"] == "machine"), {})
    machine = {key: value for key, value in machine.items() if key not in ("part", "table", "name")}
    summary = {"benchmark": "gpu_check", "commit": commit_of(ROOT), "machine": machine, "is_tiny": options.tiny}
    summary["parts"] = parts
    (options.output / "summary.json").write_text(json.dumps({**summary, "rows": rows}, indent=1) + "\n")
    write_page(options.output / "page.md", summary, rows)
    return rows


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line.

    Raises:
        SystemExit: a part is unknown, or the budget is not positive.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="ABCDE", help=f"letters of the parts, of {''.join(PARTS)}, in their order")
    parser.add_argument("--budget", type=float, default=560, help="seconds for all parts")
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models and short blocks, to try the code")
    options = parser.parse_args(arguments)
    unknown = [letter for letter in options.parts if letter not in PARTS]
    if unknown or not options.parts:
        parser.error(f"--parts must be letters of {''.join(PARTS)}, got {options.parts!r}")
    if not options.budget > 0:
        parser.error(f"--budget must be > 0 seconds, got {options.budget:g}")
    return options


def main() -> None:
    """Run the parts of the check one after another, and update the results after each."""
    options = parse_options()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in RESULTS:
        (options.output / name).unlink(missing_ok=True)
    end = time.monotonic() + options.budget
    parts: dict[str, dict[str, Any]] = {}
    rows: list[dict[str, Any]] = []
    for letter in options.parts:
        part, left = PARTS[letter], end - time.monotonic()
        if left < part.needed_s and not options.tiny:
            parts[letter] = {
                "state": f"skipped: {left:.0f} s left of the budget, it needs {part.needed_s}",
                "seconds": 0,
            }
        else:
            parts[letter] = run_part(letter, options, min(part.limit_s, left))
        rows = write_summary(options, parts)
        print(f"{letter}  {part.title}: {parts[letter]['state']}, {parts[letter]['seconds']} s", flush=True)
    wrong = [row for row in rows if row.get("is_right") is False]
    for row in wrong:
        print(f"not right: {json.dumps(row)}")
    print(f"see {options.output / 'page.md'}")
    if wrong or any(found["state"] != "complete" for found in parts.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the running part is killed, too
    main()
