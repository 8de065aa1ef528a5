"""Tests of `lantern bench`: the table, the file, interruptions and messages."""

import json
import re
import shlex

import pytest
from typer.testing import CliRunner

import lantern
from helpers.paths import ROOT
from lantern.methods import make_method
from lantern_models.text.classes import ClassEncoder
from lantern_pipeline.cli import app
from lantern_pipeline.cli_bench import TEXTS, choose_methods, choose_prompts, table_of
from lantern_pipeline.measure.speed import bench, steps
from lantern_pipeline.world.worlds import world_with

QUICK = ("--num", "1", "--rounds", "1", "--batch", "1", "--device", "cpu")
TITLES = ["method", "tokens / forward", "ms / forward", "ms / image", "relative step cost", "speed-up"]
TITLES += ["images / s, batch 2", "peak memory (GiB)", "equal images"]


def run(*arguments):
    result = CliRunner().invoke(app, ["bench", *arguments])
    return result.exit_code, result.output


def cells_of(output):
    """Return the lines of the table in an output, as lists of cells."""
    lines = output.partition("\n\n")[0].splitlines()
    (start,) = [number for number, line in enumerate(lines) if line.startswith("method ")]
    return [re.split(r" {2,}", line) for line in lines[start:]]


def test_two_methods_are_compared_with_autoregressive_decoding(home):
    options = ("--num", "2", "--rounds", "1", "--batch", "2", "--device", "cpu", "--output", str(home / "new"))
    code, output = run("embedded", "--methods", "jacobi,  lantern k=20  delta=0.1", *options)
    assert code == 0, output
    titles, *rows = cells_of(output)
    assert titles == TITLES
    assert [row[0] for row in rows] == ["autoregressive", "jacobi", "lantern k=20 delta=0.1"]
    assert [row[-1] for row in rows[:2]] == ["2 of 2", "2 of 2"]
    assert rows[0][1] == "1.00" and rows[0][4:6] == ["1.00", "1.00"] and float(rows[1][1]) >= 1

    found = json.loads((home / "new" / "bench.json").read_text())
    assert found["model"] == "embedded" and found["device"] == "cpu" and found["dtype"] == "float32"
    assert found["machine"]["cpu"] == found["processor"] and found["torch"] and found["load_average"] >= 0
    assert (found["num_prompts"], found["batch_size"], found["rounds_complete"]) == (2, 2, 1)
    assert [row["method"]["name"] for row in found["rows"]] == ["autoregressive", "jacobi", "lantern"]
    for row, shown in zip(found["rows"], rows, strict=True):
        num_forwards = 16 / row["tokens_per_forward"]
        assert row["latency_s"] == pytest.approx(row["forward_s"] * num_forwards)
        assert row["speedup"] == pytest.approx(row["tokens_per_forward"] / row["relative_step_cost"])
        assert row["images_per_s"] > 0 and row["peak_memory_gib"] > 0
        assert shown[3] == f"{1000 * row['latency_s']:.1f}" and shown[6] == f"{row['images_per_s']:.2f}"
    assert table_of(found) in output
    page = (home / "new" / "race.html").read_text()
    assert all(prompt.text in page for prompt in choose_prompts(lantern.load("embedded").encoder, None, 2))
    assert '"lengths": [' in page or '"lengths":[' in page


def test_the_default_prompts_are_captions_of_the_models_world():
    for name, text in (("embedded", "grass"), ("fashion", "plain")):
        encoder = lantern.load(name).encoder
        prompts = choose_prompts(encoder, None, 9)
        world = world_with(encoder.vocabulary)
        assert all(world.attributes_of(prompt.text) for prompt in prompts), name
        assert len({prompt.id for prompt in prompts}) == 9 and any(text in prompt.text for prompt in prompts)


def test_an_interrupted_measurement_keeps_its_complete_rounds(home, monkeypatch):
    measured = []

    def stop_in_round_two(decoder, prompts, encoder, batch_size):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(decoder.spec.method_id)
        return bench.BatchTime(5.0, 1.0)

    monkeypatch.setattr(bench, "time_batch", stop_in_round_two)
    options = ("--num", "1", "--rounds", "3", "--methods", "jacobi", "--device", "cpu", "--output", str(home))
    code, output = run("embedded", *options)
    assert code == 130 and measured == ["autoregressive", "jacobi"]
    assert "Interrupted: 1 of 3 rounds were complete." in output
    found = json.loads((home / "bench.json").read_text())
    assert found["rounds_complete"] == 1 and found["num_rounds"] == 3
    assert [row["images_per_s"] for row in found["rows"]] == [5.0, 5.0]
    assert found["rows"][1]["speedup"] > 0 and found["rows"][1]["speedup_low"] is None  # one prompt has no interval


