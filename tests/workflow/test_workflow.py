"""The real Snakefile on a tiny world: a whole run, what re-runs after it, faults in the middle, bad input."""

import os
import re
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from conftest import load_config
from lantern.io import read_json
from lantern_pipeline.config.methods import expand_ablations, expand_methods
from lantern_pipeline.config.validate import load_yaml
from lantern_pipeline.runtime.machine import memory_bytes
from tiny_run import (
    EXACT,
    METHODS,
    ROOT,
    TINY,
    TRAINING,
    Workflow,
    edited_project,
    planned,
    with_overlay,
)

# fmt: off
COLUMNS = [
    "method", "tree", "drafts", "acceptance", "residual", "neighbours", "k", "delta", "lambda_", "temperature",
    "cfg_scale", "prompt_set", "repeat", "num_images", "mean_accepted_length", "latency_s", "speedup", "substitutions",
    "nll", "frechet_distance", "kernel_distance", "precision", "recall", "clip_score", "prompt_accuracy",
    "tokens_equal_autoregressive",
]
# fmt: on


# --- before anything runs --------------------------------------------------------------------------


def test_lint_finds_nothing():
    command = [sys.executable, "-m", "snakemake", "--lint"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0 and "good condition" in result.stdout + result.stderr, result.stdout + result.stderr


# Overlays of published models have prompts of their own kind, or lie over such: test_published.py plans them.
OWN_OVERLAYS = [
    path
    for path in sorted((ROOT / "experiments").glob("*.yaml"))
    if not path.stem.startswith("llamagen") and "text" not in load_yaml(path)
]


@pytest.mark.parametrize("overlay", [None, *OWN_OVERLAYS], ids=lambda p: getattr(p, "stem", "default"))
def test_a_dry_run_shows_the_number_of_jobs(overlay, tmp_path):
    (tmp_path / "images").mkdir()  # what data.folder of own_images.yaml names
    (tmp_path / "models").symlink_to(ROOT / "models")
    overlays = [overlay] if overlay else []
    code, output = Workflow(tmp_path, overlays, config=()).run("--dry-run", "--quiet", "rules")
    assert code == 0, output
    jobs, config = planned(output), load_config([ROOT / "config.yaml", *overlays])
    seeds = config["repeats"]["training_seeds"]
    num_repeats = len(seeds) * len(config["repeats"]["noise_seeds"])
    num_sets = sum(entry is not None for entry in config["prompts"].values())
    per_repeat = len(expand_methods(config)) * num_sets * config["generation"]["num_shards"]
    assert jobs["generate_images"] == per_repeat * num_repeats
    ablations = expand_ablations(config)
    drafted = [point for points in ablations.values() for point in points if point.spec.needs_draft_model]
    drafters = {(point.target_steps, point.drafter_steps) for point in drafted} - {(None, None)}
    assert jobs.get("run_ablation", 0) == len(ablations)
    is_trained = {name: config[name]["checkpoint"] is None for name in ("target", "drafter")}
    assert jobs.get("train_target", 0) == len(seeds) * is_trained["target"]
    assert jobs.get("train_drafter", 0) == len(seeds) * is_trained["drafter"] + len(drafters)
    assert jobs["total"] == sum(count for name, count in jobs.items() if name != "total")
    assert set(os.listdir(tmp_path)) <= {".snakemake", "images", "models"} and not os.listdir(tmp_path / "images")


def test_a_run_of_jacobi_drafts_trains_no_draft_model(tmp_path):
    grids = dict.fromkeys(["neighbours", "drafter_steps", "target_steps"])
    methods = [{"preset": ["autoregressive", "jacobi"]}]
    workflow = with_overlay(Workflow(tmp_path), tmp_path, methods=methods, ablations={"grids": grids})
    code, output = workflow.run("--dry-run", "--quiet", "rules")
    assert code == 0, output
    jobs = planned(output)
    assert jobs["generate_images"] == 4 and jobs["run_ablation"] == jobs["measure_total_variation"] == 1
    assert not {"train_drafter", "draw_total_variation", "draw_aggregation"} & set(jobs)


# --- a whole run -----------------------------------------------------------------------------------


def test_a_run_reaches_table_figures_and_numbers(finished):
    summary = pd.read_csv(finished.folder / "results" / "summary.csv")
    assert [column for column in COLUMNS if column not in summary.columns] == []
    methods = summary[~summary["method"].isin(["real", "reconstruction"])]
    assert sorted(methods["method_id"]) == sorted(METHODS * 3)
    assert methods["repeat"].value_counts().to_dict() == dict.fromkeys(["s0n0", "s0n1", "pooled"], len(METHODS))
    assert methods.groupby("repeat")["num_images"].agg(set).to_dict() == {"pooled": {8}, "s0n0": {4}, "s0n1": {4}}
    exact = methods[methods["method_id"].isin(EXACT)]
    assert (exact["tokens_equal_autoregressive"] == 1).all()
    letters = {path.name.split("_")[1] for path in finished.result("figures").iterdir()}
    assert letters == set("abcdefghijklnpq")
    for picture in finished.result("figures").glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    assert read_json(finished.result("claims.json"))["setting"]["prompts"] == "4 prompts in 2 repeats"


def test_a_run_leaves_no_temporary_file_and_says_what_it_does(finished):
    assert [path for path in (finished.folder / "results").rglob(".*")] == []
    assert "Training the target model" in finished.output
    assert re.search(r"\d+ of \d+ steps \(100%\) done", finished.output)
    assert "target step 5/6" in finished.result("logs/train_target.s0.log").read_text()


def test_a_second_run_has_nothing_to_do(finished):
    code, output = finished.run()
    assert code == 0 and "Nothing to be done" in output, output


def test_a_dry_run_of_make_writes_no_report(finished):
    for target in ("reproduce", "resume"):
        code, output = finished.make(target, "--dry-run")
        assert code == 0 and "Nothing to be done" in output and "--report" not in output, output
    assert not (finished.folder / "results" / "report.html").exists()


def test_make_readme_publishes_what_is_there(finished):
    code, output = finished.make("readme", "--dry-run")
    assert code == 0 and planned(output) == {"publish_readme": 1, "total": 1}, output


def test_make_clean_removes_what_a_run_made_and_distclean_the_environment_too(tmp_path):
    for name in ("results", ".snakemake", ".venv", "lantern.egg-info", "mine"):
        (tmp_path / name).mkdir()
    for target, left in (("clean", {".venv", "lantern.egg-info", "mine"}), ("distclean", {"mine"})):
        code, output = Workflow(tmp_path).make(target)
        assert code == 0 and {path.name for path in tmp_path.iterdir() if not path.is_symlink()} == left, output


@pytest.mark.parametrize("target", ["reproduce", "figures", "report", "resume"])
def test_a_config_file_that_is_not_there_is_one_sentence(tmp_path, target):
    code, output = Workflow(tmp_path, (tmp_path / "nosuch.yaml",)).make(target)
    sentence, end = output.strip().splitlines()
    assert (
        code != 0
        and sentence == f"ARGS names {tmp_path}/nosuch.yaml, which does not exist: check its spelling and folder"
    )
    assert end.startswith("make: ***") and not (tmp_path / "results").exists()


def test_the_report_stands_alone_and_holds_numbers_and_figures(copy_of_finished):
    finished, report = copy_of_finished, copy_of_finished.folder / "results" / "report.html"
    code, output = finished.make("report")
    assert code == 0, output
    page = re.sub(r"[A-Za-z0-9+/=]{200,}", "", report.read_text())  # embedded files
    assert not re.search(r"""<(script|link|img)[^>]+(src|href)=["']https?:""", page)
    assert "safe center" in page  # the stylesheet that keeps the front page's beginning in reach
    assert "(b) What speed costs" in page and "fig_b_tradeoff.png" in page and "summary.csv" in page
    assert "What made these results" in page and "provenance.json" in page
    assert "Exact: speed-up" in page and "tokens per forward" in page  # the first screen
    assert "race.html" in page and "Watch the methods draw" in page
    assert "results.html" in page and "4 prompts in 2 repeats" in page  # captions have their numbers
    for wrong in ("Unknown interpreted text role", "system-message", "problematic", "TBD"):
        assert wrong not in page, wrong


def test_the_command_line_draws_one_prompt_with_every_method(finished, tmp_path):
    from typer.testing import CliRunner

    from lantern_pipeline.cli import app

    options = ["--results", str(finished.folder / "results"), "--output", str(tmp_path / "sample.png")]
    result = CliRunner().invoke(app, ["sample", "a large red circle left of a small blue square on grass", *options])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "sample.png").read_bytes().startswith(b"\x89PNG")
    rows = {line[:32].strip(): line[32:].split() for line in result.output.splitlines()[1 : 1 + len(METHODS)]}
    assert len(rows) == len(METHODS) and list(rows)[:2] == ["autoregressive", "EAGLE-2"]
    assert rows["autoregressive"][:2] == ["16", "1.00"] and float(rows["EAGLE-2"][2]) > 0

    (finished.folder / "results" / "tiny" / "drafter").rename(tmp_path / "drafter")  # Jacobi drafts need none
    result = CliRunner().invoke(app, ["sample", "a large red circle on grass", "--method", "jacobi", *options])
    (tmp_path / "drafter").rename(finished.folder / "results" / "tiny" / "drafter")
    assert result.exit_code == 0 and "\nJacobi" in result.output and "EAGLE-2" not in result.output, result.output

    result = CliRunner().invoke(app, ["sample", "a purple hippopotamus", *options])
    assert result.exit_code == 1 and "unknown word 'hippopotamus'" in result.output


