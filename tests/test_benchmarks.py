"""Every benchmark runs, on the smallest models and images it takes, and its last line is the JSON that it promises."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import decode
import full_size
import gpu_check
import job_overhead
import overlay_hours
import pytest
import side_by_side
import throughput
import torch
import yaml

from conftest import ROOT, load_yaml
from lantern.checkpoints.native import save_model
from lantern.codebook import nearest_codes
from lantern.decoding import make_decoder
from lantern.io import save_tensors
from lantern.methods import make_method
from lantern.models.draft import DraftModel
from lantern.models.target import TargetConfig, TargetModel
from lantern.models.vq16 import VQ16Config

SIZE = {"dim": 64, "num_layers": 2, "num_heads": 2}
TINY_SIZES = {**SIZE, "vocab_size": 1100, "grid": 8, "num_text_tokens": 5, "caption_dim": 16}


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
    monkeypatch.setattr(side_by_side.os, "getloadavg", lambda: (0.6, 0.0, 0.0))
    written = tmp_path / "decode.json"
    arguments = ["--case", "large", "--against", ROOT, "--output", written]
    with pytest.raises(SystemExit, match=r"load average must be <= 0.5 before the start, got 0.60: wait, or mark"):
        run(decode, *arguments)
    assert not written.exists()

    found = run(decode, *arguments, "--mark-load")
    assert found == json.loads(written.read_text()) and found["benchmark"] == "decode"
    assert found["machine"]["load_average"] == 0.6 and not found["machine"]["is_idle"]
    methods = found["cases"]["large"]["methods"]
    assert set(decode.FORWARDS.values()) < set(methods) and set(found["commits"]) == {"this", "against"}
    for row in methods.values():
        assert set(row) == {"this", "against", "ratio"} and {"target_ms", "score_ms", "step_ms"} <= set(row["ratio"])
        assert all(value > 0 for side in row.values() for key, value in side.items() if key != "other_ms")


def test_throughput_is_measured_beside_another_checkout(run, monkeypatch):
    monkeypatch.setattr(throughput, "SIZES", {**TINY_SIZES, "grid": 2, "num_layers": 1})
    monkeypatch.setattr(throughput, "MIN_IMAGES", 3)
    found = run(throughput, "--batch", 2, 3, "--rounds", 1, "--against", ROOT)
    assert found["benchmark"] == "throughput" and list(found["batches"]) == ["2", "3"]
    for rows in found["batches"].values():
        assert set(rows) == {spec.method_id for spec in throughput.choose_methods(1.0)}
        for row in rows.values():
            assert set(row) == {"this", "against", "ratio"} and all(
                v > 0 for side in row.values() for v in side.values()
            )
            assert row["ratio"]["mean_accepted_length"] == 1


def test_whole_images_of_a_finished_run_are_measured(tmp_path):
    text = {"encoder": "words", "phrase_words": 1, "caption_dim": 16, "max_tokens": 5}
    torch.manual_seed(0)
    target = TargetModel(TargetConfig(**{**TINY_SIZES, "grid": 3, "vocab_size": 12}))
    save_model(tmp_path / "target" / "s0" / "model.safetensors", target)
    save_model(tmp_path / "drafter" / "s0" / "model.safetensors", DraftModel.from_target(target, 0))
    table = nearest_codes(torch.randn(12, 4), k=11)
    for name in ("l2_normalised", "probability.s0", "probability.s1"):
        save_tensors(tmp_path / "codebook" / f"{name}.safetensors", {"nearest_codes": table})
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "seen.jsonl").write_text('{"id": "a", "text": "a red square", "more": 1}\n')
    config = {"repeats": {"training_seeds": [0]}, "metrics": {"headline_prompt_set": "seen"}, "text": text, "seed": 0}
    config |= {"data": {"source": "folder"}, "sampling": {"cfg_scale": 3.0}}
    methods = [make_method("autoregressive"), make_method("proximity", k=10, tree="chain2")]
    unheard = {**asdict(methods[1]), "method_id": "unheard", "drafts": "unheard"}
    case = side_by_side.trained_case(config, tmp_path, [*map(asdict, methods), unheard])
    assert [Path(path).name for path in case["files"]["tables"]] == [
        "l2_normalised.safetensors",
        "probability.s0.safetensors",
    ]

    bench = decode.DecodingBench(json.loads(json.dumps(case | {"temperature": 1.0})))
    assert list(bench.decoders) == ["autoregressive", "proximity"]  # a version leaves out what it does not know
    answers = {name: {"this": [bench.decode(name, 0, None)]} for name in bench.decoders}
    rows = decode.summarise(answers)
    assert rows["autoregressive"]["this"]["speedup"] == rows["autoregressive"]["this"]["mean_accepted_length"] == 1
    assert rows["proximity"]["this"]["mean_accepted_length"] > 1 and rows["proximity"]["this"]["verify_ms"] > 0


def test_a_runs_tuned_trees_are_measured(tmp_path):
    config = load_yaml(ROOT / "config.yaml")
    config["methods"] = [{"preset": "jacobi"}, {"preset": "jacobi", "tree": "tuned"}]
    assert [spec.tree for spec in decode.configured_methods(config, tmp_path, 1.0)] == ["chain9"]
    (tmp_path / "trees").mkdir()
    tuned = {"methods": {"jacobi-tuned T1": {"tree_shape": [[0], [0, 0]]}}}
    (tmp_path / "trees" / "s0.json").write_text(json.dumps(tuned))
    found = decode.configured_methods(config, tmp_path, 1.0)
    assert [len(spec.tree_shape) for spec in found] == [9, 2]

    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "seen.jsonl").write_text('{"id": "a", "text": "a red square"}\n')
    options = {"config": tmp_path / "config.yaml", "results": tmp_path, "temperature": 1.0, "threads": 1}
    names = [method["method_id"] for method in decode.make_case("embedded", SimpleNamespace(**options))["methods"]]
    assert names[:3] == ["jacobi", "jacobi-tuned", "autoregressive"] and "jacobi-chain9" not in names


def test_sides_take_turns_and_run_their_own_checkout(tmp_path):
    calls = []

    def side(name, *methods):
        answer = SimpleNamespace(name=name, methods=methods)
        return type("Side", (SimpleNamespace,), {"__call__": lambda self, *_, **given: calls.append(name)})(
            **vars(answer)
        )

    sides = [side("this", "jacobi", "eagle1"), side("against", "eagle1")]
    for turn in range(2):
        side_by_side.take_turns(sides, turn, "decode", method="eagle1")
    assert calls == ["this", "against", "against", "this"]
    assert list(side_by_side.take_turns(sides, 0, "decode", method="jacobi")) == ["this"]

    case = side_by_side.random_case(TINY_SIZES, decode.SAMPLING, []) | {"temperature": 1.0, "threads": 1}
    other = side_by_side.Side("against", Path(decode.__file__), tmp_path, case)
    with pytest.raises(ValueError, match=f"against must run the code of {tmp_path}, found "), other:
        pass


def test_a_published_size_is_measured_and_an_overlays_hours_follow_from_it(run, monkeypatch, tmp_path):
    monkeypatch.setitem(full_size.LLAMAGEN_SIZES, "XL", SIZE)
    monkeypatch.setattr(
        full_size, "VQ16Config", lambda grid, **_: VQ16Config(grid, 16384, 8, 32, (1, 1, 1, 1, 1), 1, 32)
    )
    monkeypatch.setattr(full_size, "nearest_codes", lambda codes, k, _: torch.randint(len(codes), (len(codes), k)))
    presets = sorted(set(overlay_hours.PRESETS.values()))
    found = run(full_size, "--grid", 2, "--threads", 1, "--device", "cpu", "--presets", *presets)
    assert list(found["presets"]) == presets and found["presets"]["autoregressive"]["target_forwards"] == 4
    monkeypatch.undo()

    (tmp_path / "measured.json").write_text(json.dumps(found))
    overlays = [ROOT / "experiments" / f"llamagen_{name}.yaml" for name in ("stage1", "quick")]
    monkeypatch.setattr("sys.argv", [])
    hours = run(overlay_hours, *overlays, "--measured", tmp_path / "measured.json", "--microseconds", 10)
    assert hours["experiment"] == "llamagen_quick" and hours["generation_h"] > 0 and hours["memory_gib"] > 1


@pytest.mark.parametrize(("size", "tokens"), [("anole", 1024), ("janus_pro_7b", 576), ("janus_pro_1b", 576)])
def test_a_family_is_measured_with_random_ids(run, monkeypatch, size, tokens):
    published = full_size.make_config(size, None)
    assert published.num_image_tokens == tokens and len(published.null_ids) == 2
    narrow = {"dim": 32, "num_layers": 1, "num_heads": 2, "ffn_width": 48, "vocab_size": 64, "num_prompt_ids": 10}
    tiny = replace(published, **narrow, null_ids=(0, 1), null_filler=published.null_filler and 2, num_text_tokens=24)
    monkeypatch.setitem(full_size.FAMILIES, size, tiny)
    vq = VQ16Config(2, 64, 8, 32, (1, 1), 1, 32)
    monkeypatch.setattr(full_size, "VQ16Config", lambda grid, **_: vq)
    monkeypatch.setitem(full_size.PARAMETERS, "k", 10)
    options = ("--size", size, "--dtype", "bfloat16", "--batch", 2, "--device", "cpu", "--threads", 1)
    found = run(full_size, *options, "--grid", 2, "--presets", "autoregressive", "lantern")
    assert found["presets"]["autoregressive"]["target_forwards"] == 4 and found["presets"]["lantern"]["formula_gib"] > 0


def test_a_jobs_overhead_is_measured(run, tmp_path, monkeypatch):
    (tmp_path / "jobs.txt").write_text("job  count\npublish_tables  1\ncompare_published  2\ntotal  3\n")
    monkeypatch.setattr(job_overhead, "DRY_RUN", [job_overhead.sys.executable, "-c", ""])
    found = run(job_overhead, "--jobs", tmp_path / "jobs.txt")
    assert found["jobs"] == 2 and found["imports_s"] > 0 and "all_fingerprints_s" in found


def test_a_gpu_is_checked_where_there_is_none(run, monkeypatch):
    monkeypatch.setattr(gpu_check, "PRESETS", {name: gpu_check.PRESETS[name] for name in ("jacobi", "hybrid")})
    found = run(gpu_check, "--device", "cpu", "--tiny")
    assert found["capture"] == dict.fromkeys(["jacobi T0", "jacobi T1", "hybrid T0", "hybrid T1"], "not available")
    assert found["processes"] is True  # by gloo
    assert set(found["near_ties"]) == {"median_margin", "coupled", "jacobi", "hybrid"}
    assert len(found["steps"]) == 4 * 2 * 2
    for row in found["steps"]:
        expected = {"eager": None, "graph": "not available"}[row["stepping"]]
        assert row.get("failed") == expected and (expected or (row["seconds"] > 0 and row["formula_gib"] > 0))


@pytest.fixture
def checked():
    return gpu_check.make_models(gpu_check.SMALL, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("place", range(4))
def test_bytes_of_a_step_are_those_of_the_models_that_run(checked, place, monkeypatch):
    """The draft model and the head are read in every one of its passes."""
    decoder = make_decoder(checked, gpu_check.timed_methods(k=10)[place], gpu_check.SAMPLING)
    state, passes = gpu_check.fill(decoder, 1), []
    extend = checked.draft.extend
    monkeypatch.setattr(checked.draft, "extend", lambda *given: (passes.append(1), extend(*given))[1])
    decoder.step(state)
    dim, hidden, vocab = 64, checked.target.config.ffn_hidden, 256
    layer = (4 * dim * dim + 3 * dim * hidden + 2 * dim) * 4
    cache = decoder.num_slots * 2 * 2 * dim * 4  # captioned and not, keys and values
    expected = 2 * (layer + cache) + dim * vocab * 4
    if passes:
        draft_cache = state.drafter.cache.entries.nbytes
        expected += len(passes) * (layer - dim * 4 + dim * dim * 4 + draft_cache + dim * vocab * 4)
    assert gpu_check.bytes_per_step(decoder, state) == pytest.approx(expected, rel=0.02)  # norms fold away


def test_a_bandwidth_is_that_of_the_card():
    for name, bandwidth in {"NVIDIA H200": 4.8e12, "NVIDIA A100-SXM4-40GB": 1.555e12, "NVIDIA L40S": 0.864e12}.items():
        assert next(value for part, value in gpu_check.BANDWIDTH.items() if part in name) == bandwidth
