"""Tests of the real Snakefile on a tiny config: plan, whole run, re-runs, bad input."""

import os
import re
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
from results_folder import find_results

from helpers.configs import load_config, typed_config
from helpers.paths import ROOT
from helpers.tiny_run import EXACT, METHODS, TINY, Workflow, overlays_of, planned, with_overlay, without_time
from lantern_pipeline.job.fingerprint import imported_modules
from lantern_pipeline.job.machine import memory_bytes
from lantern_pipeline.plan.methods import expand_ablations, expand_methods
from lantern_pipeline.plan.validate import load_yaml

# fmt: off
COLUMNS = [
    "method", "tree", "drafts", "acceptance", "residual", "neighbours", "k", "delta", "lambda_", "temperature",
    "cfg_scale", "prompt_set", "repeat", "num_images", "tokens_per_forward", "latency_s", "speedup", "substitutions",
    "nll", "frechet_distance", "kernel_distance", "precision", "recall", "clip_score", "prompt_accuracy",
    "tokens_equal_autoregressive",
]
# fmt: on


# --- before anything runs --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overlays",
    [[], pytest.param(["llamagen_stage1", "llamagen_drafter", "llamagen_drafter_captions"], marks=pytest.mark.slow)],
    ids=["default", "published"],
)
def test_a_dry_run_shows_the_jobs_that_the_config_asks_for(overlays, tmp_path):
    """With the weights in models/embedded, and with published ones, whose files are all missing."""
    (tmp_path / "models").symlink_to(ROOT / "models")
    code, output = Workflow(tmp_path, overlays_of(*overlays), config=()).run("--dry-run", "--quiet", "rules")
    assert code == 0, output
    jobs, config = planned(output), load_config([ROOT / "config.yaml", *overlays_of(*overlays)])
    seeds, ablations = config["repeats"]["training_seeds"], expand_ablations(typed_config(config))
    num_sets = sum(entry is not None for entry in config["prompts"].values())
    num_repeats = len(seeds) * len(config["repeats"]["noise_seeds"])
    per_repeat = len(expand_methods(typed_config(config))) * num_sets * config["generation"]["num_shards"]
    assert jobs["generate_images"] == per_repeat * num_repeats
    assert jobs.get("run_ablation", 0) == len(ablations)
    drafted = [point for points in ablations.values() for point in points if point.spec.needs_draft_model]
    drafters = {point.drafter_steps for point in drafted} - {None}
    for name, more in (("target", 0), ("drafter", len(drafters))):
        is_trained = config[name]["checkpoint"] is None
        assert jobs.get(f"train_{name}", 0) == len(seeds) * is_trained + more
        assert jobs.get(f"convert_{name}", 0) == (0 if is_trained else len(seeds))
    is_published = config["text"]["encoder"] == "t5"
    wanted = {"fetch_resource": 5, "encode_captions": 16, "sample_codes": 8} if is_published else {}
    for name in ("fetch_resource", "encode_captions", "sample_codes"):
        assert jobs.get(name, 0) >= wanted.get(name, 0) and (name in jobs) == is_published, output
    assert jobs["total"] == sum(count for name, count in jobs.items() if name != "total")
    assert set(os.listdir(tmp_path)) == {".snakemake", "models"}


def test_a_run_of_jacobi_drafts_trains_no_draft_model(tmp_path):
    grids = dict.fromkeys(["neighbours", "drafter_steps"])
    methods = [{"preset": ["autoregressive", "jacobi"]}]
    workflow = with_overlay(
        Workflow(tmp_path), tmp_path, methods=methods, ablations={"grids": grids}, premise={"ks": None}
    )
    code, output = workflow.run("--dry-run", "--quiet", "rules")
    assert code == 0, output
    jobs = planned(output)
    assert jobs["generate_images"] == 4 and jobs["run_ablation"] == jobs["measure_total_variation"] == 1
    assert not {"train_drafter", "draw_total_variation"} & set(jobs)


# --- a whole run -----------------------------------------------------------------------------------


