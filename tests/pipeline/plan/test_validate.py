"""Tests of config validation: the default is valid, and every fault gives one sentence that names the key."""

import copy
import subprocess
import sys

import pytest
import yaml
from jsonschema import Draft202012Validator
from snakemake.utils import update_config

from helpers.configs import load_config, typed_config
from helpers.paths import ROOT
from lantern.parameters import PARAMETERS
from lantern.registry import NEIGHBOURS, PRESETS, RESIDUALS
from lantern_models.cards.published import CARDS
from lantern_pipeline.data.model_cards import card_of, card_sections
from lantern_pipeline.plan.cross_checks import metric_checkpoints
from lantern_pipeline.plan.run import describe_folder
from lantern_pipeline.plan.validate import load_yaml, read_texts, validate_config
from lantern_pipeline.schema.editor_schema import SCHEMA_PATH, json_schema
from lantern_pipeline.schema.key_types import show
from lantern_pipeline.schema.methods import check_entry, entry_model

DEFAULT = load_config([])
# as in the file; `load_config` has replaced them
DEFAULT["metrics"]["headline_prompt_set"] = DEFAULT["latency"]["prompt_sets"] = None
EXAMPLES = ROOT / "experiments"
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
AR = "preset: autoregressive"
T5 = "text: {encoder: t5, checkpoint: flan_t5_xl}"
FOLDER = "data: {source: folder, folder: images}"
TWO_SETS = "prompts: {new: {split: unseen, num: 24}}"
NO_METRICS = "metrics: {fidelity: null, clip: null, prompt_accuracy: false}"
NO_IMAGES = "data: {source: none}\nprompts: {mine: {file: parti_prompts, num: 96}, seen: null}"


def changed(changes, config=DEFAULT):
    """Return a config with an overlay, given as YAML."""
    config = copy.deepcopy(config)
    update_config(config, yaml.safe_load(changes))
    return config


def sentence_for(changes, config=DEFAULT):
    with pytest.raises(ValueError) as caught:
        validate_config(changed(changes, config))
    sentence = str(caught.value)
    assert "\n" not in sentence and "Traceback" not in sentence
    return sentence


def assert_refused(changes, key, words, config=DEFAULT):
    sentence = sentence_for(changes, config)
    assert sentence.removeprefix("config key ").startswith(key) and words in sentence, sentence


