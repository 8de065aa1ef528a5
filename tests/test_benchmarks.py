"""Every benchmark runs, on the smallest models and images it takes, and its last line is the JSON that it promises."""

import json
import math

import decode
import full_size
import job_overhead
import overlay_hours
import pytest
import torch
import yaml
from snakemake.utils import update_config

from conftest import ROOT, load_yaml
from lantern.models.vq16 import VQ16Config
from tiny_run import TINY

SIZE = {"dim": 64, "num_layers": 2, "num_heads": 2}


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs a benchmark on a command line; returns what its last line holds."""

    def run(benchmark, *arguments):
        monkeypatch.setattr("sys.argv", [benchmark.__name__, *map(str, arguments)])
        benchmark.main()
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_decoding_is_measured_without_a_run(run, tmp_path):
    config = load_yaml(ROOT / "config.yaml")
    update_config(config, load_yaml(TINY))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    found = run(decode, "--config", tmp_path / "config.yaml", "--random-weights", "--images", 2, "--warmup", 1)
    assert found["benchmark"] == "decode" and found["methods"]["autoregressive"]["speedup"] == 1
    for row in found["methods"].values():
        assert all(math.isfinite(value) for value in row.values()) and row["mean_accepted_length"] >= 1


def test_a_published_size_is_measured_and_an_overlays_hours_follow_from_it(run, monkeypatch, tmp_path):
    monkeypatch.setitem(full_size.LLAMAGEN_SIZES, "XL", SIZE)
    monkeypatch.setattr(full_size, "VQ16Config", lambda grid: VQ16Config(grid, 16384, 8, 32, (1, 1, 1, 1, 1), 1, 32))
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


def test_a_jobs_overhead_is_measured(run, tmp_path, monkeypatch):
    (tmp_path / "jobs.txt").write_text("job  count\npublish_tables  1\ncompare_published  2\ntotal  3\n")
    monkeypatch.setattr(job_overhead, "DRY_RUN", [job_overhead.sys.executable, "-c", ""])
    found = run(job_overhead, "--jobs", tmp_path / "jobs.txt")
    assert found["jobs"] == 2 and found["imports_s"] > 0 and "all_fingerprints_s" in found
