"""Memory and time limits of jobs, estimated from the sizes in the config.

Estimates may be too small: if a job exceeds a limit of the cluster, Snakemake submits it again with twice the limit.
Snakemake imports this module while it plans the jobs, so the module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lantern.models.config import DraftConfig, draft_parameters, target_parameters
from lantern.models.families import FAMILIES
from lantern_pipeline.data.model_cards import card_of
from lantern_pipeline.settings.run_config import RunConfig

# Measured and rounded up: 600 MB for a process with PyTorch and this package, 320 MB for the two Snakemake processes
# that run a job on a cluster.
BASE_MB = 1300
# Additional host memory of a process with CUDA: libraries and pinned buffers. An estimate.
CUDA_MB = 3000
# Duration of a forward pass of a published target over a batch. An estimate: a launch-bound step of 600 to 1300
# operations takes 10 to 20 ms (benchmarks/kernels.py counts them). A time limit is the expected time times MARGIN.
SECONDS_A_FORWARD = 0.03
MARGIN = 3
# Time per token to score it under the target, with its part of Inception, VGG16, CLIP and HPS. An estimate with margin.
SECONDS_A_SCORED_TOKEN = 0.0006
FLOAT32_BYTES = 4
# Number of logits in a block of scored tokens, and number of arrays of that size in memory; see measure/likelihood.py.
SCORED_LOGITS, SCORED_ARRAYS = 2**27, 6
NOISE_BYTES = 2**25  # largest size of the noise of an image, per stream; see lantern/noise.py


# Upper limits of a repeated attempt, from profiles/slurm/partitions.yaml. A first attempt may request more.
MOST_MB, MOST_MINUTES = 128_000, 2880


def growing(first: int, most: float = math.inf) -> Callable[..., int]:
    """Return a function for a rule's resource (memory or time) that doubles the amount with every attempt of a job.

    Args:
        first: amount of the first attempt, in MB or minutes.
        most: upper limit of later attempts. If `first` is larger, every attempt gets `first`.
    """

    def resource(wildcards: object, attempt: int) -> int:
        return int(max(first, min(first * 2 ** (attempt - 1), most)))

    return resource


def draft_sizes(config: RunConfig) -> DraftConfig:
    """Return the sizes of the draft model that the config describes.

    Published draft models of Chameleon's family have additional sizes, because they also embed the prompt's token ids.
    """
    family = FAMILIES.get(config.text.encoder)
    is_chameleon = family is not None and family.layers_class == "ChameleonModel"
    is_published = is_chameleon and config.drafter.checkpoint is not None
    return (DraftConfig.of_chameleon if is_published else DraftConfig.of)(card_of(config).target_config())


class JobSizes:
    """Memory (MB) and time (minutes) of jobs that load a target model.

    GPU memory is not counted. Methods that end in `_mb` or `_minutes` return a function for Snakemake, which doubles
    the amount with every attempt.

    Attributes:
        config: the checked config.
        has_gpu: whether jobs run on a GPU.
        sizes: sizes of the target model.
        drafter: sizes of the draft model.
        num_drafter: number of parameters of the draft model.
        value_bytes: bytes per parameter when decoding.
        is_large: whether the target has more than 50 million parameters.
    """

    def __init__(self, config: RunConfig, has_gpu: bool) -> None:
        self.config = config
        self.has_gpu = has_gpu
        self.sizes = card_of(config).target_config()
        self.drafter = draft_sizes(config)
        self.num_drafter = draft_parameters(self.drafter)
        self.value_bytes = FLOAT32_BYTES if config.generation.dtype == "float32" else 2
        # The target of the shapes dataset has 4 million parameters, LlamaGen B has 111 million.
        self.is_large = target_parameters(self.sizes) > 50e6

    def decoding_mb(self, more: int = 0) -> Callable[..., int]:
        """Return the host memory that a job needs to decode images.

        The estimate counts the target and the draft model in the dtype of decoding. It also counts the random noise of
        images: two independent fields of random numbers, each for the current and the next batch. Weight files are
        memory-mapped and read tensor by tensor, so they need no second copy.

        Args:
            more: additional MB.

        Returns:
            Function for a rule's `mem_mb`: MB, doubled with every attempt.
        """
        noise = min(4 * self.sizes.num_image_tokens * self.sizes.vocab_size, NOISE_BYTES)
        noise_mb = math.ceil(2 * 2 * self.config.generation.batch_size * noise / 1e6)
        return growing(max(2000, self._host_mb(self.value_bytes) + noise_mb) + more, MOST_MB)

    def scoring_mb(self, more: int = 0) -> Callable[..., int]:
        """Return the host memory that a job needs to compute the likelihood of tokens.

        The estimate counts the target and the draft model for decoding, a second target for the likelihoods, and the
        logits of a block of tokens.

        Args:
            more: additional MB.

        Returns:
            Function for a rule's `mem_mb`: MB, doubled with every attempt.
        """
        num_logits = min(SCORED_LOGITS, 64 * self.sizes.num_image_tokens * self.sizes.vocab_size)
        logits_mb = 0 if self.has_gpu else math.ceil(SCORED_ARRAYS * num_logits * FLOAT32_BYTES / 1e6)
        return growing(max(3000, self._host_mb(2 * self.value_bytes) + logits_mb) + more, MOST_MB)

    def converting_mb(self) -> Callable[..., int]:
        """Return the host memory that a job needs to convert a target into Lantern's file layout.

        The job reads the memory-mapped file tensor by tensor, so that it never holds the whole model. It also copies an
        embedding table to float32, to check it. The size of the table is not known when jobs are planned. The estimate
        therefore counts one byte more per parameter of target and draft model than the file has.

        Returns:
            Function for a rule's `mem_mb`: MB, doubled with every attempt.
        """
        return growing(max(2000, self._host_mb(self.value_bytes + 1)), MOST_MB)

    def training_mb(self) -> Callable[..., int]:
        """Return the host memory that a job needs to train the draft model.

        The estimate counts the frozen target, and weights, gradients and two optimiser moments of the draft model.

        Returns:
            Function for a rule's `mem_mb`: MB, doubled with every attempt.
        """
        drafter = self.num_drafter * 16 / 1e6
        target_bytes = FLOAT32_BYTES if self.config.drafter.precision == "float32" else self.value_bytes
        return growing(max(3000, self._host_mb(target_bytes) + math.ceil(drafter)), MOST_MB)

    def decoding_minutes(self, num_images: int, batch_size: int, first: int = 60) -> Callable[..., int]:
        """Return the time limit of a job that decodes images.

        It is long enough even if each forward pass emits only one token per image.

        Args:
            num_images: number of images.
            batch_size: images decoded together.
            first: lower bound of the time limit, in minutes. If the target is small, this is the time limit.

        Returns:
            Function for a rule's `runtime`: minutes, doubled with every attempt.
        """
        seconds = math.ceil(num_images / batch_size) * self.sizes.num_image_tokens * SECONDS_A_FORWARD
        return growing(max(first, math.ceil(MARGIN * seconds / 60) if self.is_large else 0), MOST_MINUTES)

    def scoring_minutes(self, num_images: int, first: int = 120) -> Callable[..., int]:
        """Return the time limit of a job that evaluates images with all metrics.

        Args:
            num_images: number of images.
            first: lower bound of the time limit, in minutes. If the target is small, this is the time limit.

        Returns:
            Function for a rule's `runtime`: minutes, doubled with every attempt.
        """
        seconds = num_images * self.sizes.num_image_tokens * SECONDS_A_SCORED_TOKEN
        return growing(max(first, math.ceil(seconds / 60) if self.is_large else 0), MOST_MINUTES)

    def images_of(self, prompt_set: str, num_shards: int = 1) -> int:
        """Return the number of images of a prompt set, or of the part of it (shard) that one job generates.

        If the set takes all prompts of a file, 5,000 prompts are assumed, because the file is not read here.

        Args:
            prompt_set: name of the prompt set.
            num_shards: number of shards into which the set is divided; 1 counts the whole set.
        """
        entry = self.config.prompt_sets[prompt_set]
        return math.ceil((entry.num or 5000) * (entry.copies or 1) / num_shards)

    def _host_mb(self, bytes_per_parameter: int) -> int:
        parameters = target_parameters(self.sizes) + self.num_drafter
        return BASE_MB + (CUDA_MB if self.has_gpu else 0) + math.ceil(parameters * bytes_per_parameter / 1e6)
