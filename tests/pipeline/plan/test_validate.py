"""Tests of config validation: the default is valid, and every fault gives one sentence that names the key."""

import copy
import re
import subprocess
import sys

import pytest
from jsonschema import Draft202012Validator

from helpers.configs import load_config, typed_config
from helpers.paths import ROOT
from lantern.parameters import PARAMETERS
from lantern.registry import NEIGHBOURS, PRESETS, RESIDUALS
from lantern_models.cards.published import CARDS
from lantern_pipeline.data.model_cards import card_of, card_sections
from lantern_pipeline.plan.cross_checks import metric_checkpoints
from lantern_pipeline.plan.run import describe_folder
from lantern_pipeline.plan.validate import load_yaml, read_texts, validate_config
from lantern_pipeline.schema.editor_schema import SCHEMA_PATH, json_schema, schema_text
from lantern_pipeline.schema.key_types import show
from lantern_pipeline.schema.methods import check_entry, entry_model

DEFAULT = load_config([ROOT / "config.yaml"])


# Overlays that are laid over another one, as their first lines say.
BELOW = {
    "llamagen_stage2": ["llamagen_stage1"],
    "llamagen_peers": ["llamagen_stage1", "llamagen_stage2"],
    "llamagen_quick": ["llamagen_stage1"],
    "llamagen_drafter": ["llamagen_stage1"],
    "llamagen_drafter_captions": ["llamagen_stage1", "llamagen_drafter"],
    "fashion_training": ["fashion"],
    "fashion_papers": ["fashion", "papers"],
    "fashion_peers": ["fashion", "peers"],
    "fashion_mixing": ["fashion", "mixing"],
}


def changed(path, value, config=DEFAULT):
    """Return a config with one key set. The path is dotted; numbers are list indices."""
    config = copy.deepcopy(config)
    place = config
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        place = place[part]
    place[last] = value
    return config


def sentence_for(config):
    with pytest.raises(ValueError) as caught:
        validate_config(config)
    sentence = str(caught.value)
    assert "\n" not in sentence and "Traceback" not in sentence
    return sentence


def test_the_default_config_is_valid():
    validate_config(DEFAULT)


