"""Training of the image tokenizer: first without quantisation, then with a codebook.

A *latent* is the encoder's vector at one position of an image, of unit length. Quantisation replaces it by the nearest
code vector. Code vectors are not trained by gradients: each is the normalised moving average of the latents that it
replaced. Loss:

    |x - y| + (x - y)^2 + gradient_weight * edges(x, y) + commitment_weight * |latent - code|^2
        + perceptual_weight * perceptual(x, y)

for images x and reconstructions y, (images, 3, S, S). Each term is a mean over pixels, neighbours or positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from lantern_models.images.shapes import ImageTokenizer, TokenizerConfig, nearest_rows
from lantern_pipeline.data.image_sources import ImageSource, batch_indices
from lantern_pipeline.training.loop import Trainer, cosine_rate, step_generator
from lantern_pipeline.training.optimisers import BETAS, ConvolutionMuon, Optimiser
from lantern_pipeline.world.attribute_classifier import AttributeClassifier, evaluate_attribute_classifier

NUM_EVAL = 1000  # number of held-out images for the reported numbers
_DATA_STREAM = 202  # makes this stage's random numbers different from those of other stages
_KMEANS_IMAGES = 512  # number of images whose latents the codebook starts from
_KMEANS_CHUNK = 8192  # number of vectors that are compared with all centres at once


@dataclass(frozen=True)
class TokenizerTraining:
    """Settings of the tokenizer's training. Only `num_steps` is a key of config section `tokenizer`."""

    num_steps: int
    batch_size: int = 16
    matrix_learning_rate: float = 0.004  # highest rate of Muon, for convolution kernels
    learning_rate: float = 0.002  # highest rate of AdamW, for all other parameters
    continuous_steps: int = 120  # steps without quantisation at the beginning, at most half of all steps
    codebook_decay: float = 0.985  # decay per step of the moving averages of latents
    dead_share: float = 0.05  # a code with less than this share of the mean use is moved to a random latent
    commitment_weight: float = 0.25
    gradient_weight: float = 0.5
    perceptual_weight: float = 0.1


