"""The table of metrics, one row each, for all that measures, tabulates, compares or draws; and what a config chooses.

A new metric over images is a module beside this one and a row of METRICS here. The module has a class like
`clip_score.ClipScore`, and a function that loads it, which the row names as its `loader`. A metric that the config
switches on has a `key` instead, and its loaders are in CHOICES. All tables then follow:

- quality: a metric over images is the mean of its column `per_image` in the table of images. A metric over sets is in
  the rows only. A metric that is switched off has no column.
- summary: the columns are in the order of METRICS, with `_low` and `_high` except for metrics over sets. An
  `is_yes_no` column has an exact interval.
- comparisons: every metric over images except the yes-or-no ones is paired with autoregressive decoding. `better` says
  which sign is an improvement. Values of an `is_distance` metric are differences already.
- tables and figures: `title` with `digits` after the point, in per cent if the title says so.

Read while Snakemake reads the workflow: no torch and no pandas here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lantern_pipeline.fetch.entries import Resource, check_reference, resource_of
from lantern_pipeline.settings.run_config import MetricChoices

TRAINED = ("attribute_classifier", "clip")  # models to measure with that a run trains, or brings from another
IMAGES, SETS, DECODING = "images", "sets", "decoding"  # what a metric is over
HIGHER, LOWER, NEITHER = "higher", "lower", "neither"  # which is better
REAL, RECONSTRUCTION = "real", "reconstruction"
CEILINGS = (REAL, RECONSTRUCTION)  # rows of images that no method drew
FIDELITY = "fidelity"  # config key of what compares sets of images; all others score single ones
ROUNDING = 1e-5  # a total variation computed in float32 counts as above its bound from here on
# Of the table of total variations: values with intervals, and others.
TV_INTERVALS = ("tv_mean", "tv_share_above_delta", "substitution_rate")
TV_VALUES = ("tv_p95", "tv_max", "monte_carlo_error", "substitution_distance")


def with_ends(*names: str) -> tuple[str, ...]:
    """Columns of values and of the ends of their intervals."""
    return tuple(name + end for name in names for end in ("", "_low", "_high"))


TV_COLUMNS = (*with_ends(*TV_INTERVALS), *TV_VALUES, "law_p")


@dataclass(frozen=True)
class Metric:
    """A measured quantity, a column of the tables."""

    column: str  # in the rows of quality and in the summary
    unit: str  # of the column's values
    title: str  # in tables and on axes, with the unit that a reader sees
    over: str  # IMAGES (a mean over them), SETS of images, or DECODING (how the images were drawn)
    better: str  # HIGHER, LOWER or NEITHER
    digits: int  # after the point, in tables; where `title` says per cent, those of the percentage
    key: str | None = None  # of config section `metrics`, which switches it on; None if it is always measured
    is_share: bool = False  # lies in [0, 1]
    is_yes_no: bool = False  # of an image it is 0 or 1
    # from the autoregressive image of the same prompt: 0 for that image itself, and no mean in the rows
    is_distance: bool = False
    image_column: str = ""  # in the table of images; empty where it is `column`
    loader: str = ""  # as in `Choice`, of a metric that is always measured; empty if decoding or scoring measures it

    @property
    def per_image(self) -> str:
        """Column of the table of images."""
        return self.image_column or self.column

    @property
    def factor(self) -> float:
        """From the column's values to those that tables and figures show: 100 where `title` says per cent."""
        return 100.0 if "%" in self.title else 1.0

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the value and of the ends of its interval; a metric over sets of images has no interval."""
        return (self.column,) if self.over == SETS else with_ends(self.column)


METRICS = (
    Metric("mean_accepted_length", "tokens per forward", "tokens / forward", DECODING, HIGHER, 2),
    Metric("relative_step_cost", "steps of autoregressive decoding", "relative step cost", DECODING, LOWER, 2),
    Metric("latency_s", "seconds", "latency (s)", DECODING, LOWER, 2),
    Metric("speedup", "times autoregressive decoding", "speed-up", DECODING, HIGHER, 2),
    Metric("substitutions", "tokens per image", "substitutions / image", DECODING, NEITHER, 1),
    # likelier tokens are not better ones: greedy images are the likeliest
    Metric("nll", "nats per token", "NLL (nats / token)", IMAGES, NEITHER, 2),
    # of Inception's features; the same formulas on features of the attribute classifier have names of their own
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
    Metric("law_p", "probability", "p of the target's law", DECODING, NEITHER, 3, is_share=True),
    Metric("pixel_mse", "squared intensity, of 1", "pixel MSE", IMAGES, NEITHER, 4, is_distance=True),
    # of the attribute classifier's features only
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
    """Selects the metrics over IMAGES, SETS or DECODING."""
    return tuple(metric for metric in METRICS if metric.over == what)


@dataclass(frozen=True)
class Choice:
    """What one value of a config key measures with."""

    # the function "<module of measure>:<name>" that loads it from (config section metrics, `metric_files`, device)
    loader: str
    trained: tuple[str, ...] = ()  # models that the run trains, of TRAINED
    weights: tuple[str, ...] = ()  # published ones, keys of config section metrics.published
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
    """Look up what images are measured with.

    Args:
        metrics: config section `metrics`.

    Returns:
        config key -> its choice, without keys that are off; then column -> choice of metrics that are always measured.
    """
    found = {}
    for key, choices in CHOICES.items():
        value = getattr(metrics, key)
        if value is not None and value is not False:
            found[key] = choices[value]
    return found | {metric.column: Choice(metric.loader) for metric in METRICS if metric.loader}


def loading_modules(metrics: MetricChoices) -> list[str]:
    """Names the files, below the pipeline's folder, that load what config section `metrics` measures with."""
    return sorted({f"measure/{choice.loader.split(':')[0]}.py" for choice in chosen(metrics).values()})


