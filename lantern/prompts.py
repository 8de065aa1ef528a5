"""Prompts with ids, and what encodes their texts. An id also identifies the records, the image and the metrics."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

MAX_TEXT_LENGTH = 10_000  # characters; the time to clean a caption grows with the square of its length
MAX_ID_LENGTH = 1_000  # characters
_FORBIDDEN_IN_IDS = ("Cc", "Cs", "Zl", "Zp")  # Unicode's control characters, lone surrogates, line and paragraph ends


@dataclass(frozen=True)
class Prompt:
    """One prompt. Its id and its text are never used as a path or as a part of a command.

    Attributes:
        id: unique among prompts that are used together, and a key of the noise. At most MAX_ID_LENGTH characters,
            without control characters, line ends and lone surrogates.
        text: at most MAX_TEXT_LENGTH characters, without lone surrogates.
    """

    id: str
    text: str

    def __post_init__(self) -> None:
        for what, value, longest, forbidden in (
            ("id", self.id, MAX_ID_LENGTH, _FORBIDDEN_IN_IDS),
            ("text", self.text, MAX_TEXT_LENGTH, ("Cs",)),
        ):
            if len(value) > longest:
                raise ValueError(
                    f"the {what} of a prompt must be at most {longest} characters long, got {len(value)} in "
                    f"{value!r:.60}...; shorten it"
                )
            strange = next((letter for letter in value if unicodedata.category(letter) in forbidden), None)
            if strange is not None:
                raise ValueError(
                    f"the {what} of a prompt must hold no {_name_of(strange)}, got U+{ord(strange):04X} in "
                    f"{value!r:.60}; remove it"
                )


def _name_of(letter: str) -> str:
    return "half of a surrogate pair" if unicodedata.category(letter) == "Cs" else "control character or line end"


class TextEncoder(Protocol):
    """The interface of text encoders. They have its method, and are not derived from it."""

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Encode texts, padded on the left to the same length.

        Returns:
            Two tensors. The first holds features, float32 (texts, max_tokens, caption_dim), 0 at padding, or ids, int64
            (texts, max_tokens). The second is the mask, bool (texts, max_tokens): True for tokens, False for padding.
        """
        ...