# --- what re-runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module, runs, rests",
    [
        (
            "lantern/acceptance.py",
            {"generate_images", "measure_latency", "measure_quality", "measure_total_variation", "run_ablation"},
            TRAINING | {"build_nearest_codes", "build_co_varying_codes"},
        ),
        (
            "workflow/lantern_pipeline/metrics/output_distribution.py",
            {"measure_total_variation", "run_ablation"},
            TRAINING | {"generate_images", "measure_quality"},
        ),
        (
            "workflow/lantern_pipeline/metrics/evaluate_images.py",
            {"measure_quality", "run_ablation"},
            TRAINING | {"generate_images", "measure_latency"},
        ),
        (
            "workflow/lantern_pipeline/figures/tradeoff.py",
            {"draw_tradeoff"},
            TRAINING | {"generate_images", "draw_samples", "summarise"},
        ),
        (
            "workflow/lantern_pipeline/training/tokenizer.py",
            {"train_tokenizer", "train_target"},
            {"train_attribute_classifier", "train_clip"},
        ),
    ],
)
def test_an_edit_re_runs_the_stages_that_use_it(finished, tmp_path, module, runs, rests):
    project = edited_project(tmp_path / "project", module)
    command = [str(project / "Snakefile") if part == str(ROOT / "Snakefile") else part for part in finished.command()]
    result = subprocess.run([*command, "--dry-run", "--quiet", "rules"], capture_output=True, text=True)
    jobs = set(planned(result.stdout + result.stderr))
    assert runs <= jobs and not rests & jobs, result.stdout + result.stderr


