"""Jobs on tables start without torch, which costs seconds; others without packages that they may not need."""

import ast
import subprocess
import sys

import pytest

from conftest import ROOT

SLOW = ("torch", "torchvision", "torch_fidelity", "open_clip", "transformers", "accelerate")


@pytest.mark.parametrize(
    "script, wanted",
    [
        *((name, []) for name in ("draw_figure", "summarise", "compare_published")),
        *((name, []) for name in ("publish_readme", "analyse_study")),
        *((name, ["torch"]) for name in ("generate_images", "measure_quality", "run_ablation", "measure_latency")),
    ],
)
def test_a_script_loads_what_it_needs(script, wanted):
    statements = ast.parse((ROOT / "workflow" / "scripts" / f"{script}.py").read_text()).body
    lines = [ast.unparse(node) for node in statements if isinstance(node, ast.Import | ast.ImportFrom)]
    lines += ["import sys", f"print([name for name in {SLOW} if name in sys.modules])"]
    found = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert ast.literal_eval(found.stdout) == wanted
