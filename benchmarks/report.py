"""Functions that write the report of a benchmark as JSON, with the measured commit. They do not import torch."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def commit_of(checkout: Path) -> str | None:
    """Return the git commit of a checkout, with "-dirty" appended if files were changed.

    Return None if the folder is not in a git repository, or git is not installed.
    """
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
    except OSError:
        return None


def rounded(report: Any) -> Any:
    """Return a report as JSON values, with floats rounded to four digits."""
    return json.loads(json.dumps(report), parse_float=lambda digits: float(f"{float(digits):.4g}"))


def write_report(report: dict[str, Any], output: Path | None) -> None:
    """Print a report as one line of JSON, with floats rounded to four digits. Also write it to `output`, if given."""
    values = rounded(report)
    if output:
        output.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(values))