FAULTS = {
    "a kind of wrong value each": [
        ("target: {num_layers: six}", "target.num_layers must be an integer", "'six'"),
        ("target: {num_steps: '2e2'}", "target.num_steps", "write 200 without quotes"),
        ("target: {learning_rate: '2e-3'}", "target.learning_rate", "write 0.002 without quotes"),
        ("data: {image_size: '48'}", "data.image_size must be an integer or a list", "write 48 without quotes"),
        ("methods: 1", "methods must be a list", "got 1"),
        ("data: null", "data must be a section of keys", "nothing"),
        ("device: tpu", "device", "auto, cpu, cuda"),
        ("metrics: {fidelity: fid}", "metrics.fidelity", "inception, null, got 'fid'"),
        ("sampling: {cfg_scale: 0.5}", "sampling.cfg_scale", "at least 1, got 0.5"),
        ("sampling: {cfg_scale: .nan}", "sampling.cfg_scale", "finite"),
        ("sampling: {top_p: 0}", "sampling.top_p", "greater than 0, got 0"),
        ("data: {image_size: [48, 4096]}", "data.image_size[1]", "at most 2048, got 4096"),
        ("drafter: {warmup_share: 1}", "drafter.warmup_share", "less than 1"),
        ("tokenizer: {decoder_width: 50}", "tokenizer.decoder_width", "multiple of 8, got 50"),
        ("sampling: {top_pp: 0.9}", "sampling.top_pp", "did you mean top_p?"),
        ("top_k: 50", "top_k", "did you mean sampling.top_k?"),
        ("sampling: {xyzzy: 1}", "sampling.xyzzy", "known are cfg_scale"),
        ("experiment: ../elsewhere", "experiment", "letters, digits"),
        (f"experiment: {'a' * 65}", "experiment", "at most 64"),
        ("trees: {1: [[0]]}", "trees: the name 1", "quotes"),
        ("trees: {a/b: [[0]]}", "trees", "'a/b'"),
        ("methods: []", "methods", "at least 1 entries, got 0"),
        ("repeats: {noise_seeds: [1, 1]}", "repeats.noise_seeds", "unique"),
        ("data: {captions: {num: 9}}", "data.captions.file", "missing"),
        ("data: {image_size: [48]}", "data.image_size", "[height, width], got [48]"),
        ("data: {image_size: [48, 48]}", "data.image_size", "write 48"),
    ],
    "rules within a section": [
        ("data: {source: folder}", "data.folder", "name.txt"),
        ("data: {source: fashion}", "data.image_size", "32 if data.source is fashion, got 48"),
        ("data: {source: captions}", "data.captions", "got nothing"),
        ("data: {captions: {file: coco_2017_captions}}", "data.captions", "data.source scenes"),
        ("prompts: {seen: {file: a.txt}}", "prompts.seen", "split or file"),
        ("prompts: {seen: {split: null}}", "prompts.seen", "split or file"),
        ("prompts: {new: {split: seen}}", "prompts.new.num", "missing"),
        ("prompts: {seen: {copies: 2}}", "prompts.seen.copies", "file only"),
        ("prompts: {Seen: {split: seen, num: 5}}", "prompts", "got seen and Seen"),
        ("variants: {a: {seed: 1}, A: {seed: 1}}", "variants", "got a and A"),
        ("draft_tree: {dynamic: {num_nodes: 21}}", "draft_tree.dynamic.num_nodes", "20, got 21"),
    ],
    "prompt sets": [
        ("prompts: {seen: null}", "prompts", "at least one"),
        ("metrics: {headline_prompt_set: sene}", "metrics.headline_prompt_set", "did you mean seen?"),
        ("latency: {prompt_sets: [sene]}", "latency.prompt_sets", "did you mean seen?"),
        ("prompts: {seen: {num: 3}}", "prompt set seen has 3 prompts", "metrics.prc_neighbours needs at least 4"),
        ("prompts: {seen: {num: 5}}", "prompt set seen has 5 prompts", "figures.sample_prompts needs at least 6"),
        (
            "prompts: {seen: {split: null, file: parti_prompts, num: 3}}",
            "prompt set seen has 3 prompts",
            "needs at least 4",
        ),
        ("generation: {num_shards: 97}", "generation.num_shards", "at most 96, the prompts of set seen, got 97"),
        ("text: {encoder: t5, checkpoint: flan_t5_xl, num_shards: 97}", "text.num_shards", "at most 96"),
    ],
    "files and finished models": [
        ("prompts: {seen: {split: null, file: nowhere.txt}}", "prompts.seen.file", "nowhere.txt"),
        ("data: {source: captions, captions: {file: nowhere.txt}}", "data.captions.file", "nowhere.txt"),
        ("tokenizer: {checkpoint: nowhere.pt}", "tokenizer.checkpoint", "nowhere.pt"),
        ("text: {encoder: word}", "text.encoder", "did you mean words?"),
        ("text: {encoder: t5}", "text.checkpoint", "T5's weights"),
        ("text: {encoder: emu3}", "text.checkpoint", "tokenizer.json"),
        ("repeats: {training_seeds: [0, 1]}", "repeats.training_seeds", "got 2 seeds"),
        ("tokenizer: {checkpoint: null}", "tokenizer.checkpoint", "missing"),
        ("target: {checkpoint: null}", "target.checkpoint", "missing"),
    ],
    "sizes": [
        ("codebook: {num_neighbours: 1024}", "codebook.num_neighbours", "1023, got 1024"),
        ("total_variation: {k: 129}", "total_variation.k", "128, got 129"),
        ("drafter: {num_eval: 513}", "drafter.num_eval", "512, got 513"),
        ("data: {num_shards: 513}", "data.num_shards", "512, got 513"),
        ("premise: {ks: [5, 129]}", "premise.ks", "128, got 129"),
        ("target: {num_kv_heads: 3}", "target.num_kv_heads", "4, or 0, got 3"),
        ("target: {num_heads: 3}", "target.num_heads", "128, got 3"),
        ("data: {image_size: 56}", "data.image_size", "multiple of 2 * tokenizer.grid = 16, got 56"),
        ("data: {image_size: [96, 48]}", "data.image_size", "tokenizer.grid = 8"),
    ],
    "data, encoder and metrics": [
        (T5, "metrics.fidelity", "t5"),
        (f"text: {{encoder: classes}}\n{FOLDER}", "metrics.fidelity", "classes"),
        (f"{T5}\nmetrics: {{fidelity: null, efficientnet: true}}", "metrics.efficientnet", "t5"),
        (f"{T5}\npremise: {{ks: [1]}}\nmetrics: {{fidelity: null}}", "premise.ks", "t5"),
        (f"premise: {{ks: [1]}}\nmethods: [{{{AR}}}]", "premise.ks", "eagle1"),
        (f"{FOLDER}\nprompts: {{new: {{split: unseen, num: 9}}}}", "prompts.new.split", "prompts.new to null"),
        (f"{FOLDER}\ntext: {{encoder: word_ids}}", "data.source", "'folder'"),
        (f"{NO_IMAGES}\ndrafter: {{checkpoint: null}}", "drafter.checkpoint", "drafter.codes samples"),
        (f"data: {{source: none}}\nmethods: [{{{AR}}}]", "prompts.seen.split", "give a file"),
        (f"{NO_IMAGES}\nmethods: [{{{AR}}}, {{preset: ssd}}]", "data.source", "heads"),
        ("generation: {stepping: graph}\ndevice: cpu", "generation.stepping", "GPU"),
    ],
    "trees and methods": [
        ("trees: {mine: [[0, 0], [1]]}", "trees.mine", "lacks its parent [0]"),
        ("trees: {dynamic: [[0]]}", "trees.dynamic", "new name"),
        ("methods: [{preset: eagle2}]", "methods", "autoregressive at temperature 1"),
        (f"methods: [{{{AR}, temperatures: [0]}}]", "methods", "temperature above 0"),
        (
            f"methods: [{{{AR}, temperatures: [10, 2, 0, 1]}}]\nmetrics: {{headline_temperature: 0.7}}",
            "metrics.headline_temperature",
            "[0.0, 1.0, 2.0, 10.0], got 0.7",
        ),
        ("figures: {sample_methods: [eagle3]}", "figures.sample_methods", "did you mean eagle"),
        ("study: {methods: [autoregressive]}", "study.methods", "'autoregressive'"),
        (f"methods: [{{{AR}}}, {{preset: ssd}}]\nheads: {{kind: state}}", "heads.kind", "shift"),
        (
            f"methods: [{{{AR}}}, {{name: own, tree: chain3, drafts: 'helpers.wrong_parts:Shifts'}}]",
            "methods: own",
            "no rule trains",
        ),
        (
            f"methods: [{{{AR}}}, {{preset: jacobi, tree: chain33}}]",
            "methods[1]: tree chain33",
            "32 drafts deep, got 33",
        ),
        ("draft_tree: {dynamic: {depth: 32}}", "methods", "got 32"),
        (f"methods: [{{{AR}}}, {{preset: lantern, k: 20, delta: [0.1, -1]}}]", "methods[1].delta[1]", "at least 0"),
        (f"methods: [{{{AR}}}, {{preset: proximity, k: [5.5]}}]", "methods[1].k[0]", "an integer, got 5.5"),
        (f"methods: [{{{AR}}}, {{preset: proximity, k: []}}]", "methods[1].k", "at least 1"),
        (
            f"methods: [{{{AR}}}, {{preset: jacobi, temperatures: [100.5]}}]",
            "methods[1].temperatures[0]",
            "at most 100",
        ),
        (f"methods: [{{{AR}}}, {{name: mine, acceptance: additive, cap: 3}}]", "methods[1].cap", "known are preset"),
        (f"methods: [{{{AR}}}, {{preset: proximity, k: 129}}]", "methods: k of proximity-k129", "= 128, got 129"),
        (
            f"methods: [{{{AR}}}, {{preset: lantern, k: 128, delta: 0.1, residual: official}}]",
            "methods: k",
            "127, got 128",
        ),
        ("ablations: {grids: {mine: {methods: [{preset: proximity, k: 129}]}}}", "ablations.grids.mine: k", "got 129"),
        ("ablations: {grids: {mine: {methods: [{preset: coupld}]}}}", "ablations.grids.mine.methods[0]", "'coupld'"),
        (
            "ablations: {grids: {mine: {methods: [{preset: coupled}], sampling: {top_k: []}}}}",
            "ablations.grids.mine.sampling.top_k",
            "at least 1",
        ),
    ],
}


