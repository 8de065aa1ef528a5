"""The configuration of a run as pydantic models: one class per section, with the type, bound and meaning of each key.

Defaults are in config.yaml. Editors read schema.yaml, which `editor_schema` generates from these models, docstrings
included. Whether keys of different sections fit together is checked in `cross_checks`.

Some sections inherit from classes with a part of their keys: a rule whose parameter is only that part does not run
again if other keys change.
"""

import itertools
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from lantern_models.cards.card import SamplingSettings
from lantern_models.families import small_shape
from lantern_models.sizes import shape_of
from lantern_pipeline.schema.key_types import (
    DIFFERENT_NAMES,
    Count,
    Integer,
    LearningRate,
    Name,
    Named,
    Names,
    Number,
    OneOrList,
    Section,
    Seed,
    Seeds,
    Share,
    Sides,
    Text,
    Unique,
    broken_rule,
    show,
)
from lantern_pipeline.schema.methods import check_entry

# The schema for editors leaves entries open, because only a custom class knows its parameters.
MethodEntries = Annotated[
    list[Annotated[dict[str, Any], AfterValidator(check_entry), WithJsonSchema({"type": "object"})]],
    Field(min_length=1),
]
TreeChoices = Annotated[
    list[Annotated[list[Annotated[Integer, Field(ge=0)]], Field(min_length=1)]],
    Field(min_length=1),
]
# Without "-": the name begins the names of the variant's rules.
VariantName = Annotated[
    str,
    Field(pattern="^[A-Za-z][A-Za-z0-9_]*$", json_schema_extra={"patternHint": "only letters, digits and '_'"}),
]

FASHION_SIZE = 32  # side in pixels of the images of Fashion-MNIST with their border
Variants = Annotated[dict[VariantName, Annotated[dict[str, Any], Field(min_length=1)]], DIFFERENT_NAMES]


class Repeats(Section):
    """Config section `repeats`: seeds. The run is repeated for each pair of a training seed and a noise seed."""

    training_seeds: Seeds = Field(description="seeds of weights and training order")
    noise_seeds: Seeds = Field(description="seeds of the noise fields from which images are sampled")


class Captions(Section):
    """Config section `data.captions`: captions for which the target generates the draft model's training images."""

    file: Text = Field(description="path, or name of an entry of resources")
    member: str | None = Field(default=None, description="file inside a zip archive or folder")
    draw: bool | None = Field(default=None, description="whether the captions are chosen by seed")
    num: Annotated[Integer, Field(ge=2)] | None = Field(default=None, description="number of captions; null = all")
    copies: Count | None = Field(default=None, description="images of each caption")


class Data(Section):
    """Config section `data`: training images."""

    source: Literal["scenes", "fashion", "folder", "captions", "none"] = Field(description="where the images come from")
    folder: str | None = Field(description="folder of images, if source is folder or fashion")
    captions: Captions | None = Field(description="captions, if source is captions")
    num_shards: Count = Field(description="number of jobs that encode or generate the images")
    image_size: Sides[Annotated[Integer, Field(ge=16, le=2048)]] = Field(
        description="side of square images in pixels, or [height, width]"
    )
    num_train: Integer = Field(ge=8, description="number of training images")
    num_samples: Annotated[Integer, Field(ge=8)] | None = Field(
        description="training captions for which the target generates images; null = all"
    )

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.source == "fashion" and self.image_size != FASHION_SIZE:
            raise broken_rule(f"must be {FASHION_SIZE} if data.source is fashion, got {self.image_size}", "image_size")
        if self.source == "folder" and not self.folder:
            raise broken_rule("must name a folder of name.png and name.txt when data.source is folder", "folder")
        # Captions are required by this source and would be ignored by the others.
        if (self.source == "captions") != (self.captions is not None):
            captions = self.captions and self.captions.model_dump(exclude_unset=True)
            raise broken_rule(
                f"goes with data.source captions and with nothing else, got {show(captions)} and data.source "
                f"{self.source}",
                "captions",
            )
        return self


