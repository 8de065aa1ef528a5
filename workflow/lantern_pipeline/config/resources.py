"""Memory, disk and time that jobs ask for, from the config's sizes.

Read while Snakemake builds the workflow: no torch here. Too little is no disaster: a job that runs into a limit of
a cluster is sent again with twice as much.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lantern.models.config import DraftConfig, TargetConfig, draft_parameters, head_parameters, pick, target_parameters
from lantern_pipeline.data.model_sizes import CHAMELEON, prompt_sizes, resolve_size

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
# Written by every job: logs and what the file system rounds up. The largest small file of a run is its 7 MB report.
BASE_DISK_MB = 100
# Of a parameter: a float32 value, and what training is resumed from, value and two moments, while a new one replaces
# the old.
FLOAT32_BYTES, RESUMABLE_BYTES = 4, 24
# Logits that a job scores at once, and how many arrays of their size it holds; see measure/likelihood.py.
SCORED_LOGITS, SCORED_ARRAYS = 2**27, 6
# Of an image token in a file of records, autoregressive ones with margins: measured 13.6, ids and header included.
RECORD_BYTES = 13.6
NOISE_BYTES = 2**25  # the most that an image's noise takes, a stream; see lantern/noise.py


def growing(first: int) -> Callable[..., int]:
    """A rule's resource that doubles with every attempt."""

    def resource(wildcards: Any, attempt: int) -> int:
        return first * 2 ** (attempt - 1)

    return resource


def target_sizes(config: dict[str, Any]) -> TargetConfig:
    """Sizes of the config's target."""
    num_tokens = config["tokenizer"]["codebook_size"] + (config["target"].get("line_end") is not None)
    codes = {"vocab_size": num_tokens, "grid": config["tokenizer"]["grid"]}
    return pick(TargetConfig, resolve_size(config["target"]), **codes, **prompt_sizes(config["text"]))


def draft_sizes(config: dict[str, Any]) -> DraftConfig:
    """Sizes of the config's draft model: of our own, or of a published one."""
    is_chameleon = config["text"]["encoder"] in CHAMELEON and config["drafter"]["checkpoint"] is not None
    return (DraftConfig.of_chameleon if is_chameleon else DraftConfig.of)(target_sizes(config))


def disk_mb(num_bytes: float) -> int:
    """Disk that a job fills with so many bytes. A second attempt writes no more than the first."""
    return BASE_DISK_MB + math.ceil(num_bytes / 1e6)