@pytest.mark.parametrize("part", FAULTS)
def test_a_fault_is_one_sentence_that_names_the_key(part):
    for changes, key, words in FAULTS[part]:
        assert_refused(changes, key, words)


@pytest.mark.parametrize("overlay", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_overlay_is_valid_by_itself_in_an_editor_and_on_top_of_those_that_its_first_lines_name(overlay):
    assert list(Draft202012Validator(load_yaml(SCHEMA_PATH)).iter_errors(load_yaml(overlay))) == []
    load_config([*(overlay.with_stem(name) for name in BELOW.get(overlay.stem, ())), overlay])


@pytest.mark.parametrize(
    ("changes", "path", "value"),
    [
        ("prompts: {seen: {num: 96.0}}", "prompts.seen.num", 96),
        ("target: {num_steps: 1.0e+3}", "target.num_steps", 1000),
        ("repeats: {training_seeds: [3.0]}", "repeats.training_seeds", [3]),
        ("sampling: {top_p: 1.0}", "sampling.top_p", 1.0),
        (f"methods: [{{{AR}}}, {{preset: proximity, k: [5.0, 20]}}]", "methods.1.k", [5, 20]),
        ("variants: null", "variants", None),
        # prompt sets
        ("seed: 1", "metrics.headline_prompt_set", "seen"),
        ("seed: 1", "latency.prompt_sets", ["seen"]),
        (NO_IMAGES, "metrics.headline_prompt_set", "mine"),
        (NO_IMAGES, "latency.prompt_sets", ["mine"]),
        (f"{TWO_SETS}\nmetrics: {{headline_prompt_set: new}}", "latency.prompt_sets", ["new"]),
        (f"{TWO_SETS}\nlatency: {{prompt_sets: [new]}}", "metrics.headline_prompt_set", "seen"),
    ],
)
def test_values_that_the_check_fills_in_or_makes_whole_are_in_the_config_too(changes, path, value):
    """Rules, jobs and provenance read the config as a dict."""
    config = changed(changes)
    checked, _ = validate_config(config)
    for part in path.split("."):
        config = config[int(part) if part.isdigit() else part]
    assert repr(config) == repr(value)
    assert checked.variants == {}


ALLOWED = [
    "codebook: {num_neighbours: 1023}",
    "draft_tree: {dynamic: {num_nodes: 20}}",
    "draft_tree: {dynamic: {depth: 31}}",
    "total_variation: {k: 128}",
    "drafter: {num_eval: 512}",
    "data: {num_shards: 512}",
    "generation: {num_shards: 96}",
    "text: {num_shards: 97}",  # words have no features
    "text: {encoder: classes}",
    f"{T5}\nmetrics: {{fidelity: null}}",
    "premise: {ks: [1]}",
    "prompts: {seen: {split: null, file: parti_prompts, num: 3, copies: 70}}",
    "ablations: {grids: {mine: null}}",
    "generation: {stepping: graph}\ndevice: cuda",
    FOLDER,
    f"{NO_IMAGES}\n{NO_METRICS}\ndrafter: {{checkpoint: null}}\nmethods: [{{preset: [autoregressive, jacobi]}}]",
    f"methods: [{{{AR}, temperatures: [0, 0.5, 1, 100]}}, {{preset: jacobi, tree: chain32}}]",
    f"methods: [{{{AR}}}, {{preset: proximity, k: 128}}]",
    f"methods: [{{{AR}, temperatures: [0, 0.7]}}]\nmetrics: {{headline_temperature: 0}}",
    "study: {methods: [lantern-k20-delta0.1]}",
]


def test_what_the_bounds_and_rules_allow_is_allowed():
    for changes in ALLOWED:
        validate_config(changed(changes))


def test_a_method_of_the_study_must_run_at_the_headline_temperature():
    greedy = "{preset: [autoregressive, proximity], k: 20, temperatures: [0]}"
    methods = f"methods: [{{{AR}}}, {{{AR}, temperatures: [0]}}, {greedy.replace('autoregressive, ', '')}]"
    assert_refused(f"{methods}\nstudy: {{methods: [proximity-k20]}}", "study.methods", "'proximity-k20'")


RECTANGLE = "{data: {image_size: [1152, 768]}, tokenizer: {grid: [36, 24]}}"


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ("data: {image_size: [1152, 800]}", "data.image_size", "tokenizer.grid = [36, 24]"),
        ("data: {image_size: [1116, 744]}", "data.image_size", "[72, 48], got [1116, 744]"),
        ("data: {source: scenes}", "tokenizer.grid", "data.source is scenes"),
        ("text: {encoder: t5}", "tokenizer.grid", "text.encoder is t5"),
        ("metrics: {clip: own}", "tokenizer.grid", "metrics use clip"),
        ("metrics: {prompt_accuracy: true}", "tokenizer.grid", "metrics use attribute_classifier"),
        (
            "methods: [{preset: [autoregressive, eagle1], temperatures: [0.9]}]\ndrafter: {codes: samples}",
            "methods: eagle1",
            "target.small_grid must be 0, got 16",
        ),
    ],
)
def test_only_a_published_model_generates_images_that_are_no_squares(changes, key, words):
    config = changed(RECTANGLE, load_config([EXAMPLES / "glm_image.yaml"]))
    checked, _ = validate_config(copy.deepcopy(config))
    sizes = card_of(checked).target_config()
    assert (sizes.shape, sizes.small_shape, sizes.num_image_tokens) == ((36, 24), (19, 13), 19 * 13 + 36 * 24)
    assert checked.text_settings.grids == [[36, 24], [19, 13]]
    assert_refused(changes, key, words, config)


