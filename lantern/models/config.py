"""Sizes of a target and of its draft model, and the parameters that they make. Read while Snakemake plans: no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar, overload

if TYPE_CHECKING:
    import torch
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

# Source: FoundationVision/LlamaGen@ce98ec4, autoregressive/models/gpt.py. Released for text to image: XL. B to XXXL
# were made for classes, 1B to 7B for text.
LLAMAGEN_SIZES: dict[str, dict[str, int]] = {
    "B": {"dim": 768, "num_layers": 12, "num_heads": 12},
    "L": {"dim": 1024, "num_layers": 24, "num_heads": 16},
    "XL": {"dim": 1280, "num_layers": 36, "num_heads": 20},
    "XXL": {"dim": 1536, "num_layers": 48, "num_heads": 24},
    "XXXL": {"dim": 2560, "num_layers": 48, "num_heads": 40},
    "1B": {"dim": 2048, "num_layers": 22, "num_heads": 32},
    "3B": {"dim": 3200, "num_layers": 24, "num_heads": 32},
    "7B": {"dim": 4096, "num_layers": 32, "num_heads": 32},
}
# Fields of a `TargetConfig` in which a file must agree with what is expected, if it states them.
COMPARED_SIZES = ("dim", "num_layers", "num_heads", "vocab_size", "grid", "num_text_tokens", "caption_dim")
OVERSHOOT = 32  # rows of zeros behind the image in the rotary table: drafts may run past the last token
FFN_MULTIPLE = 256  # LlamaGen rounds the width of its feed-forward part up to a multiple of this


def pick(cls: type[T], settings: Mapping[str, object], **more: object) -> T:
    """Builds a settings dataclass from settings that may hold keys of other dataclasses as well, and from `more`."""
    names = {field.name for field in fields(cls)}
    return cls(**{key: value for key, value in settings.items() if key in names}, **more)


class CommonSizes:
    """What follows alike from the sizes of a target and from those of a draft model."""

    dim: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    grid: int
    columns: int
    line_end: int | None
    small_grid = 0
    small_columns = 0

    @property
    def head_dim(self) -> int:
        """Channels of an attention head."""
        return self.dim // self.num_heads

    @property
    def kv_dim(self) -> int:
        """Channels of the keys of a token, and of its values."""
        return (self.num_kv_heads or self.num_heads) * self.head_dim

    @property
    def num_codes(self) -> int:
        """Codes of the image tokenizer."""
        return self.vocab_size - (self.line_end is not None)

    @property
    def lines(self) -> tuple[int, int]:
        """Lines of an image, and tokens of a line."""
        return self.grid, self.line_width

    @property
    def line_width(self) -> int:
        """Tokens of a line."""
        return (self.columns or self.grid) + (self.line_end is not None)

    @property
    def num_image_tokens(self) -> int:
        """Tokens of an image."""
        return self.small_grid * (self.small_columns or self.small_grid) + self.grid * self.line_width

    def image_codes(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the codes of images: their tokens without those of a smaller image and without line ends.

        Args:
            tokens: tokens of images, (..., num_image_tokens).
        """
        lines = tokens[..., -self.grid * self.line_width :].unflatten(-1, self.lines)
        return lines[..., : self.columns or self.grid].flatten(-2)

    @overload
    def ends_line(self, positions: int) -> bool: ...
    @overload
    def ends_line(self, positions: torch.Tensor) -> torch.Tensor: ...
    def ends_line(self, positions: int | torch.Tensor) -> bool | torch.Tensor:
        """Whether the tokens at these positions of the image, numbers or tensors of them, end a line."""
        return positions % self.line_width == (self.columns or self.grid)


@dataclass(frozen=True)
class TargetConfig(CommonSizes):
    """Sizes of a target; the defaults are those of the embedded data set.

    `num_prompt_ids`: rows of the table that prompts of ids are looked up in; 0 where prompts are caption features.
    `null_ids`: the prompt of no caption, where prompts are ids; pads stand in front of it. `null_filler`: where set, it
    has the prompt's length instead, and this id between its first and its last.
    `ffn_width`: of the feed-forward part, where it is not 8 / 3 of dim, rounded up to `ffn_multiple`. `num_kv_heads`:
    heads of keys and values, each for as many of queries; 0 for one each.
    `rope`: "2d" turns image tokens by row and column and leaves the prompt's rows at 0; "1d" turns all by position.
    `columns`: codes of a line where the image is no square of `grid`. `line_end`: id, in the prompts' vocabulary, of
    the token that ends every line of codes, the last of the `vocab_size` tokens; None for no such token. `small_grid`:
    side of a smaller image whose tokens come first; 0 for none. `small_columns`: codes of a line of the smaller image
    if it is not square.
    `has_qk_norm`: each head's queries and keys are normalised. `has_mlp_head`: the head has a hidden layer.
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
        """Channels inside the feed-forward part."""
        return self.ffn_width or -(-int(8 * self.dim / 3) // self.ffn_multiple) * self.ffn_multiple


@dataclass(frozen=True)
class DraftConfig(CommonSizes):
    """Sizes of a draft model; they follow the target's.

    `masks_text_padding`: LlamaGen's published drafters attend to padded caption rows, ours do not. `num_embedded_ids`:
    rows of a table in which Chameleon's look up the prompt's ids; 0 for zero tokens in their place.
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
        """Sizes of our own draft model of a target."""
        return pick(cls, {**asdict(target), "has_qk_norm": False}, ffn_hidden=target.ffn_hidden)

    @classmethod
    def of_chameleon(cls, target: TargetConfig) -> DraftConfig:
        """Sizes of the LANTERN authors' draft model of a target of Chameleon's kind, which sees the prompt's ids."""
        return replace(
            cls.of(target), num_embedded_ids=target.num_prompt_ids, has_attention_norm=True, has_qk_norm=True
        )


def target_parameters(config: TargetConfig) -> int:
    """Parameters of a target of width d: its layers, V d of the codes' table, the head, d of the last norm, and of the
    prompts i d for a table of i ids, or d^2 + (d + t) c for t rows of c channels, null caption included.
    """
    c = config
    prompt = c.num_prompt_ids * c.dim or (c.dim + c.num_text_tokens) * c.caption_dim + c.dim**2
    return c.num_layers * _layer_parameters(c, 2) + c.vocab_size * c.dim + head_parameters(c) + c.dim + prompt


def head_parameters(config: TargetConfig) -> int:
    """Those of a target's parameters that are its head, V d or with a hidden layer d^2 + d + V more."""
    return config.vocab_size * config.dim + config.has_mlp_head * (config.dim**2 + config.dim + config.vocab_size)


def draft_parameters(config: DraftConfig) -> int:
    """Parameters of a draft model: (V + i) d of its tables, 2 d^2 + d of the fc layer, and its layer."""
    c = config
    return (c.vocab_size + c.num_embedded_ids + 2 * c.dim + 1) * c.dim + _layer_parameters(c, 1 + c.has_attention_norm)


def _layer_parameters(config: TargetConfig | DraftConfig, num_norms: int) -> int:
    """2 d^2 + 2 d k + 3 d f for keys of width k and a feed-forward part of width f, d a norm, and 2 (d + k) of the
    norm of queries and keys.
    """
    c = config
    norms = num_norms * c.dim + 2 * (c.dim + c.kv_dim) * c.has_qk_norm
    return 2 * c.dim**2 + 2 * c.dim * c.kv_dim + 3 * c.dim * c.ffn_hidden + norms
