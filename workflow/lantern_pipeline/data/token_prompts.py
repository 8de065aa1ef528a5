"""Prompts of language models that draw: the caption's tokens by the model's own tokenizer, inside a fixed form."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from lantern.checkpoints.target import FIRST_CODE
from lantern.models.families import Family
from lantern_pipeline.fetch.manifest import resource_path

_DIGITS = str.maketrans("ABCDEFGHIJ", "0123456789")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PromptForm:
    """What a family puts around a caption. Of `start`, `end` and `null`, a part that begins with "<" is the name of one
    token, any other is text.

    `text` is tokenised as a whole, the caption in place of {}. `null` is the prompt of no caption; with a `filler` it
    has the caption's length, that token between its first and its last.
    """

    start: tuple[str, ...]
    text: str
    end: tuple[str, ...]
    null: tuple[str, ...]
    filler: str | None = None


_EMU3_NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)
# By text.encoder. Lumina-mGPT's is of images of 768 pixels, 24 times 32, Emu3's of 720, 90 times 8.
# Source: jadohu/LANTERN@3a56e45 (Anole, Lumina-mGPT), deepseek-ai/Janus@1daa72f, baaivision/Emu3@f6ea9aa.
FORMS = {
    "anole": PromptForm(("<s>",), "{}", ("<reserved08706>", "<racm3:break>"), ("<s>", "<racm3:break>")),
    "lumina": PromptForm(
        ("<s>",),
        "Generate an image of 768x768 according to the following prompt:\n{}",
        ("<reserved08706>", "<racm3:break>", "<reserved08824>", "<reserved08824>"),
        ("<racm3:break>", "<reserved08824>", "<reserved08824>"),
    ),
    "janus": PromptForm(
        ("<｜begin▁of▁sentence｜>",),
        "<|User|>: {}\n\n<|Assistant|>:",
        ("<begin_of_image>",),
        ("<｜begin▁of▁sentence｜>", "<begin_of_image>"),
        filler="<｜▁pad▁｜>",
    ),
    "emu3": PromptForm(
        ("<|extra_203|>",),
        "{} masterpiece, film grained, best quality.",
        ("<|image start|>", "90*90", "<|image token|>"),
        ("<|extra_203|>", _EMU3_NEGATIVE, "<|image start|>", "90*90", "<|image token|>"),
    ),
}


class TokenPromptEncoder:
    """Ids of prompts, left-padded to `max_tokens`, by a `tokenizer.json`; a `TextEncoder`.

    A new family is a row of FORMS, its name in the schema's text.encoder, and the number of its ids in
    `model_sizes.py`. A longer prompt loses the end of its caption, which is logged; what the form has behind
    it stays.
    """

    def __init__(self, form: PromptForm, tokenizer: Tokenizer, max_tokens: int, path: Path = Path("tokenizer.json")):
        self.form, self.path, self.max_tokens = form, path, max_tokens
        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())  # lengths are ours
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        _check_codes(self.path, self.tokenizer.get_vocab())
        self._reported: set[str] = set()
        self._start, self._end = self._ids(self.form.start), self._ids(self.form.end)
        self._before, _, self._behind = self.form.text.partition("{}")
        form = [*self._start, *self._tokens(self._before), *self._tokens(self._behind), *self._end]
        needed = max(len(form) + 1, len(self.null_prompt["null_ids"]))
        if max_tokens < needed:
            raise ValueError(
                f"text.max_tokens must be at least {needed} for the form of these prompts, got {max_tokens}"
            )

    @classmethod
    def of_file(cls, encoder: str, given: str | Path, max_tokens: int) -> TokenPromptEncoder:
        """Of the value of config key text.encoder, and of a file, its folder or the manifest of a resource."""
        path = _find_file(resource_path(given))
        return cls(FORMS[encoder], Tokenizer.from_file(str(path)), max_tokens, path)

    @property
    def null_prompt(self) -> dict[str, Any]:
        """The fields of a `TargetConfig` that say the prompt of no caption."""
        filler = self.form.filler
        return {
            "null_ids": tuple(self._ids(self.form.null)),
            "null_filler": None if filler is None else self._ids([filler])[0],
        }

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """See `TextEncoder.encode`."""
        ids = torch.zeros(len(texts), self.max_tokens, dtype=torch.int64)
        mask = torch.zeros(len(texts), self.max_tokens, dtype=torch.bool)
        for row, text in enumerate(texts):
            found = self._prompt(text)
            ids[row, -len(found) :], mask[row, -len(found) :] = torch.tensor(found), True
        return ids, mask

    def _prompt(self, text: str) -> list[int]:
        ids, room = self._tokens(self._before + text + self._behind), self.max_tokens - len(self._start + self._end)
        if len(ids) > room:
            if text not in self._reported:
                log.warning("prompt %r is cut to text.max_tokens = %d tokens", text[:200], self.max_tokens)
                self._reported.add(text)
            behind = self._tokens(self._behind)
            ids = self._tokens(self._before + text)[: room - len(behind)] + behind
        return self._start + ids + self._end

    def _tokens(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _ids(self, parts: Sequence[str]) -> list[int]:
        return [id for part in parts for id in (self._named(part) if part.startswith("<") else self._tokens(part))]

    def _named(self, name: str) -> list[int]:
        if (id := self.tokenizer.token_to_id(name)) is None:
            raise ValueError(f"{self.path} lacks the token {name}; take the tokenizer of the target's repository")
        return [id]


def prompt_form(family: Family, tokenizer: Any) -> PromptForm:
    """The form of a family's prompts; GLM-Image's says the sides of its two grids, the large one's first."""
    if family.prompt in FORMS:
        return FORMS[family.prompt]
    sides = "".join(
        f"{tokenizer.grid_bos_token}{side} {side}{tokenizer.grid_eos_token}"
        for side in (family.grid, family.small_grid)
    )
    return PromptForm((), "{}" + sides, (tokenizer.bos_token,), ())


def _check_codes(path: Path, ids: Mapping[str, int]) -> None:
    """Chameleon's names of image codes hold the code's digits as letters: they must agree with what is drawn."""
    for name, id in ids.items():
        if found := re.fullmatch("IMGIMG([A-J]+)Z", name):
            code = int(found[1].translate(_DIGITS))
            if id != FIRST_CODE + code:
                raise ValueError(
                    f"{path}: token {name} should have id {FIRST_CODE + code}, as code {code} has in the target, found "
                    f"{id}; take the tokenizer of the target's repository"
                )


def _find_file(path: Path) -> Path:
    """A tokenizer's file, or the only one in a folder."""
    if not path.is_dir():
        if not path.is_file():
            raise FileNotFoundError(2, f"there is no file {path}; fetch the tokenizer, or correct text.checkpoint")
        return path
    found = sorted(path.glob("*tokenizer.json"))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise ValueError(f"{path} should hold one file that is or ends in tokenizer.json, found {names}; name it")
    return found[0]
