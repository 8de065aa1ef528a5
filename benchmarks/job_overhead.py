"""What a job of the workflow costs before it does anything: imports, its code's fingerprint, Snakemake's start.

`python benchmarks/job_overhead.py [--jobs COUNTS]`: CPU seconds, the least of two runs. COUNTS is what
`snakemake --dry-run --quiet rules` prints; without it, the default run is asked. The last line is JSON.
"""

import argparse
import ast
import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

from lantern_pipeline.runtime.fingerprint import code_fingerprint

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "workflow" / "scripts"
DRY_RUN = [sys.executable, "-m", "snakemake", "--dry-run", "--quiet", "rules", "--cores", "2", "--forceall"]


def cpu_seconds(command: list[str], repeats: int = 2) -> float:
    """CPU seconds, user and system, of a command and of what it starts."""
    taken = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(taken)


def import_lines(script: Path) -> str:
    """The import statements at the top of a script."""
    statements = ast.parse(script.read_text()).body
    return "\n".join(ast.unparse(node) for node in statements if isinstance(node, ast.Import | ast.ImportFrom))


def job_counts(text: str) -> dict[str, int]:
    """Script -> its number of jobs, of a dry run's table; figures share a script, targets have none."""
    counts: dict[str, int] = {}
    for rule, number in set(re.findall(r"^(\w+) +(\d+)$", text, re.M)):
        script = "draw_figure" if rule.startswith("draw_") else rule
        if (SCRIPTS / f"{script}.py").is_file():
            counts[script] = counts.get(script, 0) + int(number)
    return counts


def main() -> None:
    """Prints a line for each script and, as JSON, the sums over the run's jobs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=Path, help="a dry run's output; default: the default run's")
    given = parser.parse_args().jobs
    text = given.read_text() if given else subprocess.run(DRY_RUN, cwd=ROOT, capture_output=True, text=True).stdout
    counts, start = job_counts(text), cpu_seconds([sys.executable, "-c", "import snakemake.script"])
    total = 0.0
    for script, number in sorted(counts.items()):
        path = SCRIPTS / f"{script}.py"
        imports = cpu_seconds([sys.executable, "-c", f"import snakemake.script\n{import_lines(path)}"])
        total += number * imports
        print(f"{script:28} {number:4} jobs {imports:6.2f} s each", flush=True)
    begun = time.process_time()
    for script in counts:
        code_fingerprint(SCRIPTS / f"{script}.py")
    sums = {"jobs": sum(counts.values()), "imports_s": total, "bare_job_s": start, "plan_s": cpu_seconds(DRY_RUN, 1)}
    sums["all_fingerprints_s"] = time.process_time() - begun
    print(json.dumps({name: round(value, 2) for name, value in sums.items()}))


if __name__ == "__main__":
    main()
