"""What is measured, one row a metric, for whatever measures, tabulates, compares or draws; and what a config chooses.

A new metric is a module that measures it and a row of METRICS (and of CHOICES, where a config key switches it on):

- quality: a metric over images is the mean of its column `per_image` in the table of images, one over sets stands in
  the rows alone; both with `_low` and `_high` in the summary. What is switched off is an absent column.
- summary: the columns follow the order of METRICS. A `is_yes_no` column has an exact interval, a `is_share` interval is
  cut to [0, 1].
- comparisons: every metric over images but the yes-or-no ones is paired with autoregressive decoding; `better` says
  which sign is an improvement, and the values of an `is_distance` metric are differences already.
- tables and figures: `title` with `digits` after the point, in percent where it is a share.

Read while Snakemake reads the workflow: no torch and no pandas here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lantern_pipeline.downloads.entries import Resource, check_reference, resource_of

if TYPE_CHECKING:
    import torch

    from lantern_pipeline.metrics.fidelity import SetRuler
    from lantern_pipeline.metrics.image_rulers import ImageRuler

TRAINED = ("attribute_classifier", "clip")
IMAGES, SETS, DECODING = "images", "sets", "decoding"  # what a metric is over
HIGHER, LOWER, NEITHER = "higher", "lower", "neither"  # which is better
REAL, RECONSTRUCTION = "real", "reconstruction"
CEILINGS = (REAL, RECONSTRUCTION)  # rows of images that no method drew


@dataclass(frozen=True)
class Metric:
    """A measured quantity, a column of the tables.

    Attributes:
        column: in the rows of quality and in the summary.
        unit: of the column's values.
        title: in tables and on axes, with the unit that a reader sees.
        over: IMAGES (a mean over them), SETS of images, or DECODING (how the images were drawn).
        better: HIGHER, LOWER or NEITHER.
        digits: after the point, in tables; of a share, those of the percentage.
        key: of config section `metrics`, which switches it on; None where it is always measured.
        values: those of the key that give it; empty for all.
        is_share: lies in [0, 1].
        is_yes_no: of an image it is 0 or 1.
        is_distance: from the autoregressive image of the same prompt: 0 for that image itself, and no mean in the rows.
        image_column: in the table of images; empty where it is `column`.
    """

    column: str
    unit: str
    title: str
    over: str
    better: str
    digits: int
    key: str | None = None
    values: tuple[str | bool, ...] = ()
    is_share: bool = False
    is_yes_no: bool = False
    is_distance: bool = False
    image_column: str = ""

    @property
    def per_image(self) -> str:
        """Column of the table of images."""
        return self.image_column or self.column

    def is_measured(self, metrics: Mapping[str, Any]) -> bool:
        """Tells whether config section `metrics` switches it on."""
        value = None if self.key is None else metrics[self.key]
        return self.key is None or (bool(value) and (not self.values or value in self.values))


_TIMES = "times autoregressive decoding"
METRICS = (
    Metric("mean_accepted_length", "tokens per forward", "tokens / forward", DECODING, HIGHER, 2),
    Metric("latency_s", "seconds", "latency (s)", DECODING, LOWER, 2),
    Metric("speedup", _TIMES, "speed-up", DECODING, HIGHER, 2),
    Metric("substitutions", "tokens per image", "substitutions / image", DECODING, NEITHER, 1),
    # likelier tokens are not better ones: greedy images are the likeliest
    Metric("nll", "nats per token", "NLL (nats / token)", IMAGES, NEITHER, 2),
    Metric("fid", "", "FID", SETS, LOWER, 1, "fidelity"),
    Metric("kid", "", "KID", SETS, LOWER, 3, "fidelity"),
    Metric("precision", "share of images", "precision (%)", SETS, HIGHER, 1, "fidelity", is_share=True),
    Metric("recall", "share of images", "recall (%)", SETS, HIGHER, 1, "fidelity", is_share=True),
    Metric("clip_score", "cosine", "CLIP score", IMAGES, HIGHER, 3, "clip"),
    Metric("hps", "cosine", "HPS", IMAGES, HIGHER, 4, "hps"),
    Metric(
        "prompt_accuracy",
        "share of attributes",
        "prompt accuracy (%)",
        IMAGES,
        HIGHER,
        1,
        "prompt_accuracy",
        is_share=True,
    ),
    Metric(
        "all_correct",
        "share of images",
        "images with every attribute right (%)",
        IMAGES,
        HIGHER,
        1,
        "prompt_accuracy",
        is_share=True,
        is_yes_no=True,
        image_column="is_all_correct",
    ),
    Metric(
        "tokens_equal_autoregressive",
        "share of images",
        "tokens equal to autoregressive (%)",
        DECODING,
        NEITHER,
        0,
        is_share=True,
        is_yes_no=True,
        image_column="is_equal",
    ),
    Metric("tv_mean", "share of probability", "TV from the target", DECODING, LOWER, 3, is_share=True),
    Metric("pixel_mse", "squared intensity, of 1", "pixel MSE", IMAGES, NEITHER, 4, is_distance=True),
    Metric(
        "feature_distance",
        "standard deviations of a feature",
        "feature distance",
        IMAGES,
        NEITHER,
        2,
        "fidelity",
        ("attribute_classifier",),
        is_distance=True,
    ),
)


def metrics_over(what: str, metrics: Mapping[str, Any] | None = None) -> tuple[Metric, ...]:
    """Selects the metrics over IMAGES, SETS or DECODING; of a config section `metrics`, those that it measures."""
    chosen = [metric for metric in METRICS if metric.over == what]
    return tuple(metric for metric in chosen if metrics is None or metric.is_measured(metrics))


@dataclass(frozen=True)
class Choice:
    """One way to measure something.

    Attributes:
        build: puts the ruler together.
        is_of_sets: it measures whole sets of images, not single ones.
        trained: models that the run trains for it, of TRAINED.
        weights: keys of config section metrics.published that name files of published weights.
        has_reference: it compares with metrics.published.reference.
    """

    build: Callable[[Workbench], Any]
    is_of_sets: bool = False
    trained: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    has_reference: bool = False


@dataclass(frozen=True)
class Workbench:
    """What rulers are put together from.

    Attributes:
        files: paths as attributes: those of `metric_files`.
        metrics: config section `metrics`.
        device: where to measure.
    """

    files: Any
    metrics: Mapping[str, Any]
    device: torch.device

    @property
    def published(self) -> Mapping[str, Any]:
        """Config section metrics.published."""
        return self.metrics["published"]

    @cached_property
    def attribute_classifier(self) -> Any:
        """The attribute classifier, read once for all that use it."""
        from lantern.checkpoints.native import load_model
        from lantern_pipeline.world.attribute_classifier import AttributeClassifier

        return load_model(self.files.attribute_classifier, AttributeClassifier).to(self.device)

    @cached_property
    def scorer(self) -> Any:
        """The run's own CLIP model."""
        from lantern_pipeline.world.clip import ClipScorer

        return ClipScorer.from_checkpoint(self.files.clip, device=self.device)

    def sha256(self, name: str) -> str:
        """Hash of one of the files, by which results name it."""
        from lantern_pipeline.downloads.manifest import resource_sha256

        return resource_sha256(getattr(self.files, name))


