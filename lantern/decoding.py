"""The one decoding loop: autoregressive and speculative generation of a batch of images.

A step lets the drafter propose a tree, runs the target over all its nodes at once, verifies, and commits the accepted
path with one more token of the target's own. Autoregressive decoding proposes the root alone. Every step changes the
state in place; on a GPU it has fixed shapes and reads nothing back to the host, and the loop around it asks whether
images are complete only when they can be. On a CPU the loop looks before every step, which then attends to the slots in
use alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from functools import partial

import torch

from lantern.acceptance.verifiers import make_verifier
from lantern.attention_mask import window_table
from lantern.codebook import with_line_end
from lantern.custom_parts import named, watch_drafter
from lantern.decoding_state import DecodingModels, DecodingState, Generation
from lantern.draft_tree import DraftTree
from lantern.drafters.base import Drafter
from lantern.kv_cache import round_slots
from lantern.methods import MethodSpec, load_class
from lantern.models.config import OVERSHOOT
from lantern.noise import ImageNoise, NoiseField
from lantern.sampling import SamplingConfig, filter_logits
from lantern.step import Outcome, Prefill, Proposal, Scores
from lantern.stepping import StepRunner, slot_limits, without_cudnn_attention

FEWEST_STEPS = 8  # with one number of slots, before the host looks for a larger one


def make_decoder(
    models: DecodingModels,
    spec: MethodSpec,
    sampling: SamplingConfig,
    *,
    records_margins: bool = False,
    stepping: str = "auto",
) -> Decoder:
    """The decoder of a method, see `Decoder`; drafts may have a loop of their own."""
    loop = load_class(spec.drafts_row.loop)
    return loop(models, spec, sampling, records_margins=records_margins, stepping=stepping)


class Decoder:
    """Generates images with one method; what belongs to a batch is in a `DecodingState`.

    Args:
        models: prepared models; the draft model and the table may be None where the method needs none.
        spec: the method.
        sampling: temperature, filters, guidance.
        records_margins: also record the target's margins (slower; for the autoregressive reference).
        stepping: how steps are run, see `StepRunner`; those that an observer or a timer watches are run eagerly.

    Attributes:
        noise_window: positions of noise held at a time; None for as many as memory suggests.
        runner: of the steps.
        drafter: proposes trees.
        verifier: decides which drafts are accepted.
        on_forward: None, or a function that `generate` calls when the prefill begins and again before every step. Steps
            that are captured stay so.
        observer: None, or what a measurement wants to be called with at every step's `Outcome`.
        timer: makes the context in which a part of a step runs, by the part's name: "draft", "target", "score",
            "verify" and "commit", all of them within "step"; does nothing unless a measurement sets it.

    Raises:
        ValueError: a part that the method needs is missing, or k exceeds the table.
    """

    noise_window: int | None = None

    def __init__(
        self,
        models: DecodingModels,
        spec: MethodSpec,
        sampling: SamplingConfig,
        *,
        records_margins: bool = False,
        stepping: str = "auto",
    ) -> None:
        config, table = models.target.config, models.nearest_codes
        if table is not None:
            models = replace(models, nearest_codes=with_line_end(table, config.vocab_size))
        self.models, self.spec, self.sampling, self.records_margins = models, spec, sampling, records_margins
        self.target = models.target
        self.num_tokens, self.num_text = config.num_image_tokens, config.num_text_tokens
        self.device, self.dtype = self.target.device, self.target.dtype
        self.drafter = self._make_drafter(models, spec, sampling)
        embedding = self.target.token_embedding.weight
        self.verifier = self.drafter.verifier or make_verifier(spec, sampling, models.nearest_codes, embedding)
        tree, self.max_depth = self.drafter.tree, self.drafter.max_depth
        is_static = isinstance(tree, DraftTree)
        num_nodes = tree.num_nodes + (not is_static)
        self._is_chain = is_static and num_nodes == tree.max_depth + 1
        self.num_slots = round_slots(self.num_text + self.num_tokens + num_nodes)
        self._nodes = torch.arange(num_nodes, device=self.device)
        self._reach = num_nodes  # slots that a step may fill, from the root's on
        self._steps = torch.arange(self.max_depth + 1, device=self.device)
        self._window = window_table(tree.ancestors, self.dtype) if is_static else None
        self.on_forward: Callable[[], None] | None = None
        self.observer: Callable[[Outcome], None] | None = None
        self.timer: Callable[[str], AbstractContextManager] = nullcontext
        self.runner = StepRunner(stepping, self.device, spec.name)

    @staticmethod
    def _make_drafter(models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Drafter:
        if spec.needs_draft_model and models.draft is None:
            raise ValueError(f"method {spec.method_id or spec.name} needs a draft model; got none")
        make = load_class(spec.drafts_row.path).make
        if is_custom := ":" in (spec.drafts or ""):
            make = named(make, spec.drafts, spec)
        drafter = make(models, spec, sampling)
        if is_custom:
            watch_drafter(drafter, spec, sampling, models.target.config.vocab_size)
        if drafter.max_depth > OVERSHOOT:
            raise ValueError(
                f"a draft tree must be at most {OVERSHOOT} drafts deep, got {drafter.max_depth}; choose a shallower "
                "tree"
            )
        return drafter

    def stepped(self, stepping: str) -> Decoder:
        """This decoder with its steps run in another way."""
        other = copy(self)
        other.runner = StepRunner(stepping, self.device, self.spec.name)
        return other

    def with_draft_probs(self) -> Decoder:
        """Return this decoder, run eagerly, with a drafter whose proposals state what drafts were sampled from."""
        other = self.stepped("eager")
        other.drafter = copy(self.drafter)
        other.drafter.keeps_probs = True
        return other

    @property
    def noise_streams(self) -> tuple[str, ...]:
        """The noise that this method reads."""
        if self.sampling.is_greedy:
            return ()
        return ("target", *self.drafter.noise_streams, *self.verifier.noise_streams)

    def make_noise(self, run_seed: int, prompt_id: str) -> ImageNoise:
        """The noise of one image as `generate` wants it, in whatever thread."""
        sizes = (self.num_tokens, self.target.config.vocab_size, self.noise_window)
        return ImageNoise(run_seed, prompt_id, self.noise_streams, *sizes, self.device)

    @torch.inference_mode()
    def generate(self, features: torch.Tensor, mask: torch.Tensor, fields: Sequence[ImageNoise]) -> Generation:
        """Generates one image per prompt.

        Args:
            features: of the prompts, left-padded: caption features (batch, num_text_tokens, caption_dim), or ids int64
                (batch, num_text_tokens).
            mask: bool, (batch, num_text_tokens), True where a token of the prompt is.
            fields: the images' noise, see `make_noise`.

        Raises:
            FloatingPointError: the model's logits are not finite; names the prompt and the step.
        """
        if self.on_forward is not None:
            self.on_forward()
        state = self.runner.borrow(self.allocate, len(fields))
        self.fill(state, range(len(fields)), features, mask, fields)
        self.run(state, len(fields))
        return state.collect(range(len(fields)))

    def start(self, features: torch.Tensor, mask: torch.Tensor, fields: Sequence[ImageNoise]) -> DecodingState:
        """State of a batch of prompts with image token 0 emitted; arguments as in `generate`."""
        state = self.allocate(len(fields))
        self.fill(state, range(len(fields)), features, mask, fields)
        return state

    @without_cudnn_attention()
    def allocate(self, num_rows: int) -> DecodingState:
        """State of a batch of `num_rows` images that have no prompts yet."""
        with torch.inference_mode():
            state = self._make_state(num_rows)
        least = self.num_text + 1 + self._reach
        self.runner.prepare(self.step, state, slot_limits(self.num_slots, least))
        return state

    def _make_state(self, num_rows: int) -> DecodingState:
        config, device, n = self.target.config, self.device, self.num_tokens
        noise = NoiseField(num_rows, n, config.vocab_size, self.noise_streams, device, self.noise_window)
        width = n + self.max_depth + 1
        visible = torch.ones(1 + self.sampling.is_guided, num_rows, self.num_text, dtype=torch.bool, device=device)
        return DecodingState(
            noise=noise,
            cache=self.target.make_cache(visible, self.num_slots),
            tokens=torch.zeros(num_rows, width, dtype=torch.int64, device=device),
            lengths=torch.full((num_rows,), n, device=device),
            is_substituted=torch.zeros(num_rows, width, dtype=torch.bool, device=device),
            margins=torch.zeros(num_rows, width, device=device) if self.records_margins else None,
            num_steps=torch.zeros(num_rows, dtype=torch.int64, device=device),
            step_log=torch.zeros(num_rows, n, 3, dtype=torch.int64, device=device),
            drafter=self.drafter.allocate(num_rows, noise),
        )

    @torch.inference_mode()
    @without_cudnn_attention()
    def fill(
        self,
        state: DecodingState,
        rows: Sequence[int],
        features: torch.Tensor,
        mask: torch.Tensor,
        fields: Sequence[ImageNoise],
    ) -> None:
        """Gives some rows new prompts, one each: runs their captions through the target and emits image token 0; other
        arguments as in `generate`.
        """
        index = torch.tensor(list(rows), device=self.device)
        features, mask = features.to(self.device), mask.to(self.device)
        if self.sampling.is_guided:
            features, mask = self.target.with_null(features, mask)
        else:
            features, mask = features[None], mask[None]
        hidden, cache = self.target.prefill(features, mask, self.num_text)
        state.cache.copy_rows(index, cache)
        state.noise.fill(rows, fields)
        for tensor, value in ((state.lengths, 1), (state.num_steps, 0), (state.is_substituted, False)):
            tensor.index_fill_(0, index, value)
        position = torch.zeros(len(state.tokens), 1, dtype=torch.int64, device=self.device)
        keys = self.target.guided_logits(hidden[:, :, -1:], self.sampling.cfg_scale, position[: len(index)])
        if not self.sampling.is_greedy:
            noise = state.noise.gumbel("target", position).index_select(0, index)
            keys = filter_logits(keys, self.sampling) + noise
        first = keys.argmax(-1)
        state.tokens[:, :1].index_copy_(0, index, first)
        if state.margins is not None:
            state.margins[:, :1].index_copy_(0, index, margins_of(keys))
        ids = features if self.target.config.num_prompt_ids else None
        self.drafter.fill(state.drafter, index, Prefill(hidden, mask, first, ids))

    @torch.inference_mode()
    @without_cudnn_attention()
    def run(self, state: DecodingState, num_complete: int) -> None:
        """Steps until as many rows are complete, those without a prompt included; raises as `generate`."""
        is_watched = self.observer is not None or self.timer is not nullcontext
        step = self.step if is_watched else partial(self.runner.step, self.step)
        tokens_per_step = self.max_depth + 1  # at most
        while True:
            state.check_finite()
            missing = (self.num_tokens - state.lengths).sort().values[num_complete - 1].item()
            if missing == 0:
                return
            most = state.noise.advance(state.lengths, tokens_per_step)
            most = min(most, self._limit_slots(state, tokens_per_step))
            for _ in range(min(most, -(-missing // tokens_per_step))):
                if self.on_forward is not None:
                    self.on_forward()
                with self.timer("step"):
                    step(state)

    def _limit_slots(self, state: DecodingState, tokens_per_step: int) -> int:
        """Have steps read little more than the slots in use; return how many steps may follow before the next call."""
        # On a CPU it costs nothing to look before every step. Narrow formats would round by the number of slots there.
        is_cpu = self.device.type == "cpu" and self.runner.mode == "eager" and self.dtype == torch.float32
        if not is_cpu and len(state.graphs) < 2:
            return self.num_tokens
        longest = state.lengths.where(state.lengths < self.num_tokens, 0).max().item()
        fewest = 1 if is_cpu else FEWEST_STEPS
        needed = self.num_text + longest + self._reach + (fewest - 1) * tokens_per_step
        limits = [round_slots(needed)] if is_cpu else state.graphs
        used = min((limit for limit in limits if limit >= needed), default=self.num_slots)
        state.cache.limit(min(used, self.num_slots))
        return self.num_tokens if used >= self.num_slots else fewest + (used - needed) // tokens_per_step

    @torch.inference_mode()
    def step(self, state: DecodingState) -> None:
        """One target forward: draft, verify, commit. Changes the state in place."""
        with self.timer("draft"):
            root = state.tokens.gather(1, state.lengths[:, None] - 1)
            proposal = self.drafter.propose(state.drafter, root, state.lengths)
        with self.timer("target"):
            hidden = self._run_target(state, proposal)
        with self.timer("score"):
            positions = state.lengths[:, None] + proposal.tree.depths
            scores = self._score(state, hidden, positions)
        with self.timer("verify"):
            outcome = self.verifier.verify(scores, proposal)
        if self.observer is not None:
            self.observer(outcome)
        with self.timer("commit"):
            self._commit(state, outcome)

    def _run_target(self, state: DecodingState, proposal: Proposal) -> torch.Tensor:
        """Target hidden states of a tree's nodes, (captions, batch, nodes, dim)."""
        root_slot = state.lengths[:, None] + (self.num_text - 1)
        table = self._window
        if table is None:  # the tree is another one in every step
            table = window_table(proposal.tree.ancestors, self.dtype)
        mask = state.cache.mask(table, root_slot[:, 0])
        tokens = proposal.tokens.clamp(min=0)  # something must run where there is no draft
        rotary_rows = root_slot + proposal.tree.depths
        return self.target.extend(state.cache, tokens, root_slot + self._nodes, rotary_rows, mask)

    def _score(self, state: DecodingState, hidden: torch.Tensor, positions: torch.Tensor) -> Scores:
        logits = self.target.guided_logits(hidden, self.sampling.cfg_scale, positions)
        return Scores(hidden, logits, positions, state.noise, self.sampling)

    def _commit(self, state: DecodingState, outcome: Outcome) -> None:
        """Emits what verification found and keeps the path's keys and values."""
        path = outcome.path
        positions = state.lengths[:, None] + self._steps
        if not self._is_chain:
            root_slot = state.lengths[:, None] + (self.num_text - 1)
            state.cache.move(root_slot + path, root_slot + self._steps)
        state.tokens.scatter_(1, positions, outcome.emitted)
        state.is_substituted.scatter_(1, positions, outcome.is_substituted)
        if state.margins is not None:
            keys = outcome.scores.keys
            keys = keys.gather(1, path[..., None].expand(-1, -1, keys.shape[2]))
            state.margins.scatter_(1, positions, margins_of(keys))
        self.drafter.observe(state.drafter, outcome, state.lengths)
        self._log_step(state, outcome.num_accepted, path[:, -1], outcome.is_finite)

    def _log_step(
        self, state: DecodingState, num_accepted: torch.Tensor, node: torch.Tensor, is_finite: torch.Tensor
    ) -> None:
        """Counts a step that emitted num_accepted + 1 tokens, the last behind `node`; all (batch,)."""
        entry = torch.stack([num_accepted, node, is_finite.long()], dim=1)
        state.step_log.scatter_(1, state.num_steps[:, None, None].expand(-1, 1, 3), entry[:, None])
        state.num_steps.add_(state.lengths < self.num_tokens)
        state.lengths.add_(num_accepted + 1).clamp_(max=self.num_tokens)


def margins_of(keys: torch.Tensor) -> torch.Tensor:
    """Gap of the two best of each node's keys: (batch, nodes, vocab) -> (batch, nodes)."""
    best = keys.topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]
