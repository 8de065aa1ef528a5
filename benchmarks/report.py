"""The report of a benchmark: the measured commit, and its JSON file. Imports no torch."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def commit_of(checkout: Path) -> str | None:
    """Return a checkout's commit, with "-dirty" if files differ from it; None outside of git, or without git."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
    except OSError:
        return None


def rounded(report: Any) -> Any:
    """Return a report as JSON values, floats to four digits."""
    return json.loads(json.dumps(report), parse_float=lambda digits: float(f"{float(digits):.4g}"))


def write_report(report: dict[str, Any], output: Path | None) -> None:
    """Print the report as the last line, floats to four digits, and write it to `output`, if given."""
    values = rounded(report)
    if output:
        output.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(values))
