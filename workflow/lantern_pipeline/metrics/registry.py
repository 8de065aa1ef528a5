"""The metrics that a config can choose: what each needs, and how it is put together. One entry per choice.

Imported while Snakemake reads the workflow, so that a metric without its weights is an error before anything runs: what
measures is imported where it is built.
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
        from lantern_pipeline.world.attribute_classifier import load_model

        return load_model(self.files.attribute_classifier).to(self.device)

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
        Input's name -> path or manifest: of "attribute_classifier", "clip", "inception_weights", "vgg16_weights", "clip_weights",
            "hps_weights" and "reference" what is needed.
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
