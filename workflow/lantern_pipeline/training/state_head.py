"""Training of a state head: a small network that corrects outdated hidden states of the frozen target.

The training examples are recorded while the target generates images by Jacobi decoding. Each decoding step gives one
example. It has the outdated hidden states of the next positions, and the tokens before these positions when the hidden
states were computed. When an image is complete, its true tokens and hidden states are known, too.

`depths` is NUM_DEPTHS, the number of positions for which a state head makes drafts in a step. All hidden states are
after guidance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from typing_extensions import override

from lantern.decoding import make_decoder
from lantern.draft_tree import static_tree
from lantern.methods import MethodSpec
from lantern.models.target import Target
from lantern.noise import NoiseField
from lantern.prompts import Prompt, TextEncoder
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels
from lantern.step import Outcome, Prefill, Proposal
from lantern_methods.state_head import (
    NUM_DEPTHS,
    HeadTreeDrafter,
    StateHead,
    StateHeadDrafter,
    StateHeadState,
    embed_tokens,
)
from lantern_pipeline.data.code_dataset import step_indices
from lantern_pipeline.training.drafter import freeze
from lantern_pipeline.training.heads import HeadsTraining, mean_overlap
from lantern_pipeline.training.loop import Trainer, cosine_rate, step_generator
from lantern_pipeline.training.optimisers import make_adamw

# Drafts for nine positions, two of them for the first.
RECORDED = MethodSpec.of("recorded", tree="chain9k2d1", drafts="hybrid_head")
HIDDEN_WEIGHT = 0.5  # weight of the distance of hidden states in the loss
WEIGHT_DECAY = 0.1


@dataclass
class DecodingSteps:
    """Recorded decoding steps of some images, on the CPU."""

    codes: torch.Tensor  # tokens of the images, int64 (images, tokens)
    states: torch.Tensor  # hidden state from which each token was sampled, float32 (images, tokens, dim)
    image: torch.Tensor  # index of the image of each step, int64 (steps,)
    position: torch.Tensor  # first position whose token was not yet emitted at the step, int64 (steps,)
    outdated: torch.Tensor  # newest hidden states of the next positions, float32 (steps, depths, dim)
    # Token before each of these positions when the hidden state was computed, -1 if there was no hidden state yet.
    before: torch.Tensor  # int64 (steps, depths)


class _Recorder(StateHeadDrafter):
    """A drafter that collects the parts of `DecodingSteps`: of each step in `steps`, of each image in `states`."""

    @override
    def allocate(self, num_rows: int, noise: NoiseField) -> StateHeadState:
        self.steps = []
        self.states = torch.zeros(num_rows, self.num_positions, self.head.config.dim, device=self.target.device)
        return super().allocate(num_rows, noise)

    @override
    def fill(self, state: StateHeadState, rows: torch.Tensor, prefill: Prefill) -> None:
        super().fill(state, rows, prefill)
        # Token 0 was sampled from the last hidden state of the prompt.
        self.states[rows, 0] = state.previous[rows]

    @override
    def propose(self, state: StateHeadState, root: torch.Tensor, lengths: torch.Tensor, choose=None) -> Proposal:
        positions = lengths[:, None] + torch.arange(NUM_DEPTHS, device=lengths.device)
        index = positions[:, :, None].expand(-1, -1, state.outdated.shape[2])
        # The decoder changes `lengths` in place after the step.
        self.steps.append((lengths.clone(), state.outdated.gather(1, index), state.before.gather(1, positions)))
        return super().propose(state, root, lengths, choose)

    @override
    def observe(self, state: StateHeadState, outcome: Outcome, lengths: torch.Tensor) -> None:
        super().observe(state, outcome, lengths)
        assert outcome.scores.hidden is not None
        path = outcome.path[:, :, None].expand(-1, -1, self.states.shape[2])
        of_path = self.guided(outcome.scores.hidden).gather(1, path)
        # Entries after the last accepted draft are wrong. Later steps overwrite them.
        positions = lengths[:, None] + torch.arange(path.shape[1], device=lengths.device)
        self.states.scatter_(1, positions[:, :, None].expand_as(of_path), of_path)


def record_steps(
    models: DecodingModels,
    prompts: Sequence[Prompt],
    encoder: TextEncoder,
    sampling: SamplingConfig,
    *,
    seed: int,
    batch_size: int,
) -> DecodingSteps:
    """Generate images by Jacobi decoding, and record what a state head would read in every step.

    The images are those of autoregressive decoding with the same seed. Of `models`, only the target is used.
    """
    target = models.target
    # The drafter needs some head. An untrained one returns the outdated hidden state, hence Jacobi drafts.
    head = StateHead.from_target(target.config, seed).eval().to(target.device)
    decoder = make_decoder(replace(models, parts={"heads": head}), RECORDED, sampling, stepping="eager")
    drafter = decoder.drafter
    assert isinstance(drafter, HeadTreeDrafter)
    tree = static_tree(RECORDED.static_choices, target.device)
    # The recorder takes the place of the part that drafts with the head.
    recorder = drafter.learned = _Recorder(head, target, tree, NUM_DEPTHS, sampling)
    num_tokens = target.config.num_image_tokens
    images = []
    parts = []
    for first in range(0, len(prompts), batch_size):
        batch = prompts[first : first + batch_size]
        features, mask = encoder.encode([prompt.text for prompt in batch])
        noise = [decoder.make_noise(seed, prompt.id) for prompt in batch]
        with torch.inference_mode():
            # `generate` calls `allocate`, so the recorder then holds the steps of this batch only.
            codes = decoder.generate(features, mask, noise).codes
        for position, outdated, before in recorder.steps:
            # At the end of an image, not all of the next positions exist.
            rows = (position + NUM_DEPTHS <= num_tokens).nonzero().squeeze(1)
            step = (rows + first, position[rows], outdated[rows], before[rows])
            parts.append([part.cpu() for part in step])
        # A copy of the slice: a view would keep the positions past the end in memory.
        images.append((codes.cpu(), recorder.states[:, :num_tokens].to("cpu", copy=True)))
    # In the order of the fields: the tensors of the images, then those of the steps.
    return DecodingSteps(*(torch.cat(part) for kind in (images, parts) for part in zip(*kind, strict=True)))


class StateHeadTrainer(Trainer[StateHead]):
    """Trainer of a state head, on recorded decoding steps. The scales of the head are set from the data.

    The loss is a sum over NUM_DEPTHS positions, for the distributions t of the target and p of the head:

        KL(t || p) + HIDDEN_WEIGHT * (smooth L1 distance of their hidden states)

    `training.batch_size` is a number of images, all of whose steps are used. The seed determines their order and the
    dropped channels.
    """

    def __init__(
        self, head: StateHead, target: Target, steps: DecodingSteps, training: HeadsTraining, seed: int
    ) -> None:
        self.model = head.train()
        self.target = freeze(target, torch.float32)
        self.data = steps
        self.training = training
        self.seed = seed
        self.optimiser = make_adamw(head, training.learning_rate, weight_decay=WEIGHT_DECAY)
        with torch.no_grad():
            head.state_scale.copy_(steps.states.square().mean().sqrt())
            head.token_scale.copy_(embed_tokens(target, steps.codes.to(target.device)).square().mean().sqrt())

    @override
    def step(self, i: int) -> dict[str, float]:
        t = self.training
        images = step_indices(len(self.data.codes), t.batch_size, self.seed, i)
        # Dropout uses the global generator. It must not depend on whether the training was interrupted.
        torch.manual_seed(step_generator(self.seed, i).initial_seed())
        loss = self.loss(self.predict(self.data, torch.isin(self.data.image, images).nonzero().squeeze(1)))
        norm = self.optimiser.step(loss, cosine_rate(i, t.num_steps, warmup=t.warmup))
        return {"loss": float(loss.detach()), "gradient_norm": norm}

    def predict(self, data: DecodingSteps, chosen: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Run the head on the recorded steps with indices `chosen`, along the tokens of the finished images.

        For each position, return the predicted and the target's hidden states, float32 (n, dim).
        """
        device = self.target.device
        image = data.image[chosen]
        first = data.position[chosen]
        codes = data.codes[image].to(device)
        # The state from which the last emitted token was sampled is up to date.
        predicted = data.states[image, first - 1].to(device)
        pairs = []
        # For the second position, the head reads its own prediction for the first, as in decoding.
        for depth in range(NUM_DEPTHS):
            position = first + depth
            above = self.model.tokens_above(codes, position.to(device))
            # The token before the position, and the one that was there when `outdated` was computed.
            before = torch.stack([data.codes[image, position - 1], data.before[chosen, depth]], dim=1)
            embedded = embed_tokens(self.target, torch.cat([before.to(device), above], dim=1))
            predicted = self.model(predicted, data.outdated[chosen, depth].to(device), embedded)
            pairs.append((predicted, data.states[image, position].to(device)))
        return pairs

    def loss(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """Return the loss of the pairs of `predict`, as a scalar."""
        total = torch.zeros((), device=self.target.device)
        for predicted, wanted in pairs:
            log_probs = self.target.read_logits(wanted).log_softmax(-1)
            divergence = F.kl_div(
                self.target.read_logits(predicted).log_softmax(-1), log_probs, reduction="batchmean", log_target=True
            )
            total = total + divergence + HIDDEN_WEIGHT * F.smooth_l1_loss(predicted, wanted)
        return total


class StateHeadValidation:
    """Measurement of a state head on recorded steps of held-out images, at temperature 1."""

    def __init__(self, trainer: StateHeadTrainer, steps: DecodingSteps, sampling: SamplingConfig) -> None:
        self.trainer = trainer
        self.steps = steps
        self.sampling = replace(sampling, temperature=1.0)

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """Measure the head, as trained so far: val_loss, and the `mean_overlap` of the next two positions."""
        self.trainer.model.eval()  # without dropout
        pairs = self.trainer.predict(self.steps, torch.arange(len(self.steps.image)))
        self.trainer.model.train()
        values = {"val_loss": float(self.trainer.loss(pairs))}
        for depth, (predicted, wanted) in enumerate(pairs, 1):
            # One branch, because these states are guided.
            overlap = mean_overlap(self.trainer.target, predicted[None], wanted[None], self.sampling)
            values[f"val_overlap_{depth}"] = overlap
        return values
