"""Part D of the GPU check: test that exact methods in bfloat16 give the images of autoregressive decoding.

A matrix product with 2 rows rounds differently from one with 20 rows, unless kernels are batch-invariant. Jacobi
decoding on a chain is therefore compared with two baselines. Autoregressive steps that are padded to the same number of
rows must give the same images. Autoregressive steps without padding may give other images sometimes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from kernels import SAMPLING

import lantern
from gpu_parts.common import Check, chains, label, load_embedded, make_models
from gpu_parts.equality import CAPTIONS
from lantern.decoding import Decoder, make_decoder
from lantern.drafters.jacobi import JacobiDrafter, JacobiState
from lantern.methods import MethodSpec, make_method
from lantern.sampling import SamplingConfig
from lantern.state import DecodingModels, Generation
from lantern.step import Proposal
from lantern_pipeline.measure.exactness.losslessness import compare_with_autoregressive
from lantern_pipeline.measure.speed.random_models import RandomPrompts

Generate = Callable[[Decoder], Generation]


class PaddedDrafter(JacobiDrafter):
    """Jacobi drafter without drafts, which turns a decoder of Jacobi drafts into padded autoregressive decoding.

    A step computes as many nodes as the tree has, but emits one token.
    """

    def propose(self, state: JacobiState, root: torch.Tensor, lengths: torch.Tensor) -> Proposal:
        """Propose a tree in which only the root has a token. All other nodes are -1, which marks a missing draft."""
        proposal = super().propose(state, root, lengths)
        proposal.tokens[:, 1:] = -1
        return proposal


def padded_decoder(models: DecodingModels, spec: MethodSpec, sampling: SamplingConfig) -> Decoder:
    """Return a decoder for autoregressive decoding with padded steps.

    A step computes as many nodes as a step of the Jacobi method `spec`.
    """
    decoder = make_decoder(models, spec, sampling)
    decoder.drafter = PaddedDrafter.make(models, spec, sampling)
    return decoder


def measure(check: Check) -> None:
    """Compare Jacobi decoding on two chains with both baselines, for the shipped model and at LlamaGen XL's sizes."""
    shipped = lantern.load("embedded")
    captions = shipped.encoder.encode([CAPTIONS[0]] if check.is_tiny else 2 * CAPTIONS)
    sampling = SamplingConfig(1.0, 100, 1.0, "top_k_first", 3.0)
    _compare(check, "embedded", load_embedded(check.device, torch.bfloat16), sampling, captions)
    models = make_models(check.xl(), check.device, torch.bfloat16)
    captions = RandomPrompts(models.target.config).encode([""] * (1 if check.is_tiny else 4))
    _compare(check, "XL", models, SAMPLING, captions)


def _compare(
    check: Check,
    size: str,
    models: DecodingModels,
    sampling: SamplingConfig,
    captions: tuple[torch.Tensor, torch.Tensor],
) -> None:
    def generate(decoder: Decoder) -> Generation:
        return decoder.generate(*captions, [decoder.make_noise(0, str(index)) for index in range(len(captions[0]))])

    with check.attempt("bfloat16", size):
        plain = generate(make_decoder(models, make_method("autoregressive"), sampling, records_margins=True))
        for spec in chains(9) if check.is_tiny else chains(9, 15):
            row = f"{size}, {label(spec)}"
            with check.attempt("bfloat16", row):
                _compare_chain(check, row, models, spec, sampling, generate, plain)


def _compare_chain(
    check: Check,
    row: str,
    models: DecodingModels,
    spec: MethodSpec,
    sampling: SamplingConfig,
    generate: Generate,
    plain: Generation,
) -> None:
    images = generate(make_decoder(models, spec, sampling))
    padded = generate(padded_decoder(models, spec, sampling))
    is_equal = (images.codes == padded.codes).all(1)
    equality = compare_with_autoregressive(images.codes.cpu(), plain.codes.cpu(), plain.margins.cpu())
    num_compared = int((equality.first_difference + ~equality.is_equal).sum())
    margins = equality.margin_at_difference[~equality.is_equal].tolist()
    check.write(
        "bfloat16",
        row,
        images=len(is_equal),
        equal_with_as_many_rows=int(is_equal.sum()),
        is_right=bool(is_equal.all()),
        equal_to_plain_steps=int(equality.is_equal.sum()),
        share_of_tokens_that_part=float((~equality.is_equal).sum()) / num_compared,
        margins_where_they_part=", ".join(f"{margin:.2g}" for margin in margins),
        tokens_per_forward=images.codes.shape[1] / float(images.target_forwards.float().mean()),
    )