def test_a_square_keeps_the_parameters_of_jobs_from_before_rectangles():
    """Snakemake would run jobs again whose parameters change."""
    config = typed_config(load_config([EXAMPLES / "janus_pro.yaml"]))
    assert config.text_settings.grids == [24, 0]
    card = card_of(config).to_dict()
    assert card["images"] == {"size": 384, "grid": 24, "codebook_size": 16384, "code_dim": 8}
    assert card["target"]["small_grid"] == 0 and "small_columns" not in card["target"]


def test_captions_alone_train_a_drafter_on_samples_and_nothing_else():
    captions = f"""
{NO_METRICS}
data: {{source: captions, captions: {{file: coco_2017_captions}}}}
prompts: {{mine: {{file: parti_prompts, num: 96}}, seen: null}}
drafter: {{codes: samples, checkpoint: null}}
"""
    config = changed(captions)
    validate_config(copy.deepcopy(config))
    assert_refused("drafter: {codes: images}", "drafter.checkpoint", "drafter.codes samples", config)
    assert_refused("target: {checkpoint: null}", "target.checkpoint", "no images", config)


def test_the_keys_of_a_method_are_read_from_the_table_of_methods():
    """All presets, parts and parameters with their bounds are known; those of a custom class, by that class."""
    keys = json_schema(entry_model({}))["properties"]
    for key, names in {"preset": PRESETS, "residual": RESIDUALS, "neighbours": NEIGHBOURS}.items():
        assert keys[key]["enum"] == keys[key]["items"]["enum"] == list(names), key
    assert set(PARAMETERS) < set(keys)
    assert (keys["delta"]["minimum"], keys["delta"]["maximum"]) == (0, 1)
    assert keys["omega"]["exclusiveMinimum"] == 0 and keys["k"]["items"]["type"] == "integer"
    entry = {"name": "mine", "cap": [3.0], "k": 5.0, "acceptance": "mine:Capped"}
    checked = check_entry(entry)
    assert repr(checked) == repr({**entry, "k": 5}) and list(checked) == list(entry)  # in the order given
    assert_refused(f"methods: [{{{AR}}}, {{name: a, acceptance: 'm:C', cap: []}}]", "methods[1].cap", "at least 1")


