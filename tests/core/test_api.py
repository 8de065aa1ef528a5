"""Tests of `lantern.load(...).generate(...)`: the example of the README, results, and errors of loading."""

from __future__ import annotations

import json
import pickle
import re
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from threading import Event, Thread

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

import lantern
from helpers.captured_steps import captured
from helpers.families import draw_c2i
from helpers.paths import ROOT
from lantern import api
from lantern.caller import shut_out_settings
from lantern.codebook import nearest_codes
from lantern.decoding import make_decoder
from lantern.generation import decode_timed
from lantern.io import write_json
from lantern.methods import make_method
from lantern.models.config import TargetConfig
from lantern.prompts import Prompt
from lantern.sampling import SamplingConfig
from lantern_models.cards.card import ImageSettings, PromptSettings, read_card
from lantern_models.cards.published import CARDS
from lantern_models.checkpoints.decoding_models import load_decoding_models
from lantern_models.checkpoints.image_tokenizers import load_tokenizer
from lantern_models.images.vq16 import VQ16, VQ16Config

PROMPTS = ["a large red circle on grass", "a small blue square on sand"]
WEIGHTS = ROOT / "models" / "embedded"


@pytest.fixture(scope="module")
def model():
    return lantern.load("embedded")


@pytest.mark.parametrize(
    ("page", "size", "file"),
    [
        ("README.md", 48, "ring.png"),
        ("models/embedded/README.md", 48, "ring.png"),
        ("models/fashion/README.md", 32, "dress.png"),
    ],
)
def test_the_example_of_a_page_draws_its_image(page, size, file, tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    images = names["images"]
    assert images.pixels.shape == (1, size, size, 3) and images.pixels.dtype == np.uint8 and images.pixels.std() > 10
    assert (tmp_path / file).stat().st_size > 500


def test_the_lines_about_clothes_draw_two_images():
    page = (ROOT / "docs" / "models.md").read_text().partition("## Fashion-MNIST")[2]
    names = {}
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], names)
    assert names["images"].pixels.shape == (2, 32, 32, 3) and names["images"].pixels.std() > 10


def test_the_lines_about_cards_name_the_published_sizes(capsys):
    (code,) = re.findall(r"```python\n([^`]*CARDS\[.*?)```", (ROOT / "docs" / "models.md").read_text(), re.DOTALL)
    exec(code, {})
    assert "size=384" in capsys.readouterr().out


