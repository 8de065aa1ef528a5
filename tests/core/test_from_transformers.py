"""`lantern.from_transformers(...).draw(...)`: images of stock models, their prompts and settings; the example."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tiny_transformers import make_tiny
from transformers import PreTrainedTokenizerFast

import lantern
from conftest import ROOT
from families import save_tokenizer

SPECIALS = {
    "janus": {
        "<｜begin▁of▁sentence｜>": 0,
        "<begin_of_image>": 7,
        "<｜▁pad▁｜>": 2,
        "<|User|>": 8,
        "<|Assistant|>": 9,
    },
    "emu3": {"<|extra_203|>": 1, "<|image start|>": 4, "<|image token|>": 5},
    "glm_image": {"<sop>": 3, "<eop>": 4, "<bos>": 20},
}


def open_tiny(tmp_path, name):
    model, row = make_tiny(name)
    path = save_tokenizer(tmp_path / "tokenizer.json", SPECIALS[name], ["a", "red", "cat", ":", "3", "2"])
    more = {"bos_token": "<bos>", "extra_special_tokens": {"grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}}
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path), **(more if name == "glm_image" else {}))
    return model, lambda **options: lantern.from_transformers(model, tokenizer, grid=row.grid, **options)


def test_images_are_drawn_as_the_models_own_settings_say_and_equal_one_by_one_decoding(tmp_path):
    _, wrap = open_tiny(tmp_path, "janus")
    model = wrap()
    assert (model.sampling.temperature, model.sampling.cfg_scale) == (1.0, 5.0)
    assert model.encoder.encode(["a red cat"])[0][0, -9:].tolist() == [0, 8, 104, 101, 102, 103, 9, 104, 7]
    prompts = ["a red cat", "cat"]
    images, expected = (model.draw(prompts, method=name) for name in ("jacobi", "autoregressive"))
    assert torch.equal(images.codes, expected.codes) and (images.steps < 16).all()
    assert images.pixels.shape[0] == 2 and images.pixels.dtype == "uint8"
    relaxed = model.draw(prompts, method="proximity", drafts="jacobi", tree="chain3", k=3)
    assert relaxed.codes.shape == (2, 16)


def test_emu3_has_a_negative_prompt_and_line_ends(tmp_path):
    _, wrap = open_tiny(tmp_path, "emu3")
    images = wrap().draw("a red cat", method="jacobi", cfg_scale=3.0)
    assert images.codes.shape == (1, 20) and (images.codes.view(4, 5)[:, 4] == 20).all()
    assert images.pixels.shape[1] == images.pixels.shape[2]


def test_glm_image_draws_codes_of_two_grids_alone(tmp_path, monkeypatch):
    from lantern_pipeline import pretrained

    (_, wrap), (_, row) = open_tiny(tmp_path, "glm_image"), make_tiny("glm_image")
    monkeypatch.setattr(pretrained, "family_of", lambda _: row)
    drawn = wrap()
    sides = [3, 105, 105, 4, 3, 106, 106, 4]
    assert drawn.encoder.encode(["a red cat"])[0][0, -12:].tolist() == [101, 102, 103, *sides, 20]
    images = drawn.draw("a red cat", method="jacobi")
    assert images.codes.shape == (1, 4 + 9) and images.pixels is None


def test_a_model_that_draws_no_images_is_one_sentence():
    with pytest.raises(ValueError, match=r"must be one of Janus.* to draw images, got Linear"):
        lantern.from_transformers(torch.nn.Linear(1, 1), None)


def test_the_example_gives_the_tokens_of_generate_in_fewer_forwards(tmp_path):
    lines = (ROOT / "examples" / "jacobi_on_transformers.py").read_text().splitlines()
    assert len(lines) <= 100
    command = [sys.executable, str(ROOT / "examples" / "jacobi_on_transformers.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs, ours, equal = done.stdout.splitlines()[:3]
    assert equal.split()[-1] == "True" and int(ours.split()[2]) < int(theirs.split()[3])
    assert (tmp_path / "image.png").is_file()