class PromptSet(Section):
    """Entry of config section `prompts`: a prompt set, from a split of the data source or from a file."""

    split: Literal["seen", "unseen", None] = Field(default=None, description="split of the source")
    file: str | None = Field(default=None, description="path, or name of an entry of resources")
    member: str | None = Field(default=None, description="file inside a zip archive or folder")
    draw: bool | None = Field(default=None, description="whether the prompts are chosen by seed")
    num: Count | None = Field(default=None, description="number of prompts; null = all of a file")
    copies: Count | None = Field(default=None, description="images of each prompt")

    @model_validator(mode="after")
    def _check_origin(self) -> Self:
        given = show(self.model_dump(exclude_unset=True))
        if (self.split is None) == (self.file is None):
            raise broken_rule(f"must have either split or file, got {given}")
        if self.file is None and self.num is None:
            raise broken_rule("is missing: how many prompts of the split are wanted", "num")
        for key in ("member", "draw", "copies"):
            if self.file is None and getattr(self, key) is not None:
                raise broken_rule(f"goes with a file only, got {given}", key)
        return self


class PromptReading(Section):
    """Keys of config section `text` that determine how prompts are encoded: all but the number of jobs."""

    encoder: str = Field(description="words, word_ids, classes, t5, or a family of models that read tokens")
    num_classes: Count = Field(description="number of classes, if encoder is classes")
    caption_dim: Integer = Field(ge=8, description="channels of a token's feature")
    max_tokens: Count = Field(description="length of the longest prompt in tokens")
    checkpoint: Text | None = Field(description="weights of T5, or a tokenizer.json")


class TextEncoding(PromptReading):
    """Config section `text`: encoding of prompts as features or tokens for the target model."""

    num_shards: Count = Field(description="number of jobs per prompt set that store T5's features")


class TextSettings(PromptReading):
    """Settings with which a job encodes prompts: keys of config section `text`, and codes per side of an image.

    Some target models read the number of lines and columns of codes as part of the prompt.
    """

    grids: list[OneOrList[Integer]] = Field(
        description="codes along the sides of an image and of the smaller one before it, or 0"
    )


class Tokenizer(Section):
    """Config section `tokenizer`: image tokenizer, which turns images into codes and back."""

    checkpoint: Text | None = Field(description="finished weights; null trains the model")
    grid: Sides[Annotated[Integer, Field(ge=2)]] = Field(
        description="codes along a side of a square image, or [height, width]"
    )
    codebook_size: Integer = Field(ge=8, description="number of codes")
    code_dim: Integer = Field(ge=2, description="channels of a code")
    encoder_width: Integer = Field(ge=8, multiple_of=8, description="channels of the encoder; twice as many per token")
    decoder_width: Integer = Field(ge=8, multiple_of=8, description="channels of the decoder; twice as many per token")
    num_steps: Count = Field(description="optimiser steps")


class MetricModel(Section):
    """Config section `attribute_classifier` or `clip`: a model that evaluates images."""

    checkpoint: Text | None = Field(description="finished weights; null trains the model")
    num_steps: Count = Field(description="optimiser steps")


class TargetSizes(Section):
    """Keys of config section `target` that describe the architecture of the model."""

    dim: Integer = Field(ge=8, description="channels")
    num_layers: Count = Field(description="transformer layers")
    num_heads: Count = Field(description="attention heads")
    num_kv_heads: Integer = Field(ge=0, description="key/value heads; 0 = num_heads")
    ffn_width: Integer = Field(ge=0, description="channels inside the feed-forward part; 0 = 8/3 of dim")
    rope: Literal["1d", "2d"] = Field(description="rotary embedding: by position, or by row and column")
    has_qk_norm: bool = Field(description="whether queries and keys are normalised")
    has_mlp_head: bool = Field(description="whether the head has a hidden layer")
    line_end: Annotated[Integer, Field(ge=0)] | None = Field(
        description="id of the token that ends a line of codes; null = none"
    )
    small_grid: Integer = Field(ge=0, description="codes along a side of a smaller image before, for squares; 0 = none")


class TargetTraining(Section):
    """Keys of config section `target` that describe the training of the model."""

    num_steps: Count = Field(description="optimiser steps")
    batch_size: Count = Field(description="images per step")
    learning_rate: LearningRate = Field(description="learning rate of AdamW")
    matrix_learning_rate: LearningRate = Field(description="learning rate of Muon")
    caption_dropout: Share = Field(description="share of captions replaced by the null caption")
    num_eval: Count = Field(description="number of held-out images")