def test_the_library_pages_lines_save_pictures(model, tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(images\.save.*?)```", (ROOT / "docs" / "library.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {"images": model.generate(PROMPTS)}
    exec(code, names)
    assert names["first"].size == (48, 48) and (tmp_path / "circle.png").stat().st_size > 1000


def test_a_row_of_images_that_a_format_cannot_hold_is_refused(model, tmp_path):
    images = replace(model.generate(PROMPTS[:1]), pixels=np.zeros((2_000, 1, 48, 3), np.uint8))
    for name, most in (("a.JPEG", 65_500), ("a.webp", 16_383)):
        with pytest.raises(ValueError, match=f"at most {most} .* 96000 x 1 for 2000"):
            images.save(tmp_path / name)
        replace(images, pixels=images.pixels[:341]).save(tmp_path / name)
    images.save(tmp_path / "a.png")


def test_an_unknown_name_of_the_package_is_named():
    with pytest.raises(AttributeError, match="no attribute 'loud'"):
        _ = lantern.loud


def test_images_are_those_of_the_method_on_the_models_own_settings(model):
    """Compared with a decoder that is built by hand with trees, neighbours and sampling of config.yaml."""
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    models = load_decoding_models(WEIGHTS / "target.safetensors", WEIGHTS / "drafter.safetensors")
    models.nearest_codes = nearest_codes(load_tokenizer(WEIGHTS / "tokenizer.safetensors").codebook.detach(), 20)
    spec = make_method("lantern", k=20, delta=0.1, tree_shape=config["draft_tree"]["dynamic"])
    assert config["codebook"]["neighbours"] == spec.neighbours
    decoder = make_decoder(models, spec, SamplingConfig(**config["sampling"]))
    prompts = [Prompt(str(place), text) for place, text in enumerate(PROMPTS)]
    expected, _ = decode_timed(decoder, prompts, model.encoder, run_seed=0)
    found = model.generate(PROMPTS, method="lantern", k=20, delta=0.1)
    assert torch.equal(found.codes.long(), expected.codes)
    assert torch.equal(found.steps.long(), expected.target_forwards)
    assert torch.equal(found.tokens_per_forward, 64 / expected.target_forwards)
    assert (found.seconds > 0).all() and found.records.metadata["method"]["k"] == 20
    assert [picture.size for picture in found.pictures()] == [(48, 48)] * 2


def test_the_decoder_for_measurements_is_that_of_generate(model):
    decoder = model.make_decoder("lantern", temperature=0.5, k=20, delta=0.1, method_id="mine")
    assert decoder.spec.method_id == "mine" and decoder.sampling == replace(model.sampling, temperature=0.5)
    found, _ = decode_timed(decoder, [Prompt("0", PROMPTS[0])], model.encoder, run_seed=0)
    expected = model.generate(PROMPTS[0], method="lantern", temperature=0.5, k=20, delta=0.1)
    assert torch.equal(found.codes.int(), expected.codes)
    assert model.make_decoder("jacobi").sampling == model.sampling


def test_captured_steps_are_kept_for_later_calls(model, monkeypatch, tapes):
    made = []
    expected = {name: model.generate(PROMPTS[0], method=name).codes for name in ("jacobi", "eagle1", "coupled")}
    monkeypatch.setattr(api, "make_decoder", lambda *parts: made.append(captured(make_decoder(*parts))) or made[-1])
    model = replace(model, _decoders=[])
    for name in ("jacobi", "eagle1", "jacobi", "coupled", "eagle1"):
        assert torch.equal(model.generate(PROMPTS[0], method=name).codes, expected[name])
    assert [decoder.spec.name for decoder in made] == ["jacobi", "eagle1", "coupled", "eagle1"]
    assert model._decoders == made[2:]
    parts = (model.models, made[2].spec, made[2].sampling)
    assert model._take_decoder(*parts) is made[2] and model._take_decoder(*parts) is None  # while it is in use
    assert model._take_decoder(replace(model.models, target=None), made[-1].spec, made[-1].sampling) is None


def test_a_seed_and_options_change_what_is_drawn_and_static_trees_are_the_models(model):
    first = model.generate(PROMPTS[0], method="eagle1")
    assert first.records.metadata["method"]["tree"] == "chain3"
    assert torch.equal(first.codes, model.generate(PROMPTS, method="eagle1").codes[:1])
    for other in ({"seed": 1}, {"temperature": 0.0}, {"cfg_scale": 1.0}, {"tree": "chain1"}):
        found = model.generate(PROMPTS[0], method="eagle1", **other)
        assert not torch.equal(found.codes, first.codes), other
    assert (found.steps > first.steps).all()
    assert model.generate(PROMPTS[0], method="zipar", window=4).steps < 64  # which has a loop of its own


def test_a_small_model_draws_on_one_thread_and_gives_the_others_back(model, monkeypatch):
    before, seen = torch.get_num_threads(), []

    def fail(*_, **options):
        seen.append(torch.get_num_threads())
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "generate_records", fail)
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt):
            model.generate(PROMPTS[0])
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def test_an_unknown_name_lists_the_known_and_missing_files_are_named():
    with pytest.raises(ValueError, match=r"embedded, fashion, llamagen_s.* got 'embeded'"):
        lantern.load("embeded")
    with pytest.raises(FileNotFoundError, match=r"llamagen_stage1 .*target=.*text=.* google/flan-t5-xl"):
        lantern.load("llamagen_stage1")
    with pytest.raises(ValueError, match=r"drafter\.safetensors .* target_model, found draft_model"):
        lantern.load("embedded", target=WEIGHTS / "drafter.safetensors")


@contextmanager
def setting(owner, name, value):
    before = getattr(owner, f"get_{name}")()
    getattr(owner, f"set_{name}")(value)
    try:
        yield
    finally:
        getattr(owner, f"set_{name}")(before)


@pytest.mark.parametrize("is_inferring", [True, False])
def test_the_callers_settings_of_torch_change_nothing(model, is_inferring):
    expected = model.generate(PROMPTS[0], "hybrid")
    with ExitStack() as surroundings:
        enter = surroundings.enter_context
        if is_inferring:
            enter(torch.autocast("cpu", torch.bfloat16))
            enter(torch.inference_mode())
        else:
            enter(setting(torch, "default_dtype", torch.float64))
            enter(setting(torch, "float32_matmul_precision", "medium"))
            enter(torch.device("meta"))
        before = torch.get_default_dtype(), torch.get_default_device(), torch.get_float32_matmul_precision()
        for other in (model, lantern.load("embedded")):
            found = other.generate(PROMPTS[0], "hybrid")
            assert torch.equal(found.codes, expected.codes) and (found.pixels == expected.pixels).all()
        after = torch.get_default_dtype(), torch.get_default_device(), torch.get_float32_matmul_precision()
        assert before == after
    assert torch.equal(other.generate(PROMPTS[0], "hybrid").codes, expected.codes)


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="before torch 2.9")
@pytest.mark.parametrize(("own", "later"), [("none", "ieee"), ("tf32", "tf32")])
def test_a_precision_of_all_backends_is_inherited_again(own, later):
    everything, part = torch.backends, torch.backends.cuda.matmul
    before = everything.fp32_precision, part.fp32_precision
    try:
        everything.fp32_precision, part.fp32_precision = "tf32" if own == "none" else "none", own
        with shut_out_settings():
            assert part.fp32_precision == "ieee"
        assert part.fp32_precision == "tf32"
        everything.fp32_precision = "ieee"
        assert part.fp32_precision == later
    finally:
        everything.fp32_precision, part.fp32_precision = before


def test_a_pickled_model_draws_the_same(model):
    expected = model.generate(PROMPTS[0], "hybrid")
    assert torch.equal(pickle.loads(pickle.dumps(model)).generate(PROMPTS[0], "hybrid").codes, expected.codes)


def test_float16_draws_and_an_overflow_is_said():
    model = lantern.load("embedded", dtype="float16")
    assert model.models.target.dtype == torch.float16 and model.generate(PROMPTS[0], "hybrid").pixels.std() > 10
    model.models.target.layers[0].down.weight.data.mul_(1e8)
    with pytest.raises(FloatingPointError, match="not finite"):
        model.generate(PROMPTS[0])


def test_whole_numbers_of_numpy_and_torch_are_those_of_python(model):
    expected = model.generate(PROMPTS[0], "lantern", size=48, seed=3, k=4, delta=0.1)
    options = {"size": (np.uint8(48), torch.tensor(48)), "seed": torch.tensor(3), "batch_size": np.int64(2)}
    found = model.generate(PROMPTS[0], "lantern", **options, num_images=np.int64(1), k=np.uint8(4), delta=0.1)
    assert torch.equal(found.codes, expected.codes)
    json.dumps(found.records.metadata)
    for wrong in (0, True, torch.tensor(True), np.bool_(True), torch.tensor([1, 1]), 1.0):
        with pytest.raises(ValueError, match="batch_size of generate must be an integer >= 1"):
            model.generate(PROMPTS[0], batch_size=wrong)


def test_a_number_beyond_float32_is_named(model):
    for name, value in (("temperature", 1e-39), ("temperature", 1e39), ("cfg_scale", 1e38), ("seed", 1e3)):
        with pytest.raises(ValueError, match=f"^{name} "):
            model.generate(PROMPTS[0], **{name: value})
    with pytest.raises(ValueError, match=r"^lambda_ "):
        model.generate(PROMPTS[0], method="lantern_pp", k=4, lambda_=1e39)


def test_the_smallest_temperature_is_greedy_and_large_guidance_draws(model):
    greedy = model.generate(PROMPTS[0], temperature=0.0).codes
    assert torch.equal(model.generate(PROMPTS[0], temperature=1e-38).codes, greedy)
    assert model.generate(PROMPTS[0], temperature=1e-30, cfg_scale=1e30).codes.shape == greedy.shape


def test_a_published_layout_is_read_by_its_name_and_paths(tmp_path, monkeypatch):
    """LlamaGen for ten classes in its original layout, with a small VQ-16."""
    card = replace(
        CARDS["llamagen_c2i"],
        prompts=PromptSettings("classes", num_classes=10),
        images=ImageSettings(size=12, grid=6, codebook_size=64, code_dim=8),
        target={"dim": 64, "num_layers": 3, "num_heads": 4, "ffn_multiple": 256},
    )
    monkeypatch.setitem(CARDS, "llamagen_c2i", card)
    torch.manual_seed(0)
    sizes = VQ16Config(grid=6, codebook_size=64, channels=32, channel_multipliers=(1, 2), latent_channels=8)
    save_file(VQ16(sizes).state_dict(), tmp_path / "vq.safetensors")
    torch.save({"model": draw_c2i(ffn_hidden=256)}, tmp_path / "c2i_B_96.pt")
    files = {"target": tmp_path / "c2i_B_96.pt", "tokenizer": tmp_path / "vq.safetensors"}
    model = lantern.load("llamagen_c2i", **files)
    images = model.generate(["3", "7"])
    assert images.pixels.shape == (2, 12, 12, 3) and images.codes.shape == (2, 36) and images.codes.max() < 64
    assert torch.equal(images.codes, model.generate(["3", "7"], method="autoregressive").codes)
    assert model.sampling == SamplingConfig(top_k=0, cfg_scale=2.0)
    with pytest.raises(ValueError, match="needs a draft model"):
        model.generate("3", method="eagle1")


def test_a_finished_runs_folder_is_read_by_its_card(tmp_path):
    card, files = read_card(WEIGHTS), {"tokenizer": "tokenizer", "target": "target/s0"}
    for name, place in files.items():
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "model.safetensors").symlink_to(WEIGHTS / f"{name}.safetensors")
    files = {name: f"{place}/model.safetensors" for name, place in files.items()}
    write_json(tmp_path / "card.json", replace(card, files=files).to_dict())
    model = lantern.load(tmp_path)
    assert model.models.draft is None
    assert torch.equal(model.generate(PROMPTS[0]).codes, lantern.load("embedded").generate(PROMPTS[0]).codes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "jakobi"}, "preset must be one of autoregressive, "),
        ({"method": ["jacobi"]}, "preset must be one of autoregressive, "),
        ({"method": "lantern", "delta": 0.1}, "needs k"),
        ({"method": "lantern", "k": 1024, "delta": 0.1}, "k must be in [1, 1023] for a codebook of 1024 codes"),
        ({"method": "lantern", "k": True, "delta": 0.1}, "k of lantern must be an integer >= 1, got True"),
        ({"prompts": "a hippopotamus"}, "'hippopotamus'; known words: a, small"),
        ({"cfg_scale": float("nan")}, "cfg_scale must be a finite number, got nan"),
        ({"cfg_scale": "3"}, "cfg_scale must be a finite number, got '3'"),
        ({"temperature": -1.0}, "temperature must be >= 0"),
        ({"temperature": True}, "temperature must be a finite number, got True"),
        *(({"seed": seed}, f"seed of generate must be an integer, got {seed!r}") for seed in (1.5, [1], True)),
        *(({"prompts": texts}, f"prompts must be a text or a list of one or more, got {texts}") for texts in ([], [3])),
        ({"tree": ["chain3"]}, "tree of jacobi must be a name, got ['chain3']"),
        ({"drafts": 5}, "drafts must be one of sampled, "),
        ({"acceptance": ["a:b"]}, "acceptance must be one of exact, "),
        ({"residual": 5}, "residual of jacobi must be a name, got 5"),
        ({"tree_shape": 5}, "tree_shape of jacobi must be a list of paths, or the options of a dynamic tree, got 5"),
        ({"name": "mine"}, "takes no name, got 'mine'; pass it as method_id"),
        ({"tree": "chain10000000"}, "tree chain10000000 must be at most 32 drafts deep, got 10000000"),
        ({"method": "path_relax", "tree": "chain9x99999999"}, "must have at most 64 chains, got 99999999"),
        (
            {"method": "eagle2", "tree_shape": {"num_nodes": 8, "depth": 10**9, "top_k": 2}},
            "depth of a dynamic tree must be < 32, got 1000000000",
        ),
        ({"method": "eagle2", "tree_shape": {"depth": 2.0}}, "of a dynamic tree must be an integer >= 1, got 2.0"),
        ({"method": "eagle2", "tree_shape": {"width": 2}}, "tree_shape of eagle2 must be a list of paths, or "),
    ],
)
def test_a_bad_argument_is_named_with_its_bound_and_value(model, options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        model.generate(**{"prompts": PROMPTS[0], **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"source": 5}, "source must be a path, got 5"),
        ({"target": 5}, "target must be a path, got 5"),
        ({"dtype": "float64"}, "float32, bfloat16, float16, got 'float64'"),
        ({"dtype": torch.bfloat16}, "float32, bfloat16, float16, got torch.bfloat16"),
        ({"device": "meta"}, "got 'meta'"),
        ({"device": "cuda:77"}, "got 'cuda:77'"),
        ({"device": 1.5}, "got 1.5"),
    ],
)
def test_what_cannot_be_loaded_is_named(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        lantern.load(**options)


def test_a_gpu_that_is_not_there_is_one_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=r"device .* 0 GPUs .* got 'cuda'"):
        lantern.load(device="cuda")


def test_the_largest_k_draws(model):
    found = model.generate(PROMPTS[0], method="proximity", drafts="jacobi", tree="chain3", k=1023)
    assert found.codes.shape == (1, 64) and (found.steps < 64).all()


def test_threads_follow_from_the_targets_size():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for dim, expected in ((128, 1), (256, 2), (1024, 3)):
            with api._limited_threads(TargetConfig(dim=dim)):
                assert torch.get_num_threads() == expected
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_draws_that_overlap_in_threads_give_the_number_of_threads_back(model, monkeypatch):
    """Two overlapping calls: the first begins, the second begins, the first ends, the second ends."""
    before, seen = torch.get_num_threads(), []
    begun, may_end = (Event(), Event()), (Event(), Event())

    def wait(*_, **options):
        torch.zeros(1).add_(1)
        place = len(seen)
        seen.append(torch.get_num_threads())
        begun[place].set()
        assert may_end[place].wait(60)
        raise KeyboardInterrupt

    def draw():
        with pytest.raises(KeyboardInterrupt):
            model.generate(PROMPTS[0])

    def ask():
        later.append(torch.get_num_threads())

    monkeypatch.setattr(api, "generate_records", wait)
    torch.set_num_threads(2)
    later, draws = [], [Thread(target=draw), Thread(target=draw)]
    try:
        for place, thread in enumerate(draws):
            thread.start()
            assert begun[place].wait(60)
        for place, thread in enumerate(draws):
            may_end[place].set()
            thread.join(60)
        asking = Thread(target=ask)
        asking.start()
        asking.join(60)
        assert seen == [1, 1] and [*later, torch.get_num_threads()] == [2, 2]
    finally:
        torch.set_num_threads(before)


def test_a_call_stays_limited_when_an_overlapping_one_ends_before_its_thread_has_used_torch():
    before, found = torch.get_num_threads(), []
    begun, may_end, has_ended = Event(), Event(), Event()

    def first():
        with api._limited_threads(TargetConfig()):
            begun.set()
            assert may_end.wait(60)
        has_ended.set()

    def second():
        assert begun.wait(60)
        with api._limited_threads(TargetConfig()):
            may_end.set()
            assert has_ended.wait(60)
            found.append(torch.get_num_threads())
        found.append(torch.get_num_threads())

    torch.set_num_threads(2)
    try:
        calls = [Thread(target=first), Thread(target=second)]
        for call in calls:
            call.start()
        for call in calls:
            call.join(60)
        assert found == [1, 2]
    finally:
        torch.set_num_threads(before)