@pytest.mark.parametrize("overlay", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_overlay_is_valid_by_itself_in_an_editor_and_on_top_of_the_default(overlay):
    schema = load_yaml(SCHEMA_PATH)
    Draft202012Validator.check_schema(schema)
    assert list(Draft202012Validator(schema).iter_errors(load_yaml(overlay))) == []
    load_config([ROOT / "config.yaml", *(overlay.with_stem(name) for name in BELOW.get(overlay.stem, ())), overlay])


@pytest.mark.parametrize(
    "path, value, words",
    [
        ("sampling.top_pp", 0.9, ["sampling.top_pp", "unknown", "did you mean top_p?"]),
        ("top_k", 50, ["config key top_k is unknown; did you mean sampling.top_k?"]),
        ("metrics.fidelity", "fid", ["must be one of attribute_classifier, inception, null, got 'fid'"]),
        ("sampling.xyzzy", 1, ["sampling.xyzzy", "known are cfg_scale"]),
        ("sampling.top_p", 0, ["sampling.top_p must be greater than 0, got 0"]),
        ("sampling.cfg_scale", 0.5, ["sampling.cfg_scale", "at least 1", "0.5"]),
        ("sampling.cfg_scale", float("nan"), ["sampling.cfg_scale", "finite"]),
        ("target.num_layers", "six", ["target.num_layers", "an integer", "'six'"]),
        ("target.learning_rate", "2e-3", ["target.learning_rate", "write 0.002 without quotes"]),
        ("target.num_steps", "2e2", ["target.num_steps must be an integer, got '2e2'; write 200 without quotes"]),
        ("target.num_heads", 3, ["target.num_heads", "divisor of target.dim"]),
        ("experiment", "../elsewhere", ["experiment", "letters, digits"]),
        ("device", "tpu", ["device", "auto, cpu, cuda", "'tpu'"]),
        ("data", None, ["data must be a section of keys", "nothing"]),
        ("data.source", "folder", ["data.folder", "name.txt"]),
        ("data.source", "fashion", ["data.image_size must be 32 if data.source is fashion, got 48"]),
        ("data.image_size", 50, ["data.image_size", "multiple of 2 * tokenizer.grid", "50"]),
        ("data.image_size", [48], ["data.image_size must be an integer for a square, or [height, width], got [48]"]),
        ("data.image_size", [48, 48], ["data.image_size must be an integer for a square, got [48, 48]; write 48"]),
        ("data.image_size", [48, 4096], ["data.image_size[1] must be at most 2048, got 4096"]),
        ("data.image_size", [96, 48], ["have the proportions of tokenizer.grid = 8", "got [96, 48]; set both"]),
        ("data.image_size", "48", ["data.image_size must be an integer or a list, got '48'; write 48 without quotes"]),
        ("tokenizer.grid", [8, 1], ["tokenizer.grid[1] must be at least 2, got 1"]),
        ("tokenizer.decoder_width", 50, ["tokenizer.decoder_width must be a multiple of 8, got 50"]),
        ("methods", [], ["methods", "at least 1"]),
        ("methods", [{"preset": "eagle2"}], ["methods", "autoregressive at temperature 1"]),
        ("methods", 1, ["config key methods must be a list, got 1"]),
        ("experiment", "a" * 65, ["config key experiment must hold at most 64 characters, got 'aaa"]),
        ("prompts", {"seen": None}, ["prompts", "at least one prompt set"]),
        ("prompts.Seen", {"split": "seen", "num": 5}, ["prompts", "more than case, got seen and Seen; rename one"]),
        ("ablations.grids", {key: {"methods": [{"preset": "eagle1"}]} for key in "aA"}, ["grids", "got a and A"]),
        ("variants", {key: {"seed": 1} for key in "aA"}, ["variants", "got a and A"]),
        ("prompts.seen", {"num": 5}, ["prompts.seen", "split or file"]),
        ("prompts.seen", {"split": "seen"}, ["prompts.seen.num"]),
        ("prompts.seen", {"split": "seen", "num": 192, "copies": 2}, ["prompts.seen.copies goes with a file only"]),
        ("repeats.training_seeds", [0, 1], ["training_seeds must be one seed if target.checkpoint", "got 2 seeds"]),
        (
            "tokenizer.checkpoint",
            None,
            ["tokenizer.checkpoint is missing: a finished target needs its tokenizer"],
        ),
        (
            "target.checkpoint",
            None,
            ["target.checkpoint is missing: a finished drafter fits only its own target"],
        ),
        ("target.num_kv_heads", 3, ["target.num_kv_heads must be a divisor of target.num_heads = 4, or 0, got 3"]),
        ("codebook.num_neighbours", 1024, ["at most tokenizer.codebook_size - 1 = 1023, got 1024"]),
        ("draft_tree.dynamic.num_nodes", 21, ["at most top_k + depth * top_k ** 2 = 20, got 21"]),
        ("text.encoder", "t5", ["text.checkpoint must name T5's weights if text.encoder is t5"]),
        ("prompts.seen", {"file": "nowhere.txt"}, ["prompts.seen.file", "nowhere.txt"]),
        ("prompts.seen.num", 3, ["prompt set seen has 3 prompts", "metrics.prc_neighbours"]),
        ("latency.prompt_sets", ["sene"], ["latency.prompt_sets", "did you mean seen?"]),
        ("metrics.headline_temperature", 0.7, ["metrics.headline_temperature", "0.7"]),
        ("figures.sample_methods", ["eagle3"], ["figures.sample_methods", "did you mean eagle"]),
        ("repeats.noise_seeds", [0, -1], ["repeats.noise_seeds[1]", "at least 0", "-1"]),
        ("repeats.noise_seeds", [1, 1], ["repeats.noise_seeds", "unique"]),
        ("total_variation.k", 129, ["total_variation.k must be at most codebook.num_neighbours = 128, got 129"]),
        ("premise.ks", [5, 129], ["premise.ks must be at most codebook.num_neighbours = 128, got 129"]),
        ("premise.ks", [0], ["premise.ks[0]", "at least 1"]),
        ("study.methods", ["autoregressive"], ["study.methods names no method that runs", "'autoregressive'"]),
        ("data.source", "captions", ["data.captions goes with data.source captions", "got nothing"]),
        (
            "data.captions",
            {"file": "coco_2017_captions"},
            ["data.captions goes with data.source captions", "data.source scenes"],
        ),
        ("data.captions", {"num": 9}, ["data.captions.file is missing"]),
        ("drafter.num_eval", 600, ["drafter.num_eval must be at most target.num_eval = 512", "600"]),
        ("drafter.warmup_share", 1, ["drafter.warmup_share", "less than 1"]),
        ("trees", {1: [[0]]}, ["config key trees: the name 1 must be text; put it into quotes"]),
        ("trees.mine", [[0, 0], [1]], ["trees.mine: tree choice [0, 0] lacks its parent [0]; list it too"]),
        ("trees.dynamic", [[0]], ["trees.dynamic: Lantern has another tree of this name; choose a new name"]),
        ("trees.a/b", [[0]], ["trees may hold only letters, digits, '_' and '-', got 'a/b'"]),
    ],
)
def test_a_bad_value_is_one_sentence_that_names_the_key(path, value, words):
    sentence = sentence_for(changed(path, value))
    assert [word for word in words if word not in sentence] == [], sentence


@pytest.mark.parametrize(
    "changes, words",
    [
        ({}, None),
        ({"data.image_size": [1152, 800]}, "have the proportions of tokenizer.grid = [36, 24], because codes are"),
        ({"data.image_size": [1116, 744]}, "a multiple of 2 * tokenizer.grid = [72, 48], got [1116, 744]"),
        ({"data.source": "scenes"}, "if data.source is scenes, got [36, 24]: training images are squares; set data"),
        ({"text.encoder": "t5"}, "if text.encoder is t5, got [36, 24]: its targets generate squares"),
        ({"metrics.clip": "own"}, "an integer if metrics use clip, got [36, 24]: these models read squares; set"),
        ({"metrics.prompt_accuracy": True}, "an integer if metrics use attribute_classifier, got [36, 24]: these"),
    ],
)
def test_only_a_published_model_generates_images_that_are_no_squares(changes, words):
    config = load_config([ROOT / "config.yaml", ROOT / "experiments" / "glm_image.yaml"])
    for path, value in {"data.image_size": [1152, 768], "tokenizer.grid": [36, 24], **changes}.items():
        config = changed(path, value, config)
    if words is not None:
        assert words in sentence_for(config)
        return
    checked, _ = validate_config(config)
    sizes = card_of(checked).target_config()
    assert (sizes.shape, sizes.small_shape, sizes.num_image_tokens) == ((36, 24), (19, 13), 19 * 13 + 36 * 24)
    assert checked.text_settings.grids == [[36, 24], [19, 13]]


def test_no_method_with_a_draft_model_runs_for_images_after_a_smaller_one():
    config = load_config([ROOT / "config.yaml", ROOT / "experiments" / "glm_image.yaml"])
    methods = [{"preset": ["autoregressive", "eagle1"], "temperatures": [0.9]}]
    config = changed("drafter.codes", "samples", changed("methods", methods, config))
    assert "eagle1 needs a draft model, for which target.small_grid must be 0, got 16; use" in sentence_for(config)


def test_a_square_keeps_the_parameters_of_jobs_from_before_rectangles():
    """Snakemake would run jobs again whose parameters change."""
    config = typed_config(load_config([ROOT / "config.yaml", ROOT / "experiments" / "janus_pro.yaml"]))
    assert config.text_settings.grids == [24, 0]
    card = card_of(config).to_dict()
    assert card["images"] == {"size": 384, "grid": 24, "codebook_size": 16384, "code_dim": 8}
    assert card["target"]["small_grid"] == 0 and "small_columns" not in card["target"]


@pytest.mark.parametrize(
    "entry, words",
    [
        ({"preset": "lantern", "k": 20, "delta": [0.1, -1]}, ["methods[1].delta[1]", "at least 0"]),
        ({"preset": "lantern", "k": 2000, "delta": 0.1}, ["k of lantern", "codebook.num_neighbours", "2000"]),
        (
            {"preset": "lantern", "k": 128, "delta": 0.1, "residual": "official"},
            ["k of lantern-official-k128-delta0.1", "codebook.num_neighbours - 1 = 127, got 128"],
        ),
        ({"preset": "jacobi", "tree": "chain33"}, ["tree chain33", "at most 32 drafts deep, got 33"]),
    ],
)
def test_a_bad_method_is_one_sentence(entry, words):
    sentence = sentence_for(changed("methods", [{"preset": "autoregressive"}, entry]))
    assert [word for word in words if word not in sentence] == [], sentence


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"sampling": {"cfg_scale": [1, 0.5]}}, ["ablations.grids.mine.sampling.cfg_scale[1]", "at least 1", "0.5"]),
        ({"methods": [{"preset": "coupld"}]}, ["ablations.grids.mine.methods[0]", "preset must be one of", "'coupld'"]),
        (
            {"methods": [{"preset": "proximity", "k": [5, 129]}]},
            ["ablations.grids.mine: k of proximity-k129 must be at most codebook.num_neighbours = 128, got 129"],
        ),
    ],
)
def test_a_bad_ablation_is_one_sentence_that_names_its_grid(changes, words):
    sentence = sentence_for(changed("ablations.grids.mine", {"methods": [{"preset": "coupled"}], **changes}))
    assert [word for word in words if word not in sentence] == [], sentence


