"""The decoding loop: autoregressive and speculative generation of a batch of images.

In a step of `TreeDecoder` the drafter proposes a tree, the target runs once over all its nodes, and the verifier
decides which drafts are accepted. These drafts and one more token are then *committed*, that is, added to the image. In
autoregressive decoding the tree has only a root.

Invariant of the loop: the keys and values of all emitted tokens except the last are in the target's cache. The last
token is node 0 of the next tree, and a step writes node i to the slot `num_text + lengths - 1 + i`.

Steps have fixed shapes, change the state in place and read nothing back to the host. The host *looks* at the state
between steps, but only as often as it must: to see whether images are complete, to load noise, and to restrict
attention to the used slots of the cache. On a CPU in float32 the restriction fits the next step, rounded up to a
multiple of 8 slots, which is often enough for several steps. If there are several CUDA graphs, it is that of one of
them and fits at least FEWEST_STEPS steps. Otherwise attention reads all slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from typing_extensions import override

from lantern.acceptance.base import Acceptance, Exact, Verifier
from lantern.acceptance.rejection import ByRejection, Rejection
from lantern.caller import shut_out_settings
from lantern.codebook import with_line_end
from lantern.custom_parts import named, watch, watch_acceptance, watch_drafter
from lantern.draft_tree import DraftTree
from lantern.drafters.base import Drafter
from lantern.extensions import load_class
from lantern.kv_cache import round_slots, window_table
from lantern.methods import MethodSpec
from lantern.models.config import OVERSHOOT
from lantern.noise import TARGET, ImageNoise, NoiseField, Stream
from lantern.sampling import SamplingConfig, filter_logits
from lantern.state import DecodingModels, DecodingState, Generation
from lantern.step import Outcome, Prefill, Proposal, Scores
from lantern.stepping import StepRunner, slot_limits, without_cudnn_attention

FEWEST_STEPS = 8  # on a GPU, least number of steps before the host chooses the next limit on slots


@dataclass(frozen=True)
class DecoderOptions:
    """The arguments of `make_decoder`, from which each decoder is made."""

    models: DecodingModels
    spec: MethodSpec
    sampling: SamplingConfig
    records_margins: bool = False
    stepping: str = "auto"


def make_decoder(
    models: DecodingModels,
    spec: MethodSpec,
    sampling: SamplingConfig,
    *,
    records_margins: bool = False,
    stepping: str = "auto",
) -> Decoder:
    """Make the decoder of a method, of the class that `DraftsRow.loop` names.

    Args:
        models: prepared for decoding. Draft model, heads and nearest codes may be None if the method does not need
            them.
        records_margins: whether to record the margin of each token. This is slower. If two methods emit different
            tokens at a position, a tiny margin there shows that rounding is the cause, not a mistake.
        stepping: how steps are run, one of `lantern.stepping.MODES`.

    Raises:
        ValueError: `models` lacks what the method needs, or the table of nearest codes has too few columns.
    """
    loop = load_class(spec.drafts_row.loop)
    return loop(DecoderOptions(models, spec, sampling, records_margins, stepping))


class Decoder:
    """Base class of decoders. A subclass is made from `DecoderOptions` alone, and defines `step`.

    Args:
        max_depth: largest number of tokens that a step emits, minus 1.
        num_slots: number of slots per image in the target's cache.
        reach: largest number of slots that one step fills, from the slot of the last emitted token on.
        noise_window: number of positions whose noise is in memory at once. None for the result of `choose_window`.

    Attributes:
        on_forward: called before the prefill and before every step. It does not prevent CUDA graphs, unlike the next
            three.
        observer: for measurements. `TreeDecoder` calls it with the `Outcome` of every step.
        score_observer: for measurements, called with the `Scores` of every step.
        timer: takes the name of a part of a step ("draft", "target", "score", "verify", "commit", or "step" for all of
            them), and returns a context manager in which the part runs.
    """

    def __init__(
        self,
        options: DecoderOptions,
        drafter: Drafter[Any],
        *,
        max_depth: int,
        num_slots: int,
        reach: int,
        noise_window: int | None = None,
    ) -> None:
        self.models = options.models
        self.spec = options.spec
        self.sampling = options.sampling
        self.drafter = drafter
        self.records_margins = options.records_margins
        self.target = self.models.target
        config = self.target.config
        self.num_tokens = config.num_image_tokens
        self.num_text = config.num_text_tokens
        self.device = self.target.device
        self.dtype = self.target.dtype
        self.max_depth = max_depth
        self.num_slots = num_slots
        self.noise_window = noise_window
        self._reach = reach
        # Set by callers, after construction.
        self.on_forward: Callable[[], None] | None = None
        self.observer: Callable[[Outcome], None] | None = None
        self.score_observer: Callable[[Scores], None] | None = None
        self.timer: Callable[[str], AbstractContextManager[object]] = nullcontext
        self.runner = StepRunner(options.stepping, self.device, self.spec.name)

    def step(self, state: DecodingState) -> None:
        """Emit 1 to `max_depth` + 1 tokens per incomplete image, in place, and log this with `log_step`."""
        raise NotImplementedError

    def stepped(self, stepping: str) -> Decoder:
        """Return a copy of this decoder that runs its steps in another mode of `StepRunner`."""
        other = copy(self)
        other.runner = StepRunner(stepping, self.device, self.spec.name)
        return other

    @property
    def noise_streams(self) -> tuple[Stream, ...]:
        """The streams that `make_noise` prepares, those of verifier and drafter included."""
        return () if self.sampling.is_greedy else (TARGET, *self.drafter.noise_streams)

    def make_noise(self, run_seed: int, prompt_id: str) -> ImageNoise:
        """Make an entry of `fields` in `generate`. Any thread may call this, while another one decodes."""
        sizes = (self.num_tokens, self.target.config.vocab_size, self.noise_window)
        return ImageNoise(run_seed, prompt_id, self.noise_streams, *sizes, self.device)

    @torch.inference_mode()
    def generate(self, features: torch.Tensor, mask: torch.Tensor, fields: Sequence[ImageNoise]) -> Generation:
        """Generate one image per prompt, all begun together, unlike the rows that `fill` replaces one by one.

        Args:
            features: prompts, padded on the left: caption features (batch, num_text_tokens, caption_dim), or ids, int64
                (batch, num_text_tokens). Prompts with source pictures are the result of
                `lantern_models.glm_image.place_sources`.
            mask: bool (batch, num_text_tokens), False for padding.
            fields: noise of each image, from `make_noise`.

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

    # The decorators keep out the caller's autocast and default dtype, which would mix dtypes, and cuDNN's attention,
    # which makes a new plan for every number of slots.
    @torch.inference_mode()
    @shut_out_settings()
    @without_cudnn_attention()
    def allocate(self, num_rows: int) -> DecodingState:
        """Make the state of `num_rows` images, and capture its CUDA graphs in graph mode. `fill` adds the prompts."""
        device = self.device
        n = self.num_tokens
        vocab_size = self.target.config.vocab_size
        noise = NoiseField(num_rows, n, vocab_size, self.noise_streams, device, self.noise_window)
        # Complete images are stepped along: at length n a step writes positions n to n + max_depth.
        width = n + self.max_depth + 1
        # `fill` copies the masks of the prompts into the cache, with their keys and values.
        visible = torch.ones(1 + self.sampling.is_guided, num_rows, self.num_text, dtype=torch.bool, device=device)
        state = DecodingState(
            noise=noise,
            cache=self.target.make_cache(visible, self.num_slots),
            tokens=torch.zeros(num_rows, width, dtype=torch.int64, device=device),
            lengths=torch.full((num_rows,), n, device=device),  # complete: no prompt yet
            is_substituted=torch.zeros(num_rows, width, dtype=torch.bool, device=device),
            margins=torch.zeros(num_rows, width, device=device) if self.records_margins else None,
            num_steps=torch.zeros(num_rows, dtype=torch.int64, device=device),
            # (accepted drafts, deepest node, fault) of each step
            step_log=torch.zeros(num_rows, n, 3, dtype=torch.int64, device=device),
            is_first_finite=torch.ones(num_rows, dtype=torch.bool, device=device),
            drafter_state=self.drafter.allocate(num_rows, noise),
        )
        # `needed` of `_limit_slots` after the prefill, which emits one token, if the next step alone must fit.
        least = self.num_text + 1 + self._reach
        self.runner.prepare(self.step, state, slot_limits(self.num_slots, least))
        return state

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
        """Put new prompts into some rows of the batch, run them through the target, and emit their first tokens.

        `features`, `mask` and `fields` are as in `generate`, for these prompts alone.
        """
        index = torch.tensor(list(rows), device=self.device)
        features = features.to(self.device)
        mask = mask.to(self.device)
        if self.sampling.is_guided:
            features, mask = self.target.with_null(features, mask)
        else:
            features = features[None]
            mask = mask[None]
        # The prompts run in a small cache of their own, which is copied into the state's: that one must not move, since
        # graphs hold its addresses.
        hidden, cache = self.target.prefill(features, mask, self.num_text)
        state.cache.copy_rows(index, cache)
        state.noise.fill(rows, fields)
        state.lengths.index_fill_(0, index, 1)
        state.num_steps.index_fill_(0, index, 0)
        state.is_substituted.index_fill_(0, index, False)
        # The first token is position 0. A noise field is read for the whole batch, hence one entry per row.
        position = torch.zeros(len(state.tokens), 1, dtype=torch.int64, device=self.device)
        # Prompts are padded on the left, so that the last state predicts the first token of every image. `position` is
        # the same in all rows.
        keys = self.target.guided_logits(hidden[:, :, -1:], self.sampling.cfg_scale, position[: len(index)])
        if not self.sampling.is_greedy:
            noise = state.noise.gumbel(TARGET, position).index_select(0, index)
            keys = filter_logits(keys, self.sampling) + noise
        best, first = keys.max(-1)
        # The largest key alone: filters set others to -inf, while nan and +inf are largest themselves.
        state.is_first_finite.index_copy_(0, index, best[:, 0].isfinite())
        state.tokens[:, :1].index_copy_(0, index, first)
        if state.margins is not None:
            state.margins[:, :1].index_copy_(0, index, margins_of(keys))
        # Prompts with source pictures hold positions beside their ids, an axis more than the mask.
        ids = features if self.target.config.num_prompt_ids and features.shape == mask.shape else None
        self.drafter.fill(state.drafter_state, index, Prefill(hidden, mask, first, ids))

    @torch.inference_mode()
    @shut_out_settings()
    @without_cudnn_attention()
    def run(self, state: DecodingState, num_complete: int) -> None:
        """Run steps until `num_complete` images of the batch are complete. Rows without a prompt count as complete.

        Raises:
            FloatingPointError: as in `generate`.
        """
        observers = (self.observer, self.score_observer)
        is_watched = any(observer is not None for observer in observers) or self.timer is not nullcontext
        tokens_per_step = self.max_depth + 1  # the largest number
        while True:
            state.check_finite()
            # What the num_complete-th image lacks, if the images are sorted by the tokens that they lack.
            missing = int((self.num_tokens - state.lengths).sort().values[num_complete - 1])
            if missing == 0:
                return
            most = state.noise.advance(state.lengths, tokens_per_step)  # steps for which noise is in memory
            most = min(most, self._limit_slots(state, tokens_per_step))
            # ceil(missing / tokens_per_step) steps are needed even if each emits the most tokens: no look can end the
            # loop before.
            # A CUDA graph of the limit in force replaces `step`. It would call no observer and no timer.
            graph = None if is_watched else state.graphs.get(state.cache.num_used)
            for _ in range(min(most, -(-missing // tokens_per_step))):
                if self.on_forward is not None:
                    self.on_forward()
                with self.timer("step"):
                    if graph is None:
                        self.step(state)
                    else:
                        graph.replay()

    def _limit_slots(self, state: DecodingState, tokens_per_step: int) -> int:
        """Restrict attention to the slots that the next steps need, and return how many steps may follow."""
        # On a CPU reading back costs nothing, so that each step may have its own limit. Not in 16 bits: there, results
        # would depend on the number of slots, by rounding.
        is_cpu = self.device.type == "cpu" and self.runner.mode == "eager" and self.dtype == torch.float32
        if not is_cpu and len(state.graphs) < 2:  # no limits to choose from
            return self.num_tokens
        # Complete images need no slots, since nobody reads their results.
        longest = int(state.lengths.where(state.lengths < self.num_tokens, 0).max())
        # The last of `fewest` steps begins at most (fewest - 1) * tokens_per_step tokens later, and fills `reach` slots
        # from num_text + lengths - 1 on: one slot is to spare.
        fewest = 1 if is_cpu else FEWEST_STEPS
        needed = self.num_text + longest + self._reach + (fewest - 1) * tokens_per_step
        limits = [round_slots(needed)] if is_cpu else state.graphs  # the keys of `graphs` are limits
        used = min((limit for limit in limits if limit >= needed), default=self.num_slots)
        state.cache.limit(min(used, self.num_slots))
        # With all slots there is nothing left to restrict. Otherwise the limit fits `fewest` steps, and one more step
        # for every tokens_per_step slots that it has to spare.
        return self.num_tokens if used >= self.num_slots else fewest + (used - needed) // tokens_per_step

    def score(self, state: DecodingState, hidden: torch.Tensor, positions: torch.Tensor) -> Scores:
        """Return the scores of hidden states that predict image positions, (batch, nodes)."""
        logits = self.target.guided_logits(hidden, self.sampling.cfg_scale, positions)
        scores = Scores(hidden, logits, positions, state.noise, self.sampling)
        if self.score_observer is not None:
            self.score_observer(scores)
        return scores

    def log_step(
        self,
        state: DecodingState,
        num_accepted: torch.Tensor,
        node: torch.Tensor,
        is_finite: torch.Tensor,
        is_draft_finite: torch.Tensor | None = None,
    ) -> None:
        """Log a step, and add its `num_accepted` + 1 tokens to the lengths. `node` is the deepest accepted node."""
        # TARGET_FAULT (0) if the target's logits are not finite, else DRAFT_FAULT (2) or FINE (1), in few kernels.
        found = is_finite.long() if is_draft_finite is None else is_finite * (2 - is_draft_finite.long())
        entry = torch.stack([num_accepted, node, found], dim=1)
        # A complete image no longer counts steps, and overwrites the unused entry after its last one. This entry
        # exists: the prefill emits a token, so that an image has fewer steps than tokens. The step that completes an
        # image counts, hence the lengths change last.
        state.step_log.scatter_(1, state.num_steps[:, None, None].expand(-1, 1, 3), entry[:, None])
        state.num_steps.add_(state.lengths < self.num_tokens)
        state.lengths.add_(num_accepted + 1).clamp_(max=self.num_tokens)


class TreeDecoder(Decoder):
    """The decoder of all methods but ZipAR and PJD."""

    def __init__(self, options: DecoderOptions) -> None:
        models, spec, sampling = options.models, options.spec, options.sampling
        config = models.target.config
        # The line end gets a row, too, so that any token can index the table.
        if models.nearest_codes is not None:
            models = replace(models, nearest_codes=with_line_end(models.nearest_codes, config.vocab_size))
        drafter = _make_drafter(models, spec, sampling)
        # SSD and PathRelax bring their own verifier.
        self.verifier = drafter.verifier or make_verifier(models, spec, sampling)
        tree = drafter.tree
        max_depth = drafter.max_depth
        is_static = isinstance(tree, DraftTree)
        num_nodes = tree.num_nodes if is_static else tree.num_nodes + 1  # options of a dynamic tree omit the root
        super().__init__(
            replace(options, models=models),
            drafter,
            max_depth=max_depth,
            num_slots=round_slots(config.num_text_tokens + config.num_image_tokens + num_nodes),
            reach=num_nodes,
        )
        self._is_chain = is_static and num_nodes == max_depth + 1  # all nodes are on one path
        self._nodes = torch.arange(num_nodes, device=self.device)
        self._steps = torch.arange(max_depth + 1, device=self.device)
        # A static tree has the same ancestors in all steps.
        self._window = window_table(tree.ancestors, self.dtype) if is_static else None

    def with_draft_probs(self) -> TreeDecoder:
        """Return a copy whose proposals hold the drafts' distributions, for measurements."""
        other = copy(self)
        # Graphs of the runner of `self` draft without distributions. Measurements set an observer, and need no graphs.
        other.runner = StepRunner("eager", self.device, self.spec.name)
        other.drafter = self.drafter.with_draft_probs()
        return other

    @property
    @override
    def noise_streams(self) -> tuple[Stream, ...]:
        return () if self.sampling.is_greedy else (*super().noise_streams, *self.verifier.noise_streams)

    @torch.inference_mode()
    @override
    def step(self, state: DecodingState) -> None:
        with self.timer("draft"):
            root = state.tokens.gather(1, state.lengths[:, None] - 1)
            proposal = self.drafter.propose(state.drafter_state, root, state.lengths)
        with self.timer("target"):
            hidden = self.run_target(state, proposal)
        with self.timer("score"):
            # A node predicts the token after its own. The root, position lengths - 1, predicts position `lengths`.
            positions = state.lengths[:, None] + proposal.tree.depths
            scores = self.score(state, hidden, positions)
        with self.timer("verify"):
            outcome = self.verifier.verify(scores, proposal)
        if self.observer is not None:
            self.observer(outcome)
        with self.timer("commit"):
            # Before the commit, since drafters need the lengths before the step.
            self.drafter.observe(state.drafter_state, outcome, state.lengths)
            self._commit(state, outcome)

    def run_target(self, state: DecodingState, proposal: Proposal) -> torch.Tensor:
        """Run the target over the nodes of a proposal, and return its hidden states."""
        root_slot = state.lengths[:, None] + (self.num_text - 1)
        table = self._window
        if table is None:
            table = window_table(proposal.tree.ancestors, self.dtype)
        mask = state.cache.mask(table, root_slot[:, 0])
        tokens = proposal.tokens.clamp(min=0)  # a missing draft is -1, which the embedding cannot look up
        # Alternatives for one position share its rotary position, but each has its own slot.
        rotary_positions = root_slot + proposal.tree.depths
        return self.target.extend(state.cache, tokens, root_slot + self._nodes, rotary_positions, mask)

    def _commit(self, state: DecodingState, outcome: Outcome) -> None:
        path = outcome.path
        # All max_depth + 1 entries are written. The next step overwrites those after the bonus token.
        positions = state.lengths[:, None] + self._steps
        # The accepted nodes move to the first slots of the tree, where the invariant wants them. In a chain they are
        # there already. `path` is padded with its last node, whose copies land in slots that the next tree overwrites.
        if not self._is_chain:
            root_slot = state.lengths[:, None] + (self.num_text - 1)
            state.cache.move(root_slot + path, root_slot + self._steps)
        state.tokens.scatter_(1, positions, outcome.emitted)
        state.is_substituted.scatter_(1, positions, outcome.is_substituted)
        if state.margins is not None:
            # Node i of the path predicts emitted token i, so its keys give the token's margin.
            keys = outcome.scores.keys
            keys = keys.gather(1, path[..., None].expand(-1, -1, keys.shape[2]))
            state.margins.scatter_(1, positions, margins_of(keys))
        self.log_step(state, outcome.num_accepted, path[:, -1], outcome.is_finite, outcome.proposal.is_finite)


def _make_drafter(models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Drafter[Any]:
    row = spec.drafts_row
    kind: type[Drafter[Any]] = load_class(spec.drafter_path)
    # A custom class. It gets the models that it declares, its errors name it, and its results are checked.
    if spec.drafts is not None and ":" in spec.drafts:
        if spec.needs_draft_model:
            models.require_draft(spec.label)
        for name, trained in row.trained.items():
            models.require(name, load_class(trained), spec.label)
        drafter = named(kind.make, spec.drafts, spec)(models, spec, sampling)
        watch_drafter(drafter, spec, sampling, models.target.config.vocab_size)
    else:
        drafter = kind.make(models, spec, sampling)
    # Nodes after the end of the image use the rotary table's OVERSHOOT extra rows.
    if drafter.max_depth > OVERSHOOT:
        raise ValueError(
            f"a draft tree must be at most {OVERSHOOT} drafts deep, got {drafter.max_depth}; choose a shallower tree"
        )
    return drafter


def make_verifier(models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Verifier:
    """Make the verifier that a method's drafts, acceptance and residual determine.

    Raises:
        ValueError: the table of nearest codes is missing or has too few columns, and the method needs it.
    """
    acceptance = _make_acceptance(models, spec, sampling)
    verifier: Verifier
    # At temperature 0 nothing is sampled, hence no draft is rejected at random.
    if not sampling.is_greedy and spec.verifies_by_rejection:
        verifier = ByRejection(Rejection(acceptance, spec.residual))
    else:
        verifier = acceptance.make_verifier(spec, sampling)
    # A custom class, "module:Class", which errors name.
    if ":" in spec.acceptance:
        watch(verifier, "verify", spec.acceptance, spec)
    verifier.has_twins = spec.drafts_row.has_twins
    return verifier


def _make_acceptance(models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Acceptance:
    """Make the acceptance, `Exact` if a parameter makes it exact, such as delta = 0."""
    row = spec.acceptance_row
    if any(spec[name] == value for name, value in row.exact_at.items()):
        return Exact()
    kind: type[Acceptance] = load_class(row.path)
    if ":" not in spec.acceptance:
        return kind.make(models, spec, sampling)
    # Errors of a custom class name it.
    acceptance = named(kind.make, spec.acceptance, spec)(models, spec, sampling)
    watch_acceptance(acceptance, spec)
    return acceptance


def margins_of(keys: torch.Tensor) -> torch.Tensor:
    """Return the difference between the two largest keys, (batch, nodes), of `keys`, (batch, nodes, vocab)."""
    best = keys.topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]
