"""Run one part of the check: `python -m gpu_parts A --output FOLDER --device cuda`."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import torch

from gpu_parts import PARTS
from gpu_parts.common import Check


def main() -> None:
    """Run one part and append its measurements to rows.jsonl."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda needs a CUDA device; to try the code without one: --device cpu --tiny")
    check = Check(options.part, options.output, torch.device(options.device), options.tiny)
    check.describe()
    importlib.import_module(f"gpu_parts.{PARTS[options.part].module}").measure(check)


if __name__ == "__main__":
    main()