def test_a_run_reaches_table_figures_and_numbers(finished):
    summary = pd.read_csv(finished.result("summary.csv"))
    assert [column for column in COLUMNS if column not in summary.columns] == []
    methods = summary[~summary["method"].isin(["real", "reconstruction"])]
    assert sorted(methods["method_id"]) == sorted(METHODS * 3)
    assert methods["repeat"].value_counts().to_dict() == dict.fromkeys(["s0n0", "s0n1", "pooled"], len(METHODS))
    assert methods.groupby("repeat")["num_images"].agg(set).to_dict() == {"pooled": {8}, "s0n0": {4}, "s0n1": {4}}
    exact = methods[methods["method_id"].isin(EXACT)]
    assert (exact["tokens_equal_autoregressive"] == 1).all()
    pictures = list(finished.result("figures").glob("*.png"))
    drawn = {name for name in planned(finished.output) if name.startswith("draw_")}
    assert len(pictures) == len(drawn) > 5
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    assert not list((finished.folder / "results").rglob(".*"))  # no temporary file is left
    assert "rule train_target:" in finished.output
    assert re.search(r"\d+ of \d+ steps \(100%\) done", finished.output)
    assert "target step 5/6" in finished.result("logs/train_target.s0.log").read_text()


def test_make_clean_removes_what_a_run_made_and_distclean_the_environment_too(tmp_path):
    for name in ("results", ".snakemake", ".venv", "lantern.egg-info", "mine"):
        (tmp_path / name).mkdir()
    for target, left in (("clean", {".venv", "lantern.egg-info", "mine"}), ("distclean", {"mine"})):
        code, output = Workflow(tmp_path).make(target)
        assert code == 0 and {path.name for path in tmp_path.iterdir() if not path.is_symlink()} == left, output


def test_a_config_file_that_is_not_there_is_one_sentence(tmp_path):
    code, output = Workflow(tmp_path, (tmp_path / "nosuch.yaml",)).make("reproduce")
    sentence, end = output.strip().splitlines()
    assert code != 0 and end.startswith("make: ***"), output
    assert sentence == f"ARGS names {tmp_path}/nosuch.yaml, which does not exist: check its spelling and folder"
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_make_writes_a_report_after_a_run_that_had_little_or_nothing_to_do_and_none_in_a_dry_one(copy_of_finished):
    report = copy_of_finished.result("report.html")
    code, output = copy_of_finished.make("reproduce", "-np")
    assert code == 0 and "Nothing to be done" in output and not report.exists(), output
    code, output = copy_of_finished.make("reproduce")
    assert code == 0 and "Nothing to be done" in output, output
    assert "safe center" in report.read_text()  # the stylesheet that keeps the beginning of a page in reach
    report.unlink()
    copy_of_finished.result("figures/fig_b_tradeoff.png").unlink()
    code, output = copy_of_finished.make("reproduce")
    assert code == 0 and planned(output)["draw_tradeoff"] == 1, output
    assert "(b) Speed and quality" in report.read_text()


def test_a_report_stands_alone_and_is_whole_if_variants_are_null(finished, tmp_path):
    report = tmp_path / "report.html"
    code, output = with_overlay(finished, tmp_path, variants=None).run("--report", str(report))
    assert code == 0 and "Main results" in report.read_text(), output
    page = re.sub(r"[A-Za-z0-9+/=]{200,}", "", report.read_text())  # embedded files
    assert not re.search(r"""<(script|link|img)[^>]+(src|href)=["']https?:""", page)
    assert str(ROOT) not in report.read_text() and str(finished.folder) not in report.read_text()
    for part in ("(b) Speed and quality", "fig_b_tradeoff.png", "summary.csv", "Provenance", "provenance.json"):
        assert part in page, part
    for part in ("main results", "results.html", "race.html", "Watch the methods generate images"):
        assert part in page, part
    for wrong in ("Unknown interpreted text role", "system-message", "problematic", "TBD"):
        assert wrong not in page, wrong


