"""Table of metrics, one entry each, for everything that measures, tabulates, compares or plots them.

CHOICES lists the values of config section `metrics`.

To add a metric over images, write a module in this folder and add an entry to METRICS. The module has a class like
`clip_score.ClipScore` and a function that loads it. The entry names that function as its `loader`. A metric that the
config switches on has a `key` instead, and its loaders are in CHOICES. All tables then follow:

- quality: a metric over images is the mean of its column `per_image` in the table of images. A metric over sets is in
  the rows only. A metric that is off has no column.
- summary: the columns are in the order of METRICS, with `_low` and `_high` except for metrics over sets. An `is_yes_no`
  column has an exact interval.
- comparisons: every metric over images except the yes-or-no ones is paired with autoregressive decoding. `better` says
  which sign is an improvement. Values of an `is_distance` metric are differences already.
- tables and figures: `title` with `digits` decimals, in per cent if the title says so.

Snakemake imports this module while it reads the workflow. It therefore imports neither torch nor pandas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lantern_pipeline.fetch.entries import Resource, check_reference, resource_of
from lantern_pipeline.settings.run_config import MetricChoices

TRAINED = ("attribute_classifier", "clip")  # metric models that a run trains, or takes from another run
IMAGES, SETS, DECODING = "images", "sets", "decoding"  # the things that a metric measures
HIGHER, LOWER, NEITHER = "higher", "lower", "neither"  # direction that is better
REAL, RECONSTRUCTION = "real", "reconstruction"
CEILINGS = (REAL, RECONSTRUCTION)  # rows of images that no method generated
FIDELITY = "fidelity"  # config key of the metrics over sets of images; all other keys score single images
ROUNDING = 1e-5  # a total variation is computed in float32; it exceeds a bound only by more than this
# Columns of the table of total variations: values with intervals, and other values.
TV_INTERVALS = ("tv_mean", "tv_share_above_delta", "substitution_rate")
TV_VALUES = ("tv_p95", "tv_max", "monte_carlo_error", "substitution_distance")


def with_ends(*names: str) -> tuple[str, ...]:
    """Return the names of values and of the ends of their intervals: name, name_low, name_high."""
    return tuple(name + end for name in names for end in ("", "_low", "_high"))


TV_COLUMNS = (*with_ends(*TV_INTERVALS), *TV_VALUES, "law_p")


@dataclass(frozen=True)
class Metric:
    """Measured quantity, a column of the tables."""

    column: str  # in the rows of quality and in the summary
    unit: str  # unit of the column's values
    title: str  # title in tables and on axes, with the unit that a reader sees
    over: str  # IMAGES (a mean over them), SETS of images, or DECODING (how the images were generated)
    better: str  # HIGHER, LOWER or NEITHER
    digits: int  # decimals in tables; those of the percentage if `title` says per cent
    key: str | None = None  # key of config section `metrics` that switches it on; None if it is always measured
    is_share: bool = False  # is in [0, 1]
    is_yes_no: bool = False  # is 0 or 1 for an image
    # is a distance from the autoregressive image of the same prompt: 0 for that image, and no mean in the rows
    is_distance: bool = False
    image_column: str = ""  # column in the table of images; empty if it equals `column`
    loader: str = ""  # as in `Choice`, for a metric that is always measured; empty if decoding or scoring measures it

    @property
    def per_image(self) -> str:
        """Column of the table of images."""
        return self.image_column or self.column

    @property
    def factor(self) -> float:
        """Factor from values of the column to those in tables and figures: 100 if `title` says per cent, else 1."""
        return 100.0 if "%" in self.title else 1.0

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the value and the ends of its interval. A metric over sets of images has no interval."""
        return (self.column,) if self.over == SETS else with_ends(self.column)


METRICS = (
    Metric("mean_accepted_length", "tokens per forward", "tokens / forward", DECODING, HIGHER, 2),
    Metric("relative_step_cost", "steps of autoregressive decoding", "relative step cost", DECODING, LOWER, 2),
    Metric("latency_s", "seconds", "latency (s)", DECODING, LOWER, 2),
    Metric("speedup", "times autoregressive decoding", "speed-up", DECODING, HIGHER, 2),
    Metric("substitutions", "tokens per image", "substitutions / image", DECODING, NEITHER, 1),
    # more probable tokens are not better: greedy images are the most probable
    Metric("nll", "nats per token", "NLL (nats / token)", IMAGES, NEITHER, 2),
    # on Inception's features; the same formulas on the attribute classifier's features have other names
    Metric("fid", "", "FID", SETS, LOWER, 1, FIDELITY),
    Metric("kid", "", "KID", SETS, LOWER, 3, FIDELITY),
    Metric("frechet_distance", "", "Fréchet distance (shape features)", SETS, LOWER, 1, FIDELITY),
    Metric("kernel_distance", "", "kernel distance (shape features)", SETS, LOWER, 3, FIDELITY),
    Metric("precision", "share of images", "precision (%)", SETS, HIGHER, 1, FIDELITY, is_share=True),
    Metric("recall", "share of images", "recall (%)", SETS, HIGHER, 1, FIDELITY, is_share=True),
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
    Metric("law_p", "probability", "p of the chi-square test", DECODING, NEITHER, 3, is_share=True),
    Metric("pixel_mse", "squared intensity, of 1", "pixel MSE", IMAGES, NEITHER, 4, is_distance=True),
    # on the attribute classifier's features only
    Metric(
        "feature_distance",
        "standard deviations of a feature",
        "feature distance",
        IMAGES,
        NEITHER,
        2,
        FIDELITY,
        is_distance=True,
    ),
)