@pytest.mark.parametrize(
    "path, value, whole",
    [
        ("prompts.seen.num", 96.0, 96),
        ("data.image_size", 48.0, 48),
        ("target.num_steps", 1.0e3, 1000),
        ("repeats.training_seeds", [3.0], [3]),
        ("sampling.top_p", 1.0, 1.0),
        ("methods.3.k", [5.0, 20], [5, 20]),
        ("ablations.grids.mine", {"methods": [{"preset": "coupled"}], "drafter_steps": [40.0, None]}, [40, None]),
    ],
)
def test_a_whole_number_with_a_point_is_that_whole_number_where_one_is_wanted(path, value, whole):
    config = changed(path, value)
    validate_config(config)
    for part in path.split("."):
        config = config[int(part) if part.isdigit() else part]
    found = config["drafter_steps"] if isinstance(config, dict) else config
    assert repr(found) == repr(whole)


@pytest.mark.parametrize(
    "path, value, key",
    [
        ("methods.2.k", [], "methods[2].k"),
        ("ablations.grids.mine", {"methods": [{"preset": "coupled"}], "sampling": {"top_k": []}}, "sampling.top_k"),
        ("methods.2", {"name": "mine", "tree": "chain3", "drafts": "top", "acceptance": "m:C", "cap": []}, "cap"),
    ],
)
def test_an_empty_list_of_values_to_try_is_refused(path, value, key):
    sentence = sentence_for(changed(path, value))
    assert sentence.endswith(f"{key} must hold at least 1 entries, got 0"), sentence


