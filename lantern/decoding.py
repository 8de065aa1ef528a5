"""The decoding loop: autoregressive and speculative generation of a batch of images.

A step of `TreeDecoder` has four parts. The drafter proposes a tree. The target runs once over all its nodes. The
verifier decides which drafts are accepted. Then the accepted drafts and one more token are committed, that is, added to
the image. In autoregressive decoding the tree has only a root, the last token.

Every step changes the state in place. Steps have fixed shapes and read nothing back to the host. The host looks at the
state between steps, but not after each: as many steps follow as the images need at least, if every step emits the most
tokens possible.

At such a look the loop also restricts attention to the used slots of the key/value cache, and looks again before a
step may exceed the limit. On a CPU in float32 the limit fits the next step. On a GPU it is that of one of several CUDA
graphs and fits the next FEWEST_STEPS steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from lantern.acceptance.verifiers import make_verifier
from lantern.attention_mask import window_table
from lantern.caller import shut_out_settings
from lantern.codebook import with_line_end
from lantern.custom_parts import named, watch_drafter
from lantern.decoding_state import DecodingModels, DecodingState, Generation
from lantern.draft_tree import DraftTree
from lantern.drafters.base import Drafter
from lantern.import_paths import load_class
from lantern.kv_cache import round_slots
from lantern.methods import MethodSpec
from lantern.models.config import OVERSHOOT
from lantern.noise import ImageNoise, NoiseField
from lantern.sampling import SamplingConfig, filter_logits
from lantern.step import Outcome, Prefill, Proposal, Scores
from lantern.stepping import StepRunner, slot_limits, without_cudnn_attention

FEWEST_STEPS = 8  # number of steps with the same limit on slots, before the host chooses the next limit


def make_decoder(
    models: DecodingModels,
    spec: MethodSpec,
    sampling: SamplingConfig,
    *,
    records_margins: bool = False,
    stepping: str = "auto",
) -> Decoder:
    """Make the decoder of a method.

    It is a `TreeDecoder`, unless `DraftsRow.loop` names another class of decoder, as for ZipAR.

    Args:
        models: models that are prepared for decoding. The draft model and the table of nearest codes may be None if the
            method does not need them.
        spec: the method.
        sampling: temperature, filters and guidance.
        records_margins: whether to record the margin of each token: the difference between the two largest keys. The
            key of a code is its log-probability plus the sampling noise. Recording is slower. If two methods emit
            different tokens at a position, a tiny margin there shows that rounding is the cause, not a mistake.
        stepping: how steps are run: "auto", "eager" or "graph", see `StepRunner`.

    Raises:
        ValueError: the method needs a draft model or a table of nearest codes, and it is None. Also if k of the method
            is larger than the number of columns of the table.
    """
    loop = load_class(spec.drafts_row.loop)
    return loop(models, spec, sampling, records_margins=records_margins, stepping=stepping)


class Decoder:
    """Base class of decoders, which generate images step by step with one method. A subclass defines `step`.

    The data of a batch is in a `DecodingState`.

    Args:
        models: models that are prepared for decoding.
        spec: the method.
        sampling: temperature, filters and guidance.
        drafter: proposes trees of drafts.
        max_depth: largest number of tokens that a step emits, minus 1.
        num_slots: number of slots per image in the target's key/value cache.
        reach: largest number of cache slots that one step fills, from the slot of the last emitted token on.
        noise_window: number of positions whose noise is in memory at once. None for the result of `choose_window`.
        records_margins: see `make_decoder`.
        stepping: see `make_decoder`.

    Attributes:
        runner: runs steps, eagerly or as a CUDA graph. If there is an observer or a timer, steps are run eagerly.
        on_forward: None, or a function that is called before the prefill and before every step. It does not prevent
            CUDA graphs.
        observer: None, or a function for measurements. `TreeDecoder` calls it with the `Outcome` of every step.
        score_observer: None, or a function for measurements. It is called with the `Scores` of every step.
        timer: function that takes the name of a part of a step, and returns a context manager in which the part runs.
            The names are "draft", "target", "score", "verify", "commit", and "step" for the whole step.
    """

    def __init__(
        self,
        models: DecodingModels,
        spec: MethodSpec,
        sampling: SamplingConfig,
        drafter: Drafter[Any],
        *,
        max_depth: int,
        num_slots: int,
        reach: int,
        noise_window: int | None = None,
        records_margins: bool = False,
        stepping: str = "auto",
    ) -> None:
        config = models.target.config
        self.models = models
        self.spec = spec
        self.sampling = sampling
        self.drafter = drafter
        self.records_margins = records_margins
        self.target = models.target
        self.num_tokens = config.num_image_tokens
        self.num_text = config.num_text_tokens
        self.device = self.target.device
        self.dtype = self.target.dtype
        self.max_depth = max_depth
        self.num_slots = num_slots
        self.noise_window = noise_window
        self._reach = reach
        self.on_forward: Callable[[], None] | None = None
        self.observer: Callable[[Outcome], None] | None = None
        self.score_observer: Callable[[Scores], None] | None = None
        self.timer: Callable[[str], AbstractContextManager[object]] = nullcontext
        self.runner = StepRunner(stepping, self.device, spec.name)

    def step(self, state: DecodingState) -> None:
        """Run the target once and emit tokens.

        Args:
            state: the state, changed in place.
        """
        raise NotImplementedError

    def stepped(self, stepping: str) -> Decoder:
        """Return a copy of this decoder that runs its steps in another mode, eagerly or as CUDA graphs.

        Args:
            stepping: the mode of `StepRunner`: "auto", "eager" or "graph".
        """
        other = copy(self)
        other.runner = StepRunner(stepping, self.device, self.spec.name)
        return other

    @property
    def noise_streams(self) -> tuple[str, ...]:
        """Names of the noise streams that this method reads. A stream is an independent field of random numbers."""
        return () if self.sampling.is_greedy else ("target",)

    def make_noise(self, run_seed: int, prompt_id: str) -> ImageNoise:
        """Make the noise of one image for `generate`. Any thread may call this.

        Args:
            run_seed: random seed of the run.
            prompt_id: id of the prompt. The same seed and id give the same noise.
        """
        sizes = (self.num_tokens, self.target.config.vocab_size, self.noise_window)
        return ImageNoise(run_seed, prompt_id, self.noise_streams, *sizes, self.device)

    @torch.inference_mode()
    def generate(self, features: torch.Tensor, mask: torch.Tensor, fields: Sequence[ImageNoise]) -> Generation:
        """Generate one image per prompt.

        Args:
            features: prompts, padded on the left. They are caption features (batch, num_text_tokens, caption_dim), or
                ids, int64 (batch, num_text_tokens). Prompts that edit pictures are the result of
                `lantern.models.sources.place_sources`.
            mask: bool (batch, num_text_tokens), True for tokens of the prompt, False for padding.
            fields: noise of each image, from `make_noise`.

        Returns:
            The tokens of the images, and how they were decoded.

        Raises:
            FloatingPointError: logits of the target or of the draft model are not finite. The message names the model,
                the prompt and the step.
        """
        if self.on_forward is not None:
            self.on_forward()
        state = self.runner.borrow(self.allocate, len(fields))
        self.fill(state, range(len(fields)), features, mask, fields)
        self.run(state, len(fields))
        return state.collect(range(len(fields)))

    @shut_out_settings()
    @without_cudnn_attention()
    def allocate(self, num_rows: int) -> DecodingState:
        """Make the state of `num_rows` images, without prompts. `fill` adds the prompts."""
        with torch.inference_mode():
            state = self._make_state(num_rows)
        least = self.num_text + 1 + self._reach
        self.runner.prepare(self.step, state, slot_limits(self.num_slots, least))
        return state

    def _make_state(self, num_rows: int) -> DecodingState:
        device = self.device
        n = self.num_tokens
        vocab_size = self.target.config.vocab_size
        noise = NoiseField(num_rows, n, vocab_size, self.noise_streams, device, self.noise_window)
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
            is_first_finite=torch.ones(num_rows, dtype=torch.bool, device=device),
            drafter_state=self.drafter.allocate(num_rows, noise),
        )

    @torch.inference_mode()
    @shut_out_settings()
    @without_cudnn_attention()
    def fill(
        self,
        state: DecodingState,
        rows: Sequence[int],
        features: torch.Tensor,
        mask: torch.Tensor,
        fields: Sequence[ImageNoise],
    ) -> None:
        """Put new prompts into some rows of the batch, run them through the target, and emit their first image tokens.

        Args:
            state: the state, changed in place.
            rows: batch indices, one per prompt.
            features: prompts, as in `generate`.
            mask: mask of the prompts, as in `generate`.
            fields: noise of each image, from `make_noise`.
        """
        index = torch.tensor(list(rows), device=self.device)
        features = features.to(self.device)
        mask = mask.to(self.device)
        source = self.target.source_codes(features, mask)
        if self.sampling.is_guided:
            features, mask = self.target.with_null(features, mask)
        else:
            features = features[None]
            mask = mask[None]
        hidden, cache = self.target.prefill(features, mask, self.num_text)
        state.cache.copy_rows(index, cache)
        state.noise.fill(rows, fields)
        state.lengths.index_fill_(0, index, 1)
        state.num_steps.index_fill_(0, index, 0)
        state.is_substituted.index_fill_(0, index, False)
        position = torch.zeros(len(state.tokens), 1, dtype=torch.int64, device=self.device)
        keys = self.target.guided_logits(hidden[:, :, -1:], self.sampling.cfg_scale, position[: len(index)])
        if not self.sampling.is_greedy:
            noise = state.noise.gumbel("target", position).index_select(0, index)
            keys = filter_logits(keys, self.sampling) + noise
        best, first = keys.max(-1)
        state.is_first_finite.index_copy_(0, index, best[:, 0].isfinite())
        state.tokens[:, :1].index_copy_(0, index, first)
        if state.margins is not None:
            state.margins[:, :1].index_copy_(0, index, margins_of(keys))
        ids = features if self.target.config.num_prompt_ids and source is None else None
        self.drafter.fill(state.drafter_state, index, Prefill(hidden, mask, first, ids, source))

    @torch.inference_mode()
    @shut_out_settings()
    @without_cudnn_attention()
    def run(self, state: DecodingState, num_complete: int) -> None:
        """Run steps until `num_complete` images of the batch are complete. Rows without a prompt count as complete.

        Args:
            state: the state, changed in place.
            num_complete: number of complete images at which to stop.

        Raises:
            FloatingPointError: logits of the target or of the draft model are not finite. The message names the model,
                the prompt and the step.
        """
        observers = (self.observer, self.score_observer)
        is_watched = any(observer is not None for observer in observers) or self.timer is not nullcontext
        step = self.step if is_watched else partial(self.runner.step, self.step)
        tokens_per_step = self.max_depth + 1  # the largest number
        while True:
            state.check_finite()
            missing = int((self.num_tokens - state.lengths).sort().values[num_complete - 1])
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
        """Restrict attention to the cache slots that are in use or that the next steps fill. This saves time.

        Args:
            state: the state, changed in place.
            tokens_per_step: largest number of tokens that a step emits.

        Returns:
            The number of steps that may follow before the next call.
        """
        # On a CPU reading back costs nothing. In 16 bits, rounding would make results depend on the number of slots.
        is_cpu = self.device.type == "cpu" and self.runner.mode == "eager" and self.dtype == torch.float32
        if not is_cpu and len(state.graphs) < 2:
            return self.num_tokens
        longest = int(state.lengths.where(state.lengths < self.num_tokens, 0).max())
        fewest = 1 if is_cpu else FEWEST_STEPS
        needed = self.num_text + longest + self._reach + (fewest - 1) * tokens_per_step
        limits = [round_slots(needed)] if is_cpu else state.graphs
        used = min((limit for limit in limits if limit >= needed), default=self.num_slots)
        state.cache.limit(min(used, self.num_slots))
        return self.num_tokens if used >= self.num_slots else fewest + (used - needed) // tokens_per_step

    def _score(self, state: DecodingState, hidden: torch.Tensor, positions: torch.Tensor) -> Scores:
        """Compute the target's logits at some nodes, as `Scores`, from which the verifier samples tokens.

        Args:
            state: the state, for its noise.
            hidden: hidden states of the nodes, (branches, batch, nodes, dim). Branches are those of classifier-free
                guidance: with and without the prompt.
            positions: image position that each node predicts, int64 (batch, nodes).
        """
        logits = self.target.guided_logits(hidden, self.sampling.cfg_scale, positions)
        scores = Scores(hidden, logits, positions, state.noise, self.sampling)
        if self.score_observer is not None:
            self.score_observer(scores)
        return scores

    def _log_step(
        self,
        state: DecodingState,
        num_accepted: torch.Tensor,
        node: torch.Tensor,
        is_finite: torch.Tensor,
        is_draft_finite: torch.Tensor | None = None,
    ) -> None:
        """Add the results of a step to the log `state.step_log`, and its number of tokens to `state.lengths`.

        Args:
            state: the state, changed in place.
            num_accepted: number of emitted tokens minus 1, int64 (batch,).
            node: index of the deepest accepted node, int64 (batch,).
            is_finite: whether the target's logits for the emitted tokens were finite, bool (batch,).
            is_draft_finite: whether the logits of the drafts were finite, bool (batch,). None without a draft model.
        """
        # FINE, TARGET_FAULT or DRAFT_FAULT, in as few kernels as possible
        found = is_finite.long() if is_draft_finite is None else is_finite * (2 - is_draft_finite.long())
        entry = torch.stack([num_accepted, node, found], dim=1)
        state.step_log.scatter_(1, state.num_steps[:, None, None].expand(-1, 1, 3), entry[:, None])
        state.num_steps.add_(state.lengths < self.num_tokens)
        state.lengths.add_(num_accepted + 1).clamp_(max=self.num_tokens)


class TreeDecoder(Decoder):
    """Decoder that verifies a tree of drafts per step. In autoregressive decoding the tree has only a root.

    Args:
        models: see `make_decoder`.
        spec: see `make_decoder`.
        sampling: see `make_decoder`.
        records_margins: see `make_decoder`.
        stepping: see `make_decoder`.

    Attributes:
        verifier: decides which drafts are accepted.

    Raises:
        ValueError: the method needs a draft model or a table of nearest codes, and it is None. Also if k of the method
            is larger than the number of columns of the table.
    """

    def __init__(
        self,
        models: DecodingModels,
        spec: MethodSpec,
        sampling: SamplingConfig,
        *,
        records_margins: bool = False,
        stepping: str = "auto",
    ) -> None:
        config = models.target.config
        if models.nearest_codes is not None:
            models = replace(models, nearest_codes=with_line_end(models.nearest_codes, config.vocab_size))
        drafter = _make_drafter(models, spec, sampling)
        embedding = models.target.token_embedding.weight
        self.verifier = drafter.verifier or make_verifier(spec, sampling, models.nearest_codes, embedding)
        tree = drafter.tree
        max_depth = drafter.max_depth
        is_static = isinstance(tree, DraftTree)
        num_nodes = tree.num_nodes if is_static else tree.num_nodes + 1  # options of a dynamic tree omit the root
        super().__init__(
            models,
            spec,
            sampling,
            drafter,
            max_depth=max_depth,
            num_slots=round_slots(config.num_text_tokens + config.num_image_tokens + num_nodes),
            reach=num_nodes,
            records_margins=records_margins,
            stepping=stepping,
        )
        self._is_chain = is_static and num_nodes == max_depth + 1
        self._nodes = torch.arange(num_nodes, device=self.device)
        self._steps = torch.arange(max_depth + 1, device=self.device)
        self._window = window_table(tree.ancestors, self.dtype) if is_static else None

    def with_draft_probs(self) -> TreeDecoder:
        """Return a copy of this decoder that keeps the distributions of the drafts, for measurements.

        They are in `Proposal.draft_probs`. The copy runs its steps eagerly.
        """
        other = copy(self)
        other.runner = StepRunner("eager", self.device, self.spec.name)
        other.drafter = self.drafter.with_draft_probs()
        return other

    @property
    def noise_streams(self) -> tuple[str, ...]:
        """Names of the noise streams that this method reads. A stream is an independent field of random numbers."""
        if self.sampling.is_greedy:
            return ()
        return ("target", *self.drafter.noise_streams, *self.verifier.noise_streams)

    @torch.inference_mode()
    def step(self, state: DecodingState) -> None:
        """Draft, run the target, verify and commit. Changes the state in place."""
        with self.timer("draft"):
            root = state.tokens.gather(1, state.lengths[:, None] - 1)
            proposal = self.drafter.propose(state.drafter_state, root, state.lengths)
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
            self.drafter.observe(state.drafter_state, outcome, state.lengths)
            self._commit(state, outcome)

    def _run_target(self, state: DecodingState, proposal: Proposal) -> torch.Tensor:
        """Run the target over the nodes of a tree, and return their hidden states.

        The keys and values of the nodes are stored in the cache, after those of the tokens so far.

        Args:
            state: the state. Its cache is changed in place.
            proposal: the tree and the tokens of its nodes.

        Returns:
            (branches, batch, nodes, dim).
        """
        root_slot = state.lengths[:, None] + (self.num_text - 1)
        table = self._window
        if table is None:  # a dynamic tree differs from step to step
            table = window_table(proposal.tree.ancestors, self.dtype)
        mask = state.cache.mask(table, root_slot[:, 0])
        tokens = proposal.tokens.clamp(min=0)  # a missing draft is -1, which the embedding cannot look up
        rotary_positions = root_slot + proposal.tree.depths
        return self.target.extend(state.cache, tokens, root_slot + self._nodes, rotary_positions, mask)

    def _commit(self, state: DecodingState, outcome: Outcome) -> None:
        """Emit the accepted drafts and the token after them. Make the cache hold only the accepted path of the tree.

        The keys and values of the path are moved to the first slots of the tree. Later steps overwrite the other slots.

        Args:
            state: the state, changed in place.
            outcome: result of verification.
        """
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
        self._log_step(state, outcome.num_accepted, path[:, -1], outcome.is_finite, outcome.proposal.is_finite)


def _make_drafter(models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Drafter[Any]:
    """Make the drafter of a method.

    Args:
        models: models that are prepared for decoding.
        spec: the method.
        sampling: temperature, filters and guidance.

    Raises:
        ValueError: the method needs a draft model and there is none, or the drafter's trees are too deep.
    """
    if spec.needs_draft_model:
        models.require_draft(spec.label)
    kind: type[Drafter[Any]] = load_class(spec.drafts_row.path)
    if spec.drafts is not None and ":" in spec.drafts:
        drafter = named(kind.make, spec.drafts, spec)(models, spec, sampling)
        watch_drafter(drafter, spec.drafts, spec, sampling, models.target.config.vocab_size)
    else:
        drafter = kind.make(models, spec, sampling)
    if drafter.max_depth > OVERSHOOT:
        raise ValueError(
            f"a draft tree must be at most {OVERSHOOT} drafts deep, got {drafter.max_depth}; choose a shallower tree"
        )
    return drafter


def margins_of(keys: torch.Tensor) -> torch.Tensor:
    """Return the margin by which each node's sampled token won, (batch, nodes).

    It is the difference between the two largest keys. If it is small, rounding may have changed the token.

    Args:
        keys: log-probabilities plus the target's Gumbel noise, (batch, nodes, vocab). Their argmax is the sampled
            token.
    """
    best = keys.topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]
