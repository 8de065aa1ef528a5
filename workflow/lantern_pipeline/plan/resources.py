"""Host memory and time that jobs request, estimated from the sizes in the config. GPU memory is not estimated.

An estimate may be too small. On a cluster, a job that exceeds what it requested is submitted again with twice as much
(key `restart-times` of a profile).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lantern.models.config import DraftConfig, TargetConfig, draft_parameters, target_parameters
from lantern_models.cards.card import ModelCard
from lantern_models.families import FAMILIES
from lantern_models.sizes import chameleon_draft
from lantern_pipeline.schema.run_config import RunConfig

# Measured 600 MB for a process with PyTorch and this package, and 320 MB for the two Snakemake processes that run a job
# on a cluster. The rest is margin.
BASE_MB = 1300
# Additional host memory of a process with CUDA: libraries and pinned buffers. An estimate.
CUDA_MB = 3000
# Seconds of a forward pass of a published target, taken to be the same for every batch size. An estimate: to launch its
# 600 to 1300 operations (counted by benchmarks/kernels.py) takes 10 to 20 ms. A limit is MARGIN times the estimate.
SECONDS_A_FORWARD = 0.03
MARGIN = 3
# Seconds to evaluate an image with all metrics (likelihood, Inception, VGG16, CLIP, HPS), divided by its number of
# tokens. An estimate that includes a margin, so MARGIN is not applied.
SECONDS_A_SCORED_TOKEN = 0.0006
FLOAT32_BYTES = 4
TRAINED_BYTES = 4 * FLOAT32_BYTES  # per trained parameter: weight, gradient and two moments of the optimiser
# LOGITS_AT_ONCE and IMAGES_ON_CPU in measure/exactness/likelihood.py, and the most arrays of logits in memory there.
SCORED_LOGITS, SCORED_IMAGES, SCORED_ARRAYS = 2**27, 16, 6
NOISE_BYTES = 2**25  # largest noise of an image in host memory, per stream; see WHOLE_BYTES in lantern/noise.py

# Upper limits of a repeated attempt, from profiles/slurm/partitions.yaml. A first attempt may request more.
MOST_MB, MOST_MINUTES = 128_000, 2880


def growing(first: int, most: float = math.inf) -> Callable[..., int]:
    """Return a rule's memory (MB) or time (minutes) as a function: `first`, doubled per new attempt up to `most`."""

    def resource(wildcards: object, attempt: int) -> int:  # Snakemake counts attempts from 1
        return int(max(first, min(first * 2 ** (attempt - 1), most)))

    return resource


def draft_sizes(config: RunConfig, target: TargetConfig) -> DraftConfig:
    """Return the sizes of the run's draft model, also if no method has one."""
    # Published draft models of Chameleon's family also embed the prompt's token ids, which takes more parameters.
    family = FAMILIES.get(config.text.encoder)  # None for encoders such as "words", which are no family
    is_chameleon = family is not None and family.layers_class == "ChameleonModel"
    is_published = is_chameleon and config.drafter.checkpoint is not None
    return (chameleon_draft if is_published else DraftConfig.of)(target)