class TokenizerTrainer(Trainer[ImageTokenizer]):
    """Trainer whose seed determines the initial weights and the images of each step.

    Args:
        attribute_classifier: classifier of the perceptual loss, which is frozen in place. None for no perceptual loss.
    """

    def __init__(
        self,
        source: ImageSource,
        attribute_classifier: AttributeClassifier | None,
        config: TokenizerConfig,
        settings: TokenizerTraining,
        seed: int,
    ) -> None:
        torch.manual_seed(seed)
        self.source, self.settings, self.seed = source, settings, seed
        self.attribute_classifier = attribute_classifier
        if attribute_classifier is not None:
            attribute_classifier.eval().requires_grad_(False)
        self.model = ImageTokenizer(config).to(memory_format=torch.channels_last)
        parameters = list(self.model.parameters())
        # All kernels except the two at the latents, which have only code_dim inputs or outputs.
        kernels = [p for p in parameters if p.dim() == 4 and min(p.shape[:2]) > config.code_dim]
        # `p not in kernels` would compare entries.
        others = [p for p in parameters if all(p is not kernel for kernel in kernels)]
        adamw = torch.optim.AdamW(others, settings.learning_rate, betas=BETAS, weight_decay=1e-4)
        self.optimiser = Optimiser([ConvolutionMuon(kernels, settings.matrix_learning_rate), adamw])
        # `_start_codebook` replaces both: the uses of each code per step, and the sums of the latents it replaced.
        self.code_use = torch.ones(config.codebook_size)
        self.code_sums = self.model.codebook.clone()

    @override
    def step(self, i: int) -> dict[str, float]:
        settings = self.settings
        # The codebook starts from latents of an encoder that has learnt something.
        first = min(settings.continuous_steps, settings.num_steps // 2)
        if i == first:
            self._start_codebook(i)
        images = self.source.images("train", self._indices(i, settings.batch_size))
        latents = self.model.latents(images)
        quantised, codes = latents, None
        if i >= first:
            # `embedding` has unit rows here, so it equals `codebook`, which normalises them.
            codes = nearest_rows(latents.detach(), self.model.embedding)  # (images, positions)
            quantised = self.model.embedding[codes]
        # Straight-through estimator: the decoder gets the code vector, and the encoder gets the gradient at it.
        reconstructions = self.model.reconstruct(latents + (quantised - latents).detach())
        losses = self._losses(images, reconstructions, latents, quantised)
        loss = sum(losses.values(), torch.zeros(()))
        self.optimiser.step(loss, cosine_rate(i, settings.num_steps, warmup=max(1, settings.num_steps // 20)))
        if codes is not None:
            self._update_codebook(i, latents.detach().flatten(0, 1), codes.flatten())
        error = F.mse_loss(reconstructions.detach().clamp(-1, 1), images)
        # Pixels are in [-1, 1], so the square of their range is 4.
        psnr = 10.0 * torch.log10(4.0 / error)
        return {"loss": loss.item(), "psnr_db": psnr.item(), **{name: value.item() for name, value in losses.items()}}

    @override
    def state_dict(self) -> dict[str, object]:
        return super().state_dict() | {"code_use": self.code_use, "code_sums": self.code_sums}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.code_use, self.code_sums = state["code_use"].clone(), state["code_sums"].clone()

    def _indices(self, i: int, count: int) -> list[int]:
        return batch_indices(self.seed + _DATA_STREAM, i, count, self.source.num_train)

    def _generator(self, i: int) -> torch.Generator:
        return step_generator(self.seed + _DATA_STREAM, i)

    def _losses(self, images: Tensor, output: Tensor, latents: Tensor, quantised: Tensor) -> dict[str, Tensor]:
        settings = self.settings
        losses = {
            "pixel": F.l1_loss(output, images) + F.mse_loss(output, images),
            "gradient": settings.gradient_weight * gradient_distance(output, images),
            # 0 in the continuous steps, in which `quantised` is `latents`.
            "commitment": settings.commitment_weight * (latents - quantised).square().sum(-1).mean(),
        }
        if self.attribute_classifier is not None and settings.perceptual_weight > 0:
            distance = perceptual_distance(self.attribute_classifier, output, images)
            losses["perceptual"] = settings.perceptual_weight * distance
        return losses

    @torch.no_grad()
    def _start_codebook(self, i: int) -> None:
        # A number that no step has, so the images are not those of step i.
        indices = self._indices(i + (1 << 40), _KMEANS_IMAGES)
        chunks = [indices[start : start + 64] for start in range(0, len(indices), 64)]
        latents = torch.cat([self.model.latents(self.source.images("train", chunk)).flatten(0, 1) for chunk in chunks])
        # 8 rounds. `_update_codebook` of this step starts from the same generator, with other latents.
        codebook = spherical_kmeans(latents, self.model.config.codebook_size, 8, self._generator(i))
        self.model.embedding.copy_(codebook)
        # The averages start as if all codes were used equally often.
        share = self.settings.batch_size * self.model.config.grid**2 / len(codebook)
        self.code_use.fill_(share)
        self.code_sums.copy_(codebook * share)

    @torch.no_grad()
    def _update_codebook(self, i: int, latents: Tensor, codes: Tensor) -> None:
        decay = self.settings.codebook_decay
        use, sums = count_and_sum(latents, codes, len(self.code_use))
        self.code_use.lerp_(use, 1.0 - decay)
        self.code_sums.lerp_(sums, 1.0 - decay)
        mean_use = len(latents) / len(self.code_use)
        reseed_dead_codes(
            self.code_use, self.code_sums, latents, self.settings.dead_share * mean_use, self._generator(i)
        )
        # Normalised sums are normalised means: the uses are needed for dead codes only.
        self.model.embedding.copy_(F.normalize(self.code_sums, dim=-1))


def gradient_distance(output: Tensor, images: Tensor) -> Tensor:
    """Return edges(x, y): the mean absolute error of differences between neighbours in lines, plus that in columns."""
    error = output - images
    return (error[..., 1:] - error[..., :-1]).abs().mean() + (error[..., 1:, :] - error[..., :-1, :]).abs().mean()


def perceptual_distance(attribute_classifier: AttributeClassifier, output: Tensor, images: Tensor) -> Tensor:
    """Return perceptual(x, y) = sum over the classifier's stages A of mean((A(y) - A(x))^2) / mean(A(x)^2)."""
    num_stages = len(attribute_classifier.stages)
    with torch.no_grad():
        # No gradient is needed here. That of `found` flows through the frozen classifier.
        wanted = attribute_classifier.activations(images, num_stages)
    found = attribute_classifier.activations(output, num_stages)
    terms = [(a - b).square().mean() / b.square().mean() for a, b in zip(found, wanted, strict=True)]
    return torch.stack(terms).sum()


def count_and_sum(latents: Tensor, codes: Tensor, codebook_size: int) -> tuple[Tensor, Tensor]:
    """Return how often each code is used, (codebook_size,), and the sum of its latents, (codebook_size, code_dim).

    Latents are (positions, code_dim), and `codes` has the nearest code of each, int64 (positions,).
    """
    use = torch.bincount(codes, minlength=codebook_size).to(latents.dtype)
    sums = torch.zeros(codebook_size, latents.shape[1]).index_add_(0, codes, latents)
    return use, sums


def reseed_dead_codes(
    code_use: Tensor, code_sums: Tensor, latents: Tensor, threshold: float, generator: torch.Generator
) -> int:
    """Move codes with a use below `threshold` to random latents of the batch, in place, and return their number."""
    dead = (code_use < threshold).nonzero()[:, 0]
    if len(dead):
        chosen = torch.randint(len(latents), (len(dead),), generator=generator)
        # Ten times, because at the threshold itself a code might be moved again before latents near it occur.
        # The sum must fit: it is that of as many uses.
        code_use[dead] = 10.0 * threshold
        code_sums[dead] = 10.0 * threshold * latents[chosen]
    return len(dead)


def spherical_kmeans(vectors: Tensor, num_rows: int, num_rounds: int, generator: torch.Generator) -> Tensor:
    """Cluster unit vectors (vectors, dim) by inner products, and return the centres, unit vectors (num_rows, dim)."""
    if len(vectors) < num_rows:
        raise ValueError(
            f"k-means needs at least codebook_size = {num_rows} latents, got {len(vectors)}; use more images"
        )
    rows = vectors[torch.randperm(len(vectors), generator=generator)[:num_rows]]
    for _ in range(num_rounds):
        nearest = torch.cat([nearest_rows(chunk, rows) for chunk in vectors.split(_KMEANS_CHUNK)])
        use, sums = count_and_sum(vectors, nearest, num_rows)
        # Counts are integers, so only empty clusters are below 0.5.
        reseed_dead_codes(use, sums, vectors, 0.5, generator)
        rows = F.normalize(sums, dim=-1)
    return rows


@torch.no_grad()
def evaluate_tokenizer(
    tokenizer: ImageTokenizer,
    attribute_classifier: AttributeClassifier | None,
    images: Tensor,
    captions: Sequence[str],
) -> dict[str, float]:
    """Measure a tokenizer's reconstructions of held-out images.

    Args:
        attribute_classifier: is tested on the reconstructions. None for no such test.
        captions: what the classifier should recognise.

    Returns:
        psnr_db (mean over images), codes_used_share (share of the codes that occur) and perplexity (exponential of the
        entropy of the codes' frequencies). With a classifier, also the results of `evaluate_attribute_classifier`.
    """
    codes = tokenizer.encode(images)
    reconstructions = tokenizer.decode(codes)
    # `decode` has clamped to [-1, 1]. The lower bound keeps the PSNR of a perfect reconstruction finite.
    error = (reconstructions - images).square().mean((1, 2, 3)).clamp(min=1e-10)
    counts = torch.bincount(codes.flatten(), minlength=tokenizer.config.codebook_size).double()
    frequency = counts / counts.sum()
    result = {
        "psnr_db": float((10.0 * torch.log10(4.0 / error)).mean()),
        "codes_used_share": float((counts > 0).double().mean()),
        "perplexity": float(torch.exp(-torch.xlogy(frequency, frequency).sum())),
    }
    if attribute_classifier is not None:
        result.update(evaluate_attribute_classifier(attribute_classifier, reconstructions, captions))
    return result
