"""Sizes of a target and of its draft model, and their numbers of parameters.

A *shape* is the height and width of an image in codes. A line of tokens may be one longer than a line of codes: in some
models a line-end token ends it.

Snakemake imports this module to plan the workflow, so it must not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, TypeVar, overload

if TYPE_CHECKING:
    import torch
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

OVERSHOOT = 32  # positions of the rotary table after the image, since drafts may go past the last token


def pick(cls: type[T], settings: Mapping[str, object], **more: object) -> T:
    """Make an instance of a dataclass from `settings`, without keys that are not its fields, and from `more`."""
    names = {field.name for field in fields(cls)}
    return cls(**{key: value for key, value in settings.items() if key in names}, **more)


def codes_by_line(tokens: torch.Tensor, shape: tuple[int, int], *, has_line_ends: bool) -> torch.Tensor:
    """Arrange the codes of images by line and column, (..., height, width), as image tokenizers decode them.

    tokens are those of images in raster order, (..., tokens). Line ends and GLM-Image's preview are left out.
    """
    height, width = shape
    line_width = width + has_line_ends
    # From the end, since the preview comes first. The last token of each line is cut if it is a line end.
    return tokens[..., -height * line_width :].unflatten(-1, (height, line_width))[..., :width]


class CommonSizes:
    """Base class of `TargetConfig` and `DraftConfig`, with properties that both derive from their fields."""

    dim: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    grid: int
    columns: int
    line_end: int | None
    # Defaults for `DraftConfig`, which has no such fields.
    small_grid = 0
    small_columns = 0

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.dim // self.num_heads

    @property
    def kv_dim(self) -> int:
        """Channels of the keys of a token, summed over heads. The values have the same number of channels."""
        return (self.num_kv_heads or self.num_heads) * self.head_dim

    @property
    def num_codes(self) -> int:
        """Size of the codebook: the vocabulary without the line end."""
        return self.vocab_size - (self.line_end is not None)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of lines, and of codes per line."""
        return self.grid, self.columns or self.grid

    @property
    def small_shape(self) -> tuple[int, int]:
        """The same for the preview, or (0, 0) without one."""
        return self.small_grid, self.small_columns or self.small_grid

    @property
    def lines(self) -> tuple[int, int]:
        """`shape` in tokens: number of lines, and of tokens per line."""
        return self.grid, self.line_width

    @property
    def line_width(self) -> int:
        """Number of tokens per line, one more than codes if there are line ends."""
        return (self.columns or self.grid) + (self.line_end is not None)

    @property
    def num_image_tokens(self) -> int:
        """Number of tokens that are generated for an image, including line ends and preview."""
        small_height, small_width = self.small_shape
        return small_height * small_width + self.grid * self.line_width

    def code_grids(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return `codes_by_line` of the tokens of images, (..., num_image_tokens)."""
        return codes_by_line(tokens, self.shape, has_line_ends=self.line_end is not None)

    @overload
    def ends_line(self, positions: int) -> bool: ...
    @overload
    def ends_line(self, positions: torch.Tensor) -> torch.Tensor: ...
    def ends_line(self, positions: int | torch.Tensor) -> bool | torch.Tensor:
        """Return whether the token at each image position is a line end."""
        # Without line ends this is never true: a line has as many tokens as codes, which no remainder reaches.
        return positions % self.line_width == (self.columns or self.grid)


@dataclass(frozen=True)
class TargetConfig(CommonSizes):
    """Sizes of a target model. The defaults are those of the model in `models/embedded`, which draws coloured shapes.

    Attributes:
        dim: channels of a hidden state.
        num_heads: number of query heads.
        vocab_size: number of different tokens of images: codes, and the line end if there is one.
        grid: number of lines of an image, and of codes per line unless `columns` is set.
        num_text_tokens: number of prompt positions. Shorter prompts are padded on the left.
        caption_dim: channels of a caption feature. A caption has one feature per word or token.
        ffn_multiple: the width of the feed-forward network is rounded up to a multiple of this number.
        norm_eps: number that an RMS norm adds to the mean square, so that it never divides by 0.
        rope_base: base of the rotary table.
        num_prompt_ids: number of ids in the vocabulary of the prompts. 0 if prompts are caption features.
        null_ids: ids of the null prompt. Empty if prompts are caption features.
        null_filler: id that is repeated between the first and the last of the `null_ids`, until the null prompt is as
            long as the prompt. None if the null prompt consists of the `null_ids` only.
        ffn_width: width of the feed-forward network. 0 for 8 / 3 of `dim`, rounded up to a multiple of `ffn_multiple`.
        num_kv_heads: number of key/value heads (GQA). 0 for `num_heads`.
        rope: "2d" rotates image tokens by row and column and leaves the prompt without position. "1d" rotates all
            tokens by their position in the sequence.
        has_qk_norm: whether queries and keys of each head are normalised.
        has_mlp_head: whether the head, which computes logits, has a hidden layer.
        columns: number of codes per line. 0 for `grid`.
        line_end: id of the line end in the vocabulary of the prompts. In the vocabulary of images it is the last token.
        small_grid: number of lines of the preview. 0 without one.
        small_columns: number of codes per line of the preview. 0 for `small_grid`.
    """

    dim: int = 128
    num_layers: int = 16
    num_heads: int = 4
    vocab_size: int = 1024
    grid: int = 8
    num_text_tokens: int = 16
    caption_dim: int = 256
    ffn_multiple: int = 32
    norm_eps: float = 1e-5
    rope_base: float = 10000.0
    num_prompt_ids: int = 0
    null_ids: tuple[int, ...] = ()
    null_filler: int | None = None
    ffn_width: int = 0
    num_kv_heads: int = 0
    rope: str = "2d"
    has_qk_norm: bool = False
    has_mlp_head: bool = False
    columns: int = 0
    line_end: int | None = None
    small_grid: int = 0
    small_columns: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "null_ids", tuple(self.null_ids))  # JSON has lists

    @property
    def ffn_hidden(self) -> int:
        """Channels of the hidden layer of the feed-forward network."""
        # -(-a // b) rounds up. 3 matrices of 8 d^2 / 3 elements have as many parameters as 2 of 4 d^2 without a gate.
        return self.ffn_width or -(-int(8 * self.dim / 3) // self.ffn_multiple) * self.ffn_multiple


@dataclass(frozen=True)
class DraftConfig(CommonSizes):
    """Sizes of a draft model, which follow from the sizes of its target. Fields mean the same as in `TargetConfig`.

    Attributes:
        masks_text_padding: whether the padding of prompts is masked. The published draft models for LlamaGen attend to
            padding. Those that Lantern trains do not.
        num_embedded_ids: number of prompt ids that the draft model can embed. Only Chameleon's draft models do so. If
            it is 0, the draft model gets token 0 at every prompt position.
        has_attention_norm: whether the layer has a norm before the attention.
    """

    dim: int
    num_heads: int
    ffn_hidden: int
    vocab_size: int
    grid: int
    num_text_tokens: int
    norm_eps: float = 1e-5
    rope_base: float = 10000.0
    num_kv_heads: int = 0
    rope: str = "2d"
    masks_text_padding: bool = True
    num_embedded_ids: int = 0
    has_attention_norm: bool = False
    has_qk_norm: bool = False
    columns: int = 0
    line_end: int | None = None

    @classmethod
    def of(cls, target: TargetConfig) -> DraftConfig:
        """Return the sizes of the draft model that Lantern trains for a target."""
        # Lantern's own have no norms of queries and keys, even if the target has.
        return pick(cls, {**asdict(target), "has_qk_norm": False}, ffn_hidden=target.ffn_hidden)


def target_parameters(config: TargetConfig) -> int:
    """Count the parameters of layers, embedding of image tokens, head, last norm and embedding of prompts."""
    c = config
    # In these functions, d is `dim`, V the vocabulary, k `kv_dim` and f `ffn_hidden`. Prompt: an embedding of ids, or
    # two linear maps, caption_dim * d + d^2, and the learned null caption.
    # Head: V d, plus d^2 + d + V, with biases, if it has a hidden layer.
    head = c.vocab_size * c.dim + c.has_mlp_head * (c.dim**2 + c.dim + c.vocab_size)
    prompt = c.num_prompt_ids * c.dim or (c.dim + c.num_text_tokens) * c.caption_dim + c.dim**2
    return c.num_layers * _layer_parameters(c, 2) + c.vocab_size * c.dim + head + c.dim + prompt


def draft_parameters(config: DraftConfig) -> int:
    """Count the parameters of embeddings of tokens and prompt ids, of EAGLE's `fc`, 2 d^2 + d, and of the layer."""
    c = config
    return (c.vocab_size + c.num_embedded_ids + 2 * c.dim + 1) * c.dim + _layer_parameters(c, 1 + c.has_attention_norm)


def _layer_parameters(config: TargetConfig | DraftConfig, num_norms: int) -> int:
    """Count the parameters of a layer with `num_norms` norms of d channels."""
    c = config
    # Norms of queries and keys have weights and biases, hence 2.
    norms = num_norms * c.dim + 2 * (c.dim + c.kv_dim) * c.has_qk_norm
    # Maps to queries and output, 2 d^2; keys and values, 2 d k; gate, up and down, 3 d f.
    return 2 * c.dim**2 + 2 * c.dim * c.kv_dim + 3 * c.dim * c.ffn_hidden + norms