def metrics_over(what: str) -> tuple[Metric, ...]:
    """Return the metrics over IMAGES, SETS or DECODING."""
    return tuple(metric for metric in METRICS if metric.over == what)


@dataclass(frozen=True)
class Choice:
    """One allowed value of a key in config section `metrics`: it selects the models that compute a metric."""

    # "<module of measure>:<function>", which loads it from (config section metrics, `metric_files`, device)
    loader: str
    trained: tuple[str, ...] = ()  # names in TRAINED of the models that the run trains
    weights: tuple[str, ...] = ()  # keys in config section metrics.published of published models
    has_reference: bool = False  # compares with the real images of metrics.published.reference


# config key of section metrics -> its values; null and false switch a metric off
CHOICES: dict[str, dict[str | bool, Choice]] = {
    FIDELITY: {
        "attribute_classifier": Choice("fidelity:load_classifier", trained=("attribute_classifier",)),
        "inception": Choice("fidelity:load_published", weights=("inception", "vgg16"), has_reference=True),
    },
    "clip": {
        "own": Choice("clip_score:load_own", trained=("clip",)),
        "openai": Choice("clip_score:load_openai", weights=("clip",)),
    },
    "prompt_accuracy": {True: Choice("prompt_accuracy:load_accuracy", trained=("attribute_classifier",))},
    "hps": {True: Choice("clip_score:load_hps", weights=("hps",))},
}


def chosen(metrics: MetricChoices) -> dict[str, Choice]:
    """Return the choices of a config.

    Args:
        metrics: config section `metrics`.

    Returns:
        Config key -> its choice, without keys that are off; then column -> choice of metrics that are always measured.
    """
    found = {}
    for key, choices in CHOICES.items():
        value = getattr(metrics, key)
        if value is not None and value is not False:
            found[key] = choices[value]
    return found | {metric.column: Choice(metric.loader) for metric in METRICS if metric.loader}


def loading_modules(metrics: MetricChoices) -> list[str]:
    """Return the module files of all chosen loaders, relative to the pipeline's folder."""
    return sorted({f"measure/{choice.loader.split(':')[0]}.py" for choice in chosen(metrics).values()})


def trained_models(metrics: MetricChoices) -> tuple[str, ...]:
    """Return the metric models, of TRAINED, that the run has to train."""
    needed = {name for choice in chosen(metrics).values() for name in choice.trained}
    return tuple(name for name in TRAINED if name in needed)


def published_sources(metrics: MetricChoices) -> dict[str, str | None]:
    """Return the external files that the chosen metrics need.

    Returns:
        `<key>_weights` of metrics.published, and reference_images or reference_statistics -> name of a resource, path,
        or None if the config names nothing.
    """
    published = metrics.published
    choices = chosen(metrics).values()
    found = {f"{key}_weights": getattr(published, key) for choice in choices for key in choice.weights}
    if any(choice.has_reference for choice in choices):
        given = "images" if published.reference.statistics is None else "statistics"
        found[f"reference_{given}"] = getattr(published.reference, given)
    return found


def published_files(metrics: MetricChoices, resources: Mapping[str, Resource]) -> dict[str, str]:
    """Return the external files that can be checked before anything is generated.

    Returns:
        Name as in `published_sources` -> path or manifest.
    """
    return {
        name: resource_of(value, resources) for name, value in published_sources(metrics).items() if value is not None
    }


def metric_files(
    metrics: MetricChoices, trained: Mapping[str, str], resources: Mapping[str, Resource], measured_reference: str
) -> dict[str, str]:
    """Return the files that measuring reads: inputs of the Snakemake rule and of the loaders.

    Args:
        metrics: config section `metrics`.
        trained: files of the models in TRAINED.
        resources: the entries of config section `resources`.
        measured_reference: file for the features of a folder of real images.

    Returns:
        Name -> file. Names are those of TRAINED and of `published_files`, but `reference` replaces both forms of real
        images.
    """
    files = {name: trained[name] for name in trained_models(metrics)} | published_files(metrics, resources)
    if files.pop("reference_images", None):
        return files | {"reference": measured_reference}
    statistics = files.pop("reference_statistics", None)
    return files | ({"reference": statistics} if statistics else {})


def check_choices(metrics: MetricChoices, resources: Mapping[str, Resource]) -> None:
    """Check, before anything runs, that every chosen metric has the weights and the reference that it needs.

    Raises:
        ValueError: a file, a resource or the name of the reference is missing, or the reference is given twice.
    """
    for name, value in published_sources(metrics).items():
        part = name.removesuffix("_weights").replace("_", ".")
        if value is None:
            raise ValueError(
                f"config key metrics.published.{part} names no file; give the name of an entry of resources or a path, "
                "or switch the metric off that needs it"
            )
        check_reference(f"metrics.published.{part}", value, resources)
        if name.startswith("reference"):
            reference = metrics.published.reference
            if None not in (reference.images, reference.statistics):
                raise ValueError(
                    "config key metrics.published.reference must name either images (a folder) or statistics (a file), "
                    "got images and statistics"
                )
            if reference.name is None:
                raise ValueError(
                    "config key metrics.published.reference.name must name the set of real images, got nothing"
                )