@pytest.mark.parametrize(
    ("target", "is_dry", "options"),
    [
        ("reproduce", False, ["--report", "--report-stylesheet", "--report-after-run"]),
        ("resume", False, ["--report", "--report-stylesheet", "--report-after-run"]),
        ("report", False, ["--report", "--report-stylesheet"]),
        ("reproduce", True, []),
    ],
)
def test_make_asks_for_a_report_except_in_a_dry_run(target, is_dry, options, tmp_path):
    """Scripts replace `results_folder.py` and Snakemake, whose arguments are printed."""
    programs = {"python": f"echo {'' if is_dry else 'results/tiny'}", "snakemake": 'echo snakemake "$@"'}
    (tmp_path / "bin").mkdir()
    for name, line in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    code, output = Workflow(tmp_path).make(target, BIN=tmp_path / "bin")
    last = re.findall("^snakemake.*", output, re.M)[-1]
    assert code == 0 and re.findall(r"--report\S*", last) == options, output
    assert is_dry or "--report results/tiny/report.html --report-stylesheet workflow/report/stylesheet.css" in last


def test_files_that_a_finished_run_lacks_are_made_again(copy_of_finished):
    for name in ("quality/seen.T1.s0n0.images.csv", "race.png"):
        copy_of_finished.result(name).unlink()
    code, output = copy_of_finished.run("--dry-run", "--quiet", "rules")
    jobs = planned(output)
    assert code == 0 and jobs["measure_quality"] == jobs["build_race"] == 1 and "generate_images" not in jobs, output
    next(copy_of_finished.result("generation/jacobi").rglob("*.safetensors")).unlink()
    code, output = copy_of_finished.run("--dry-run", "--quiet", "rules")
    assert code == 0 and planned(output)["generate_images"] == 1, output


def test_a_job_runs_in_a_new_python_and_makes_the_same_file(copy_of_finished):
    """Other fast tests replace this start of a job by a fork."""
    table = copy_of_finished.result("published.csv")
    content = table.read_bytes()
    table.unlink()
    code, output = replace(copy_of_finished, forks=False).run("results/tiny/published.csv")
    assert code == 0 and planned(output) == {"compare_published": 1, "total": 1}, output
    assert table.read_bytes() == content


@pytest.mark.slow
def test_jobs_in_new_pythons_train_generate_and_measure_what_forks_do(finished, copy_of_finished, tmp_path):
    changes = {"methods": [{"preset": ["autoregressive", "jacobi"]}], "premise": {"ks": None}}
    changes["ablations"] = {"grids": dict.fromkeys(load_yaml(TINY)["ablations"]["grids"])}
    run = replace(with_overlay(copy_of_finished, tmp_path, **changes), forks=False)
    run.result("target/s0/model.safetensors").unlink()
    code, output = run.run("results/tiny/quality/seen.T1.s0n0.csv")
    jobs = {"train_target": 1, "generate_images": 2, "score_images": 1, "measure_quality": 1, "total": 5}
    assert code == 0 and planned(output) == jobs, output + run.logs()
    tables = [pd.read_csv(each.result("quality/seen.T1.s0n0.csv")).set_index("method_id") for each in (run, finished)]
    found, expected = (without_time(table.loc[["autoregressive", "jacobi"]]).dropna(axis=1) for table in tables)
    pd.testing.assert_frame_equal(found, expected, check_exact=True)


def test_two_experiments_in_one_folder_plan_nothing_of_each_other_again(copy_of_finished):
    results = copy_of_finished.folder / "results"
    code, output = copy_of_finished.run("results/other/prompts/seen.jsonl", "--config", "experiment=other")
    assert code == 0 and (results / "other" / "prompts" / "seen.jsonl").exists(), output
    code, output = copy_of_finished.run("--dry-run")
    assert code == 0 and "Nothing to be done" in output, output
    assert {path.name for path in results.iterdir()} == {"tiny", "other"}  # none writes outside its folder


@pytest.mark.parametrize(
    "prompt", ["$(touch hacked)", "$(shell touch hacked)", "`touch hacked`", "'; touch hacked; '", '"; touch hacked; "']
)
def test_a_prompt_is_no_command(tmp_path, prompt):
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "lantern").write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    (binaries / "lantern").chmod(0o755)
    code, output = Workflow(tmp_path).make("sample", BIN=binaries, ARGS="--seed 3", PROMPT=prompt)
    assert code == 0 and output == f"<sample><--seed><3><--><{prompt}>" and not (tmp_path / "hacked").exists(), output