class JobSizes:
    """Megabytes and minutes of jobs that hold a target or write files of its size; a GPU's memory is not counted."""

    def __init__(self, config: dict[str, Any], has_gpu: bool) -> None:
        self.config, self.has_gpu, self.sizes = config, has_gpu, target_sizes(config)
        self.drafter, self.num_drafter = draft_sizes(config), draft_parameters(draft_sizes(config))
        self.value_bytes = 2 if config["generation"]["dtype"] == "bfloat16" else FLOAT32_BYTES
        self.is_large = target_parameters(self.sizes) > 50e6  # the embedded world's have 4 million, LlamaGen B has 111

    def decoding_mb(self, more: int = 0) -> Callable[..., int]:
        """Host memory of a job that decodes: both models as they are run, into which their files, mapped, are read
        tensor by tensor; noise of two streams, of the images that are drawn and of those that are next.
        """
        noise = min(4 * self.sizes.num_image_tokens * self.sizes.vocab_size, NOISE_BYTES)
        noise_mb = math.ceil(2 * 2 * self.config["generation"]["batch_size"] * noise / 1e6)
        return growing(max(2000, self._host_mb(self.value_bytes) + noise_mb) + more)

    def scoring_mb(self, more: int = 0) -> Callable[..., int]:
        """Host memory of a job that also holds a second target, to score tokens with, and the logits of many tokens."""
        num_logits = min(SCORED_LOGITS, 64 * self.sizes.num_image_tokens * self.sizes.vocab_size)
        logits_mb = 0 if self.has_gpu else math.ceil(SCORED_ARRAYS * num_logits * FLOAT32_BYTES / 1e6)
        return growing(max(3000, self._host_mb(2 * self.value_bytes) + logits_mb) + more)

    def converting_mb(self) -> Callable[..., int]:
        """Host memory of a job that brings a target into our layout, tensor by tensor from the mapped file; a quarter
        or half more for a table of many ids that is looked at in float32.
        """
        return growing(max(2000, self._host_mb(self.value_bytes + 1)))

    def training_mb(self) -> Callable[..., int]:
        """Host memory of drafter training: a frozen target, and weights, gradients and two moments of the drafter."""
        drafter = self.num_drafter * 16 / 1e6
        target_bytes = FLOAT32_BYTES if self.config["drafter"]["precision"] == "float32" else self.value_bytes
        return growing(max(3000, self._host_mb(target_bytes) + math.ceil(drafter)))

    def target_disk_mb(self, is_trained: bool) -> int:
        """Disk of a target's weights; with `is_trained`, of the state that its training is resumed from, too."""
        more = (FLOAT32_BYTES - self.value_bytes) * head_parameters(self.sizes)
        return self._model_disk_mb(target_parameters(self.sizes), is_trained, 0 if is_trained else more)

    def drafter_disk_mb(self, is_trained: bool) -> int:
        """Disk of a draft model's weights, as `target_disk_mb`."""
        return self._model_disk_mb(self.num_drafter, is_trained)

    def records_disk_mb(self, num_images: int) -> int:
        """Disk of a generation job's records, and of the partial ones beside them."""
        return disk_mb(2 * num_images * self.sizes.num_image_tokens * RECORD_BYTES)

    def codes_disk_mb(self, num_images: int | None) -> int:
        """Disk of the training images' codes, int32; of a million images where nobody has counted them."""
        return disk_mb((num_images or 1_000_000) * self.sizes.num_image_tokens * 4)

    def text_disk_mb(self, num_texts: int) -> int:
        """Disk of stored text features, in bfloat16, if every text were of the greatest length."""
        return disk_mb(num_texts * self.sizes.num_text_tokens * self.sizes.caption_dim * 2)

    def table_disk_mb(self) -> int:
        """Disk of a table of nearest codes, two bytes a code, four where they are more than two bytes count."""
        code_bytes = 2 if self.sizes.vocab_size < 2**15 else 4
        return disk_mb(self.sizes.vocab_size * self.config["codebook"]["num_neighbours"] * code_bytes)

    def decoding_minutes(self, num_images: int, batch_size: int, first: int = 60) -> Callable[..., int]:
        """Time of a job that decodes so many images one token per forward, batch after batch; at least `first`."""
        seconds = math.ceil(num_images / batch_size) * self.sizes.num_image_tokens * SECONDS_A_FORWARD
        return growing(max(first, math.ceil(MARGIN * seconds / 60) if self.is_large else 0))

    def scoring_minutes(self, num_images: int, first: int = 120) -> Callable[..., int]:
        """Time of a job that scores so many images with every metric; at least `first`."""
        seconds = num_images * self.sizes.num_image_tokens * SECONDS_A_SCORED_TOKEN
        return growing(max(first, math.ceil(seconds / 60) if self.is_large else 0))

    def images_of(self, prompt_set: str, num_shards: int = 1) -> int:
        """Images of a prompt set, or of one of its shards; a set that takes its whole file counts as 5,000 prompts."""
        entry = self.config["prompts"][prompt_set]
        return math.ceil((entry.get("num") or 5000) * (entry.get("copies") or 1) / num_shards)

    def _host_mb(self, bytes_per_parameter: int) -> int:
        parameters = target_parameters(self.sizes) + self.num_drafter
        return BASE_MB + (CUDA_MB if self.has_gpu else 0) + math.ceil(parameters * bytes_per_parameter / 1e6)

    def _model_disk_mb(self, num_parameters: int, is_trained: bool, more: int = 0) -> int:
        value_bytes = FLOAT32_BYTES + RESUMABLE_BYTES if is_trained else self.value_bytes
        return disk_mb(num_parameters * value_bytes + more)
