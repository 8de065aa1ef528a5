"""Tests that importing a module does no work, and that rules import neither torch nor pandas."""

import re
import subprocess
import sys

import pytest

from helpers.paths import ROOT

# Imports every module, and prints the work that their top-level lines did meanwhile.
AUDIT = """
import sys
from pathlib import Path

done = []

def is_own():
    frame = sys._getframe(2)
    while frame and "importlib" not in frame.f_code.co_filename:
        if frame.f_code.co_filename.startswith((sys.argv[1] + "/lantern", sys.argv[1] + "/workflow/")):
            return True
        frame = frame.f_back

def watch(event, arguments):
    writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    if (writes or event in ("subprocess.Popen", "socket.connect", "_thread.start_new_thread")) and is_own():
        done.append((event, str(arguments[0])))

sys.addaudithook(watch)
for folder in (Path(sys.argv[1]), Path(sys.argv[1], "workflow")):
    for path in sorted(folder.glob("lantern*/**/*.py")):
        name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        __import__(name)
print(len([name for name in sys.modules if name.startswith("lantern")]), done)
"""


def python(*arguments):
    """Return what a new Python prints."""
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'workflow'}", "MPLBACKEND": "Agg"}
    command = [sys.executable, *arguments]
    result = subprocess.run(command, env=path, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.slow
def test_no_module_starts_a_thread_a_process_or_writes_a_file_when_it_is_imported():
    number, _, done = python("-c", AUDIT, str(ROOT)).partition(" ")
    assert int(number) > 90 and done == "[]"


def test_what_rules_import_leaves_torch_and_pandas_alone():
    """Snakemake reads the rules at every start, and in every job on a cluster."""
    text = "\n".join(path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    modules = sorted(set(re.findall(r"^ *from (lantern[\w.]*) import", text, re.M)))
    assert len(modules) > 10
    slow = ["torch", "pandas", "scipy", "matplotlib"]
    code = f"import sys, {', '.join(modules)}\nprint([name for name in {slow} if name in sys.modules])"
    assert python("-c", code) == "[]"


def test_the_core_alone_brings_none_of_its_neighbours():
    core = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "lantern").rglob("[!_]*.py")]
    modules = [".".join(path.parts) for path in core if path.name != "triton_kernels"]  # which needs Triton
    code = (
        f"import sys, {', '.join(modules)}\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules if name.startswith('lantern')}))"
    )
    assert len(modules) > 30 and python("-c", code) == "['lantern']"
