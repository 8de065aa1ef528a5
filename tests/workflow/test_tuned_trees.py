"""Methods with a tuned tree, in the real workflow."""

from lantern.io import read_json
from lantern.records import load_records
from lantern_pipeline.config.validate import load_yaml
from lantern_pipeline.data.prompt_files import read_prompts
from tiny_run import TINY, with_overlay

SETTINGS = {"num_prompts": 3, "jacobi": ["chain2", "chain4"], "draft_model": ["chain2", "small6"]}


def test_the_run_chooses_trees_and_decodes_with_them(copy_of_finished, tmp_path):
    tuned = {"preset": ["coupled", "jacobi"], "tree": "tuned"}
    methods = [*load_yaml(TINY)["methods"], tuned]
    workflow = with_overlay(copy_of_finished, tmp_path, methods=methods, tree_tuning=SETTINGS)
    records = {name: f"generation/{name}/seen/T1/s0n0/1-of-1.safetensors" for name in ("coupled-tuned", "jacobi-tuned")}
    code, output = workflow.run(*(f"results/tiny/{name}" for name in records.values()))
    assert code == 0, output + workflow.logs()
    chosen = read_json(workflow.result("trees/s0.json"))["methods"]
    exact = load_records(workflow.result("generation/autoregressive/seen/T1/s0n0/1-of-1.safetensors")).codes
    for name, path in records.items():
        found = load_records(workflow.result(path))
        assert found.metadata["tree_shape"] == chosen[f"{name} T1"]["tree_shape"]
        assert found.metadata["method"]["tree"] == "tuned" and found.codes.equal(exact)
    reported = {prompt.text for prompt in read_prompts(workflow.result("prompts/seen.jsonl"))}
    on = [prompt.text for prompt in read_prompts(workflow.result("trees/prompts.jsonl"))]
    assert len(on) == 3 and not reported & set(on)


def test_only_tuned_methods_wait_for_their_trees(finished, tmp_path):
    methods = [*load_yaml(TINY)["methods"], {"preset": "jacobi", "tree": "tuned"}]
    code, output = with_overlay(finished, tmp_path, methods=methods).run("--dry-run", "--quiet", "rules")
    assert code == 0 and "tune_tree " in output, output
    code, output = finished.run("--dry-run", "--quiet", "rules", "--forceall")
    assert code == 0 and "tune_tree" not in output, output
