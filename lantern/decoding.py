"""The one decoding loop: autoregressive and speculative generation of a batch of images.

A step drafts a tree (unless decoding is autoregressive), runs the target over all its nodes at once, verifies, and
commits the accepted path with one more token of the target's own. Every step has fixed shapes and reads nothing back
to the host; the loop around it asks once per step whether all images are complete.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lantern.attention_mask import additive, prefix_mask, slide_window, window_table
from lantern.draft_tree import DraftTree, StaticTree, static_tree
from lantern.drafting import Drafts, DynamicTreeOptions, PendingTokens, TreeDrafter
from lantern.methods import MethodSpec
from lantern.models.draft import DraftModel
from lantern.models.target import TargetModel
from lantern.noise import NoiseField
from lantern.sampling import SamplingConfig, filter_logits, guide
from lantern.verification import Outcome, Verifier


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
    """Everything that one step hands to the next; buffers are longer than an image, so that the last step may
    overshoot.

    Attributes:
        tokens: int64, (batch, tokens + overshoot).
        lengths: int64, (batch,): tokens emitted; stops at the size of the image.
        is_substituted: bool, like tokens.
        margins: float32, like tokens.
        pending: what the draft model has not seen; None for autoregressive decoding.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    is_substituted: torch.Tensor
    margins: torch.Tensor | None
    pending: PendingTokens | None = None