def test_no_variants_may_be_written_as_null():
    config = changed("variants", None)
    assert validate_config(config)[0].variants == {}


def test_the_keys_of_a_method_are_read_from_the_table_of_methods():
    """All presets, parts and parameters with their bounds are known."""
    keys = json_schema(entry_model({}))["properties"]
    for key, names in {"preset": PRESETS, "residual": RESIDUALS, "neighbours": NEIGHBOURS}.items():
        assert keys[key]["enum"] == keys[key]["items"]["enum"] == list(names), key
    assert set(PARAMETERS) < set(keys)
    assert (keys["delta"]["minimum"], keys["delta"]["maximum"]) == (0, 1)
    assert keys["omega"]["exclusiveMinimum"] == 0 and keys["k"]["items"]["type"] == "integer"


def test_parameters_of_a_users_class_are_known_by_that_class():
    entry = {"name": "mine", "cap": [3.0], "k": 5.0, "acceptance": "mine:Capped"}
    checked = check_entry(entry)
    assert repr(checked) == repr({**entry, "k": 5})  # in the order given
    assert list(checked) == list(entry)
    sentence = sentence_for(changed("methods.1", {**entry, "acceptance": "additive"}))
    assert "config key methods[1].cap is unknown; known are preset, tree, drafts" in sentence


@pytest.mark.parametrize("path", ["sampling", "metrics.published.reference.name"])
def test_a_run_needs_every_key_of_the_default_config(path):
    *parents, last = path.split(".")
    config = copy.deepcopy(DEFAULT)
    place = config
    for part in parents:
        place = place[part]
    del place[last]
    assert f"config key {path} is missing" in sentence_for(config)


