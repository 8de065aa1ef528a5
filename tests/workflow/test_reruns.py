"""Tests of what runs again after one change, by dry runs; docs/architecture.md has the table."""

import re
from dataclasses import replace

import pytest

from helpers.tiny_run import copy_project, copy_run, edited_project, planned, re_run, with_overlay

FIGURES = (
    "ablations",
    "ambiguity",
    "frontier",
    "latent_proximity",
    "premise",
    "published",
    "samples",
    "total_variation",
    "tradeoff",
)

# Change -> the rules that run again first. Rules that depend on them are not listed.
SETTINGS = {
    "device, batch sizes, and shards of an encoder that the run has not": (
        {
            "device": "auto",
            "generation": {"batch_size": 3, "stepping": "eager"},
            "metrics": {"batch_size": 3},
            "text": {"num_shards": 2},
        },
        set(),
    ),
    "a key of one metric": ({"metrics": {"num_ambiguity": 3}}, {"measure_ambiguity"}),
    "keys of three measurements": (
        {"metrics": {"kid_subsets": 3}, "total_variation": {"max_nodes": 21}, "ablations": {"num_prompts": 4}},
        {"measure_premise", "measure_quality", "measure_total_variation", "run_ablation"},
    ),
    "sampling": (
        {"sampling": {"top_k": 16}},
        {"generate_images", "measure_latency", "measure_premise", "run_ablation", "write_card"},
    ),
    "a tree whose methods keep their ids": (
        {"draft_tree": {"dynamic": {"depth": 2}}},
        {"generate_images", "measure_latency", "write_card"},
    ),
    "the draft model's training": ({"drafter": {"num_steps": 7}}, {"train_drafter"}),
    "figures": ({"figures": {"dpi": 90}}, {f"draw_{name}" for name in FIGURES}),
}
LABELLED = {f"draw_{name}" for name in ("ablations", "ambiguity", "latent_proximity", "premise", "samples")}
LABELLED |= {"build_race", "summarise"}
SCORES = "workflow/lantern_pipeline/measure/quality/evaluate_images.py"
EDITS = {
    "a comma in a message of a lock": (
        "workflow/lantern_pipeline/job/locks.py",
        ("GPUs, which other", "GPUs which other"),
        set(),
    ),
    "an unused constant of sampling": (
        "lantern/sampling.py",
        ("\n\n\n", "\n\nUNUSED = 1\n\n\n"),
        {"train_drafter", "generate_images", "run_ablation", "measure_ambiguity"},
    ),
    "an unused constant of scores": (
        SCORES,
        ("\n\n\n", "\n\nUNUSED = 1\n\n\n"),
        {"score_images", "measure_premise", "run_ablation"},
    ),
    "a peer that the run has not": ("lantern_methods/pjd.py", ("\n\n\n", "\n\nUNUSED = 1\n\n\n"), set()),
    "a row of a peer that the run has not": ("lantern_methods/__init__.py", ("PJD, arXiv", "PJD: arXiv"), set()),
    "the label of a method": ("lantern_methods/__init__.py", ('PresetRow("hybrid"', 'PresetRow("Hybrid"'), LABELLED),
}


def check(output, expected):
    assert re_run(output) == expected, output
    assert ("Nothing to be done" in output) == (not expected), output
    assert "train_target" not in planned(output), output


@pytest.mark.parametrize(("sections", "expected"), SETTINGS.values(), ids=SETTINGS)
def test_a_changed_key_runs_again_what_reads_it(finished, tmp_path, sections, expected):
    code, output = with_overlay(finished, tmp_path, **sections).run("--dry-run", "--quiet", "rules")
    assert code == 0, output
    check(output, expected)


@pytest.mark.parametrize(("file", "change", "expected"), EDITS.values(), ids=EDITS)
def test_an_edit_runs_again_what_uses_it(finished, tmp_path, file, change, expected):
    module = copy_project(tmp_path / "project") / file
    text = module.read_text()
    module.write_text(text.replace(*change, 1))
    assert module.read_text() != text
    code, output = replace(finished, project=tmp_path / "project").run("--dry-run", "--quiet", "rules")
    assert code == 0, output
    check(output, expected)


def test_an_edit_of_one_method_makes_its_own_images_again(finished, tmp_path):
    project = edited_project(tmp_path / "project", "lantern_methods/hybrid.py")
    code, output = replace(finished, project=project).run("--dry-run")
    assert code == 0, output
    methods = re.findall(r"^rule generate_images:\n(?: .*\n)*? +wildcards: method=([^,]+)", output, re.M)
    assert set(methods) == {"hybrid"}, output
    jobs = planned(output)
    assert {"measure_latency", "measure_total_variation", "measure_quality", "summarise", "draw_frontier"} <= set(jobs)
    # the ablations have no hybrid drafts
    assert not {"run_ablation", "measure_premise", "measure_ambiguity", "train_drafter"} & set(jobs), output


def test_a_job_scores_again_only_the_methods_that_changed(finished, tmp_path):
    methods = [
        {"preset": ["autoregressive", "eagle2", "coupled", "jacobi", "hybrid"]},
        {"preset": "proximity", "k": 21},
    ]
    run = with_overlay(copy_run(finished, tmp_path / "run"), tmp_path, methods=methods)
    code, output = run.run("results/tiny/quality/scores/seen.T1.s0n0.1-of-1.safetensors")
    assert code == 0 and planned(output) == {"generate_images": 1, "score_images": 1, "total": 2}, output
    log = run.result("logs/score_images.seen.T1.s0n0.1-of-1.log").read_text()
    assert re.findall(r"scoring (\S+)", log) == ["proximity-k21"], log


def test_measured_times_and_memory_run_nothing_again_if_they_are_missing(copy_of_finished):
    measured = [*copy_of_finished.result("logs").glob("*.tsv")]
    rules = {path.name.partition(".")[0] for path in measured}
    assert {"generate_images", "score_images", "run_ablation", "measure_latency", "train_drafter"} <= rules
    for path in measured:
        path.unlink()
    code, output = copy_of_finished.run("--dry-run", "--quiet", "rules")
    assert code == 0, output
    check(output, set())