class Target(TargetTraining, TargetSizes):
    """Config section `target`: the large model whose decoding the methods speed up."""

    checkpoint: Text | None = Field(description="finished weights; null trains the model")
    name: str | None = Field(description="name of the model in published tables")
    size: Literal[None, "B", "L", "XL", "XXL", "XXXL", "1B", "3B", "7B"] = Field(
        description="size of LlamaGen, in place of dim, num_layers and num_heads"
    )


class Drafter(Section):
    """Config section `drafter`: the draft model and its training."""

    checkpoint: Text | None = Field(description="finished weights; null trains the model")
    codes: Literal["images", "samples"] = Field(description="what it learns from: data, or images of the target")
    num_steps: Count = Field(description="optimiser steps")
    num_epochs: Annotated[Number, Field(gt=0)] | None = Field(
        description="passes over the training images, in place of num_steps"
    )
    batch_size: Count = Field(description="images per batch")
    accumulation: Count = Field(description="batches per step")
    precision: Literal["float32", "bfloat16"] = Field(description="dtype of training")
    optimiser: Literal["muon", "adamw"] = Field(description="optimiser")
    learning_rate: LearningRate = Field(description="learning rate of AdamW")
    matrix_learning_rate: LearningRate = Field(description="learning rate of Muon")
    weight_decay: Number = Field(ge=0, description="decoupled weight decay")
    max_norm: Number = Field(gt=0, description="norm to which gradients are clipped")
    schedule: Literal["cosine", "linear"] = Field(description="decay of the learning rate")
    warmup_share: Annotated[Number, Field(ge=0, lt=1)] | None = Field(
        description="share of the steps that warm up; null = 50 steps"
    )
    loss: Literal["guided", "published"] = Field(description="training loss")
    passes: Count = Field(description="drafts of a path that the guided loss trains")
    noise: Number = Field(ge=0, description="width of the uniform noise on the target's hidden states")
    caption_dropout: Share = Field(description="share of images without their caption, published loss only")
    num_eval: Count = Field(description="number of held-out images")
    eval_every: Count = Field(description="optimiser steps between two evaluations")


class Heads(Section):
    """Config section `heads`: small networks that predict the target's hidden states for drafts, and their training."""

    kind: Literal["shift", "state"] = Field(description="shift heads, or a state head")
    num_right: Count = Field(description="shift heads for tokens to the right")
    num_steps: Count = Field(description="optimiser steps")
    batch_size: Count = Field(description="images per step")
    learning_rate: LearningRate = Field(description="learning rate of AdamW")


class Codebook(Section):
    """Config section `codebook`: tables of nearest codes, which list the most similar codes of each code."""

    neighbours: Literal["l2", "l2_normalised", "random"] = Field(description="distance between codes")
    num_neighbours: Count = Field(description="nearest codes of each code")


class Sampling(Section):
    """Config section `sampling`: sampling of tokens from the target model."""

    cfg_scale: Number = Field(ge=1, description="scale of classifier-free guidance; 1 = off")
    top_k: Integer = Field(ge=0, description="most probable tokens kept; 0 = all")
    top_p: Number = Field(gt=0, le=1, description="probability mass kept; 1 = all")
    filter_order: Literal["top_k_first", "top_p_first"] = Field(description="order of the two filters")

    @property
    def settings(self) -> SamplingSettings:
        """The section as a dict, in the form that the library `lantern` takes."""
        return {
            "cfg_scale": self.cfg_scale,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "filter_order": self.filter_order,
        }


class DynamicTree(Section):
    """Config section `draft_tree.dynamic`: size of dynamic draft trees, whose shape is chosen again in each step."""

    num_nodes: Count = Field(description="drafts kept per step")
    depth: Count = Field(description="passes of the draft model after the first")
    top_k: Count = Field(description="children per node of the beam")

    @model_validator(mode="after")
    def _check_num_nodes(self) -> Self:
        # Drafts of all passes: the root has top_k children, then top_k nodes of each depth have top_k children.
        bound = self.top_k + self.depth * self.top_k**2
        if self.num_nodes > bound:
            raise broken_rule(
                f"must be at most top_k + depth * top_k ** 2 = {bound}, got {self.num_nodes}", "num_nodes"
            )
        return self


