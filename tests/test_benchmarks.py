"""Tests that every benchmark runs on the smallest models and images, and prints the promised JSON last."""

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import decode
import every_method
import gpu_check
import kernels
import pytest
import report
import torch
import torch.nn.functional as F
from gpu_parts import PARTS
from gpu_parts.common import Check

from helpers.paths import ROOT
from lantern import stepping
from lantern.codebook import nearest_codes
from lantern.io import save_tensors
from lantern.methods import make_method
from lantern.models.draft import DraftModel
from lantern.models.stored import save_model
from lantern.models.target import TargetConfig, TargetModel
from lantern.parameters import PARAMETERS
from lantern_models.cards.published import CARDS
from lantern_pipeline.plan.validate import load_yaml
from lantern_pipeline.tables.predict import KERNELS

SIZE = {"dim": 64, "num_layers": 2, "num_heads": 2}
TINY_SIZES = {**SIZE, "vocab_size": 1100, "grid": 4, "num_text_tokens": 5, "caption_dim": 16}


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a benchmark with these arguments, and return the content of its last line."""

    def run(benchmark, *arguments):
        monkeypatch.setattr("sys.argv", [benchmark.__name__, *map(str, arguments)])
        benchmark.main()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


@pytest.mark.slow
def test_decoding_is_measured_beside_another_checkout(run, monkeypatch, tmp_path):
    monkeypatch.setitem(decode.RANDOM_CASES, "large", {"sizes": TINY_SIZES, "images": 2, "steps": 2})
    monkeypatch.setattr(decode, "MIN_IMAGES", 3)
    written = tmp_path / "decode.json"
    arguments = ["--case", "large", "--against", ROOT, "--output", written]
    found = run(decode, *arguments)
    assert found == json.loads(written.read_text()) and found["benchmark"] == "decode"
    assert found["machine"]["load_average"] >= 0 and set(found["commits"]) == {"this", "against"}
    methods = found["cases"]["large"]["methods"]
    assert len(methods) == len(decode.common_methods(1000))
    for row in methods.values():
        assert set(row) == {"this", "against", "ratio"} and {"target_ms", "score_ms", "step_ms"} <= set(row["ratio"])
        assert all(value > 0 for side in row.values() for key, value in side.items() if key != "other_ms")

    rows = run(decode, "--case", "large", "--batch", 2, "--images", 1)["cases"]["large"]["batch 2"]
    assert list(rows) == ["autoregressive", "jacobi", "eagle1-chain3", "lantern_pp-chain3"]
    assert rows["jacobi"]["this"]["images_per_s"] > 0 and rows["jacobi"]["this"]["tokens_per_forward"] >= 1
    assert rows["autoregressive"]["this"]["steps_without_refill"] == 1


def test_whole_images_of_a_finished_run_are_measured(tmp_path):
    torch.manual_seed(0)
    target = TargetModel(TargetConfig(**{**TINY_SIZES, "grid": 3, "vocab_size": 12}))
    save_model(tmp_path / "target" / "s0" / "model.safetensors", target)
    save_model(tmp_path / "drafter" / "s0" / "model.safetensors", DraftModel.from_target(target, 0))
    table = nearest_codes(torch.randn(12, 4), k=11)
    for name in ("l2", "l2_normalised"):
        save_tensors(tmp_path / "codebook" / f"{name}.safetensors", {"nearest_codes": table})
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "seen.jsonl").write_text('{"id": "a", "text": "a red square", "more": 1}\n')
    config = load_yaml(ROOT / "config.yaml")
    config["text"] |= {"caption_dim": 16, "max_tokens": 5}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    options = {"config": tmp_path / "config.yaml", "results": tmp_path, "temperature": 1.0}
    case = decode.make_case("embedded", SimpleNamespace(**options))
    tables = [path.rsplit("/", 1)[1] for path in case["files"]["tables"]]
    assert tables == ["l2.safetensors", "l2_normalised.safetensors"]

    methods = [{"name": "autoregressive"}, {"name": "proximity", "k": 10, "tree": "chain2"}, {"name": "unheard"}]
    bench = decode.Bench(json.loads(json.dumps(case | {"methods": methods})))
    assert list(bench.decoders) == ["autoregressive", "proximity-chain2"]  # unknown methods are left out
    rows = decode.summarise({name: {"this": [bench.decode(name, 0, None)]} for name in bench.decoders})
    assert rows["autoregressive"]["this"]["speedup"] == rows["autoregressive"]["this"]["tokens_per_forward"] == 1
    relaxed = rows["proximity-chain2"]["this"]
    assert relaxed["tokens_per_forward"] > 1 and relaxed["verify_ms"] > 0


def test_sides_take_turns_and_run_their_own_checkout(tmp_path):
    calls = []

    class Other(SimpleNamespace):
        def ask(self, command):
            calls.append((self.name, command["image"]))
            return {}

    sides = [Other(name="this", methods=["jacobi", "eagle1"]), Other(name="against", methods=["eagle1"])]
    found = decode.measure(sides, 1, "decode")
    assert [name for name, image in calls] == ["this", "this", "against", "this", "against", "this"]
    answered = {method: {name: len(answers) for name, answers in sides.items()} for method, sides in found.items()}
    assert answered == {"jacobi": {"this": 1}, "eagle1": {"this": 1, "against": 1}}

    options = SimpleNamespace(temperature=1.0)
    with pytest.raises(ValueError, match=f"against must run the code of {tmp_path}, found "):
        decode.Side(
            "against", tmp_path, decode.make_case("large", options) | {"sizes": TINY_SIZES, "methods": [], "threads": 1}
        )


@pytest.mark.slow
def test_the_check_of_a_gpu_runs_on_a_cpu(monkeypatch, tmp_path):
    arguments = ["--device", "cpu", "--tiny", "--parts", "ACDEF", "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["gpu_check", *arguments])
    gpu_check.main()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {letter: part["state"] for letter, part in summary["parts"].items()} == dict.fromkeys("ACDEF", "complete")
    rows = summary["rows"]
    assert rows == gpu_check.read_rows(tmp_path) and {row["part"] for row in rows} == set("ACDEF")
    failed = {row["name"].split(",")[0] for row in rows if "failed" in row}
    assert failed <= {"cudnn", "efficient"}  # attention that a CPU has not
    assert all("no CUDA graphs" in row["note"] for row in rows if row.get("stepping") == "eager")
    exact = [row for row in rows if row["part"] == "D" and row["table"] == "bfloat16"]
    assert len(exact) == 2 and all(row["is_right"] for row in exact)
    page = (tmp_path / "page.md").read_text()
    assert "| us | predicted_us |" in page and all(f"\n## {letter}. " in page for letter in "ACDEF")
    assert len((tmp_path / "profile.csv").read_text().splitlines()) == 1 + 3 * 10


def capture_in_python(step, state, limits=()):
    """Return a stand-in for graphs that runs the step again: one, or one for each number of slots."""
    step(state)  # as before a capture
    graph = SimpleNamespace(replay=partial(step, state))
    return {limit: graph for limit in limits} if limits else graph


@pytest.mark.parametrize("letter", [*(pytest.param(letter, marks=pytest.mark.slow) for letter in "BC"), "G", "H"])
def test_a_graphs_steps_are_compared_with_eager_ones(letter, monkeypatch, tmp_path):
    """Stand-ins for graphs are used as on a GPU."""
    make_runner = stepping.StepRunner.__init__
    monkeypatch.setattr(
        stepping.StepRunner,
        "__init__",
        lambda self, mode, device, name: make_runner(self, mode, torch.device("cuda"), name),
    )
    monkeypatch.setattr(stepping, "capture", capture_in_python)
    monkeypatch.setattr(Check, "has_graphs", True)
    monkeypatch.setattr(Check, "peak_bandwidth", lambda check: 3.35e12)  # as on an H100
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 2**30)
    importlib.import_module(f"gpu_parts.{PARTS[letter].module}").measure(
        Check(letter, tmp_path, torch.device("cpu"), True)
    )
    rows = [row for row in gpu_check.read_rows(tmp_path) if row.get("stepping") == "graph"]
    found = [row.get("is_right", row.get("has_same_tokens")) for row in rows]
    assert True in found and False not in found
    assert not [row for row in gpu_check.read_rows(tmp_path) if "failed" in row]
    assert letter != "C" or all(row["share_of_roofline"] > 0 for row in rows)


def test_a_measurement_that_fails_costs_no_other(tmp_path):
    error = torch.OutOfMemoryError("out of memory")
    check = Check("A", tmp_path, torch.device("cpu"), True)
    with check.attempt("products", "too large"):
        raise error
    check.write("products", "smaller", us=1.0)
    assert [row.get("failed", "") for row in gpu_check.read_rows(tmp_path)] == [f"{type(error).__name__}: {error}", ""]


def check_options(tmp_path, *more):
    return gpu_check.parse_options(["--output", str(tmp_path), "--device", "cpu", "--tiny", *more])


def test_a_part_ends_at_its_limit_and_keeps_its_rows(tmp_path):
    found = gpu_check.run_part("B", check_options(tmp_path), 0.2)
    assert found["state"] == "ended at its limit of 0 s"
    (tmp_path / "rows.jsonl").write_text(
        '{"part": "B", "table": "images", "name": "a", "is_right": false}\n{"part": "B'
    )
    rows = gpu_check.write_summary(check_options(tmp_path), {"B": found})
    assert [row["name"] for row in rows] == ["a"]
    assert "| a | NO |" in (tmp_path / "page.md").read_text()


def test_a_part_that_the_budget_does_not_hold_is_skipped(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("sys.argv", ["gpu_check", "--budget", "1", "--output", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        gpu_check.main()
    assert ended.value.code == 1 and "A  What the device gives: skipped" in capsys.readouterr().out
    states = [part["state"] for part in json.loads((tmp_path / "summary.json").read_text())["parts"].values()]
    assert len(states) == 5 and all(state.startswith("skipped") for state in states)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["--parts", "AX"], "--parts must be letters of ABCDEFGH, got 'AX'"), (["--budget", "0"], "--budget must be > 0")],
)
def test_a_wrong_option_of_the_check_is_one_sentence(arguments, sentence, tmp_path, capsys):
    with pytest.raises(SystemExit):
        check_options(tmp_path, *arguments)
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_the_parts_of_the_check_need_no_package_of_the_pipeline():
    missing = ["pydantic", "jsonschema", "snakemake", "transformers", "tokenizers", "PIL", "matplotlib", "typer"]
    missing.append("psutil")
    modules = [f"gpu_parts.{part.module}" for part in PARTS.values()]
    code = f"import sys\nsys.modules |= dict.fromkeys({missing})\nimport {', '.join(modules)}"
    folders = [ROOT / "benchmarks", ROOT, ROOT / "workflow"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert found.returncode == 0, found.stderr


def test_the_check_starts_without_torch_and_without_git(monkeypatch, tmp_path):
    code = "import sys, gpu_check; print([name for name in ('torch', 'numpy', 'lantern') if name in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "benchmarks"
    )
    assert found.stdout.strip() == "[]"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert report.commit_of(ROOT) is None


def test_kernels_are_counted_as_a_gpu_launches_them():
    x = torch.randn(50, 16384)
    with kernels.KernelCount() as found, torch.inference_mode():
        x.float().view(-1).to("cpu")  # nothing to do
        assert found.total == 0
        F.rms_norm(x.bfloat16(), (16384,), None, 1e-5) * 2
        assert found.by_name == {"_to_copy": 1, "_fused_rms_norm": 1, "mul": 1}
        x[:20].topk(1000)
        assert found.by_name["topk"] == 1
        x.topk(1000)
        assert found.by_name["topk"] == 22


def test_a_step_of_any_size_is_counted_without_memory():
    models = [partial(kernels.random_models, replace(kernels.XL, num_layers=n), torch.bfloat16) for n in (1, 2, 6)]
    spec, tree = make_method("autoregressive"), make_method("eagle1")
    one, two, many = (kernels.count_kernels(make, spec, kernels.SAMPLING).total() for make in models)
    assert many - two == 4 * (two - one) and 6 < two - one < 20
    assert kernels.count_kernels(models[0], tree, kernels.SAMPLING).total() > 2 * one


def test_a_model_of_transformers_is_counted_by_its_layers():
    card = CARDS["glm-image"]
    one, two = (kernels.count_of_card(replace(card, target={**card.target, "num_layers": n})) for n in (1, 2))
    assert one + (card.target["num_layers"] - 1) * (two - one) == KERNELS["glm-image"]


def test_an_example_of_a_parameter_is_allowed():
    for name, parameter in PARAMETERS.items():
        parameter.check(name, every_method.example_of(parameter), "preset")