def test_editors_find_the_schema():
    for file in [ROOT / "config.yaml", ROOT / "workflow" / "resources.yaml", *(ROOT / "experiments").glob("*.yaml")]:
        hint = re.match(r"# yaml-language-server: \$schema=(\S+)\n", file.read_text())
        assert hint and (file.parent / hint[1]).resolve() == SCHEMA_PATH


def test_an_ablation_may_be_null():
    validate_config(changed("ablations.grids.k", None))
    validate_config(changed("ablations.grids", {}))


def test_graphs_need_a_gpu():
    config = changed("generation.stepping", "graph")
    validate_config({**config, "device": "cuda"})
    assert "generation.stepping must be auto or eager if device is cpu" in sentence_for({**config, "device": "cpu"})


def test_a_greedy_headline_needs_something_else_that_is_sampled():
    config = changed("metrics.headline_temperature", 0.0)
    config["methods"] = [{"preset": ["autoregressive", "coupled"], "temperatures": [0, 0.7]}]
    validate_config(copy.deepcopy(config))
    config["methods"][0]["temperatures"] = [0]
    assert "config key methods must hold a method at a temperature above 0" in sentence_for(config)


def test_a_method_of_the_study_must_run_at_the_headline_temperature():
    config = changed("study.methods", ["lantern-k20-delta0.1"])
    validate_config(config)
    greedy = {"k": 20, "delta": 0.3, "temperatures": [0]}
    config["methods"] += [{"preset": "autoregressive", "temperatures": [0]}, {"preset": "lantern", **greedy}]
    validate_config({**config, "study": {**config["study"], "methods": ["lantern-k20-delta0.1"]}})
    assert "study.methods" in sentence_for(
        {**config, "study": {**config["study"], "methods": ["lantern-k20-delta0.3"]}}
    )


def test_every_key_of_the_default_config_has_a_comment():
    described_as_a_whole, end_of_block = ("methods:", "grids:", "resources:"), None
    for number, line in enumerate((ROOT / "config.yaml").read_text().splitlines()):
        text, indent = line.strip(), len(line) - len(line.lstrip())
        if end_of_block is not None and text and indent <= end_of_block:
            end_of_block = None
        is_scalar = ": " in text and not text.startswith(("-", "#", "split:", "small"))
        if is_scalar and end_of_block is None:
            assert " # " in line, f"config.yaml, line {number + 1}: {line}"
        if end_of_block is None and text.startswith(described_as_a_whole):
            end_of_block = indent


def test_the_schema_of_editors_is_that_of_the_models():
    assert SCHEMA_PATH.read_text() == schema_text(), "run python -m lantern_pipeline.schema.editor_schema"


def test_every_section_of_the_schema_is_closed():
    def visit(node, path):
        if isinstance(node, dict):
            is_open = path.endswith(
                (".variants.additionalProperties", ".methods.items")
            )  # any sections; read from the core
            assert is_open or node.get("type") != "object" or "additionalProperties" in node, path
            for name, inner in node.items():
                visit(inner, f"{path}.{name}")

    visit(load_yaml(SCHEMA_PATH), "")


def test_a_folder_is_described_by_what_it_holds(tmp_path):
    (tmp_path / "a.png").write_bytes(b"1")
    before = describe_folder(str(tmp_path))
    assert describe_folder(str(tmp_path)) == before
    (tmp_path / "b.png").write_bytes(b"2")
    assert describe_folder(str(tmp_path)) != before
    before = describe_folder(str(tmp_path))
    (tmp_path / "gone.png").symlink_to("nowhere.png")
    assert describe_folder(str(tmp_path)) != before
    assert describe_folder(None) is None and describe_folder(str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    "text, words",
    [
        ("a: [1", "not valid YAML"),
        ("- 1", "must hold keys"),
        ("a: b: c", "line 1"),
        ("a: 1\nb: {c: 2,\n  c: 3}", "line 3: not valid YAML (the key c occurs twice in one section, first in line 2;"),
    ],
)
def test_a_file_that_is_no_config_is_named(tmp_path, text, words):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"c\.yaml") as caught:
        load_yaml(tmp_path / "c.yaml")
    assert words in str(caught.value)
    command = [sys.executable, "-m", "lantern_pipeline.plan.validate", ROOT / "config.yaml", tmp_path / "c.yaml"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)  # the check of make before Snakemake
    assert result.returncode == 1 and result.stderr == f"{caught.value}\n"