@pytest.mark.parametrize("path", ["sampling", "metrics.published.reference.name"])
def test_a_run_needs_every_key_of_the_default_config(path):
    *parents, last = path.split(".")
    place = config = copy.deepcopy(DEFAULT)
    for part in parents:
        place = place[part]
    del place[last]
    assert_refused("{}", f"{path} is missing", "", config)


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
    ("text", "words"),
    [
        (b"a: [1", "not valid YAML"),
        (b"- 1", "must hold keys"),
        (
            b"a: 1\nb: {c: 2,\n  c: 3}",
            "line 3: not valid YAML (the key c occurs twice in one section, first in line 2;",
        ),
        ("a: caf\u00e9".encode("latin-1"), "must be UTF-8, got the byte 0xe9 at 6"),
    ],
)
def test_a_file_that_is_no_config_is_named(tmp_path, text, words):
    (tmp_path / "c.yaml").write_bytes(text)
    with pytest.raises(ValueError, match=r"c\.yaml") as caught:
        load_yaml(tmp_path / "c.yaml")
    assert words in str(caught.value)


def test_make_checks_the_files_before_snakemake_does(tmp_path):
    (tmp_path / "c.yaml").write_text("a: b: c")
    command = [sys.executable, "-m", "lantern_pipeline.plan.validate", ROOT / "config.yaml", tmp_path / "c.yaml"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1 and result.stderr.startswith(f"{tmp_path}/c.yaml, line 1: ")


def test_a_value_of_sixty_characters_is_shown_whole_and_a_longer_one_cut():
    assert show("a" * 58) == f"'{'a' * 58}'" and show("a" * 59) == f"'{'a' * 56}..."
    assert show(["b" * 80]) == f"['{'b' * 55}..." and show(None) == "nothing" and show({"a": 1}) == "{'a': 1}"


def test_measuring_models_are_named_in_one_order_and_with_a_finished_tokenizer_only_where_they_measure():
    config = typed_config(changed("tokenizer: {checkpoint: null}"))
    assert list(metric_checkpoints(config)) == ["attribute_classifier", "clip"]
    off = {"metrics": config.metrics.model_copy(update={"fidelity": None, "prompt_accuracy": False, "clip": None})}
    assert list(metric_checkpoints(config.model_copy(update=off))) == ["attribute_classifier"]  # to train a tokenizer
    assert list(metric_checkpoints(typed_config(DEFAULT).model_copy(update=off))) == []


def test_an_unknown_model_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"config key model .*janus-pro-7b.*, got 'janus'"):
        card_sections("janus")


