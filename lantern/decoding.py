"""The one decoding loop: autoregressive and speculative generation of a batch of images.

A step drafts a tree (unless decoding is autoregressive), runs the target over all its nodes at once, verifies, and
commits the accepted path with one more token of the target's own. Every step has fixed shapes and reads nothing back
to the host; the loop around it asks once per step whether all images are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lantern.attention_mask import window_table
from lantern.draft_tree import DraftTree, static_tree
from lantern.drafting import DrafterState, PendingTokens, TreeDrafter, pick_nodes
from lantern.kv_cache import KVCache
from lantern.methods import DynamicTreeOptions, MethodSpec
from lantern.models.draft import DraftModel
from lantern.models.target import TargetModel
from lantern.noise import ImageNoise, NoiseField, make_noise
from lantern.rules import Rule, make_rule
from lantern.sampling import SamplingConfig
from lantern.verification import Outcome, Scores


@dataclass
class DecodingModels:
    """What a decoder runs: models prepared for decoding, and the nearest-code table where a method relaxes.

    Attributes:
        target: the target model.
        draft: the draft model; None for autoregressive decoding.
        nearest_codes: int64, (vocab, columns); None without relaxation.
    """

    target: TargetModel
    draft: DraftModel | None = None
    nearest_codes: torch.Tensor | None = None


@dataclass
class Generation:
    """Images of one batch.

    Attributes:
        codes: int64, (batch, tokens).
        target_forwards: int64, (batch,): prefill included.
        step_lengths: int64, (batch, tokens): tokens emitted by each target forward, zero-padded; rows sum to `tokens`.
        accepted_lengths: int64, (batch, steps): accepted drafts of each step after the prefill, the end of the image
            notwithstanding; -1 where an image was already complete.
        is_substituted: bool, (batch, tokens): emitted token differs from the one that the target drew at its node.
        margins: float32, (batch, tokens), or (batch, 0) unless asked for: gap of the two best perturbed log-weights,
            nats.
    """

    codes: torch.Tensor
    target_forwards: torch.Tensor
    step_lengths: torch.Tensor
    accepted_lengths: torch.Tensor
    is_substituted: torch.Tensor
    margins: torch.Tensor


@dataclass
class DecodingState:
    """Everything that lives as long as a batch of images; a decoder may work on several in turn.

    Buffers are longer than an image, so that the last step may overshoot.

    Attributes:
        noise: of the images.
        cache: the target's.
        tokens: int64, (batch, tokens + overshoot).
        lengths: int64, (batch,): tokens emitted; stops at the size of the image.
        is_substituted: bool, like tokens.
        margins: float32, like tokens; None unless asked for.
        is_finite: bool, (batch,): whether the logits of the last pass were.
        drafter: the drafter's own; None for autoregressive decoding.
    """

    noise: NoiseField
    cache: KVCache
    tokens: torch.Tensor
    lengths: torch.Tensor
    is_substituted: torch.Tensor
    margins: torch.Tensor | None
    is_finite: torch.Tensor
    drafter: DrafterState | None = None


class Decoder:
    """Generates images with one method; keeps nothing of a batch, see `DecodingState`.

    Args:
        models: prepared models; the draft model and the table may be None where the method needs none.
        spec: the method.
        sampling: temperature, filters, guidance.
        records_margins: also record the target's margins (slower; for the autoregressive reference).

    Attributes:
        rule: decides which drafts are accepted.
        observer: None, or what a measurement wants to be called with at every step that drafts.
        timer: makes the context in which a part of a step runs, by the part's name: "draft", "target", "score",
            "verify" and "commit", all of them within "step"; does nothing unless a measurement sets it.

    Raises:
        ValueError: a part that the method needs is missing, or k exceeds the table.
    """

    def __init__(
        self, models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig, *, records_margins: bool = False
    ) -> None:
        self.models, self.spec, self.sampling, self.records_margins = models, spec, sampling, records_margins
        self.target, config = models.target, models.target.config
        self.num_tokens, self.num_text = config.num_image_tokens, config.num_text_tokens
        self.device, self.dtype = self.target.device, self.target.dtype
        self.drafter: TreeDrafter | None = None
        num_nodes, self.max_depth, self._is_chain = 1, 0, True
        ancestors = torch.ones(1, 1, 1, dtype=torch.bool, device=self.device)  # of the root alone
        if spec.drafts is not None:
            if models.draft is None:
                raise ValueError(f"method {spec.method_id or spec.name} drafts and needs a draft model; got none")
            is_dynamic = isinstance(spec.tree_shape, DynamicTreeOptions)
            tree = spec.tree_shape if is_dynamic else static_tree(spec.tree_shape, self.device)
            self.drafter = TreeDrafter(models.draft, self.target, spec.drafts, tree, sampling)
            num_nodes, self.max_depth = tree.num_nodes + is_dynamic, self.drafter.max_depth
            self._is_chain = not is_dynamic and num_nodes == self.max_depth + 1
            ancestors = None if is_dynamic else tree.ancestors
        self.num_slots = self.num_text + self.num_tokens + num_nodes
        self._nodes = torch.arange(num_nodes, device=self.device)
        self._window = None if ancestors is None else window_table(ancestors, self.dtype)
        self.rule: Rule = make_rule(spec, sampling, models.nearest_codes)
        self.observer: Callable[[Outcome], None] | None = None
        self.timer: Callable[[str], AbstractContextManager] = nullcontext

    @property
    def noise_streams(self) -> list[str]:
        """The noise that this method reads."""
        if self.sampling.is_greedy:
            return []
        streams = ["target"]
        if self.drafter is not None and self.drafter.drafts == "sampled":
            streams.append("draft")
        return [*streams, *self.rule.noise_streams]

    def make_noise(self, run_seed: int, prompt_id: str) -> ImageNoise:
        """The noise of one image as `generate` wants it; on the CPU, in whatever thread."""
        vocab_size = self.target.config.vocab_size
        return make_noise(run_seed, prompt_id, self.noise_streams, self.num_tokens, vocab_size)

    @torch.inference_mode()
    def generate(self, features: torch.Tensor, mask: torch.Tensor, fields: Sequence[ImageNoise]) -> Generation:
        """Generates one image per prompt.

        Args:
            features: caption features, (batch, num_text_tokens, caption_dim), left-padded.
            mask: bool, (batch, num_text_tokens), True where a caption token is.
            fields: the images' noise, see `make_noise`.

        Returns:
            See `Generation`.

        Raises:
            FloatingPointError: the model's logits are not finite; names the prompt and the step.
        """
        state = self.start(features, mask, fields)
        counts = []
        while not self._is_complete(state, len(counts)):
            with self.timer("step"):
                counts.append(self.step(state))
        return self._collect(state, counts)

    def start(self, features: torch.Tensor, mask: torch.Tensor, fields: Sequence[ImageNoise]) -> DecodingState:
        """Runs the caption through the target and emits image token 0."""
        features, mask, batch = features.to(self.device, self.dtype), mask.to(self.device), len(mask)
        vocab_size = self.target.config.vocab_size
        noise = NoiseField(batch, self.num_tokens, vocab_size, self.noise_streams, self.device)
        noise.fill(range(batch), fields)
        hidden, cache = self.target.prefill(features, mask, self.num_slots, is_guided=self.sampling.is_guided)
        width = self.num_tokens + self.max_depth + 1
        state = DecodingState(
            noise=noise,
            cache=cache,
            tokens=torch.zeros(batch, width, dtype=torch.int64, device=self.device),
            lengths=torch.ones(batch, dtype=torch.int64, device=self.device),
            is_substituted=torch.zeros(batch, width, dtype=torch.bool, device=self.device),
            margins=torch.zeros(batch, width, device=self.device) if self.records_margins else None,
            is_finite=torch.ones(batch, dtype=torch.bool, device=self.device),
        )
        position = torch.zeros(batch, 1, dtype=torch.int64, device=self.device)
        scores = self._score(state, hidden[:, :, -1:], position)
        self._record_margins(state, scores)
        state.tokens[:, :1] = scores.keys.argmax(-1)
        if self.drafter:
            state.drafter = self.drafter.start(hidden, mask, noise, state.tokens[:, :1])
        return state

    def step(self, state: DecodingState) -> torch.Tensor:
        """One target forward: draft, verify, commit. Changes the state in place.

        Returns:
            int64, (batch,): accepted drafts; -1 for images that were already complete.
        """
        if self.drafter is None:
            return self._step_undrafted(state)
        with self.timer("draft"):
            drafts = self.drafter.grow(state.drafter, state.lengths)
        with self.timer("target"):
            hidden = self._run_target(state, drafts.tokens, drafts.tree)
        positions = state.lengths[:, None] + drafts.tree.depths
        with self.timer("score"):
            scores = self._score(state, hidden, positions)
        with self.timer("verify"):
            outcome = self.rule.verify(scores, drafts)
        if self.observer is not None:
            self.observer(outcome)
        with self.timer("commit"):
            return self._commit_path(state, hidden, outcome)

    def _step_undrafted(self, state: DecodingState) -> torch.Tensor:
        positions = state.lengths[:, None]
        with self.timer("target"):
            hidden = self._run_target(state, state.tokens.gather(1, positions - 1), None)
        with self.timer("score"):
            scores = self._score(state, hidden, positions)
        self._record_margins(state, scores)
        with self.timer("commit"):
            return self._emit(state, scores.keys.argmax(-1), torch.zeros_like(state.lengths))

    def _run_target(self, state: DecodingState, tokens: torch.Tensor, tree: DraftTree | None) -> torch.Tensor:
        """Target hidden states of a tree's nodes, (captions, batch, nodes, dim); the root is the last token emitted."""
        root_slot = state.lengths[:, None] + (self.num_text - 1)
        rotary_rows = root_slot if tree is None else root_slot + tree.depths
        table = self._window
        if table is None:  # the tree is another one in every step
            table = window_table(tree.ancestors, self.dtype)
        mask = state.cache.mask(table, root_slot[:, 0])
        return self.target.extend(state.cache, tokens, root_slot + self._nodes, rotary_rows, mask)

    def _score(self, state: DecodingState, hidden: torch.Tensor, positions: torch.Tensor) -> Scores:
        logits = self.target.guided_logits(hidden, self.sampling.cfg_scale)
        state.is_finite = logits.sum((1, 2)).isfinite()  # a sum is not finite as soon as one logit is not
        return Scores(hidden, logits, positions.expand(logits.shape[:2]), state.noise, self.sampling)

    def _commit_path(self, state: DecodingState, hidden: torch.Tensor, outcome: Outcome) -> torch.Tensor:
        """Emits what verification found and keeps the path's keys and values."""
        path = outcome.path
        steps = torch.arange(path.shape[1], device=path.device)
        state.is_substituted.scatter_(1, state.lengths[:, None] + steps, outcome.is_substituted)
        if not self._is_chain:
            root_slot = state.lengths[:, None] + (self.num_text - 1)
            state.cache.move(root_slot + path, root_slot + steps)
            hidden = pick_nodes(hidden, path)
        state.drafter.pending = PendingTokens(outcome.emitted, hidden, outcome.num_accepted + 1)
        return self._emit(state, outcome.emitted, outcome.num_accepted)

    def _emit(self, state: DecodingState, tokens: torch.Tensor, num_accepted: torch.Tensor) -> torch.Tensor:
        """Writes tokens (batch, at most) of which num_accepted + 1 count; returns what `step` does."""
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        state.tokens.scatter_(1, state.lengths[:, None] + steps, tokens)
        is_running = state.lengths < self.num_tokens
        state.lengths = (state.lengths + num_accepted + 1).clamp(max=self.num_tokens)
        return torch.where(is_running, num_accepted, -1)

    def _record_margins(self, state: DecodingState, scores: Scores) -> None:
        if state.margins is not None:
            best = scores.keys.topk(2, dim=-1).values
            state.margins.scatter_(1, scores.positions, best[..., 0] - best[..., 1])

    def _is_complete(self, state: DecodingState, step: int) -> bool:
        """The loop's one question to the host per step: are all images complete, and are the logits still finite?"""
        is_done, is_finite = torch.stack([(state.lengths >= self.num_tokens).all(), state.is_finite.all()]).tolist()
        if not is_finite:
            names = [i for i, good in zip(state.noise.prompt_ids, state.is_finite.tolist(), strict=True) if not good]
            raise FloatingPointError(
                f"logits of prompt {names[0]} are not finite at step {step} ({len(names)} prompts of the batch)"
            )
        return is_done

    def _collect(self, state: DecodingState, counts: list[torch.Tensor]) -> Generation:
        n, batch = self.num_tokens, len(state.tokens)
        accepted = torch.stack(counts, dim=1) if counts else state.tokens.new_zeros(batch, 0)
        lengths = torch.cat([torch.ones_like(state.lengths)[:, None], accepted + 1], dim=1)
        lengths = lengths.cumsum(1).clamp(max=n).diff(dim=1, prepend=torch.zeros_like(lengths[:, :1]))
        margins = state.margins[:, :n] if state.margins is not None else torch.zeros(batch, 0)
        return Generation(
            codes=state.tokens[:, :n],
            target_forwards=(lengths > 0).sum(1),
            step_lengths=F.pad(lengths, (0, max(0, n - lengths.shape[1])))[:, :n],
            accepted_lengths=accepted,
            is_substituted=state.is_substituted[:, :n],
            margins=margins,
        )