class Decoder:
    """Generates images with one method.

    Args:
        models: prepared models; the draft model and the table may be None where the method needs none.
        spec: the method.
        sampling: temperature, filters, guidance.
        tree: choices of the static tree, or options of the dynamic one; None for autoregressive decoding.
        records_margins: also record the target's margins (slower; for the autoregressive reference).

    Attributes:
        observer: None, or what a measurement wants to be called with at every step: log-weights after the filters
            (batch, nodes, vocab), drafts, acceptances (batch, nodes), image positions that the nodes predict (batch,
            nodes).

    Raises:
        ValueError: a part that the method needs is missing, or k exceeds the table.
    """

    def __init__(
        self,
        models: DecodingModels,
        spec: MethodSpec,
        sampling: SamplingConfig,
        tree: list | DynamicTreeOptions | None = None,
        *,
        records_margins: bool = False,
    ) -> None:
        self.models, self.spec, self.sampling, self.records_margins = models, spec, sampling, records_margins
        self.target, config = models.target, models.target.config
        self.num_tokens, self.num_text = config.num_image_tokens, config.num_text_tokens
        self.device, self.dtype = self.target.device, self.target.dtype
        self.tree: StaticTree | None = None
        self.drafter: TreeDrafter | None = None
        if spec.drafts is not None:
            if models.draft is None or tree is None:
                raise ValueError(
                    f"method {spec.method_id or spec.name} drafts and needs a draft model and a tree; got none"
                )
            self.tree = None if isinstance(tree, DynamicTreeOptions) else static_tree(tree, self.device)
            self.drafter = TreeDrafter(models.draft, self.target, spec.drafts, self.tree or tree, sampling)
            num_nodes = 1 + tree.num_nodes if self.tree is None else self.tree.num_nodes
        else:
            num_nodes = 1
        self.max_depth = self.drafter.max_depth if self.drafter else 0
        self.num_slots = self.num_text + self.num_tokens + num_nodes
        self._nodes = torch.arange(num_nodes, device=self.device)
        self._is_chain = (self.tree is None and self.drafter is None) or (
            self.tree is not None and self.tree.num_nodes == self.tree.max_depth + 1
        )
        own = torch.ones(1, 1, 1, dtype=torch.bool, device=self.device)
        self._window = window_table(self.tree.ancestors if self.tree else own, self.num_slots, self.dtype)
        self.verifier = Verifier(models.nearest_codes, spec, sampling)
        self.observer: Callable[[torch.Tensor, Drafts, torch.Tensor, torch.Tensor], None] | None = None

    @property
    def noise_streams(self) -> list[str]:
        """The noise that this method reads."""
        if self.sampling.is_greedy:
            return []
        return ["target"] if self.verifier.draws_target_tokens else ["target", "draft", "accept"]

    @torch.inference_mode()
    def generate(self, features: torch.Tensor, mask: torch.Tensor, noise: NoiseField) -> Generation:
        """Generates one image per prompt.

        Args:
            features: caption features, (batch, num_text_tokens, caption_dim), left-padded.
            mask: bool, (batch, num_text_tokens), True where a caption token is.
            noise: the images' noise; keyed by prompt id.

        Returns:
            See `Generation`.

        Raises:
            FloatingPointError: the model's logits are not finite; names the prompt and the step.
        """
        state = self.start(features, mask, noise)
        counts = []
        while not self._is_complete(state, noise, len(counts)):
            counts.append(self.step(state))
        return self._collect(state, counts)

    def start(self, features: torch.Tensor, mask: torch.Tensor, noise: NoiseField) -> DecodingState:
        """Runs the caption through the target and emits image token 0."""
        self.noise, batch = noise, features.shape[0]
        features, mask = features.to(self.device, self.dtype), mask.to(self.device)
        if self.sampling.is_guided:  # the null half is masked like its prompt, as LlamaGen does
            features = torch.cat([features, self.target.null_features(batch).to(self.dtype)])
            mask = mask.repeat(2, 1)
        self.rows = features.shape[0]
        self.cache = self.target.new_cache(self.rows, self.num_slots)
        slots = torch.arange(self.num_text, device=self.device).expand(batch, -1)
        self.cache.place(slots)
        padding = self.num_slots - self.num_text
        prefix = torch.nn.functional.pad(
            prefix_mask(mask, self.num_text, self.dtype), (0, padding), value=float("-inf")
        )
        hidden = self.target.run_cached(self.target.embed_text(features), slots, prefix, self.cache)
        self._text_bias = torch.nn.functional.pad(additive(mask, self.dtype), (0, padding))[:, None, None]
        width = self.num_tokens + self.max_depth + 1
        state = DecodingState(
            tokens=torch.zeros(batch, width, dtype=torch.int64, device=self.device),
            lengths=torch.ones(batch, dtype=torch.int64, device=self.device),
            is_substituted=torch.zeros(batch, width, dtype=torch.bool, device=self.device),
            margins=torch.zeros(batch, width, device=self.device) if self.records_margins else None,
        )
        position = torch.zeros(batch, 1, dtype=torch.int64, device=self.device)
        keys, _, _ = self._score(hidden[:, -1:], position)
        self._record_margins(state, keys, position)
        state.tokens[:, :1] = keys.argmax(-1)
        if self.drafter:
            self.drafter.start(hidden, mask, noise)
            emitted = state.tokens[:, : self.max_depth + 1].clone()
            wide = hidden[:, -1:].expand(-1, self.max_depth + 1, -1)
            state.pending = PendingTokens(emitted, wide, torch.ones_like(state.lengths))
        return state

    def step(self, state: DecodingState) -> torch.Tensor:
        """One target forward: draft, verify, commit. Changes the state in place.

        Returns:
            int64, (batch,): accepted drafts; -1 for images that were already complete.
        """
        if self.drafter is None:
            root = state.tokens.gather(1, state.lengths[:, None] - 1)
            hidden = self._run_target(root, None, state.lengths)
            keys, _, _ = self._score(hidden, state.lengths[:, None])
            self._record_margins(state, keys, state.lengths[:, None])
            return self._commit_one(state, keys.argmax(-1))
        drafts = self.drafter.grow(state.pending, state.lengths)
        hidden = self._run_target(drafts.tokens, drafts.tree, state.lengths)
        positions = state.lengths[:, None] + drafts.tree.depths
        keys, weights, logits = self._score(hidden, positions)
        outcome = self.verifier.verify(keys, weights, logits, drafts, self.noise, positions)
        if self.observer is not None:
            self.observer(weights, drafts, outcome.is_accepted, positions)
        return self._commit_path(state, hidden, outcome)

    def _run_target(self, tokens: torch.Tensor, tree: DraftTree | None, lengths: torch.Tensor) -> torch.Tensor:
        """Target hidden states of a tree's nodes, (rows, nodes, dim); the root sits at image position lengths - 1."""
        root_slot = lengths + (self.num_text - 1)
        self.cache.place(root_slot[:, None] + self._nodes)
        rotary_rows = root_slot[:, None]
        if tree is not None:
            rotary_rows = rotary_rows + tree.depths
        is_shared = tree is None or self.tree is not None
        window = self._window if is_shared else window_table(tree.ancestors, self.num_slots, self.dtype)
        mask = slide_window(window, root_slot, self.num_slots)[:, None]
        x = self.target.token_embedding(tokens)
        if self.rows != x.shape[0]:
            x, mask = x.repeat(2, 1, 1), mask.repeat(2, 1, 1, 1)
        return self.target.run_cached(x, rotary_rows, mask + self._text_bias, self.cache)

    def _score(self, hidden: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(log-weights with the target's noise, log-weights, raw guided logits), each float32 (batch, nodes, vocab)."""
        guided = guide(hidden, self.sampling.cfg_scale) if self.sampling.is_guided else hidden
        logits = self.target.read_logits(guided)
        self._is_finite = logits.sum((1, 2)).isfinite()  # (batch,); a sum is not finite as soon as one logit is not
        if self.sampling.is_greedy:
            return logits, logits, logits
        weights = filter_logits(logits, self.sampling)
        return weights + self.noise.gumbel("target", positions), weights, logits

    def _commit_one(self, state: DecodingState, emitted: torch.Tensor) -> torch.Tensor:
        is_running = state.lengths < self.num_tokens
        state.tokens.scatter_(1, state.lengths[:, None], emitted)
        state.lengths = (state.lengths + 1).clamp(max=self.num_tokens)
        return is_running.long() - 1

    def _commit_path(self, state: DecodingState, hidden: torch.Tensor, outcome: Outcome) -> torch.Tensor:
        """Emits what verification found and keeps the path's keys and values."""
        path, counts = outcome.path, outcome.num_accepted
        steps = torch.arange(self.max_depth + 1, device=self.device)
        is_running = state.lengths < self.num_tokens
        columns = state.lengths[:, None] + steps
        state.tokens.scatter_(1, columns, outcome.emitted)
        state.is_substituted.scatter_(1, columns, outcome.is_substituted)
        if not self._is_chain:
            root_slot = state.lengths[:, None] + (self.num_text - 1)
            self.cache.move(root_slot + path, root_slot + steps)
            index = path.repeat(self.rows // len(path), 1)[..., None].expand(-1, -1, hidden.shape[2])
            hidden = hidden.gather(1, index)
        state.pending = PendingTokens(outcome.emitted, hidden, counts + 1)
        state.lengths = (state.lengths + counts + 1).clamp(max=self.num_tokens)
        return torch.where(is_running, counts, -1)

    def _record_margins(self, state: DecodingState, keys: torch.Tensor, positions: torch.Tensor) -> None:
        if state.margins is not None:
            best = keys.topk(2, dim=-1).values
            state.margins.scatter_(1, positions, best[..., 0] - best[..., 1])

    def _is_complete(self, state: DecodingState, noise: NoiseField, step: int) -> bool:
        """The loop's one question to the host per step: are all images complete, and are the logits still finite?"""
        is_done, is_finite = torch.stack([(state.lengths >= self.num_tokens).all(), self._is_finite.all()]).tolist()
        if not is_finite:
            names = [i for i, good in zip(noise.prompt_ids, self._is_finite.tolist(), strict=True) if not good]
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
            step_lengths=torch.nn.functional.pad(lengths, (0, max(0, n - lengths.shape[1])))[:, :n],
            accepted_lengths=accepted,
            is_substituted=state.is_substituted[:, :n],
            margins=margins,
        )
