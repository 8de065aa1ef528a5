"""Every benchmark runs, on the smallest models and images it takes, and its last line is the JSON that it promises."""

import json
from dataclasses import replace
from types import SimpleNamespace

import decode
import full_size
import gpu_check
import pytest
import torch

from helpers.paths import ROOT
from lantern.cards.published import CARDS
from lantern.checkpoints.native import save_model
from lantern.codebook import nearest_codes
from lantern.io import save_tensors
from lantern.methods import PARAMETERS
from lantern.models.draft import DraftModel
from lantern.models.target import TargetConfig, TargetModel
from lantern.models.vq16 import VQ16Config
from lantern_pipeline.config.validate import load_yaml

SIZE = {"dim": 64, "num_layers": 2, "num_heads": 2}
TINY_SIZES = {**SIZE, "vocab_size": 1100, "grid": 4, "num_text_tokens": 5, "caption_dim": 16}


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a benchmark on a command line; returns what its last line holds."""

    def run(benchmark, *arguments):
        monkeypatch.setattr("sys.argv", [benchmark.__name__, *map(str, arguments)])
        benchmark.main()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


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
    assert rows["jacobi"]["this"]["images_per_s"] > 0 and rows["jacobi"]["this"]["mean_accepted_length"] >= 1
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
    assert list(bench.decoders) == ["autoregressive", "proximity-chain2"]  # a version leaves out what it does not know
    rows = decode.summarise({name: {"this": [bench.decode(name, 0, None)]} for name in bench.decoders})
    assert rows["autoregressive"]["this"]["speedup"] == rows["autoregressive"]["this"]["mean_accepted_length"] == 1
    relaxed = rows["proximity-chain2"]["this"]
    assert relaxed["mean_accepted_length"] > 1 and relaxed["verify_ms"] > 0


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


@pytest.mark.parametrize(
    ("size", "tokens", "more"), [("XL", 256, []), ("anole-7b", 1024, []), ("janus-pro-7b", 576, ["--own-layers"])]
)
def test_a_published_size_is_measured(run, monkeypatch, size, tokens, more):
    published = full_size.make_config(size, None)
    assert published.num_image_tokens == tokens
    tiny = {"dim": 32, "num_layers": 1, "num_heads": 2, "ffn_width": 48}
    if size in CARDS:
        card = CARDS[size]
        images, target = replace(card.images, codebook_size=64), {**card.target, **tiny, "num_prompt_ids": 12}
        monkeypatch.setitem(CARDS, size, replace(card, images=images, target=target))
    else:
        tiny |= {"vocab_size": 64, "num_text_tokens": 24}
        monkeypatch.setattr(full_size, "make_config", lambda size, grid: replace(published, **tiny, grid=grid or 2))
    monkeypatch.setattr(full_size, "VQ16Config", lambda grid, **_: VQ16Config(2, 64, 8, 32, (1, 1), 1, 32))
    monkeypatch.setitem(full_size.PARAMETERS, "k", 10)
    options = ("--size", size, "--dtype", "bfloat16", "--batch", 2, "--device", "cpu", "--threads", 1, *more)
    found = run(full_size, *options, "--grid", 2, "--presets", "autoregressive", "lantern")["presets"]
    assert found["autoregressive"]["target_forwards"] == 4
    assert found["lantern"]["memory_gib"] > 0 and found["lantern"]["step_operations"] > 50


def test_a_gpu_is_checked_where_there_is_none(run, monkeypatch):
    monkeypatch.setattr(gpu_check, "PRESETS", {name: gpu_check.PRESETS[name] for name in ("jacobi", "hybrid")})
    found = run(gpu_check, "--device", "cpu", "--tiny")
    assert found["capture"] == dict.fromkeys(["jacobi T0", "jacobi T1", "hybrid T0", "hybrid T1"], "not available")
    assert set(found["near_ties"]) == {"median_margin", "coupled", "jacobi", "hybrid"}
    assert len(found["steps"]) == 5 * 2 * 2
    for row in found["steps"]:
        expected = {"eager": None, "graph": "not available"}[row["stepping"]]
        assert row.get("failed") == expected and (expected or row["seconds"] > 0)


def test_every_preset_has_the_parameters_that_it_leaves_open():
    assert all(full_size.make_spec(name).name == name for name in full_size.PRESETS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_an_example_of_a_parameter_is_allowed(name):
    PARAMETERS[name].check(name, full_size.example_of(PARAMETERS[name]), "preset")
