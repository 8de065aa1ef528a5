"""Encoder for language models that generate images: a caption becomes ids, with fixed text around it.

The *form* of a family is the text and tokens around a caption. For example, Emu3's form states the size of the image
after the caption. A prompt is

    start tokens, tokens of the text with the caption in it, end tokens

`shape` is the height and width of the image in codes. `small_shape` is that of the preview that GLM-Image generates
before it, and (0, 0) for other models. They are needed only if the form states them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import torch
from tokenizers import Tokenizer
from torch import Tensor

from lantern_models.checkpoints.tensor_names import FIRST_CODE
from lantern_models.checkpoints.weight_files import read_object
from lantern_models.families import FAMILIES, PromptForm

_DIGITS = str.maketrans("ABCDEFGHIJ", "0123456789")
# The roles of special tokens that transformers knows for all models.
_USUAL = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))

log = logging.getLogger(__name__)


class NullPrompt(TypedDict):
    """The null prompt of classifier-free guidance, which has no caption, as fields of a `TargetConfig`.

    For example, the ids (1, 2) with the filler 0 give the null prompt 1, 0, ..., 0, 2, as long as the prompt.
    """

    null_ids: tuple[int, ...]
    null_filler: int | None


class TokenPromptEncoder:
    """A `TextEncoder` with the tokenizer of a `tokenizer.json`.

    If a prompt is longer than `max_tokens`, the end of the caption is cut, a warning is logged, and the text after the
    caption is kept.

    Args:
        tokenizer: its truncation and padding are switched off.
        path: file of the tokenizer, for error messages.
        names: names of the tokenizer's special tokens, by placeholder.

    Attributes:
        refuses_long: whether a prompt that is too long raises a ValueError instead of being cut.

    Raises:
        ValueError: the form cannot be filled or needs more than `max_tokens`, the tokenizer lacks a token of the form,
            or its ids of codes differ from the target's.
    """

    refuses_long = False

    def __init__(
        self,
        form: PromptForm,
        tokenizer: Tokenizer,
        max_tokens: int,
        path: Path = Path("tokenizer.json"),
        *,
        names: Mapping[str, object] | None = None,
        shape: tuple[int, int] = (0, 0),
        small_shape: tuple[int, int] = (0, 0),
    ):
        self._unfilled = form
        self._names = dict(names or {})
        self.form = fill_form(form, self._names, shape, small_shape)
        self.path = path
        self.max_tokens = max_tokens
        self.tokenizer = tokenizer
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        _check_codes(self.path, self.tokenizer.get_vocab())
        self._reported: set[str] = set()
        self._start = self._ids(self.form.start)
        self._end = self._ids(self.form.end)
        self._before, _, self._after = self.form.text.partition("{}")
        fixed = [*self._start, *self._tokens(self._before), *self._tokens(self._after), *self._end]
        needed = max(len(fixed) + 1, len(self.null_prompt["null_ids"]))  # 1: for the caption
        if max_tokens < needed:
            raise ValueError(f"max_tokens must be at least {needed} for the form of these prompts, got {max_tokens}")

    @classmethod
    def of_file(cls, family: str, given: str | Path, max_tokens: int, **shapes: tuple[int, int]) -> TokenPromptEncoder:
        """Make the encoder for a family, a key of `FAMILIES`, from a `tokenizer.json` or its folder.

        Raises:
            ValueError: the folder does not hold exactly one tokenizer, the tokenizer does not fit the family, or the
                names of its special tokens cannot be read.
        """
        path = _find_file(Path(given))
        tokenizer = Tokenizer.from_file(str(path))
        return cls(FAMILIES[family].prompt, tokenizer, max_tokens, path, names=read_names(path.parent), **shapes)

    def with_shape(self, shape: tuple[int, int], small_shape: tuple[int, int]) -> TokenPromptEncoder:
        """Return a copy of this encoder, whose prompts state another size of the image."""
        other = TokenPromptEncoder(
            self._unfilled,
            self.tokenizer,
            self.max_tokens,
            self.path,
            names=self._names,
            shape=shape,
            small_shape=small_shape,
        )
        other.refuses_long = self.refuses_long
        return other

    @property
    def null_prompt(self) -> NullPrompt:
        """Fields of the null prompt. The target repeats the filler."""
        filler = self.form.filler
        return {
            "null_ids": tuple(self._ids(self.form.null)),
            "null_filler": None if filler is None else self._ids([filler])[0],
        }

    def encode(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return the ids of prompts, 0 at padding, and their mask, as `TextEncoder` does."""
        ids = torch.zeros(len(texts), self.max_tokens, dtype=torch.int64)
        mask = torch.zeros(len(texts), self.max_tokens, dtype=torch.bool)
        for row, text in enumerate(texts):
            found = self._prompt(text)
            ids[row, -len(found) :] = torch.tensor(found)
            mask[row, -len(found) :] = True
        return ids, mask

    def _prompt(self, text: str) -> list[int]:
        # Tokenised as a whole, since tokens may span the ends of the caption.
        ids = self._tokens(self._before + text + self._after)
        room = self.max_tokens - len(self._start + self._end)
        if len(ids) > room:
            if self.refuses_long:
                needed = len(self._start + ids + self._end)
                raise ValueError(
                    f"a prompt must have at most max_tokens = {self.max_tokens} tokens, got {needed} in {text!r:.60}; "
                    f"shorten it, or pass max_tokens={needed} to lantern.from_transformers"
                )
            if text not in self._reported:
                log.warning("prompt %r is cut to max_tokens = %d tokens", text[:200], self.max_tokens)
                self._reported.add(text)
            after = self._tokens(self._after)
            ids = self._tokens(self._before + text)[: room - len(after)] + after
        return self._start + ids + self._end

    def _tokens(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _ids(self, parts: Sequence[str]) -> list[int]:
        return [id for part in parts for id in (self._named(part) if part.startswith("<") else self._tokens(part))]

    def _named(self, name: str) -> list[int]:
        if (id := self.tokenizer.token_to_id(name)) is None:
            raise ValueError(f"{self.path} lacks the token {name}; take the tokenizer of the target's repository")
        return [id]


def fill_form(
    form: PromptForm, names: Mapping[str, object], shape: tuple[int, int], small_shape: tuple[int, int]
) -> PromptForm:
    """Fill the placeholders of a form, except {} for the caption.

    `names` are the tokenizer's special tokens by placeholder, such as "grid_bos_token". Attributes of a tokenizer may
    hold other values than strings, which are ignored.

    Raises:
        ValueError: the tokenizer has no name for a placeholder, or Lumina-mGPT has no token for a side of the image.
    """
    sides = ("height", "width", "small_height", "small_width")
    known: dict[str, object] = {key: value for key, value in names.items() if isinstance(value, str)}
    known |= zip(sides, (*shape, *small_shape), strict=True)
    # Only Lumina-mGPT's form has this placeholder.
    if "{height_token}" in form.end:
        if any(side % 2 for side in shape):
            raise ValueError(f"height and width must be even numbers of codes for these prompts, got {shape}")
        for name, side in zip(sides, shape, strict=False):  # without the two of a preview
            # Lumina-mGPT's codes have 16 pixels a side, and its token 8800 + n states 32 n pixels.
            known |= {f"{name}_pixels": 16 * side, f"{name}_token": f"<reserved{8800 + side // 2:05d}>"}

    def fill(text: str) -> str:
        try:
            return re.sub(r"\{(\w+)\}", lambda found: str(known[found[1]]), text)
        except KeyError as missing:
            raise ValueError(
                f"the tokenizer names no {missing}: tokenizer_config.json should be in its folder"
            ) from None

    parts = {name: tuple(fill(part) for part in getattr(form, name)) for name in ("start", "end", "null")}
    return replace(form, text=fill(form.text), **parts)


def read_names(folder: Path) -> dict[str, str]:
    """Return the names of a tokenizer's special tokens by role, such as "bos_token", as `AutoTokenizer` finds them.

    A role that only some models have, such as "grid_bos_token", is at the top of tokenizer_config.json, or in a mapping
    under extra_special_tokens or model_specific_special_tokens. A list of tokens gives them no role. Without these
    files there are no names.

    Raises:
        ValueError: a value is neither a token nor one of these forms. The message states the file and the key.
    """
    path, old_path = folder / "tokenizer_config.json", folder / "special_tokens_map.json"
    settings = read_object(path) if path.is_file() else {}
    # transformers 4 wrote a second file. It counts only if the first lists no added tokens.
    old = read_object(old_path) if old_path.is_file() and "added_tokens_decoder" not in settings else {}
    # transformers 5 renamed additional_special_tokens to extra_special_tokens.
    extra = "extra_special_tokens" if settings.get("extra_special_tokens") else "additional_special_tokens"
    named = _tokens_at_top(path, settings)
    own = {role: name for role, name in named.items() if role not in _USUAL} | _tokens_under(path, settings, extra)
    # As transformers does: other roles of the model's own replace this mapping.
    own = own or _tokens_under(path, settings, "model_specific_special_tokens", takes_list=False)
    # `own` again, since at its top the old file overrides only usual roles.
    return named | _tokens_at_top(old_path, old) | own | _tokens_under(old_path, old, "extra_special_tokens")


def _tokens_at_top(path: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for role, value in settings.items():
        if role in _USUAL and value is not None:
            found[role] = _token(path, role, value)
        elif role.endswith("_token") and (isinstance(value, str) or (isinstance(value, dict) and "content" in value)):
            found[role] = _token(path, role, value)  # others, such as add_bos_token, are switches
    return found


def _tokens_under(path: Path, settings: Mapping[str, Any], key: str, takes_list: bool = True) -> dict[str, str]:
    value = settings.get(key) or {}
    if isinstance(value, list) and takes_list:
        # Only the check of the entries matters here.
        for index, token in enumerate(value):
            _token(path, f"{key}[{index}]", token)
        return {}
    if not isinstance(value, dict):
        wanted = "a mapping or a list of tokens" if takes_list else "a mapping of tokens"
        raise ValueError(f"{path}: {key} should be {wanted}, found {value!r:.60}; save the tokenizer again")
    return {role: _token(path, f"{key}.{role}", token) for role, token in value.items()}


def _token(path: Path, key: str, value: object) -> str:
    """Return the name of a token, which is a text, or a mapping of its options with the text under "content"."""
    name = value.get("content") if isinstance(value, dict) else value
    if not isinstance(name, str):
        raise ValueError(f"{path}: {key} should be a token, found {value!r:.60}; save the tokenizer again")
    return name


def _check_codes(path: Path, ids: Mapping[str, int]) -> None:
    for name, id in ids.items():
        # Chameleon's word for a code has its digits as letters, with A for 0: "IMGIMGBDZ" is code 13. Other tokenizers
        # have no such words.
        if found := re.fullmatch("IMGIMG([A-J]+)Z", name):
            code = int(found[1].translate(_DIGITS))
            if id != FIRST_CODE + code:
                raise ValueError(
                    f"{path}: token {name} should have id {FIRST_CODE + code}, as code {code} has in the target, found "
                    f"{id}; take the tokenizer of the target's repository"
                )


def _find_file(path: Path) -> Path:
    """Return the path of a tokenizer's file, given the file, its folder, or the folder of a diffusers pipeline."""
    if not path.is_dir():
        if not path.is_file():
            raise FileNotFoundError(2, f"there is no file {path}; fetch the tokenizer, or correct the path")
        return path
    found = sorted([*path.glob("*tokenizer.json"), *path.glob("processor/tokenizer.json")])
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise ValueError(f"{path} should hold one file that is or ends in tokenizer.json, found {names}; name it")
    return found[0]