def _attribute_classifier_sets(bench: Workbench) -> SetRuler:
    from lantern_pipeline.metrics.fidelity import AttributeClassifierRuler

    return AttributeClassifierRuler(bench.attribute_classifier, bench.sha256("attribute_classifier"))


def _published_sets(bench: Workbench) -> SetRuler:
    from lantern_pipeline.metrics.fidelity import PublishedRuler
    from lantern_pipeline.metrics.reference_statistics import load_reference

    published = bench.published
    extractors = load_extractors(bench.files, published, bench.device)
    reference = load_reference(
        bench.files.reference, extractors, published["preprocessing"], published["reference"]["name"]
    )
    return PublishedRuler(extractors, published["preprocessing"], reference.to(bench.device))


def _own_clip(bench: Workbench) -> ImageRuler:
    from lantern_pipeline.metrics.image_rulers import ClipRuler

    return ClipRuler(bench.scorer, bench.sha256("clip"))


def _openai_clip(bench: Workbench) -> ImageRuler:
    from lantern_pipeline.metrics.clip_score import load_open_clip
    from lantern_pipeline.metrics.image_rulers import ClipRuler

    published = bench.published
    scorer = load_open_clip(
        published["clip_architecture"],
        bench.files.clip_weights,
        prompt_prefix=published["clip_prefix"],
        preprocessing=published["preprocessing"],
        device=bench.device,
    )
    return ClipRuler(scorer, bench.sha256("clip_weights"))