class DraftTree(Section):
    """Config section `draft_tree`: draft trees of the methods whose key `tree` is "static" or "dynamic"."""

    static: str = Field(description="name of a static tree")
    dynamic: DynamicTree


class Generation(Section):
    """Config section `generation`: number of jobs that generate images, batch size, dtype, use of CUDA graphs."""

    dtype: Literal["float32", "bfloat16", "float16"] = Field(description="dtype of the decoding models")
    stepping: Literal["auto", "eager", "graph"] = Field(description="how a step runs: eagerly, or as a CUDA graph")
    batch_size: Count = Field(description="images decoded together")
    num_shards: Count = Field(description="number of jobs per method, prompt set and temperature")


class GridSampling(Section):
    """Sampling settings that an ablation varies, with one or several values per key.

    If a key is missing, its value in config section `sampling` is used.
    """

    cfg_scale: OneOrList[Annotated[Number, Field(ge=1)]] = Field(
        default_factory=list, description="value or values of sampling.cfg_scale"
    )
    top_k: OneOrList[Annotated[Integer, Field(ge=0)]] = Field(
        default_factory=list, description="value or values of sampling.top_k"
    )
    top_p: OneOrList[Annotated[Number, Field(gt=0, le=1)]] = Field(
        default_factory=list, description="value or values of sampling.top_p"
    )

    def combinations(self) -> list[dict[str, int | float]]:
        """Return every combination of the given values, as dicts; a single empty dict if no setting is varied."""
        values = {"cfg_scale": self.cfg_scale, "top_k": self.top_k, "top_p": self.top_p}
        # An empty list is the default: the key is not given.
        given = {name: value for name, value in values.items() if value != []}
        lists = [value if isinstance(value, list) else [value] for value in given.values()]
        return [dict(zip(given, values, strict=True)) for values in itertools.product(*lists)]


class Grid(Section):
    """Entry of config section `ablations.grids`: all combinations of methods, sampling settings and draft models."""

    num_prompts: Annotated[Integer, Field(ge=2)] | None = Field(
        default=None, description="number of prompts; null = ablations.num_prompts"
    )
    methods: MethodEntries = Field(description="methods to run")
    sampling: GridSampling = Field(default_factory=GridSampling)
    drafter_steps: Annotated[list[Count | None], *Unique] = Field(
        default=[None], description="training steps of the draft model; null = the run's"
    )


class Ablations(Section):
    """Config section `ablations`: small experiments that vary methods and settings, outside the main result table."""

    num_prompts: Integer = Field(ge=2, description="number of prompts")
    grids: Named[Grid | None] = Field(description="ablations by name; null removes one")


class TotalVariationNodes(Section):
    """Keys of config section `total_variation` that limit the number of nodes at which total variation is measured."""

    num_images: Integer = Field(ge=2, description="number of prompts")
    max_nodes: Count = Field(description="nodes per method")
    num_samples: Integer = Field(ge=2, description="samples of a node's children")


class TotalVariation(TotalVariationNodes):
    """Config section `total_variation`: measured distance between the distributions of emitted and of target tokens."""

    num_tested: Integer = Field(ge=2, description="number of prompts whose images are tested")
    deltas: Annotated[list[Share], Field(min_length=1)] = Field(description="bounds that are compared")
    k: Count = Field(description="nearest codes that are compared")
    num_children: Count = Field(description="drafts per node")


class Premise(Section):
    """Config section `premise`: measurement of what changes if nearest codes replace codes of images and drafts."""

    ks: Annotated[list[Count], *Unique] | None = Field(
        description="numbers of nearest codes to choose from; null = not measured"
    )
    deltas: Annotated[list[Share], *Unique] = Field(description="bounds of the relaxed acceptance")
    num_images: Integer = Field(ge=2, description="held-out images whose codes are replaced")


class Latency(Section):
    """Config section `latency`: measurement of the time per image."""

    prompt_sets: Names = Field(description="prompt sets that are timed")
    num_images: Count = Field(description="images timed per method")
    num_warmup: Integer = Field(ge=0, description="images per method before timing starts")
    num_rounds: Count = Field(description="repetitions; the shortest time of each prompt counts")
    threads: Count = Field(description="CPU threads")


