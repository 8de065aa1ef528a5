"""Memory and time that jobs ask for, from the config's sizes.

Read while Snakemake builds the workflow: no torch here. Too little is no disaster: a job that runs into a limit of
a cluster is sent again with twice as much.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lantern.models.config import DraftConfig, draft_parameters, target_parameters
from lantern.models.families import FAMILIES
from lantern_pipeline.data.model_cards import card_of
from lantern_pipeline.settings.run_config import RunConfig

# Measured: 600 MB for a process with PyTorch and this package, 320 MB for the two Snakemake processes around a
# cluster's job; rounded up.
BASE_MB = 1300
# Host memory that a process with CUDA holds besides, libraries and pinned buffers. An estimate.
CUDA_MB = 3000
# Of one target forward of a published model over a batch, and by how much a limit exceeds the expectation. Estimates:
# a launch-bound step of 600 to 1300 operations takes 10 to 20 ms (benchmarks/full_size.py counts them).
SECONDS_A_FORWARD = 0.03
MARGIN = 3
# Of a token scored under the target, with its share of Inception, VGG16, CLIP and HPS; with a margin. An estimate.
SECONDS_A_SCORED_TOKEN = 0.0006
FLOAT32_BYTES = 4
# Logits that a job scores at once, and how many arrays of their size it holds; see measure/likelihood.py.
SCORED_LOGITS, SCORED_ARRAYS = 2**27, 6
NOISE_BYTES = 2**25  # the most that an image's noise takes, a stream; see lantern/noise.py


# The most that a repeated attempt asks for: limits of profiles/slurm/partitions.yaml. A first attempt may ask for more.
MOST_MB, MOST_MINUTES = 128_000, 2880


def growing(first: int, most: float = math.inf) -> Callable[..., int]:
    """Return a rule's resource that doubles with every attempt, up to `most`; it never falls below `first`."""

    def resource(wildcards: object, attempt: int) -> int:
        return int(max(first, min(first * 2 ** (attempt - 1), most)))

    return resource


def draft_sizes(config: RunConfig) -> DraftConfig:
    """Return the sizes of the config's draft model. Published ones of Chameleon's family see the prompt's ids."""
    family = FAMILIES.get(config.text.encoder)
    is_chameleon = family is not None and family.layers_class == "ChameleonModel"
    is_published = is_chameleon and config.drafter.checkpoint is not None
    return (DraftConfig.of_chameleon if is_published else DraftConfig.of)(card_of(config).target_config())


class JobSizes:
    """Megabytes and minutes of jobs that hold a target; a GPU's memory is not counted."""

    def __init__(self, config: RunConfig, has_gpu: bool) -> None:
        self.config = config
        self.has_gpu = has_gpu
        self.sizes = card_of(config).target_config()
        self.drafter = draft_sizes(config)
        self.num_drafter = draft_parameters(self.drafter)
        self.value_bytes = 2 if config.generation.dtype == "bfloat16" else FLOAT32_BYTES
        self.is_large = target_parameters(self.sizes) > 50e6  # the embedded world's have 4 million, LlamaGen B has 111

    def decoding_mb(self, more: int = 0) -> Callable[..., int]:
        """Host memory of a job that decodes: both models as they are run, into which their files, mapped, are read
        tensor by tensor; noise of two streams, of the images that are drawn and of those that are next.
        """
        noise = min(4 * self.sizes.num_image_tokens * self.sizes.vocab_size, NOISE_BYTES)
        noise_mb = math.ceil(2 * 2 * self.config.generation.batch_size * noise / 1e6)
        return growing(max(2000, self._host_mb(self.value_bytes) + noise_mb) + more, MOST_MB)

    def scoring_mb(self, more: int = 0) -> Callable[..., int]:
        """Host memory of a job that also holds a second target, to score tokens with, and the logits of many tokens."""
        num_logits = min(SCORED_LOGITS, 64 * self.sizes.num_image_tokens * self.sizes.vocab_size)
        logits_mb = 0 if self.has_gpu else math.ceil(SCORED_ARRAYS * num_logits * FLOAT32_BYTES / 1e6)
        return growing(max(3000, self._host_mb(2 * self.value_bytes) + logits_mb) + more, MOST_MB)

    def converting_mb(self) -> Callable[..., int]:
        """Host memory of a job that brings a target into our layout, tensor by tensor from the mapped file; a quarter
        or half more for a table of many ids that is looked at in float32.
        """
        return growing(max(2000, self._host_mb(self.value_bytes + 1)), MOST_MB)

    def training_mb(self) -> Callable[..., int]:
        """Host memory of drafter training: a frozen target, and weights, gradients and two moments of the drafter."""
        drafter = self.num_drafter * 16 / 1e6
        target_bytes = FLOAT32_BYTES if self.config.drafter.precision == "float32" else self.value_bytes
        return growing(max(3000, self._host_mb(target_bytes) + math.ceil(drafter)), MOST_MB)

    def decoding_minutes(self, num_images: int, batch_size: int, first: int = 60) -> Callable[..., int]:
        """Time of a job that decodes so many images one token per forward, batch after batch; at least `first`."""
        seconds = math.ceil(num_images / batch_size) * self.sizes.num_image_tokens * SECONDS_A_FORWARD
        return growing(max(first, math.ceil(MARGIN * seconds / 60) if self.is_large else 0), MOST_MINUTES)

    def scoring_minutes(self, num_images: int, first: int = 120) -> Callable[..., int]:
        """Time of a job that scores so many images with every metric; at least `first`."""
        seconds = num_images * self.sizes.num_image_tokens * SECONDS_A_SCORED_TOKEN
        return growing(max(first, math.ceil(seconds / 60) if self.is_large else 0), MOST_MINUTES)

    def images_of(self, prompt_set: str, num_shards: int = 1) -> int:
        """Images of a prompt set, or of one of its shards; a set that takes its whole file counts as 5,000 prompts."""
        entry = self.config.prompt_sets[prompt_set]
        return math.ceil((entry.num or 5000) * (entry.copies or 1) / num_shards)

    def _host_mb(self, bytes_per_parameter: int) -> int:
        parameters = target_parameters(self.sizes) + self.num_drafter
        return BASE_MB + (CUDA_MB if self.has_gpu else 0) + math.ceil(parameters * bytes_per_parameter / 1e6)
