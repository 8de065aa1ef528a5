"""Tests of state heads: what they read, which drafts they give, and that no token of an image changes."""

import pytest
import torch

from helpers.tiny_models import generate, make_models, make_prompts
from lantern.decoding import make_decoder
from lantern.methods import MethodSpec, make_method
from lantern.models.stored import save_model
from lantern.sampling import SamplingConfig
from lantern_methods.shift_heads import ShiftHeads
from lantern_methods.state_head import StateHead, embed_tokens
from lantern_models.checkpoints.decoding_models import load_heads

SPEC = MethodSpec.of("hybrid_head", drafts="hybrid_head", tree="chain4k2d2")
AUTOREGRESSIVE = make_method("autoregressive")


def make_state_head(target, scale=0.05):
    """Return a random state head."""
    head = StateHead.from_target(target.config, seed=0).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    return head


def with_state_head(**sizes):
    models = make_models(**sizes)
    models.parts["heads"] = make_state_head(models.target).prepare_for_decoding()
    return models


@pytest.mark.parametrize(
    ("sizes", "sampling"),
    [({}, {}), ({}, {"cfg_scale": 1.0}), ({"line_end": 11}, {"temperature": 0.0}), ({"columns": 7}, {"top_k": 3})],
)
def test_every_token_is_that_of_autoregressive_decoding(sizes, sampling):
    models = with_state_head(**sizes)
    found = generate(models, SPEC, range(7), **sampling)
    expected = generate(models, AUTOREGRESSIVE, range(7), **sampling)
    assert torch.equal(found.codes, expected.codes)
    assert found.target_forwards.sum() < expected.target_forwards.sum()


def test_drafts_of_a_broken_head_name_it():
    models = make_models()
    models.parts["heads"] = make_state_head(models.target, scale=torch.nan).prepare_for_decoding()
    with pytest.raises(FloatingPointError, match=r"prompt prompt-0 .* step 0, from the draft model or the heads"):
        generate(models, SPEC, range(2))


def test_an_untrained_head_returns_the_outdated_state():
    head = StateHead.from_target(make_models().target.config, seed=0).eval()
    previous, outdated, embedded = torch.randn(3, 2, 32), torch.randn(3, 2, 32), torch.randn(3, 2, 5, 32)
    head.state_scale.fill_(0.5)
    torch.testing.assert_close(head(previous, outdated, embedded), outdated)


def test_a_head_reads_the_states_and_tokens_around_a_position():
    """Its inputs for the children of the root, in each step, against the finished image and earlier steps."""
    models = with_state_head()
    decoder = make_decoder(models, SPEC, SamplingConfig(cfg_scale=2.0))
    drafter = decoder.drafter.learned
    outcomes, inputs = [], []
    decoder.observer = outcomes.append
    drafter.head.register_forward_pre_hook(lambda head, given: inputs.append(given))
    codes = decoder.generate(*make_prompts(models, 1), [decoder.make_noise(7, "prompt-0")]).codes[0].tolist()
    width = models.target.config.line_width
    nothing = torch.zeros(models.target.config.dim)
    newest = {}  # position -> (its newest hidden state, the token before it)
    position = 1
    last = None  # hidden state from which the token before `position` was sampled
    for outcome, (previous, outdated, embedded) in zip(outcomes, inputs[::2], strict=True):
        state, before = newest.get(position, (nothing, -1))
        torch.testing.assert_close(outdated[0, 0], state)
        if last is not None:
            torch.testing.assert_close(previous[0, 0], last)
        places = [position - width, position - width + 1, position - width - 1]
        tokens = [codes[position - 1], before, *(codes[place] if place >= 0 else -1 for place in places)]
        torch.testing.assert_close(embedded[0, 0], embed_tokens(models.target, torch.tensor(tokens)))
        hidden = drafter.guided(outcome.scores.hidden)[0]
        depths = outcome.proposal.tree.depths[0].tolist()
        for depth in range(decoder.drafter.max_depth + 1):
            node = depths.index(depth)  # the first node of a depth is reached by first children only
            newest[position + depth] = (hidden[node], int(outcome.proposal.tokens[0, node]))
        last = hidden[outcome.path[0, -1]]
        position += 1 + int(outcome.num_accepted)


def test_a_file_holds_either_kind_of_heads(tmp_path):
    models = make_models(is_prepared=False)
    state_head = make_state_head(models.target)
    for model in (state_head, models.parts["heads"]):
        save_model(tmp_path / "heads.safetensors", model)
        loaded = load_heads(tmp_path / "heads.safetensors", torch.bfloat16, "cpu")
        assert type(loaded) is type(model)
        assert loaded.config == model.config
    save_model(tmp_path / "target.safetensors", models.target)
    with pytest.raises(ValueError, match="should hold a shift_heads, found target"):
        load_heads(tmp_path / "target.safetensors", torch.float32, "cpu")


@pytest.mark.parametrize(
    ("spec", "heads", "message"),
    [
        (SPEC, None, "method hybrid_head needs a state head, got none"),
        (SPEC, ShiftHeads, "method hybrid_head needs a state head, got shift heads"),
        (make_method("ssd"), StateHead, "method ssd needs shift heads, got a state head"),
    ],
)
def test_heads_of_the_other_kind_are_refused(spec, heads, message):
    models = make_models() if heads is ShiftHeads else with_state_head()
    if heads is None:
        models.parts.clear()
    with pytest.raises(ValueError, match=message):
        make_decoder(models, spec, SamplingConfig())


def test_guidance_needs_a_linear_output_head():
    models = with_state_head(has_mlp_head=True)
    with pytest.raises(ValueError, match="needs a target with a linear output head if guidance is on"):
        make_decoder(models, SPEC, SamplingConfig(cfg_scale=2.0))
    generate(models, SPEC, range(2), cfg_scale=1.0)