def trained_models(metrics: MetricChoices) -> tuple[str, ...]:
    """Names the models that the run has to train to measure with, of TRAINED."""
    needed = {name for choice in chosen(metrics).values() for name in choice.trained}
    return tuple(name for name in TRAINED if name in needed)


def published_sources(metrics: MetricChoices) -> dict[str, str | None]:
    """Finds what measuring needs from elsewhere: `<key>_weights` of metrics.published, reference_images or
    reference_statistics -> a resource's name, a path, or None.
    """
    published = metrics.published
    choices = chosen(metrics).values()
    found = {f"{key}_weights": getattr(published, key) for choice in choices for key in choice.weights}
    if any(choice.has_reference for choice in choices):
        given = "images" if published.reference.statistics is None else "statistics"
        found[f"reference_{given}"] = getattr(published.reference, given)
    return found


def published_files(metrics: MetricChoices, resources: Mapping[str, Resource]) -> dict[str, str]:
    """Names the files from elsewhere that measuring needs, which can be looked at before anything is generated: as in
    `published_sources` -> path or manifest.
    """
    return {
        name: resource_of(value, resources) for name, value in published_sources(metrics).items() if value is not None
    }


def metric_files(
    metrics: MetricChoices, trained: Mapping[str, str], resources: Mapping[str, Resource], measured_reference: str
) -> dict[str, str]:
    """Names the files that measuring reads, the inputs of a rule and what loaders take: one of TRAINED, or as in
    `published_files`, but for `reference`, what images are compared with. `trained` are the files of TRAINED;
    `measured_reference` is where the features of a folder of real images are written.
    """
    files = {name: trained[name] for name in trained_models(metrics)} | published_files(metrics, resources)
    if files.pop("reference_images", None):
        return files | {"reference": measured_reference}
    statistics = files.pop("reference_statistics", None)
    return files | ({"reference": statistics} if statistics else {})


def check_choices(metrics: MetricChoices, resources: Mapping[str, Resource]) -> None:
    """Checks, before anything runs, that every metric has the weights and the reference that it needs."""
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