def _prompt_accuracy(bench: Workbench) -> ImageRuler:
    from lantern_pipeline.metrics.image_rulers import AccuracyRuler

    return AccuracyRuler(bench.attribute_classifier, bench.sha256("attribute_classifier"))


def _hps(bench: Workbench) -> ImageRuler:
    from lantern_pipeline.metrics.hps import load_hps
    from lantern_pipeline.metrics.image_rulers import ClipRuler

    scorer = load_hps(bench.files.hps_weights, bench.published["hps_architecture"], bench.device)
    return ClipRuler(scorer, bench.sha256("hps_weights"), metric="hps", column="hps")


# metric -> what the config may say -> how it is measured; null and false switch a metric off
CHOICES: dict[str, dict[Any, Choice]] = {
    "fidelity": {
        "attribute_classifier": Choice(_attribute_classifier_sets, is_of_sets=True, trained=("attribute_classifier",)),
        "inception": Choice(_published_sets, is_of_sets=True, weights=("inception", "vgg16"), has_reference=True),
    },
    "clip": {
        "own": Choice(_own_clip, trained=("clip",)),
        "openai": Choice(_openai_clip, weights=("clip",)),
    },
    "prompt_accuracy": {True: Choice(_prompt_accuracy, trained=("attribute_classifier",))},
    "hps": {True: Choice(_hps, weights=("hps",))},
}


def chosen(metrics: Mapping[str, Any]) -> dict[str, Choice]:
    """Finds what a config measures.

    Args:
        metrics: config section `metrics`.

    Returns:
        Metric -> choice; without those that are off.

    Raises:
        ValueError: a metric cannot be measured in the way that the config names.
    """
    found = {}
    for metric, ways in CHOICES.items():
        value = metrics[metric]
        if value is None or value is False:
            continue
        if value not in ways:
            known = ", ".join(str(way).lower() for way in (*ways, "null"))
            raise ValueError(f"config key metrics.{metric} must be one of {known}, got {value!r}")
        found[metric] = ways[value]
    return found


