"""Tests that numbers of other families of targets are reproduced by the same transformer with other options.

The numbers were made by public code: LlamaGen for classes (tests/data/c2i) by LlamaGen@ce98ec4; in tests/data/llama,
Anole and Lumina-mGPT by transformers 4.45.2 and jadohu/LANTERN@3a56e45, Janus-Pro by deepseek-ai/Janus@1daa72f, Emu3 by
baaivision/Emu3@f6ea9aa.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.families import (
    LLAMA,
    anole_drafter,
    as_meta,
    draw_anole,
    draw_c2i,
    draw_emu3,
    draw_janus,
    one_row_of_norms,
    save_tokenizer,
    settings_of,
)
from helpers.paths import DATA
from helpers.published_layouts import refusal
from helpers.reference_runs import assert_accepted, generate, method_of
from lantern.decoding import make_decoder
from lantern.kv_cache import window_table
from lantern.methods import MethodSpec, make_method
from lantern.models.config import target_parameters
from lantern.models.draft import DraftModel
from lantern.models.stored import save_model
from lantern.models.target import Target, TargetConfig
from lantern.models.transformer import cast_weights
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern.tree_shapes import DynamicTreeOptions
from lantern_models.cards.card import PromptSettings
from lantern_models.checkpoints.drafter import read_draft
from lantern_models.checkpoints.target import load_target, read_target
from lantern_models.text.token_prompts import TokenPromptEncoder
from lantern_pipeline.training.drafter_loss import run_target, unroll

CLASSES = load_file(DATA / "c2i" / "target_io.safetensors")
STORED = load_file(LLAMA / "target_io.safetensors")
ACCEPTED = {name: json.loads((LLAMA / f"{name}_accepted.json").read_text()) for name in ("anole", "lumina")}
GREEDY = json.loads((LLAMA / "greedy_codes.json").read_text())
SIZES = TargetConfig(64, 3, 4, vocab_size=64, grid=4, num_text_tokens=14)
CONFIGS = {
    "c2i": replace(SIZES, ffn_multiple=32, **PromptSettings("classes", num_classes=10).sizes()),
    "anole": replace(SIZES, grid=6, null_ids=(0, 69)),
    "lumina": replace(SIZES, vocab_size=65, null_ids=(69, 75, 75), line_end=72),
    "janus": replace(SIZES, null_ids=(0, 7), null_filler=2),
    "emu3": replace(
        SIZES,
        vocab_size=65,
        grid=3,
        columns=4,
        rope_base=1e6,
        null_ids=tuple(STORED["emu3.negative_ids"].tolist()),
        line_end=41,
    ),
}
LUMINA_END = torch.tensor([69, 75, 75])  # begin of image, its height and width


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write the models in their published layouts, with the config of Janus next to its weights."""
    folder = tmp_path_factory.mktemp("families")
    for family in CONFIGS:
        (folder / family).mkdir()
    torch.save({"model": draw_c2i(), "steps": 1}, folder / "c2i" / "c2i_tiny.pt")
    torch.save(draw_c2i(), folder / "c2i_sharded.pt")  # XXL and 3B, whose tensors are at the top
    for family in ("anole", "lumina", "janus", "emu3"):
        rope = {"rope_theta": 1e6} if family == "emu3" else {}
        (folder / family / "config.json").write_bytes(settings_of(family, **rope))
    anole = draw_anole()
    save_file(anole, folder / "anole" / "model.safetensors")
    torch.save(as_meta(anole), folder / "anole_meta.pth")
    for name, drafter in {"anole": anole_drafter(), "lumina": one_row_of_norms(anole_drafter())}.items():
        (folder / f"{name}_drafter").mkdir()
        save_file(drafter, folder / f"{name}_drafter" / "model.safetensors")
        shutil.copy(LLAMA / "anole_drafter.json", folder / f"{name}_drafter" / "config.json")
    save_file(one_row_of_norms(anole), folder / "lumina" / "model.safetensors")
    save_file(draw_emu3(), folder / "emu3" / "model.safetensors")
    torch.save(draw_janus(), folder / "janus" / "pytorch_model.bin")
    return folder


def read(folder, family: str, file: str | None = None, **changes: object) -> Target:
    return read_target(folder / (file or family), replace(CONFIGS[family], **changes), family=family)


