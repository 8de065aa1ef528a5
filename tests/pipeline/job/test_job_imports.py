"""Tests of the imports of jobs.

Jobs on tables start without torch, whose import takes seconds. Other jobs do not import packages that they may not
need.
"""

import ast
import subprocess
import sys

import pytest

from helpers.paths import ROOT

SLOW = ("torch", "torchvision", "torch_fidelity", "open_clip", "transformers")


OF_TABLES = ("draw_figure", "summarise", "compare_published", "publish_readme", "analyse_study")
OF_MODELS = ("generate_images", "score_images", "measure_quality", "run_ablation", "measure_latency")


@pytest.mark.parametrize(
    ("scripts", "wanted"), [(OF_TABLES, []), pytest.param(OF_MODELS, ["torch"], marks=pytest.mark.slow)]
)
def test_scripts_load_what_they_need(scripts, wanted):
    lines = ["import sys"]
    for script in scripts:
        statements = ast.parse((ROOT / "workflow" / "scripts" / f"{script}.py").read_text()).body
        lines += [ast.unparse(node) for node in statements if isinstance(node, ast.Import | ast.ImportFrom)]
        lines.append(f"print({script!r}, [name for name in {SLOW} if name in sys.modules])")
    lines.sort(key=lambda line: not line.startswith("from __future__"))
    found = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == [f"{script} {wanted}" for script in scripts]