@pytest.mark.parametrize(
    "sections, runs, rests",
    [
        ({"sampling": {"top_k": 16}}, {"generate_images", "measure_latency"}, TRAINING | {"build_nearest_codes"}),
        (
            {"metrics": {"kid_subsets": 3}},
            {"measure_quality", "summarise"},
            TRAINING | {"generate_images", "measure_latency"},
        ),
        ({"drafter": {"num_steps": 7}}, {"train_drafter", "generate_images"}, TRAINING - {"train_drafter"}),
        ({"figures": {"dpi": 90}}, {"draw_samples"}, TRAINING | {"generate_images", "measure_quality", "summarise"}),
        ({"generation": {"batch_size": 3}}, {"generate_images"}, TRAINING | {"measure_latency"}),
        (
            {"total_variation": {"max_nodes": 21}},
            {"measure_total_variation", "run_ablation"},
            TRAINING | {"generate_images", "measure_quality"},
        ),
        (
            {"ablations": {"num_prompts": 4}},
            {"run_ablation"},
            TRAINING | {"generate_images", "measure_total_variation"},
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_changed_key_re_runs_what_depends_on_it(finished, tmp_path, sections, runs, rests):
    code, output = with_overlay(finished, tmp_path, **sections).run("--dry-run", "--quiet", "rules")
    jobs = set(planned(output))
    assert code == 0 and runs <= jobs and not rests & jobs, output


def test_a_new_method_generates_only_its_own_images(finished, tmp_path):
    methods = [*load_yaml(TINY)["methods"], {"preset": "eagle1"}]
    code, output = with_overlay(finished, tmp_path, methods=methods).run("--dry-run", "--quiet", "rules")
    assert code == 0 and planned(output)["generate_images"] == 2, output  # one for each noise seed


def test_a_new_training_seed_trains_its_own_models_and_nothing_else(finished, tmp_path):
    workflow = with_overlay(finished, tmp_path, repeats={"training_seeds": [0, 1], "noise_seeds": [0, 1]})
    code, output = workflow.run("--dry-run", "--quiet", "rules")
    jobs = planned(output)
    assert code == 0 and (jobs["train_target"], jobs["train_drafter"]) == (1, 1), output
    assert jobs["generate_images"] == 2 * len(METHODS) and jobs["measure_latency"] == jobs["measure_quality"] == 2
    assert not {
        "train_attribute_classifier",
        "train_tokenizer",
        "train_clip",
        "run_ablation",
        "measure_total_variation",
    } & set(jobs)


# --- foreign files, interrupted training ----------------------------------------------------------


def test_a_foreign_checkpoint_is_named(copy_of_finished):
    target = copy_of_finished.result("target/s0/model.safetensors")
    shutil.copy(copy_of_finished.result("drafter/s0/model.safetensors"), target)
    code, output = copy_of_finished.run("results/tiny/drafter/s0/model.safetensors")
    assert code != 0 and "Traceback" not in output
    assert "results/tiny/target/s0/model.safetensors should hold a target_model, found draft_model" in output, output


def test_interrupted_training_goes_on_from_its_checkpoint(tmp_path):
    from types import SimpleNamespace

    from lantern_pipeline.runtime.job import training_checkpoint

    (tmp_path / "codes").write_text("x")

    class Parameters(dict):
        pass

    def job(**parameters):
        return SimpleNamespace(
            params=Parameters(parameters),
            input=[tmp_path / "codes"],
            output=SimpleNamespace(model=tmp_path / "model.st"),
        )

    with pytest.raises(KeyboardInterrupt), training_checkpoint(job(num_steps=5)) as first:
        first.write_text("step 3")
        raise KeyboardInterrupt
    with training_checkpoint(job(num_steps=5)) as again:
        assert again == first and again.read_text() == "step 3"
    assert not first.exists()
    first.write_text("step 3")
    with training_checkpoint(job(num_steps=6)) as other:
        assert other != first and not first.exists() and not other.exists()


# --- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sections, words",
    [
        ({"sampling": {"topk": 3}}, "config key sampling.topk is unknown; did you mean top_k?"),
        ({"methods": [{"preset": "autoregresive"}]}, "methods[0].preset must be one of autoregressive"),
        ({"methods": [{"preset": "eagle1", "tree": "oak"}]}, "methods[0]: tree must be one of"),
        (
            {"codebook": {"num_neighbours": 32}},
            "codebook.num_neighbours must be at most tokenizer.codebook_size - 2 = 30, got 32",
        ),
        (
            {"ablations": {"grids": {"mine": {"methods": [{"preset": "lanturn"}]}}}},
            "ablations.grids.mine.methods[0].preset must be one of autoregressive",
        ),
    ],
    ids=["misspelt", "method", "tree", "k", "ablation"],
)
def test_a_bad_config_stops_at_once_with_one_sentence(tmp_path, sections, words):
    code, output = with_overlay(Workflow(tmp_path), tmp_path, **sections).run()
    assert code != 0 and words in output and "Traceback" not in output, output
    assert words in output.strip().splitlines()[-1]
    assert not (tmp_path / "results").exists()


def test_a_key_given_twice_in_an_overlay_stops_at_once_with_one_sentence(tmp_path):
    workflow = with_overlay(Workflow(tmp_path), tmp_path)
    workflow.overlays[0].write_text("prompts:\n  seen:\n    num: 4\n  seen:\n    num: 5\n")
    code, output = workflow.run()
    words = (
        "overlay.yaml, line 4: not valid YAML (the key seen stands twice in one section, first in line 2; remove one)"
    )
    assert code != 0 and output.strip().splitlines()[-1].endswith(words), output


@pytest.mark.parametrize(
    "name, text, words, arguments",
    [
        ("empty.txt", "", "empty.txt: the prompt file is empty", ["--dry-run"]),
        ("words.txt", "a red circle on grass\na purple hippopotamus on grass\n", "hippopotamus", ["--dry-run"]),
        (
            "few.txt",
            "a red circle on grass\n",
            "prompt set seen has 1 prompts but config key metrics.prc_neighbours",
            [],
        ),
    ],
)
def test_a_bad_prompt_file_stops_before_any_training_with_one_sentence(tmp_path, name, text, words, arguments):
    (tmp_path / name).write_text(text)
    prompts = {"seen": {"file": str(tmp_path / name), "num": None, "split": None}, "unseen": None}
    workflow = with_overlay(Workflow(tmp_path), tmp_path, prompts=prompts)
    code, output = workflow.run("--until", "write_prompts", *arguments)
    assert code != 0 and words in output and "Traceback" not in output, output
    assert not workflow.result("tokenizer").exists()


def test_jobs_side_by_side_ask_for_no_more_memory_than_the_machine_has(tmp_path):
    workflow = with_overlay(Workflow(tmp_path), tmp_path)
    own = f'mem_mb=Resource("mem_mb", {memory_bytes() // 10**6})'
    for arguments, words in (((), own), (("--resources", "mem_mb=5000"), 'mem_mb=Resource("mem_mb", 5000)')):
        code, output = workflow.run("--until", "write_prompts", "--forceall", *arguments)
        assert code == 0 and words in output, output