class ReferenceImages(Section):
    """Config section `metrics.published.reference`: real images with which FID and KID compare generated images."""

    name: str | None = Field(description="name of the set")
    images: str | None = Field(description="folder or zip archive of images")
    statistics: str | None = Field(description="file of their statistics, in place of the images")


class PublishedMetrics(Section):
    """Config section `metrics.published`: models and images with which publications compute FID, CLIP score and HPS.

    Files are given as paths, or as names of entries of config section `resources`.
    """

    inception: str | None = Field(description="weights of Inception")
    vgg16: str | None = Field(description="weights of VGG16")
    vgg16_layer: Literal["fc2_relu", "fc2"] = Field(description="layer from which precision and recall are computed")
    clip: str | None = Field(description="weights of CLIP")
    clip_architecture: str = Field(description="open_clip's name, or a JSON file")
    clip_prefix: str = Field(description="text before every prompt")
    hps: str | None = Field(description="weights of HPS")
    hps_architecture: str = Field(description="open_clip's name, or a JSON file")
    preprocessing: str = Field(
        pattern="^(none|centre_(lanczos|bicubic|bilinear|box)_[1-9][0-9]*)$",
        json_schema_extra={"patternHint": "none, or centre_<lanczos|bicubic|bilinear|box>_<pixels>"},
        description="resizing before Inception, VGG16 and CLIP",
    )
    reference: ReferenceImages


class MetricChoices(Section):
    """Keys of config section `metrics` that choose the metrics and their models."""

    fidelity: Literal["attribute_classifier", "inception", None] = Field(description="features of the distances")
    efficientnet: bool = Field(description="whether sets of images are also compared by EfficientNet's features")
    clip: Literal["own", "openai", None] = Field(description="model of the CLIP score")
    prompt_accuracy: bool = Field(description="whether the attribute classifier reads the images")
    hps: bool = Field(description="whether the Human Preference Score is measured")
    published: PublishedMetrics


class FidelitySettings(Section):
    """Keys of config section `metrics` with the settings of FID, KID, precision and recall."""

    num_reference: Integer = Field(ge=8, description="held-out images of the reference")
    kid_subset_size: Integer = Field(ge=2, description="images of a KID subset")
    kid_subsets: Count = Field(description="number of KID subsets")
    prc_neighbours: Count = Field(description="neighbours of precision and recall")


class TableSettings(Section):
    """Keys of config section `metrics`: choice of the rows of the main table, and number of bootstrap resamples."""

    bootstrap_resamples: Integer = Field(ge=20, description="resamples of each interval")
    headline_prompt_set: str = Field(description="prompt set of the headline numbers")
    headline_temperature: Number = Field(ge=0, description="temperature of the headline numbers")


class Metrics(TableSettings, FidelitySettings, MetricChoices):
    """Config section `metrics`: evaluation of the generated images."""

    batch_size: Count = Field(description="images per forward pass")
    num_shards: Count = Field(description="number of jobs per prompt set that score images")
    num_ambiguity: Count = Field(description="held-out images from which ambiguity is measured")


class Figures(Section):
    """Config section `figures`: sizes and contents of the figures."""

    sample_prompts: Count = Field(description="rows of the sample grid")
    sample_methods: Names | None = Field(description="method ids of its columns; null = the first of every preset")
    proximity_prompts: Count = Field(description="rows of the figure of near codes")
    dpi: Integer = Field(ge=50, le=600, description="dots per inch of the PNG files")


class Study(Section):
    """Config section `study`: preference study, in which readers choose between two images of a prompt."""

    methods: Names | None = Field(description="method ids; null = the first of each relaxed name")
    num_trials: Count = Field(description="pairs per method")
    num_checks: Integer = Field(ge=0, description="attention checks")
    min_checks: Share = Field(description="share of the checks that a reader must pass")
    seed: Seed = Field(description="seed of the order in the page's source")
    question: Text = Field(description="question asked at each pair")
    answers: str | None = Field(description="folder of the readers' answers; null = the run's")