def test_an_interruption_in_the_first_round_shows_no_table(home, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "time_batch", stop)
    code, output = run("embedded", "--methods", "jacobi", *QUICK)
    assert code == 130 and output.strip() == "interrupted before the first round was complete"


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--methods", "jakobi"], "preset must be one of autoregressive, eagle1, "),
        (["--methods", "jacobi sjd"], "must be name=value, as in 'lantern k=20 delta=0.1', got 'sjd' for jacobi"),
        (["--methods", "lantern k=20"], "method lantern with drafts top and acceptance additive needs delta"),
        (
            ["--methods", "jacobi", "--trees", "chain5, cain9"],
            "tree must be one of dynamic, dynamic58k10d4, ..., chain1, chain2, ..., ",
        ),
        (["--methods", "jacobi tree=chain5", "--trees", "chain9"], "--trees replaces the tree of every method"),
        (["--methods", "autoregressive tree=chain5"], "fills no tree with drafts, got tree chain5; remove"),
        (["--prompts", "absent.txt"], "absent.txt"),
        (["--output", "file"], "File exists: 'file'"),
        (["--tiny"], "--tiny changes the sizes of random weights only; add --random-weights"),
        (["--random-weights"], "a model with random weights must be one of llamagen_stage1, "),
        (["--random-weights", "--prompts", "absent.txt"], "--random-weights measures steps, which need no prompts"),
        (["--random-weights", "--dtype", "int8"], "dtype must be one of float32, bfloat16, float16, got 'int8'"),
    ],
)
def test_wrong_options_are_named_in_one_sentence(options, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    code, output = run("embedded", *options, *QUICK)
    assert code == 1 and sentence in output and len(output.strip().splitlines()) == 1, output


def test_steps_of_random_weights_are_timed_without_a_metric_of_images(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "NUM_STEPS", 1)
    monkeypatch.setattr(steps, "WARM_UP_S", 0)
    options = ("--random-weights", "--tiny", "--batch", "2", "--rounds", "1", "--device", "cpu")
    code, output = run("llamagen_stage1", "--trees", "chain2, chain4", *options, "--output", str(tmp_path))
    assert code == 0, output
    titles, *rows = cells_of(output)
    assert titles == ["method", "drafts", "ms / forward", "relative step cost", "ms / forward, batch 2", TITLES[-2]]
    assert [row[:2] for row in rows] == [
        ["autoregressive", "0"],
        ["jacobi tree=chain2", "2"],
        ["jacobi tree=chain4", "4"],
    ]
    assert "The weights are random" in output and "tokens / forward" not in output
    found = json.loads((tmp_path / "bench.json").read_text())
    assert found["random_weights"] and found["model"] == "llamagen_stage1" and found["num_tokens"] == 16
    assert "speedup" not in found["rows"][1] and found["rows"][1]["relative_step_cost"] > 0


def test_an_interrupted_measurement_of_steps_keeps_its_complete_rounds(tmp_path, monkeypatch):
    blocks = []

    def stop_in_round_two(decoder, state):
        blocks.append(decoder.spec.name)
        if len(blocks) > 4:
            raise KeyboardInterrupt
        return 0.5

    monkeypatch.setattr(steps, "_time_block", stop_in_round_two)
    options = ("--random-weights", "--tiny", "--methods", "jacobi", "--rounds", "3", "--output", str(tmp_path))
    code, output = run("llamagen_stage1", *options)
    assert code == 130 and "Interrupted: 1 of 3 rounds were complete." in output
    assert json.loads((tmp_path / "bench.json").read_text())["rounds_complete"] == 1


def test_an_unknown_model_or_prompt_is_named_in_one_sentence(tmp_path):
    code, output = run("embeded", *QUICK)
    assert code == 1 and "a model must be one of embedded, " in output and "got 'embeded'" in output
    (tmp_path / "mine.txt").write_text("a purple hippopotamus\n")
    code, output = run("embedded", "--prompts", str(tmp_path / "mine.txt"), *QUICK)
    assert code == 1 and "unknown word 'hippopotamus'" in output


def test_every_method_gets_every_tree_except_autoregressive_decoding():
    chosen = choose_methods("autoregressive, jacobi, coupled", "chain3, chain5", has_draft_model=True)
    assert chosen == {
        "autoregressive": ("autoregressive", {}),
        "jacobi tree=chain3": ("jacobi", {"tree": "chain3"}),
        "jacobi tree=chain5": ("jacobi", {"tree": "chain5"}),
        "coupled tree=chain3": ("coupled", {"tree": "chain3"}),
        "coupled tree=chain5": ("coupled", {"tree": "chain5"}),
    }
    assert list(choose_methods("", "chain3", has_draft_model=True)) == ["autoregressive", "jacobi tree=chain3"]
    assert list(choose_methods("", "", has_draft_model=False)) == ["autoregressive", "jacobi"]


def test_default_prompts_are_those_that_the_encoder_can_encode():
    class AnyText:
        def encode(self, texts):
            """Accept every text."""

    class NoText:
        def encode(self, texts):
            raise ValueError("no text")

    prompts = choose_prompts(AnyText(), None, len(TEXTS) + 1)
    assert len({prompt.id for prompt in prompts}) == len(TEXTS) + 1 and prompts[-1].text == TEXTS[0]
    assert [prompt.text for prompt in choose_prompts(ClassEncoder(10), None, 3)] == ["0", "1", "2"]
    with pytest.raises(ValueError, match="give it a file of prompts with --prompts"):
        choose_prompts(NoText(), None, 2)


def report_of(num_equal, **changes):
    row = {"tokens_per_forward": 2.0, "forward_s": 0.01, "latency_s": 0.1, "relative_step_cost": 1.5, "speedup": 1.3}
    row |= {"speedup_low": 1.2, "speedup_high": 1.4, "images_per_s": 3.0, "peak_memory_gib": 1.0, "num_images": 8}
    row |= {"method": make_method("jacobi").to_dict(), "num_equal": num_equal, "busy_elsewhere": 0.0}
    report = {
        "processor": "a CPU",
        "device": "cpu",
        "threads": 1,
        "machine": {"cores": 2},
        "torch": "2",
        "batch_size": 8,
    }
    report |= {
        "random_weights": False,
        "dtype": "float32",
        "temperature": 1.0,
        "cfg_scale": 3.0,
        "num_prompts": 8,
        "load_average": 3.0,
    }
    return {**report, "rounds_complete": 2, "num_rounds": 2, "rows": [{**row, **changes}]}


def test_the_notes_name_busy_machines_and_images_that_should_be_equal():
    calm = table_of(report_of(8))
    assert "1.30 [1.20, 1.40]" in calm and "8 of 8" in calm and "busy" not in calm and "should be equal" not in calm
    assert "Other processes kept 1.5 cores busy (load average 3.0" in table_of(report_of(8, busy_elsewhere=1.5))
    assert "All images should be equal for jacobi." in table_of(report_of(7))
    eagle = table_of(report_of(0, method=make_method("eagle1").to_dict()))
    assert "Exact in distribution, not token by token: eagle1." in eagle


@pytest.mark.parametrize("page", [pytest.param("bench.md", marks=pytest.mark.slow), "gpu.md"])
def test_the_commands_of_the_page_run(page, home, monkeypatch):
    """Each command runs as it is written, except that a smaller model generates fewer images and takes fewer steps."""
    monkeypatch.setattr(steps, "NUM_STEPS", 1)
    monkeypatch.setattr(steps, "WARM_UP_S", 0)
    blocks = re.findall(r"```\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    lines = [shlex.split(line) for line in "".join(blocks).splitlines() if line.startswith("lantern ")]
    assert {command for _, command, *_ in lines} == {"bench", "predict"}
    (home / "prompts.txt").write_text("a large red circle on grass\n")
    for _, command, *arguments in lines:
        quick = [*QUICK, *["--tiny"][: "--random-weights" in arguments]] if command == "bench" else []
        result = CliRunner().invoke(app, [command, *arguments, *quick])
        assert result.exit_code == 0 and "\nautoregressive  " in f"\n{result.output}", result.output
    assert (home / "mine" / "bench.json").exists()