def prompts_of(family: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the prompts of a family, class ids or token ids after padding, and their mask."""
    if family == "c2i":
        return CLASSES["labels"][:, None].long(), torch.ones(len(CLASSES["labels"]), 1, dtype=torch.bool)
    rows = [
        STORED[key].long() for key in sorted(STORED) if key.startswith(f"{family}.p") and key.endswith("prompt_ids")
    ]
    rows = [torch.cat([row, LUMINA_END]) for row in rows] if family == "lumina" else rows
    width = SIZES.num_text_tokens
    ids = torch.stack([torch.nn.functional.pad(row, (width - len(row), 0), value=1) for row in rows])
    return ids, torch.stack([torch.arange(width) >= width - len(row) for row in rows])


def stored_of(family: str, name: str) -> torch.Tensor:
    if family == "c2i":
        return CLASSES[name]
    keys = sorted(key for key in STORED if key.startswith(f"{family}.p") and key.endswith(name))
    return torch.stack([STORED[key] for key in keys])


@pytest.mark.parametrize("vocabulary", ["there", "missing", "null"])
def test_lumina_is_read_by_its_authors_class_and_without_a_vocabulary(folder, tmp_path, vocabulary):
    expected = read(folder, "lumina")
    settings = json.loads((folder / "lumina" / "config.json").read_text())
    settings["architectures"] = ["ChameleonXLLMXForConditionalGeneration"]
    if vocabulary != "there":
        del settings["vocabulary_map"]
    if vocabulary == "null":
        settings["vocabulary_map"] = None
    (tmp_path / "config.json").write_text(json.dumps(settings))
    shutil.copy(folder / "lumina" / "model.safetensors", tmp_path)
    found = read_target(tmp_path, CONFIGS["lumina"], family="lumina")
    assert found.config.line_end == 72 and torch.equal(found.ids, expected.ids)
    mine, theirs = found.state_dict(), expected.state_dict()
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.fixture(scope="module")
def anole_prompts(tmp_path_factory):
    """Return the stored prompts as captions of numbers, which a tokenizer.json reads as words."""
    specials = {"<s>": 0, "<racm3:break>": 69, "<reserved08706>": 70}
    words = [f"w{id}" for id in range(72, 160)]
    path = save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json", specials, words, first_word=71)
    encoder = TokenPromptEncoder.of_file("anole", path, SIZES.num_text_tokens)
    assert encoder.null_prompt["null_ids"] == CONFIGS["anole"].null_ids
    rows = [STORED[f"anole.p{number}.prompt_ids"].tolist() for number in range(3)]
    ids, mask = encoder.encode([" ".join(f"w{id}" for id in row[1:-2]) for row in rows])
    expected = prompts_of("anole")
    assert torch.equal(mask, expected[1]) and torch.equal(ids[mask], expected[0][mask])
    return ids, mask


@pytest.mark.parametrize(
    ("family", "scale"), [("c2i", 4.0), ("anole", 3.0), ("lumina", 3.0), ("janus", 5.0), ("emu3", 3.0)]
)
def test_logits(folder, family, scale):
    """Images under their captions and the null prompt, in one pass and node by node after the prompt."""
    target, codes = read(folder, family), stored_of(family, "codes").long()[:, :-1]
    prompts, first = [part[: len(codes)] for part in prompts_of(family)], target.config.num_text_tokens
    with torch.inference_mode():
        hidden = target.forward_with_null(*prompts, codes).unflatten(0, (2, -1))[:, :, first - 1 :]
        guided = target.guided_logits(hidden, scale)
        _, cache = target.prepare_for_decoding().prefill(*target.with_null(*prompts), first + codes.shape[1])
        slots = torch.arange(first, first + codes.shape[1]).expand(codes.shape)
        window = window_table(torch.ones(1, codes.shape[1], codes.shape[1], dtype=torch.bool).tril(), torch.float32)
        stepped = target.extend(cache, codes, slots, slots, cache.mask(window, slots[:, 0]))
        captioned, null = target.read_logits(hidden)
    for logits, name in ((captioned, "logits_cond"), (null, "logits_uncond"), (guided, f"logits_cfg_{scale}")):
        torch.testing.assert_close(logits[..., :64], stored_of(family, name), atol=scale * 1e-4, rtol=0)
    torch.testing.assert_close(stepped, hidden[:, :, 1:], atol=1e-4, rtol=0)
    if family == "c2i":
        table = torch.view_as_complex(CLASSES["freqs_cis"])
        torch.testing.assert_close(target.rotary[: len(table)], table, atol=1e-6, rtol=0)


def greedy_codes(family: str, scale: float) -> list[list[int]]:
    if family == "c2i":
        return json.loads((DATA / "c2i" / "greedy_codes.json").read_text())[f"cfg{scale}"]
    return [GREEDY[family][f"p{number}/cfg{scale}"] for number in range(len(prompts_of(family)[0]))]


@pytest.mark.parametrize(
    ("family", "scales", "methods"),
    [
        ("c2i", (1.0, 2.0), ("autoregressive", "jacobi", "eagle2", "hybrid")),
        pytest.param("c2i", (1.5, 4.0), ("autoregressive", "jacobi", "eagle2", "hybrid"), marks=pytest.mark.slow),
        ("anole", (3.0,), ("autoregressive", "jacobi")),
        ("janus", (1.0, 5.0), ("autoregressive", "jacobi")),
        ("lumina", (3.0,), ("autoregressive", "jacobi")),
        ("emu3", (3.0,), ("autoregressive", "jacobi")),
    ],
)
def test_greedy_codes(folder, family, scales, methods):
    """Without guidance the null branch does not run. If lines end with a token, only codes of lines are stored."""
    target, config = read(folder, family), CONFIGS[family]
    draft = DraftModel.from_target(target, 0).eval().prepare_for_decoding() if family == "c2i" else None
    models = DecodingModels(target.prepare_for_decoding(), draft)
    for scale in scales:
        for method in methods:
            decoder = make_decoder(models, make_method(method), SamplingConfig(temperature=0.0, cfg_scale=scale))
            tokens = generate(decoder, prompts_of(family)).codes
            is_end = config.ends_line(torch.arange(tokens.shape[1]))
            assert (tokens[:, is_end] == config.num_codes).all()
            assert tokens[:, ~is_end].tolist() == greedy_codes(family, scale), (scale, method)


RUNS = sorted(ACCEPTED["anole"]["p0/cfg3.0"])


@pytest.mark.parametrize(
    ("scale", "run"),
    [
        pytest.param(scale, run, marks=[] if scale == 3.0 and number % 3 == 0 else pytest.mark.slow)
        for scale in (3.0, 5.0)
        for number, run in enumerate(RUNS)
    ],
)
def test_greedy_codes_and_accepted_lengths_of_the_published_drafters_layout(folder, anole_prompts, scale, run):
    """The drafter sees the ids of each prompt, but not the padding before them."""
    target, table = read(folder, "anole"), STORED["anole.nearest_codes"].long()
    draft = read_draft(folder / "anole_drafter", target.config)
    models = DecodingModels(target.prepare_for_decoding(), draft.prepare_for_decoding(), table)
    spec = method_of(run)
    generation = generate(make_decoder(models, spec, SamplingConfig(temperature=0.0, cfg_scale=scale)), anole_prompts)
    for i, codes in enumerate(generation.codes.tolist()):
        stored = ACCEPTED["anole"][f"p{i}/cfg{scale}"][run]
        assert codes == stored["ids"]
        assert_accepted(generation.accepted_lengths[i], stored["accept"], len(codes))


@pytest.mark.parametrize("scale", [3.0])
def test_accepted_lengths_where_lines_end_in_a_token(folder, scale):
    """Lumina-mGPT's drafter is Anole's, except that all heads share one norm."""
    target = read(folder, "lumina")
    draft = read_draft(folder / "lumina_drafter", target.config)
    models = DecodingModels(target.prepare_for_decoding(), draft.prepare_for_decoding())
    spec = MethodSpec.of("exact", tree="dynamic", tree_shape=DynamicTreeOptions(58, 5, 10), drafts="top")
    decoder = make_decoder(models, spec, SamplingConfig(temperature=0.0, cfg_scale=scale))
    generation = generate(decoder, prompts_of("lumina"))
    assert generation.codes.view(-1, 4, 5)[..., :4].flatten(1).tolist() == greedy_codes("lumina", scale)
    for i, accepted in enumerate(generation.accepted_lengths):
        assert_accepted(accepted, ACCEPTED["lumina"][f"p{i}/cfg{scale}"], 20)


@pytest.mark.parametrize(("family", "file"), [("c2i", "c2i_sharded.pt"), ("anole", "anole_meta.pth")])
def test_other_layouts_are_the_same_model(folder, family, file):
    found, expected = read(folder, family, file), read(folder, family)
    assert (
        replace(found.config, **({} if family == "c2i" else {"settings": expected.config.settings})) == expected.config
    )
    for name, value in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name


def test_a_drafter_of_classes_learns_on_the_rows_on_which_it_drafts(folder):
    """The first position pairs the hidden state of the class with image token 0; nothing is before it."""
    target, codes = read(folder, "c2i"), CLASSES["codes"].long()
    draft = DraftModel.from_target(target, 0).eval()
    torch.nn.init.normal_(draft.layer.attention_out.weight, std=0.3)
    with torch.inference_mode():
        codes, mask, hidden = run_target(target, codes, *prompts_of("c2i"), with_null=True)
        (learned,) = unroll(draft, codes, mask, hidden, 1)
        expected = draft(codes[:, :-1].repeat(2, 1), hidden[:, :-1], torch.full((15, 15), -torch.inf).triu(1))
    torch.testing.assert_close(learned, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", CONFIGS)
def test_our_own_layout_its_size_and_a_lower_precision(folder, tmp_path, family):
    target, path = read(folder, family), tmp_path / "model.safetensors"
    save_model(path, target)
    assert load_target(path).config == target.config
    assert sum(part.numel() for part in target.parameters()) == target_parameters(target.config)
    lower = cast_weights(target, torch.bfloat16)
    assert all(name.startswith("head") for name, part in lower.named_parameters() if part.dtype == torch.float32)
    ids, mask = (part[:1] for part in prompts_of(family))
    logits = lower.guided_logits(lower(ids, mask, torch.zeros(1, 1, dtype=torch.int64))[None], 1.0)
    assert logits.dtype == torch.float32 and logits.isfinite().all()


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        (
            "c2i",
            {"num_text_tokens": 8, "num_prompt_ids": 0, "null_ids": ()},
            "captions to fit the model (text encoder), found classes",
        ),
        ("anole", {"dim": 128}, "hidden_size should be 128 to fit the model (dim), found 64"),
        ("janus", {"num_heads": 2}, "num_attention_heads should be 2 to fit the model (num_heads), found 4"),
    ],
)
def test_what_does_not_fit_is_one_sentence(folder, family, changes, words):
    assert words in refusal(lambda: read(folder, family, **changes))


def test_a_cut_file_and_our_own_of_other_classes_are_one_sentence(folder, tmp_path):
    cut = {name: value for name, value in draw_janus().items() if "embeddings" not in name}
    save_file(cut, tmp_path / "cut.safetensors")
    (tmp_path / "config.json").write_bytes(settings_of("janus"))
    sentence = refusal(lambda: read_target(tmp_path / "cut.safetensors", CONFIGS["janus"], family="janus"))
    assert "cut.safetensors lacks the tensor model.generation_embeddings.weight (1 such)" in sentence
    cut["model.generation_embeddings.weight"] = torch.zeros(64, 9)
    save_file(cut, tmp_path / "cut.safetensors")
    sentence = refusal(lambda: read_target(tmp_path / "cut.safetensors", CONFIGS["janus"], family="janus"))
    wanted = "model.generation_embeddings.weight should have shape (64, 8) as config.json states, found (64, 9)"
    assert wanted in sentence
    sentence = refusal(lambda: read_target(tmp_path / "cut.safetensors", CONFIGS["janus"]))
    assert (
        "what it is prompted with should be captions to fit the model (text encoder), found ids of tokens" in sentence
    )
    sentence = refusal(lambda: read_target(tmp_path / "cut.safetensors", CONFIGS["emu3"], family="emu3"))
    assert (
        "architectures should be Emu3ForConditionalGeneration to fit the model (text encoder), found Janus" in sentence
    )
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    sentence = refusal(lambda: read_target(tmp_path / "cut.safetensors", CONFIGS["janus"], family="janus"))
    assert "must be one of Chameleon" in sentence and "to generate images, got BertModel" in sentence
    (tmp_path / "config.json").unlink()
    save_model(tmp_path / "model.safetensors", read(folder, "c2i"))
    assert read_target(tmp_path / "model.safetensors", CONFIGS["c2i"]).config == CONFIGS["c2i"]
    sentence = refusal(lambda: read_target(tmp_path / "model.safetensors", replace(CONFIGS["c2i"], num_prompt_ids=12)))
    assert "num_prompt_ids should be 12 to fit the model (num_prompt_ids), found 11" in sentence
