"""Numbers of language models that draw (tests/data/llama), reproduced by the same transformer with other options.

Made by public code: Anole and Lumina-mGPT by transformers 4.45.2 and jadohu/LANTERN@3a56e45, Janus-Pro by
deepseek-ai/Janus@1daa72f, Emu3 by baaivision/Emu3@f6ea9aa.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import DATA
from families import anole_drafter, as_meta, draw_anole, draw_emu3, draw_janus, one_row_of_norms, save_tokenizer
from lantern.attention_mask import window_table
from lantern.checkpoints.drafter import read_draft
from lantern.checkpoints.native import load_model, save_model
from lantern.checkpoints.target import read_target
from lantern.decoding import DecodingModels, make_decoder
from lantern.methods import MethodSpec, make_method
from lantern.models.config import target_parameters
from lantern.models.target import TargetConfig, TargetModel
from lantern.models.transformer import cast_weights
from lantern.sampling import SamplingConfig
from lantern.tree_shapes import DynamicTreeOptions
from lantern_pipeline.data.token_prompts import TokenPromptEncoder
from published_layouts import refusal

STORED = load_file(DATA / "llama" / "target_io.safetensors")
ACCEPTED = json.loads((DATA / "llama" / "anole_accepted.json").read_text())
GREEDY = json.loads((DATA / "llama" / "greedy_codes.json").read_text())
SIZES = TargetConfig(64, 3, 4, vocab_size=64, grid=6, num_text_tokens=14)
CONFIGS = {
    "anole": replace(SIZES, null_ids=(0, 69)),
    "lumina": replace(SIZES, vocab_size=65, grid=4, null_ids=(69, 75, 75), line_end=72),
    "janus": replace(SIZES, grid=4, null_ids=(0, 7), null_filler=2),
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
    """The models as they are published, Janus' with its config beside it."""
    folder = tmp_path_factory.mktemp("llama")
    for family in CONFIGS:
        (folder / family).mkdir()
    settings = {"num_attention_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
    (folder / "janus" / "config.json").write_text(json.dumps({"language_config": settings}))
    anole = draw_anole()
    save_file(anole, folder / "anole" / "model.safetensors")
    torch.save(as_meta(anole), folder / "consolidated.pth")
    (folder / "drafter").mkdir()
    save_file(anole_drafter(), folder / "drafter" / "model.safetensors")
    shutil.copy(DATA / "llama" / "anole_drafter.json", folder / "drafter" / "config.json")
    save_file(one_row_of_norms(anole), folder / "lumina" / "model.safetensors")
    save_file(draw_emu3(), folder / "emu3" / "model.safetensors")
    torch.save(draw_janus() | {"vision_model.norm.weight": torch.zeros(1)}, folder / "janus" / "pytorch_model.bin")
    return folder


def read(folder, family: str) -> TargetModel:
    return read_target(folder / family, CONFIGS[family])


def prompts_of(family: str, numbers: range) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids behind pads, and their mask."""
    rows = [STORED[f"{family}.p{number}.prompt_ids"].long() for number in numbers]
    rows = [torch.cat([row, LUMINA_END]) for row in rows] if family == "lumina" else rows
    width = CONFIGS[family].num_text_tokens
    ids = torch.stack([torch.nn.functional.pad(row, (width - len(row), 0), value=1) for row in rows])
    return ids, torch.stack([torch.arange(width) >= width - len(row) for row in rows])


@pytest.fixture(scope="module")
def anole_prompts(tmp_path_factory):
    """The stored prompts as captions of numbers, read by a tokenizer.json that has them as words."""
    specials = {"<s>": 0, "<racm3:break>": 69, "<reserved08706>": 70}
    words = [f"w{id}" for id in range(72, 160)]
    path = save_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json", specials, words, first_word=71)
    encoder = TokenPromptEncoder("anole", path, SIZES.num_text_tokens)
    assert encoder.null_prompt["null_ids"] == CONFIGS["anole"].null_ids
    rows = [STORED[f"anole.p{number}.prompt_ids"].tolist() for number in range(3)]
    return encoder.encode([" ".join(f"w{id}" for id in row[1:-2]) for row in rows])


def test_captions_become_the_stored_prompts(anole_prompts):
    ids, mask = prompts_of("anole", range(3))
    assert torch.equal(anole_prompts[1], mask) and torch.equal(anole_prompts[0][mask], ids[mask])


def columns(family: str, name: str) -> torch.Tensor:
    found = [key for key in STORED if key.startswith(f"{family}.p") and key.endswith(name)]
    return torch.stack([STORED[key] for key in sorted(found)])


@pytest.mark.parametrize(("family", "scale"), [("anole", 3.0), ("lumina", 3.0), ("janus", 5.0), ("emu3", 3.0)])
def test_logits(folder, family, scale):
    """Of images under their captions and the null prompt, in one pass and node by node behind the prompt."""
    target, codes = read(folder, family), columns(family, "codes").long()[:, :-1]
    prompts, first = prompts_of(family, range(len(codes))), target.config.num_text_tokens
    with torch.inference_mode():
        hidden = target.forward_with_null(*prompts, codes).unflatten(0, (2, -1))[:, :, first - 1 :]
        guided = target.guided_logits(hidden, scale)
        _, cache = target.prepare_for_decoding().prefill(*target.with_null(*prompts), first + codes.shape[1])
        slots = torch.arange(first, first + codes.shape[1]).expand(codes.shape)
        window = window_table(torch.ones(1, codes.shape[1], codes.shape[1], dtype=torch.bool).tril(), torch.float32)
        stepped = target.extend(cache, codes, slots, slots, cache.mask(window, slots[:, 0]))
        captioned, null = target.read_logits(hidden)
    close = {"atol": 1e-4, "rtol": 0}
    for logits, name in ((captioned, "logits_cond"), (null, "logits_uncond"), (guided, f"logits_cfg_{scale}")):
        torch.testing.assert_close(logits[..., :64], columns(family, name), atol=scale * 1e-4, rtol=0)
    torch.testing.assert_close(stepped, hidden[:, :, 1:], **close)


@pytest.mark.parametrize("method", ["autoregressive", "jacobi"])
@pytest.mark.parametrize(
    ("family", "scale"),
    [
        *(("anole", scale) for scale in (3.0, 5.0)),
        *(("janus", scale) for scale in (1.0, 2.0, 5.0)),
        *((family, scale) for family in ("lumina", "emu3") for scale in (1.5, 3.0)),
    ],
)
def test_greedy_codes(folder, family, scale, method):
    """Where lines end in a token, those of the lines alone are stored."""
    numbers = range(len(GREEDY[family]) // len({name.split("/")[1] for name in GREEDY[family]}))
    models = DecodingModels(read(folder, family).prepare_for_decoding())
    decoder = make_decoder(models, make_method(method), SamplingConfig(temperature=0.0, cfg_scale=scale))
    generation = decoder.generate(*prompts_of(family, numbers), [decoder.make_noise(0, str(i)) for i in numbers])
    config, tokens = CONFIGS[family], generation.codes
    is_end = config.ends_line(torch.arange(tokens.shape[1]))
    assert (tokens[:, is_end] == config.num_codes).all()
    assert tokens[:, ~is_end].tolist() == [GREEDY[family][f"p{i}/cfg{scale}"] for i in numbers]


def method_of(run: str) -> MethodSpec:
    """A stored run: eagle_<tree> is exact, lantern_k<k>_d<delta>_<tree> relaxed by delta, or by lambda above 1."""
    name, *numbers, tree = run.split("_")
    parts = {"tree": "dynamic", "tree_shape": DynamicTreeOptions(58, 4, 10), "drafts": "top"}
    if tree == "static":
        parts = {"tree": "naive_extend_57", "drafts": "sampled"}
    if name == "eagle":
        return MethodSpec.of(name="exact", **parts)
    k, delta = int(numbers[0][1:]), float(numbers[1][1:])
    bound = {"acceptance": "multiplicative", "lambda_": delta} if delta > 1 else {"delta": delta}
    bound = {"acceptance": "additive", **bound}
    return MethodSpec.of("relaxed", **bound, k=k, residual="official", neighbours="l2", **parts)


@pytest.mark.parametrize("run", sorted(ACCEPTED["p0/cfg3.0"]))
@pytest.mark.parametrize("scale", [3.0, 5.0])
def test_greedy_codes_and_accepted_lengths_of_the_published_drafters_layout(folder, anole_prompts, scale, run):
    """The drafter sees each prompt's own ids, and nothing of the pads in front."""
    target, table = read(folder, "anole"), STORED["anole.nearest_codes"].long()
    draft = read_draft(folder / "drafter", target.config)
    models = DecodingModels(target.prepare_for_decoding(), draft.prepare_for_decoding(), table)
    decoder = make_decoder(models, method_of(run), SamplingConfig(temperature=0.0, cfg_scale=scale))
    generation = decoder.generate(*anole_prompts, [decoder.make_noise(0, i) for i in "abc"])
    for i, codes in enumerate(generation.codes.tolist()):
        stored = ACCEPTED[f"p{i}/cfg{scale}"][run]
        assert codes == stored["ids"]
        mine = [n for n in generation.accepted_lengths[i].tolist() if n >= 0]
        assert mine[:-1] == stored["accept"][: len(mine) - 1]  # the last step may overshoot the image


def test_metas_layout_is_the_same_model(folder):
    found, expected = (read_target(folder / name, CONFIGS["anole"]) for name in ("consolidated.pth", "anole"))
    assert found.config == expected.config
    for name, value in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name


@pytest.mark.parametrize("scale", [1.5, 3.0])
def test_accepted_lengths_where_lines_end_in_a_token(folder, tmp_path, scale):
    """Lumina-mGPT's drafter is Anole's, but for one row of norms for all heads."""
    target, drafter = read(folder, "lumina"), load_file(folder / "drafter" / "model.safetensors")
    save_file(one_row_of_norms(drafter), tmp_path / "model.safetensors")
    shutil.copy(DATA / "llama" / "anole_drafter.json", tmp_path / "config.json")
    draft = read_draft(tmp_path, target.config)
    spec = MethodSpec.of(name="exact", tree="dynamic", tree_shape=DynamicTreeOptions(58, 5, 10), drafts="top")
    models = DecodingModels(target.prepare_for_decoding(), draft.prepare_for_decoding())
    decoder = make_decoder(models, spec, SamplingConfig(temperature=0.0, cfg_scale=scale))
    accepted = json.loads((DATA / "llama" / "lumina_accepted.json").read_text())
    generation = decoder.generate(*prompts_of("lumina", range(2)), [decoder.make_noise(0, i) for i in "ab"])
    for i, tokens in enumerate(generation.codes):
        assert tokens.view(4, 5)[:, :4].flatten().tolist() == GREEDY["lumina"][f"p{i}/cfg{scale}"]
        mine, stored = generation.accepted_lengths[i].tolist(), accepted[f"p{i}/cfg{scale}"]
        mine = [n for n in mine if n >= 0][:-1]  # the last step may overshoot the image
        assert mine == stored[: len(mine)]


@pytest.mark.parametrize("family", CONFIGS)
def test_our_own_layout_its_size_and_a_lower_precision(folder, tmp_path, family):
    target = read(folder, family)
    save_model(tmp_path / "model.safetensors", target)
    assert load_model(tmp_path / "model.safetensors", TargetModel).config == target.config
    assert sum(part.numel() for part in target.parameters()) == target_parameters(target.config)
    (ids, mask), wide = prompts_of(family, range(1)), {"head.weight", "head.bias", "head_in.weight", "head_in.bias"}
    lower = cast_weights(target, torch.bfloat16)
    assert {name for name, part in lower.named_parameters() if part.dtype == torch.float32} <= wide
    logits = lower.guided_logits(lower(ids, mask, torch.zeros(1, 1, dtype=torch.int64))[None], 1.0)
    assert logits.dtype == torch.float32 and logits.isfinite().all()


def test_what_does_not_fit_is_one_sentence(folder, tmp_path):
    captions = replace(CONFIGS["anole"], null_ids=())
    sentence = refusal(lambda: read_target(folder / "anole", captions))
    assert "what it draws from should be captions as text.encoder says, found ids of tokens" in sentence
    sentence = refusal(lambda: read_target(folder / "janus", replace(CONFIGS["janus"], num_heads=2)))
    assert "num_attention_heads should be 2 as target.num_heads says, found 4" in sentence
    sentence = refusal(lambda: read_target(folder / "anole", replace(CONFIGS["anole"], dim=128)))
    assert "should have shape (160, 128), found (160, 64)" in sentence
    save_file({"gen_head.vision_head.weight": torch.zeros(1)}, tmp_path / "cut.safetensors")
    sentence = refusal(lambda: read_target(tmp_path / "cut.safetensors", CONFIGS["janus"]))
    assert "cut.safetensors lacks the tensor gen_embed.weight" in sentence
