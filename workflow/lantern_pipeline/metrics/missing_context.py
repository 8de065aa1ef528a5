"""What lines drawn in parallel lose: the distribution of every token, beside the target's in full context."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from lantern.decoding import Decoder
from lantern.generation import decode_timed
from lantern.models.text import TextEncoder
from lantern.prompts import Prompt
from lantern.sampling import filter_logits
from lantern.step import Scores
from lantern_pipeline.metrics.likelihood import walk_logits
from lantern_pipeline.metrics.output_distribution import NodeRecorder, OutputDistribution, VerifiedNodes


@torch.inference_mode()
def measure_missing_context(
    decoder: Decoder, prompts: Sequence[Prompt], encoder: TextEncoder, *, run_seed: int, max_nodes: int, batch_size: int
) -> tuple[VerifiedNodes, OutputDistribution]:
    """Draws images, and gives the target's distribution behind all tokens of an image and the one that was drawn from,
    at positions chosen as by `record_nodes`, but not at position 0, which lacks nothing.
    """
    is_chosen = NodeRecorder(len(prompts), decoder.target.config, max_nodes, run_seed).is_chosen.to(decoder.device)
    is_chosen[:, 0] = False
    options = {"cfg_scale": decoder.sampling.cfg_scale, "batch_size": batch_size}
    drawn_from, target = [], []
    try:
        for begin in range(0, len(prompts), batch_size):
            batch, steps = prompts[begin : begin + batch_size], []
            decoder.observer = partial(_keep, steps)
            generation, _ = decode_timed(decoder, batch, encoder, run_seed)
            chosen = is_chosen[begin : begin + batch_size]
            drawn_from.append(_in_order(steps, decoder.num_tokens)[chosen])
            texts = [prompt.text for prompt in batch]
            for rows, _, logits in walk_logits(decoder.target, encoder, generation.codes, texts, **options):
                target.append(filter_logits(logits[chosen[rows]], decoder.sampling).softmax(-1))
    finally:
        decoder.observer = None
    image = is_chosen.nonzero()[:, 0].cpu()
    nodes = VerifiedNodes(torch.cat(target), None, image.new_zeros(len(image), 0), image)
    nothing = torch.zeros(len(image))
    return nodes, OutputDistribution(torch.cat(drawn_from), nothing, nothing)


def _keep(steps: list[tuple[torch.Tensor, torch.Tensor]], scores: Scores) -> None:
    """Keeps the positions of a step, (images, cells), and what they were drawn from, (images, cells, vocab)."""
    steps.append((scores.positions, scores.weights.softmax(-1)))


def _in_order(steps: Sequence[tuple[torch.Tensor, torch.Tensor]], num_tokens: int) -> torch.Tensor:
    """What every token of the images was drawn from, (images, tokens, vocab)."""
    positions, probs = (torch.cat(part, dim=1) for part in zip(*steps, strict=True))
    laws = probs.new_zeros(len(probs), int(positions.max()) + 1, probs.shape[-1])
    return laws.scatter_(1, positions[..., None].expand_as(probs), probs)[:, :num_tokens]