def test_make_understands_what_snakemake_does(tmp_path, monkeypatch):
    """A name on the command line and an overlay in JSON: the report is written where the results are."""
    monkeypatch.chdir(ROOT)
    (tmp_path / "own.json").write_text('{"experiment": "own"}')
    other = Workflow(tmp_path, (tmp_path / "own.json",))
    for arguments, folder in (([], "own"), (["--config", "experiment=foo"], "foo")):
        assert find_results(other.command(*arguments)[3:]) == tmp_path / "results" / folder
    for flag in ("-n", "-np", "--dry-run"):
        assert find_results(other.command(flag)[3:]) is None
    (tmp_path / "odd.yaml").write_text("seed: 1\ndata: [1\n")
    with pytest.raises(ValueError, match=r"odd\.yaml, line 3"):
        find_results(Workflow(tmp_path, (tmp_path / "odd.yaml",)).command()[3:])


def test_the_command_line_draws_one_prompt_with_the_methods_of_a_run(finished, tmp_path):
    from typer.testing import CliRunner

    from lantern_pipeline.cli import app

    options = ["--results", str(finished.folder / "results"), "--output", str(tmp_path / "sample.png")]
    result = CliRunner().invoke(app, ["sample", "a large red circle left of a small blue square on grass", *options])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "sample.png").read_bytes().startswith(b"\x89PNG")
    rows = {line[:32].strip(): line[32:].split() for line in result.output.splitlines()[1:]}
    assert (
        rows["autoregressive"][:2] == ["16", "1.00"] and float(rows["Jacobi (chain9)"][2]) > 0 and "EAGLE-2" not in rows
    )

    (finished.folder / "results" / "tiny" / "drafter").rename(tmp_path / "drafter")  # Jacobi drafts need none
    result = CliRunner().invoke(app, ["sample", "a large red circle on grass", "--method", "jacobi", *options])
    (tmp_path / "drafter").rename(finished.folder / "results" / "tiny" / "drafter")
    assert result.exit_code == 0 and "\nJacobi" in result.output and "EAGLE-2" not in result.output, result.output

    result = CliRunner().invoke(app, ["sample", "a purple hippopotamus", *options])
    assert result.exit_code == 1 and "unknown word 'hippopotamus'" in result.output


# --- re-runs ---------------------------------------------------------------------------------------


DECODING = {"generate_images", "measure_latency", "measure_total_variation", "run_ablation"}


@pytest.mark.parametrize(
    "module, used, unused",
    [
        ("lantern/acceptance/rejection.py", DECODING, {"build_nearest_codes"}),
        (
            "measure/exactness/output_distribution.py",
            {"measure_total_variation"},
            {"generate_images", "measure_quality"},
        ),
        ("training/tokenizer.py", {"train_tokenizer"}, {"train_attribute_classifier", "train_clip", "generate_images"}),
    ],
)
def test_scripts_that_use_a_module_and_such_that_do_not(module, used, unused):
    """Rules re-run if their code changes. No training uses a module of decoding."""
    scripts = {path.stem: path for path in (ROOT / "workflow" / "scripts").glob("*.py")}
    users = {name for name, path in scripts.items() if any(str(m).endswith(module) for m in imported_modules(path))}
    assert used <= users and not users & (unused | {"train_clip", "train_drafter"})


def test_a_new_method_and_a_new_training_seed_make_what_is_theirs_alone(finished, tmp_path):
    methods = [*load_yaml(TINY)["methods"], {"preset": "eagle1"}]
    repeats = {"training_seeds": [0, 1], "noise_seeds": [0, 1]}
    code, output = with_overlay(finished, tmp_path, methods=methods, repeats=repeats).run(
        "--dry-run", "--quiet", "rules"
    )
    jobs = planned(output)
    assert code == 0 and jobs["train_target"] == jobs["train_drafter"] == 1, output
    assert jobs["generate_images"] == 2 * len(METHODS) + 4  # the new seed's, and those of the method of both
    assert not {"train_attribute_classifier", "train_tokenizer", "train_clip", "run_ablation"} & set(jobs)


# --- foreign files, interrupted training ----------------------------------------------------------