def test_an_overlay_overrules_the_models_card(tmp_path):
    overlay = tmp_path / "mine.yaml"
    overlay.write_text("model: janus-pro-1b\nsampling: {cfg_scale: 3.0}\ntext: {max_tokens: 64}\n")
    config, card = load_config([EXAMPLES / "janus_pro.yaml", overlay]), CARDS["janus-pro-1b"]
    assert config["sampling"] == {"cfg_scale": 3.0, "top_k": 0, "top_p": 1.0, "filter_order": "top_k_first"}
    assert config["text"]["max_tokens"] == 64 and card.prompts.max_tokens == 128
    assert config["draft_tree"] == card.trees and config["codebook"]["neighbours"] == "l2"
    assert config["target"]["checkpoint"] == "janus_pro_1b" and config["drafter"]["checkpoint"] is None
    assert card_of(typed_config(config)).target_config().num_prompt_ids == 102400


def test_a_config_file_has_every_form_of_a_number(tmp_path):
    numbers = {"1e-1": 0.1, "-1e3": -1000.0, "1.5e3": 1500.0, "1_0e2": 1000.0, ".5e1": 5.0, "1.e1": 10.0, "+.5": 0.5}
    numbers |= {".5": 0.5, "1_000": 1000, "+3": 3, "'1e-1'": "1e-1"}
    texts = ["e1", "1e", "1e1x", "chain9", "1-of-2"]
    values = numbers | dict(zip(texts, texts, strict=True))
    (tmp_path / "c.yaml").write_text(f"keys: [{', '.join(values)}]\n")
    assert repr(load_yaml(tmp_path / "c.yaml")["keys"]) == repr(list(values.values()))


def test_sections_on_the_command_line_are_read_as_yaml():
    given = {
        "a": {"b": "4", "c": ["1e-1", "true", "null", "x y", "2020-01-01", "a: b: c", "*a", "[1]"]},
        "d": "e",
        "f": 3,
    }
    texts = ["x y", "2020-01-01", "a: b: c", "*a", "[1]"]
    assert read_texts(given) == {"a": {"b": 4, "c": [0.1, True, None, *texts]}, "d": "e", "f": 3}