def test_a_file_of_another_encoding_is_named(tmp_path):
    (tmp_path / "c.yaml").write_bytes("experiment: caf\u00e9".encode("latin-1"))
    with pytest.raises(ValueError, match=r"c\.yaml must be UTF-8, got the byte 0xe9 at 15; save it as UTF-8"):
        load_yaml(tmp_path / "c.yaml")


PUBLISHED = {
    "data": {"source": "captions", "captions": {"file": "coco_2017_captions"}},
    "prompts": {"seen": {"split": None, "file": "parti_prompts", "num": 96}, "unseen": None},
    "tokenizer": {"checkpoint": "llamagen_tokenizer"},
    "target": {"checkpoint": "llamagen_stage1"},
    "drafter": {"codes": "samples"},
    "metrics": {"fidelity": None, "clip": None, "prompt_accuracy": False},
    "ablations": {"grids": {"neighbours": None}},
}


def test_captions_alone_train_a_drafter_on_samples_and_nothing_else():
    from snakemake.utils import update_config

    config = copy.deepcopy(DEFAULT)
    update_config(config, PUBLISHED)
    config["drafter"]["checkpoint"] = None
    validate_config(config)
    config["drafter"]["codes"] = "images"
    sentence = sentence_for(config)
    assert "drafter.checkpoint must be set" in sentence and "drafter.codes samples" in sentence
    config["target"]["checkpoint"] = None
    assert "target.checkpoint must be set" in sentence_for(config)


def test_a_published_target_needs_no_drafter_where_no_method_does():
    checkpoints = {"tokenizer": {"checkpoint": "llamagen_tokenizer"}, "target": {"checkpoint": "llamagen_stage1"}}
    config = changed("data.source", "none")
    for section, values in {**checkpoints, "drafter": {"checkpoint": None}}.items():
        config[section].update(values)
    config["prompts"] = {"seen": {"file": "lantern_coco_2017", "num": 96}, "unseen": None}
    config["ablations"]["grids"] = {}
    config["latency"]["prompt_sets"] = ["seen"]
    assert "drafter.checkpoint must be set" in sentence_for(config)
    config["methods"] = [{"preset": ["autoregressive", "jacobi"]}]
    validate_config(config)


def test_a_folder_has_no_unseen_prompts():
    config = changed("data.source", "folder")
    config["data"]["folder"] = "images"
    sentence = sentence_for(config)
    assert "prompts.unseen.split must be seen if data.source is folder, got 'unseen'" in sentence
    assert "set prompts.unseen to null" in sentence
    config["prompts"]["unseen"] = None
    validate_config(config)


def test_t5_goes_with_published_fidelity_only():
    config = changed("text.encoder", "t5")
    config["text"]["checkpoint"] = "flan_t5_xl"
    assert "metrics.fidelity must be inception or null if text.encoder is t5" in sentence_for(config)


def test_the_premise_needs_a_draft_model_and_held_out_images():
    config = changed("premise.ks", [1])
    validate_config(copy.deepcopy(config))
    config["methods"] = [{"preset": ["autoregressive", "jacobi"]}]
    assert "premise.ks must be null where no method has a draft model; add preset eagle1" in sentence_for(config)
    config = changed("premise.ks", [1])
    config["text"] |= {"encoder": "t5", "checkpoint": "flan_t5_xl"}
    config["metrics"] |= {"fidelity": None}
    assert "premise.ks must be null where data.source is scenes and text.encoder is t5" in sentence_for(config)
    config["premise"]["ks"], config["metrics"]["efficientnet"] = None, True
    assert "metrics.efficientnet must be false where text.encoder is t5" in sentence_for(config)


def test_a_value_of_sixty_characters_is_shown_whole_and_a_longer_one_cut():
    assert show("a" * 58) == f"'{'a' * 58}'" and show("a" * 59) == f"'{'a' * 56}..."
    assert show(["b" * 80]) == f"['{'b' * 55}..." and show(None) == "nothing" and show({"a": 1}) == "{'a': 1}"


