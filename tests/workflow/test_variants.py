"""Tests of variants: the workflow runs once more for each, as a module."""

from dataclasses import replace

import pytest

from helpers.tiny_run import planned, with_overlay
from lantern.models.stored import read_metadata
from lantern.records import load_records
from lantern_pipeline.data.tables import read_table

METHODS = [{"preset": ["autoregressive", "coupled"]}, {"preset": "proximity", "k": 20}]
# The models that measure images are those of the run.
MEASURING = {
    name: {"checkpoint": f"results/tiny/{name}/model.safetensors"} for name in ("attribute_classifier", "clip")
}
OTHER = {
    **MEASURING,
    "tokenizer": {"checkpoint": "results/tiny/tokenizer/model.safetensors", "grid": 4},
    "text": {"encoder": "word_ids"},
    "generation": {"batch_size": 1},
    "target": {"rope": "1d", "has_qk_norm": True, "has_mlp_head": True, "num_kv_heads": 1},
}
GRID_6 = {**MEASURING, "tokenizer": {"grid": 6}}


@pytest.mark.slow
def test_variants_are_trained_and_measured_beside_the_run(copy_of_finished, tmp_path):
    """One has each option of the transformer that the run does not have, and prompts of word ids; one a larger grid."""
    changes = {"methods": METHODS, "repeats": {"noise_seeds": [0]}, "variants": {"other": OTHER, "grid_6": GRID_6}}
    workflow = with_overlay(copy_of_finished, tmp_path, **changes)
    files = ["generality.html", "figures/fig_r_generality.png", "figures/fig_t_grid_sizes.png"]
    code, output = workflow.run(*(f"results/tiny/{file}" for file in files))
    assert code == 0, output + workflow.logs()
    assert "other_train_target" in output and "other_train_tokenizer" not in output
    table = read_table(workflow.result("generality.csv"))
    assert table["target"].value_counts().to_dict() == {"base": 3, "other": 3, "grid_6": 3}
    assert table["gain"].notna().groupby(table["method"]).sum().to_dict()["proximity"] == 3
    sides = table.groupby("target")["grid_side"].unique().map(list).to_dict()
    assert sides == {"base": [4], "other": [4], "grid_6": [6]}
    changes = "has_mlp_head true", "has_qk_norm true", "num_kv_heads 1", "rope 1d"
    differs = [f"target.{change}" for change in changes]
    differs = ", ".join(["generation.batch_size 1", *differs, "text.encoder word_ids", "tokenizer.grid 4"])
    assert set(table.loc[table["target"] == "other", "differs"]) == {differs}
    shards = {folder: workflow.result(f"{folder}generation/coupled/seen/T1/s0n0") for folder in ("", "variants/other/")}
    sizes = {
        folder: load_records(shard / "1-of-1.safetensors").metadata["batch_size"] for folder, shard in shards.items()
    }
    assert sizes == {"": 2, "variants/other/": 1}  # jobs of a variant read the variant's config
    of_grid = load_records(workflow.result("variants/grid_6/generation/coupled/seen/T1/s0n0/1-of-1.safetensors"))
    assert of_grid.codes.shape[1] == 36
    sizes = read_metadata(workflow.result("variants/other/target/s0/model.safetensors"))["config"]
    assert sizes["num_kv_heads"] == 1 and sizes["has_mlp_head"] and sizes["has_qk_norm"] and sizes["num_prompt_ids"]
    code, output = workflow.run("results/tiny/generality.html")
    assert code == 0 and "Nothing to be done" in output, output

    record = shards["variants/other/"] / "1-of-1.safetensors"
    codes = load_records(record).codes
    record.unlink()
    code, output = replace(workflow, forks=False).run(str(record.relative_to(workflow.folder)))
    assert code == 0 and planned(output) == {"other_generate_images": 1, "total": 1}, output
    assert load_records(record).codes.equal(codes)


def test_a_variant_with_a_bad_key_stops_at_once(finished, tmp_path):
    workflow = with_overlay(finished, tmp_path, variants={"other": {"target": {"num_kv_heads": 3}}})
    code, output = workflow.run("--dry-run")
    sentence = "variant other: config key target.num_kv_heads must be a divisor of target.num_heads = 2"
    assert code != 0 and sentence in output, output
