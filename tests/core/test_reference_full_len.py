"""Numbers of the public reference code at full length (tests/data/full_len): 120 caption rows, 256 image tokens.

The models are read from files as they are published: LlamaGen's pickle, the authors' Hugging Face folder, the drafter's
pickle with its hard-coded position offset of 119. Prompt p1 has no padding, so that the drafts, too, are a property of
the models; p0 has padding (tests/core/test_reference.py compares drafts on padded prompts).
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_reference import check_dynamic_trees, check_static_tree, method_of

from conftest import DATA
from lantern.attention_mask import additive
from lantern.checkpoints.drafter import read_draft
from lantern.checkpoints.target import read_target
from lantern.decoding import DecodingModels, make_decoder
from lantern.methods import MethodSpec
from lantern.models.draft import DraftModel
from lantern.models.target import TargetModel
from lantern.sampling import SamplingConfig, guide
from published_layouts import CONFIG, as_hugging_face

FOLDER = DATA / "full_len"
SETTINGS = json.loads((FOLDER / "config.json").read_text())
GENERATIONS = json.loads((FOLDER / "generation.json").read_text())
SCALE = 3.0
LOGIT_TOLERANCE = 1e-4  # the official stepwise and full passes differ by 1.6e-5 themselves


def read_hugging_face(folder: Path) -> TargetModel:
    """The target as the LANTERN authors keep it.

    tests/core/checkpoints/test_llamagen.py shows that these are their tensors.
    """
    state = torch.load(FOLDER / "target_llamagen.pt", weights_only=True)["model"]
    save_file(as_hugging_face(state), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(SETTINGS["hf_config"]))
    return read_target(folder, CONFIG)


def read_drafter(folder: Path) -> DraftModel:
    (folder / "pytorch_model.bin").write_bytes((FOLDER / "drafter_pytorch_model.bin").read_bytes())
    (folder / "config.json").write_text(json.dumps(SETTINGS["drafter_config"]))
    return read_draft(folder, CONFIG)


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> SimpleNamespace:
    """Models before (`plain`) and after preparation for decoding, and the stored inputs and outputs."""
    folders = [tmp_path_factory.mktemp(name) for name in ("target", "drafter", "drafter")]
    return SimpleNamespace(
        plain=read_target(FOLDER / "target_llamagen.pt", CONFIG),
        target=read_hugging_face(folders[0]).prepare_for_decoding(),
        plain_draft=read_drafter(folders[1]),
        draft=read_drafter(folders[2]).prepare_for_decoding(),
        io=load_file(FOLDER / "target_io.safetensors"),
        tree=load_file(FOLDER / "tree_dynamic.safetensors"),
    )


def test_target_logits_with_and_without_padding(reference):
    """Every eighth of the 256 positions, of a prompt with and one without padded rows."""
    io, target = reference.io, reference.plain
    mask, codes, rows = io["mask_leftpad"].bool(), io["codes"].long()[:, :-1], io["rows"].long()
    assert not mask[0].all() and mask[1].all()
    close = {"atol": LOGIT_TOLERANCE, "rtol": 0}

    def run(features: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return target(features, visible, codes)[:, 119:][:, rows]

    with torch.inference_mode():
        captioned, null = run(io["cond_leftpad"], mask), run(*target.null_prompt(mask))
        torch.testing.assert_close(captioned, io["hidden_cond"], **close)
        torch.testing.assert_close(null, io["hidden_uncond"], **close)
        torch.testing.assert_close(target.head(captioned), io["logits_cond"], **close)
        torch.testing.assert_close(target.head(null), io["logits_uncond"], **close)
        guided = target.head(guide(torch.cat([captioned, null]), SCALE))
        # guidance multiplies the reference's own rounding by its scale
        torch.testing.assert_close(guided, io["logits_cfg_3.0"], atol=SCALE * LOGIT_TOLERANCE, rtol=0)
        unmasked = run(io["cond_leftpad"], torch.ones_like(mask))
        torch.testing.assert_close(target.head(unmasked), io["logits_cond_nomask"], **close)


def test_rotary_tables(reference):
    """The drafter's table has one caption row fewer: its row 119 is the first image token's."""
    stored = torch.view_as_complex(reference.io["freqs_cis"])
    torch.testing.assert_close(reference.plain.rotary[: len(stored)], stored, atol=1e-6, rtol=0)
    drafter = reference.plain_draft.rotary
    torch.testing.assert_close(drafter[119 : 119 + 256], stored[120:], atol=1e-6, rtol=0)
    assert (drafter[:119] == 0).all()


def test_drafter_hidden_and_logits(reference):
    stored, draft = reference.tree, reference.plain_draft
    hidden, tokens = stored["prefill_hidden"], stored["input_ids_full"][:, 1:].long()
    causal = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).tril()
    with torch.inference_mode():
        out = draft(tokens, hidden, additive(causal, torch.float32)[None, None])
        logits = reference.plain.head(out)[:, ::8]
    torch.testing.assert_close(out, stored["drafter_out_hidden"], atol=LOGIT_TOLERANCE, rtol=0)
    torch.testing.assert_close(logits, stored["drafter_out_logits"], atol=LOGIT_TOLERANCE, rtol=0)


@pytest.mark.parametrize("shape", [(20, 2, 6), (59, 4, 10)], ids=["tt20_d2_k6", "tt59_d4_k10"])
@pytest.mark.parametrize("mode", ["greedy", "sampling_t0.8_k20_p0.95"])
def test_dynamic_trees_of_both_calls(reference, mode, shape):
    check_dynamic_trees(reference, mode, shape)


@pytest.mark.parametrize("name", ["naive_extend_57", "mc_sim_7b_63", "chain5"])
def test_static_trees_drafted_greedily(reference, name):
    check_static_tree(reference, FOLDER, name)


def generate(reference, prompts: list[int], spec: MethodSpec):
    models = DecodingModels(reference.target, reference.draft, reference.io["table_raw_l2"].long())
    decoder = make_decoder(models, spec, SamplingConfig(temperature=0.0, cfg_scale=SCALE))
    features, mask = reference.io["cond_leftpad"][prompts], reference.io["mask_leftpad"][prompts].bool()
    return decoder.generate(features, mask, [decoder.make_noise(0, f"p{i}") for i in prompts])


def test_greedy_ids_autoregressive(reference):
    generation = generate(reference, [0, 1], MethodSpec.of(name="autoregressive"))
    assert generation.codes.tolist() == [GENERATIONS[f"p{i}/cfg3.0"]["vanilla"] for i in (0, 1)]


RUNS = sorted(key for key in GENERATIONS["p1/cfg3.0"] if key.startswith(("eagle", "lantern")))


@pytest.mark.parametrize("run", RUNS)
def test_greedy_ids_and_accepted_lengths(reference, run):
    """EAGLE, and LANTERN with an additive and a multiplicative bound, on a dynamic and a static tree."""
    name, kind, *bounds = run.split("_")
    k, delta = (int(bounds[0][1:]), float(bounds[1][1:])) if name == "lantern" else (0, 0.0)
    generation = generate(reference, [1], method_of(kind, k, delta))
    stored = GENERATIONS["p1/cfg3.0"][run]
    assert generation.codes[0].tolist() == stored["ids"]
    mine = [count for count in generation.accepted_lengths[0].tolist() if count >= 0]
    # The last step may overshoot the image, where the two codes see different positions.
    assert mine[:-1] == stored["accept"][: len(mine) - 1]
    assert 1 + sum(mine[:-1]) + len(mine[:-1]) >= 256 - 6, "all but the last step were compared"


def test_exact_methods_on_a_padded_prompt(reference):
    """Drafts on p0 depend on how padded rows are computed; exact ids do not."""
    for kind in ("dynamic", "static"):
        generation = generate(reference, [0], method_of(kind, 0, 0.0))
        assert generation.codes[0].tolist() == GENERATIONS["p0/cfg3.0"]["vanilla"]