def test_a_foreign_checkpoint_is_named(copy_of_finished):
    target = copy_of_finished.result("target/s0/model.safetensors")
    shutil.copy(copy_of_finished.result("drafter/s0/model.safetensors"), target)
    code, output = copy_of_finished.run("results/tiny/drafter/s0/model.safetensors")
    assert code != 0 and "Traceback" not in output
    assert "results/tiny/target/s0/model.safetensors should hold a target_model, found draft_model" in output, output


def test_interrupted_training_goes_on_from_its_checkpoint(tmp_path):
    from lantern_pipeline.job.context import training_checkpoint

    (tmp_path / "codes").write_text("x")

    class Parameters(dict):
        pass

    def job(**parameters):
        output, config = SimpleNamespace(model=tmp_path / "model.st"), {"device": "cpu"}
        return SimpleNamespace(params=Parameters(parameters), input=[tmp_path / "codes"], output=output, config=config)

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


def test_a_bad_config_stops_at_once_with_one_sentence(tmp_path):
    """tests/pipeline/plan tests bad values of all keys."""
    workflow = with_overlay(Workflow(tmp_path), tmp_path, sampling={"topk": 3})
    code, output = workflow.run()
    assert code != 0 and "Traceback" not in output, output
    assert "config key sampling.topk is unknown" in output.strip().splitlines()[-1], output
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "text, words, arguments",
    [
        ("a red circle on grass\na purple hippopotamus on grass\n", "hippopotamus", ["--dry-run"]),
        ("a red circle on grass\n", "prompt set seen has 1 prompts but config key metrics.prc_neighbours", []),
    ],
    ids=["words", "few"],
)
def test_a_bad_prompt_file_stops_before_any_training_with_one_sentence(tmp_path, text, words, arguments):
    (tmp_path / "prompts.txt").write_text(text)
    prompts = {"seen": {"file": str(tmp_path / "prompts.txt"), "num": None, "split": None}, "unseen": None}
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


def test_the_command_line_sets_sections_and_lists_and_numbers_have_every_form(tmp_path):
    workflow = with_overlay(Workflow(tmp_path), tmp_path)
    workflow.overlays[0].write_text("sampling: {top_p: 9e-1}\nablations: {grids: {}}\n")
    words = ["generation={batch_size: 4, dtype: bfloat16}", "seed=3"]
    words += ["methods=[{preset: autoregressive}, {preset: lantern, k: [2, 3e0], delta: 1e-1}]"]
    code, output = workflow.run("--dry-run", "--quiet", "--until", "write_prompts", "--config", *words)
    assert code == 0, output


def test_a_wrong_value_of_a_section_on_the_command_line_is_one_sentence(tmp_path):
    code, output = Workflow(tmp_path).run("--dry-run", "--config", "generation={batch_size: four}")
    assert code != 0 and "generation.batch_size must be an integer, got 'four'" in output.splitlines()[-1], output


class Elsewhere(Workflow):
    """A run in a folder without config.yaml. Paths of config files are relative to the clone, where it is started."""

    def command(self, *arguments):
        return [sys.executable, "-m", "snakemake", "--cores", "1", "--directory", str(self.folder), *arguments]


def run_elsewhere(folder, *arguments):
    return Elsewhere(folder).run(*arguments, before=lambda: os.chdir(ROOT))


@pytest.mark.parametrize("file", ["experiments/quick.yaml", "config.yaml"])
def test_a_run_in_another_folder_has_the_defaults_and_weights_of_the_clone(tmp_path, file):
    code, output = run_elsewhere(tmp_path, "--configfile", file, "--dry-run", "--quiet", "rules")
    assert code == 0 and "convert_target" in output and "train_target" not in output, output


def test_a_path_that_is_not_in_the_folder_of_the_run_is_named_with_the_folder(tmp_path):
    (tmp_path / "mine.yaml").write_text("target: {checkpoint: mine/target.safetensors}")
    code, output = run_elsewhere(tmp_path, "--configfile", str(tmp_path / "mine.yaml"), "--dry-run")
    assert code != 0 and f"no file or folder in {tmp_path}, got 'mine/target.safetensors'" in output, output


def test_without_any_config_file_the_missing_one_is_named(tmp_path):
    code, output = run_elsewhere(tmp_path, "--dry-run")
    assert code != 0 and f"config.yaml but it is not present or accessible (full checked path: {tmp_path}" in output