class ResourceEntry(Section):
    """Entry of config section `resources`: the origin of files that a run uses but does not make.

    The files are on this machine, at one URL, or on the Hugging Face hub.
    """

    path: str | None = Field(default=None, description="file or folder on this machine, used in place")
    url: str | None = Field(default=None, description="https address of one file")
    repo: str | None = Field(default=None, description="repository of the Hugging Face hub")
    revision: str | None = Field(default=None, description="commit of the repository; null = the newest")
    files: dict[str, str | None] = Field(default_factory=dict, description="SHA-256 of each file, if it is known")


class RunConfig(Section):
    """Configuration of a Lantern run."""

    variant: str | None = Field(default=None, description="set by the workflow: name of the variant of this config")
    experiment: Name = Field(max_length=64, description="name of the folder in results/")
    publish: Literal[
        "results",
        "fashion",
        "papers",
        "fashion_papers",
        "peers",
        "fashion_peers",
        "mixing",
        "fashion_mixing",
        "generality",
        "targets",
        "nodes",
        "grid_sizes",
        None,
    ] = Field(description="section of docs/results.md that `make readme` writes")
    model: str | None = Field(description="published model")
    seed: Seed = Field(description="seed of images, prompts, metric models and bootstraps")
    device: Literal["auto", "cpu", "cuda"] = Field(description="device of all jobs")
    repeats: Repeats
    data: Data
    prompts: Annotated[dict[Name, PromptSet | None], Field(min_length=1), DIFFERENT_NAMES]
    text: TextEncoding
    tokenizer: Tokenizer
    attribute_classifier: MetricModel
    clip: MetricModel
    target: Target
    drafter: Drafter
    heads: Heads
    codebook: Codebook
    sampling: Sampling
    draft_tree: DraftTree
    trees: dict[Name, TreeChoices] = Field(description="static trees by name: paths of child ranks from the root")
    methods: MethodEntries = Field(description="methods to run")
    generation: Generation
    # "variants:" without an entry is null in YAML.
    variants: Annotated[
        Variants, BeforeValidator(lambda given: {} if given is None else given, json_schema_input_type=Variants | None)
    ] = Field(description="changes of the config by name: each is run once more with them")
    ablations: Ablations
    total_variation: TotalVariation
    premise: Premise
    latency: Latency
    metrics: Metrics
    figures: Figures
    study: Study
    resources: Named[ResourceEntry | None]

    @property
    def prompt_sets(self) -> dict[str, PromptSet]:
        """Prompt sets of the run, by name. In a user's config the value null removes a set."""
        return {name: entry for name, entry in self.prompts.items() if entry is not None}

    @property
    def resource_entries(self) -> dict[str, ResourceEntry]:
        """Entries of config section `resources`, by name, without those that are null."""
        return {name: entry for name, entry in self.resources.items() if entry is not None}

    @property
    def small_shape(self) -> tuple[int, int]:
        """Height and width, in codes, of GLM-Image's preview; (0, 0) for other models."""
        return small_shape(shape_of(self.tokenizer.grid), self.target.small_grid)

    @property
    def text_settings(self) -> TextSettings:
        """Settings that a job needs to encode prompts."""
        grid = self.tokenizer.grid
        # the key itself for squares; for others the shape that follows from the proportions of the grid
        small_grid = self.target.small_grid if isinstance(grid, int) else [*self.small_shape]
        return TextSettings.model_validate({**self.text.keys_of(PromptReading), "grids": [grid, small_grid]})

    @property
    def grids(self) -> dict[str, Grid]:
        """Ablations of the run, by name, without those that are null."""
        return {name: grid for name, grid in self.ablations.grids.items() if grid is not None}


def check_prompt_count(name: str, num: int, config: RunConfig) -> None:
    """Raise a ValueError if a prompt set has too few prompts for the metrics and figures of a run."""
    is_headline = name == config.metrics.headline_prompt_set
    needs = {
        # the neighbours of an image are other images of the set
        "metrics.prc_neighbours": config.metrics.prc_neighbours + 1,
        "figures.sample_prompts": config.figures.sample_prompts if is_headline else 0,
    }
    for key, needed in needs.items():
        if num < needed:
            raise ValueError(f"prompt set {name} has {num} prompts but config key {key} needs at least {needed}")