class JobSizes:
    """Memory and time of jobs that load a target.

    Methods that end in `_mb` or `_minutes` return a function as `growing` does. `more` is in MB and added. `first` is
    the time limit for a small target in minutes, and the least for a large one. The floors of 2000 and 3000 MB are
    chosen. They apply to small targets on a CPU.

    Attributes:
        sizes: those of the target.
        value_bytes: bytes per parameter when decoding.
    """

    def __init__(self, config: RunConfig, card: ModelCard, has_gpu: bool) -> None:
        self.config = config
        self.has_gpu = has_gpu
        self.sizes = card.target_config()
        self.drafter = draft_sizes(config, self.sizes)
        self.num_drafter = draft_parameters(self.drafter)
        self.value_bytes = FLOAT32_BYTES if config.generation.dtype == "float32" else 2
        # The target of the shapes dataset has 4 million parameters, LlamaGen B has 111 million.
        self.is_large = target_parameters(self.sizes) > 50e6

    def decoding_mb(self, more: int = 0) -> Callable[..., int]:
        """Return the memory for target and draft model, and for noise."""
        # float32 noise of all codes at all positions: two independent fields, each for the current and the next batch.
        # Weight files are memory-mapped and read tensor by tensor, so they need no second copy.
        noise = min(4 * self.sizes.num_image_tokens * self.sizes.vocab_size, NOISE_BYTES)
        noise_mb = math.ceil(2 * 2 * self.config.generation.batch_size * noise / 1e6)
        return growing(max(2000, self._host_mb(self.value_bytes) + noise_mb) + more, MOST_MB)

    def scoring_mb(self, more: int = 0) -> Callable[..., int]:
        """Return the memory for two targets (of a decoder and of likelihoods), for a draft model, and for logits."""
        # Logits are in host memory on a CPU only.
        num_logits = min(SCORED_LOGITS, SCORED_IMAGES * self.sizes.num_image_tokens * self.sizes.vocab_size)
        logits_mb = 0 if self.has_gpu else math.ceil(SCORED_ARRAYS * num_logits * FLOAT32_BYTES / 1e6)
        return growing(max(3000, self._host_mb(self.value_bytes, num_targets=2) + logits_mb) + more, MOST_MB)

    def converting_mb(self) -> Callable[..., int]:
        """Return the memory to convert a target into Lantern's file layout."""
        # The file is read tensor by tensor, but an embedding table of unknown size is copied to float32, to check it.
        # One byte more per parameter of target and draft model allows for that copy.
        return growing(max(2000, self._host_mb(self.value_bytes + 1)), MOST_MB)

    def training_mb(self) -> Callable[..., int]:
        """Return the memory for the frozen target, and for a trained model of the draft model's size."""
        drafter = self.num_drafter * TRAINED_BYTES / 1e6
        # The target is read in its file's dtype, that of decoding, and then cast to the dtype of training.
        target_bytes = FLOAT32_BYTES if self.config.drafter.precision == "float32" else self.value_bytes
        return growing(max(3000, self._host_mb(target_bytes) + math.ceil(drafter)), MOST_MB)

    def target_training_mb(self) -> Callable[..., int]:
        """Return the memory to train a target, beside which there is no other model."""
        target = target_parameters(self.sizes) * TRAINED_BYTES / 1e6
        return growing(max(3000, self._host_mb(0) + math.ceil(target)), MOST_MB)

    def decoding_minutes(self, num_images: int, batch_size: int, first: int = 60) -> Callable[..., int]:
        """Return the time limit of a job that decodes images, even if each forward pass emits one token per image."""
        seconds = math.ceil(num_images / batch_size) * self.sizes.num_image_tokens * SECONDS_A_FORWARD
        return growing(max(first, math.ceil(MARGIN * seconds / 60) if self.is_large else 0), MOST_MINUTES)

    def scoring_minutes(self, num_images: int, first: int = 120) -> Callable[..., int]:
        """Return the time limit of a job that evaluates images with all metrics."""
        seconds = num_images * self.sizes.num_image_tokens * SECONDS_A_SCORED_TOKEN
        return growing(max(first, math.ceil(seconds / 60) if self.is_large else 0), MOST_MINUTES)

    def images_of(self, prompt_set: str, num_shards: int = 1) -> int:
        """Return the images per shard of a prompt set, rounded up."""
        # A set may take all prompts of a file, which is not read while jobs are planned: 5,000 are assumed.
        entry = self.config.prompt_sets[prompt_set]
        return math.ceil((entry.num or 5000) * (entry.copies or 1) / num_shards)

    def _host_mb(self, bytes_per_parameter: int, num_targets: int = 1) -> int:
        # with the draft model, even if no method has one
        parameters = num_targets * target_parameters(self.sizes) + self.num_drafter
        return BASE_MB + (CUDA_MB if self.has_gpu else 0) + math.ceil(parameters * bytes_per_parameter / 1e6)