def trained_models(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    """Names the measuring models that the run has to train, of TRAINED."""
    needed = {name for choice in chosen(metrics).values() for name in choice.trained}
    return tuple(name for name in TRAINED if name in needed)


def published_weights(metrics: Mapping[str, Any]) -> dict[str, str | None]:
    """Finds the published weights that are needed: key of metrics.published -> a resource's name, a path, or None."""
    keys = [key for choice in chosen(metrics).values() for key in choice.weights]
    return {key: metrics["published"][key] for key in keys}


def needs_reference(metrics: Mapping[str, Any]) -> bool:
    """Tells whether a metric compares with real images."""
    return any(choice.has_reference for choice in chosen(metrics).values())


def published_files(metrics: Mapping[str, Any], resources: Mapping[str, Resource]) -> dict[str, str]:
    """Names the files from elsewhere that measuring needs: what can be looked at before anything is generated.

    Returns:
        Input's name -> path or manifest: of "inception_weights", "vgg16_weights", "clip_weights", "hps_weights" and
            "reference_images" or "reference_statistics" what is needed; empty where the run trains its own rulers.
    """
    files = {f"{key}_weights": resource_of(value, resources) for key, value in published_weights(metrics).items()}
    if needs_reference(metrics):
        reference = metrics["published"]["reference"]
        given = "images" if reference["statistics"] is None else "statistics"
        files[f"reference_{given}"] = resource_of(reference[given], resources)
    return files


def metric_files(
    metrics: Mapping[str, Any],
    trained: Mapping[str, str],
    resources: Mapping[str, Resource],
    measured_reference: str,
) -> dict[str, str]:
    """Names the files that measuring reads: the inputs of a rule.

    Args:
        metrics: config section `metrics`.
        trained: of TRAINED -> its file, as the run writes it.
        resources: entries of config section `resources`, parsed.
        measured_reference: where rule measure_reference writes the features of a folder of real images.

    Returns:
        Input's name -> path or manifest: of "attribute_classifier", "clip", "inception_weights", "vgg16_weights",
            "clip_weights", "hps_weights" and "reference" what is needed.
    """
    files = {name: trained[name] for name in trained_models(metrics)} | published_files(metrics, resources)
    if needs_reference(metrics):
        images = files.pop("reference_images", None)
        files["reference"] = files.pop("reference_statistics") if images is None else measured_reference
    return files


def check_choices(metrics: Mapping[str, Any], resources: Mapping[str, Resource]) -> None:
    """Checks that every metric of a config has what it needs, before anything runs.

    Args:
        metrics: config section `metrics`.
        resources: entries of config section `resources`, parsed.

    Raises:
        ValueError: an unknown way to measure, weights or a reference that are not named, not known or not there.
    """
    for key, value in published_weights(metrics).items():
        _check_source(f"metrics.published.{key}", value, resources)
    if needs_reference(metrics):
        reference = metrics["published"]["reference"]
        given = [key for key in ("images", "statistics") if reference[key] is not None]
        if len(given) != 1:
            raise ValueError(
                "config key metrics.published.reference must name either images (a folder) or statistics (a file), "
                f"got {' and '.join(given) or 'neither'}; set metrics.fidelity to null to do without FID"
            )
        if reference["name"] is None:
            raise ValueError(
                "config key metrics.published.reference.name must name the set of real images, got nothing"
            )
        _check_source(f"metrics.published.reference.{given[0]}", reference[given[0]], resources)


def _check_source(key: str, value: str | None, resources: Mapping[str, Resource]) -> None:
    users = ", ".join(metric for metric, ways in CHOICES.items() for choice in ways.values() if _uses(choice, key))
    remedy = f"give the name of an entry of resources or a path, or switch off metrics.{users}"
    if value is None:
        raise ValueError(f"config key {key} names no file, which metrics.{users} needs; {remedy}")
    check_reference(key, value, resources)


def _uses(choice: Choice, key: str) -> bool:
    part = key.split(".")[2]
    return part in choice.weights or (part == "reference" and choice.has_reference)


def load_extractors(files: Any, published: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Loads Inception and VGG16 from the files inception_weights and vgg16_weights: key -> `Extractor`."""
    from lantern_pipeline.metrics.feature_extractors import load_inception, load_vgg16

    return {
        "inception": load_inception(files.inception_weights, device),
        "vgg16": load_vgg16(files.vgg16_weights, device, published["vgg16_layer"]),
    }


@dataclass(frozen=True)
class Chosen:
    """The rulers that a config chooses."""

    of_images: tuple[ImageRuler, ...]
    of_sets: SetRuler


def build_rulers(bench: Workbench) -> Chosen:
    """Puts together the rulers that a config chooses; sets are measured by one at most."""
    from lantern_pipeline.metrics.fidelity import NoSetRuler

    built = [(choice, choice.build(bench)) for choice in chosen(bench.metrics).values()]
    of_sets = [ruler for choice, ruler in built if choice.is_of_sets]
    return Chosen(
        tuple(ruler for choice, ruler in built if not choice.is_of_sets), of_sets[0] if of_sets else NoSetRuler()
    )