def test_measuring_models_are_named_in_one_order_and_with_a_finished_tokenizer_only_where_they_measure():
    config = typed_config(changed("tokenizer.checkpoint", None))
    assert list(metric_checkpoints(config)) == ["attribute_classifier", "clip"]
    off = {"metrics": config.metrics.model_copy(update={"fidelity": None, "prompt_accuracy": False, "clip": None})}
    assert list(metric_checkpoints(config.model_copy(update=off))) == ["attribute_classifier"]  # to train a tokenizer
    assert list(metric_checkpoints(typed_config(DEFAULT).model_copy(update=off))) == []


def test_bounds_themselves_are_allowed():
    for path, value in (
        ("codebook.num_neighbours", 1023),
        ("draft_tree.dynamic.num_nodes", 20),
        ("total_variation.k", 128),
        ("drafter.num_eval", 512),
        ("methods.1", {"preset": "jacobi", "tree": "chain32"}),
        ("methods.1", {"preset": "proximity", "k": 128}),
    ):
        validate_config(changed(path, value))


def test_copies_of_prompts_count_as_images_of_their_set():
    entry = {"file": "parti_prompts", "split": None, "num": 3}
    assert "prompt set seen has 3 prompts" in sentence_for(changed("prompts.seen", entry))
    validate_config(changed("prompts.seen", {**entry, "copies": 70}))


def test_only_the_words_of_the_embedded_data_set_have_numbers():
    config = changed("data.source", "folder", changed("text.encoder", "word_ids"))
    config["data"]["folder"], config["prompts"]["unseen"] = "images", None
    assert "data.source must be scenes or fashion if text.encoder is word_ids" in sentence_for(config)


def test_a_dynamic_tree_is_one_draft_deeper_than_its_passes():
    config = changed("draft_tree.dynamic.depth", 31)
    validate_config(config)
    assert "depth of a dynamic tree must be < 32, got 32" in sentence_for(changed("draft_tree.dynamic.depth", 32))


def test_what_needs_images_or_files_says_so():
    classes = changed("text.encoder", "classes", changed("data.source", "folder", changed("prompts.unseen", None)))
    classes["data"]["folder"] = "images"
    assert "metrics.fidelity must be inception or null if text.encoder is classes" in sentence_for(classes)
    captions = changed("data.captions", {"file": "nowhere.txt"}, changed("data.source", "captions"))
    assert "data.captions.file names no entry of resources" in sentence_for(captions)
    published = changed("prompts", {"seen": {"file": "parti_prompts", "num": 96}}, changed("data.source", "none"))
    published["methods"][0] = {"preset": "autoregressive"}
    published["prompts"]["seen"] = {"split": "seen", "num": 96}
    assert "prompts.seen.split needs images; with data.source none, give a file" in sentence_for(published)
    published["methods"][0] = {"preset": ["autoregressive", "ssd"]}
    assert "data.source must not be none if a method needs heads" in sentence_for(published)


def test_the_run_trains_the_part_that_a_method_needs():
    heads = changed("methods", [{"preset": "autoregressive"}, {"preset": "ssd"}], changed("heads.kind", "state"))
    assert "heads.kind must be shift for the drafts ssd of ssd, got state" in sentence_for(heads)
    own = {"name": "own", "tree": "chain3", "drafts": "helpers.wrong_parts:Shifts"}
    own = changed("methods", [{"preset": "autoregressive"}, own])
    assert "methods: own needs helpers.wrong_parts:Shift, which no rule trains" in sentence_for(own)


def test_an_unknown_model_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"config key model must be one of .*janus-pro-7b.*, got 'janus'"):
        card_sections("janus")


def test_an_unknown_encoder_is_answered_with_the_known_ones():
    sentence = sentence_for(changed("text.encoder", "word"))
    assert "config key text.encoder must be one of words, word_ids, classes, t5, anole, " in sentence
    assert sentence.endswith("got 'word'; did you mean words?")


