"""The run that Snakemake plans: the checked config, and the values that rules derive from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lantern_models.cards.card import ModelCard
from lantern_models.families import FAMILIES
from lantern_pipeline.data.model_cards import card_of
from lantern_pipeline.fetch.entries import Resource, parse_entries, resource_of
from lantern_pipeline.measure.registry import check_choices, published_files
from lantern_pipeline.plan.figures import Figure, figure_table
from lantern_pipeline.plan.paths import RunPlan
from lantern_pipeline.plan.resources import JobSizes
from lantern_pipeline.plan.user_files import check_user_files
from lantern_pipeline.plan.validate import check_config_files, has_gpu, validate_config
from lantern_pipeline.schema.run_config import RunConfig


@dataclass(frozen=True)
class Run:
    """A run of the workflow, or one of its variants.

    Attributes:
        card: describes the model, without the paths of its files.
        resources: name -> entry of config section `resources`.
        sizes: memory and time limits of jobs.
        uses_gpu: whether jobs request a GPU from the scheduler.
    """

    config: RunConfig
    card: ModelCard
    resources: Mapping[str, Resource]
    plan: RunPlan
    sizes: JobSizes
    figures: Mapping[str, Figure]
    uses_gpu: bool

    @property
    def is_variant(self) -> bool:
        """True if this is a variant. The report has no sections about a single variant."""
        return self.config.variant is not None

    @property
    def training_threads(self) -> int:
        """Number of CPU threads of a training job."""
        # Models of the run and of its variants may be trained at the same time.
        return 1 if self.config.variants or self.is_variant else 2

    @property
    def stores_text(self) -> bool:
        """True if a job computes the features of all prompts once and stores them, as T5 is large."""
        return self.config.text.encoder == "t5"

    @property
    def has_held_out_images(self) -> bool:
        """True if the run has captioned images that no model was trained on.

        Their metrics are the best that a model can be expected to reach, and on their tokens ambiguity is measured.
        """
        reads_captions = self.config.text.encoder in ("words", "word_ids", "classes")
        return reads_captions and self.config.data.source in ("scenes", "fashion", "folder")

    @property
    def prompt_tokenizer(self) -> list[str]:
        """Input of rules: tokenizer.json of a family. Empty for other encoders; T5's lies beside its weights."""
        text = self.config.text
        if text.checkpoint is None or text.encoder not in FAMILIES:
            return []
        return [resource_of(text.checkpoint, self.resources)]

    @property
    def metric_files(self) -> dict[str, str]:
        """Published weights and reference images that metrics read: input name in a rule -> path."""
        return published_files(self.config.metrics, self.resources)

    def input_of(self, name: str | None) -> str | list[str]:
        """Return a rule's input for a config value that names a file.

        Args:
            name: name of an entry of `resources`, which yields the path of its manifest, or a path, or None.
        """
        return [] if name is None else resource_of(name, self.resources)

    def data_params(self) -> dict[str, object]:
        """Return a parameter of rules that changes if the training images change."""
        data = self.config.data
        # The keys that change images. As the user may edit the images themselves, a hash of their folder is added.
        section = {
            "source": data.source,
            "folder": data.folder,
            "image_size": data.image_size,
            "num_train": data.num_train,
            "max_words": self.config.text.max_tokens,
        }
        return {"data": section, "listing": describe_folder(data.folder)}


def load_run(config: dict[str, object], files: Sequence[Path | str], *, is_main: bool, is_remote: bool) -> Run:
    """Check a config and plan its run.

    Args:
        config: the merged config. It is changed in place, see `validate_config`.
        files: the config files, for errors that are not visible in the merged config.
        is_main: whether this is the process that the user started, and not one that Snakemake started for a job.
        is_remote: whether jobs run on other machines, such as a cluster's nodes.

    Raises:
        ValueError: a config value is not allowed, or a file that it names is unusable. The message is one sentence.
    """
    try:
        if is_main:
            check_config_files(files)
        checked, methods = validate_config(config)
        card = card_of(checked)
        resources = parse_entries(checked.resource_entries)
        check_choices(checked.metrics, resources)
        if is_main:
            # Each job loads the run again, but has no need to repeat these checks, which read files.
            check_user_files(checked, card, resources, is_local=not is_remote)
    except ValueError as error:
        raise ValueError(f"variant {config['variant']}: {error}" if "variant" in config else str(error)) from error
    plan = RunPlan(checked, resources, methods)
    on_gpu = uses_gpu(checked.device, is_remote)
    return Run(checked, card, resources, plan, JobSizes(checked, card, on_gpu), figure_table(plan), on_gpu)


def uses_gpu(device: str, is_remote: bool) -> bool:
    """Return `Run.uses_gpu` for a value of config key `device`."""
    # The machine that plans remote jobs need not have a GPU itself.
    return device == "cuda" or (device == "auto" and (is_remote or has_gpu()))


def describe_folder(folder: str | None) -> str | None:
    """Return a hash of the names, sizes and dates of the files below a folder; None if there is no such folder."""
    if folder is None or not Path(folder).is_dir():
        return None  # `check_user_files` reports it
    # Use lstat for a broken link: the job that reads the image reports it.
    stats = ((file, file.stat() if file.exists() else file.lstat()) for file in Path(folder).rglob("*"))
    listing = sorted((file.relative_to(folder).as_posix(), stat.st_size, stat.st_mtime_ns) for file, stat in stats)
    return hashlib.sha256(repr(listing).encode()).hexdigest()[:16]