def test_an_overlay_overrules_the_models_card(tmp_path):
    overlay = tmp_path / "mine.yaml"
    overlay.write_text("model: janus-pro-1b\nsampling: {cfg_scale: 3.0}\ntext: {max_tokens: 64}\n")
    given = [ROOT / "config.yaml", ROOT / "experiments" / "janus_pro.yaml", overlay]
    config, card = load_config(given), CARDS["janus-pro-1b"]
    assert config["sampling"] == {"cfg_scale": 3.0, "top_k": 0, "top_p": 1.0, "filter_order": "top_k_first"}
    assert config["text"]["max_tokens"] == 64 and card.prompts.max_tokens == 128
    assert config["draft_tree"] == card.trees and config["codebook"]["neighbours"] == "l2"
    assert config["target"]["checkpoint"] == "janus_pro_1b" and config["drafter"]["checkpoint"] is None
    assert card_of(typed_config(config)).target_config().num_prompt_ids == 102400


def test_no_prompt_set_has_more_shards_than_prompts():
    validate_config(changed("generation.num_shards", 24))
    sentence = sentence_for(changed("generation.num_shards", 25))
    assert "generation.num_shards must be at most 24, the prompts of set unseen, got 25" in sentence
    assert "data.num_shards must be at most target.num_eval = 512, got 513" in sentence_for(
        changed("data.num_shards", 513)
    )
    validate_config(changed("data.num_shards", 512))


def test_shards_of_prompt_features_count_for_t5_alone():
    config = changed("text.num_shards", 25)
    validate_config(copy.deepcopy(config))  # words have no features
    config["text"] |= {"encoder": "t5", "checkpoint": "flan_t5_xl"}
    config["metrics"]["fidelity"] = None
    assert "text.num_shards must be at most 24, the prompts of set unseen, got 25" in sentence_for(config)
    config["text"]["num_shards"] = 24
    validate_config(config)


def test_a_classes_target_of_the_embedded_data_set_may_be_measured_with_its_classifier():
    validate_config(changed("text.encoder", "classes"))


def test_temperatures_are_named_in_their_order():
    config = changed("methods.0", {"preset": "autoregressive", "temperatures": [10, 2, 0, 1]})
    config["metrics"]["headline_temperature"] = 0.7
    assert "headline_temperature must be one of [0.0, 1.0, 2.0, 10.0], got 0.7" in sentence_for(config)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"preset": ["jacobi"], "temperatures": [0.5]}, None),
        ({"preset": "jacobi", "temperatures": [100.5]}, "methods[1].temperatures[0] must be at most 100, got 100.5"),
        ({"preset": "proximity", "k": [5.5]}, "methods[1].k[0] must be an integer, got 5.5"),
    ],
)
def test_a_list_may_hold_one_value_within_its_bounds(entry, words):
    every = [{"preset": "autoregressive", "temperatures": [0, 0.5, 1, 100]}, entry]
    config = changed("methods", every, changed("study.methods", None))
    config["figures"]["sample_methods"] = ["autoregressive"]
    if words is None:
        validate_config(config)
    else:
        assert words in sentence_for(config)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-1", 0.1),
        ("-1e3", -1000.0),
        ("1.5e3", 1500.0),
        ("1_0e2", 1000.0),
        (".5e1", 5.0),
        ("1.e1", 10.0),
        ("+.5", 0.5),
        (".5", 0.5),
        ("1_000", 1000),
        ("+3", 3),
        ("'1e-1'", "1e-1"),
        ("e1", "e1"),
        ("1e", "1e"),
        ("1e1x", "1e1x"),
        ("chain9", "chain9"),
        ("1-of-2", "1-of-2"),
    ],
)
def test_a_config_file_has_every_form_of_a_number(text, value, tmp_path):
    (tmp_path / "c.yaml").write_text(f"key: {text}\nmethods: [{{delta: [{text}]}}]\n")
    found = load_yaml(tmp_path / "c.yaml")
    for read in (found["key"], found["methods"][0]["delta"][0]):
        assert read == value and type(read) is type(value)


def test_sections_on_the_command_line_are_read_as_yaml():
    given = {
        "a": {"b": "4", "c": ["1e-1", "true", "null", "x y", "2020-01-01", "a: b: c", "*a", "[1]"]},
        "d": "e",
        "f": 3,
    }
    texts = ["x y", "2020-01-01", "a: b: c", "*a", "[1]"]
    assert read_texts(given) == {"a": {"b": 4, "c": [0.1, True, None, *texts]}, "d": "e", "f": 3}
