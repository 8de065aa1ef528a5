"""Prompts with ids: the pairing key of every record, image and metric."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lantern_pipeline.data.prompt_files import read_rows
from lantern_pipeline.world.scenes import parse_caption

logger = logging.getLogger(__name__)

MAX_TEXT_LENGTH = 10_000  # characters; the time that a caption's cleaning takes grows with the square
MAX_ID_LENGTH = 1_000  # characters
_FORBIDDEN_IN_IDS = ("Cc", "Cs", "Zl", "Zp")  # Unicode's control characters, lone surrogates, line and paragraph ends


@dataclass(frozen=True)
class Prompt:
    """One prompt. Neither its id nor its text ever becomes a path or a part of a command.

    Attributes:
        id: unique in its set; noise, records and images are keyed by it. Any characters but control characters, line
            ends and lone surrogates, MAX_ID_LENGTH at most.
        text: what the text encoder reads; any characters but lone surrogates, MAX_TEXT_LENGTH at most.
        scene: `Scene.to_dict()` where the text is a caption of the embedded world, None for free text.

    Raises:
        ValueError: a longer id or text, or one with other characters.
    """

    id: str
    text: str
    scene: dict | None = None

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


def load_prompts(
    path: str | Path, *, member: str | None = None, caption: str = "longest", seed: int = 0
) -> list[Prompt]:
    """Read a user's or a published prompt file.

    Rows without a text are left out, and so are rows that repeat an id with the same text; both are logged. A text may
    come again under another id: COCO has such captions, and each is a prompt of its own.

    Args:
        path: .txt (one prompt a line), .jsonl (one string or object a line), .json (a list of strings or objects, an
            object of id: text, or COCO's captions), .csv or .tsv (first line names the columns), or a .zip or folder
            with one of these. The text is called text, prompt or caption, the id id or image_id. Rows without an id
            are called "<stem>-00000" and so on, after their place in the file: the first after the header is 0.
        member: the file inside a .zip or a folder.
        caption: which caption of a COCO image: longest | first | drawn (by `seed`).
        seed: of that draw.

    Returns:
        Prompts in the file's order; captions of the embedded world get their scene, which is read off the text.

    Raises:
        FileNotFoundError: no such file.
        ValueError: unknown extension, no prompt at all, missing column, an empty id, an id with two texts (named), an
            id or a text that no `Prompt` may have.
    """
    path = Path(path)
    stem = Path(member).stem if member else path.stem
    kept: dict[str, Prompt] = {}
    empty: list[int] = []
    num_repeated = 0
    for position, (number, row) in enumerate(read_rows(path, member, caption, seed)):
        prompt = _make_prompt(path, number, row, default_id=f"{stem}-{position:05d}")
        if prompt is None:
            empty.append(number)
        elif kept.setdefault(prompt.id, prompt).text != prompt.text:
            raise ValueError(
                f"{path}: the id {prompt.id} stands for two texts, {kept[prompt.id].text!r:.80} and "
                f"{prompt.text!r:.80}; every prompt needs an id of its own"
            )
        else:
            num_repeated += kept[prompt.id] is not prompt
    if not kept:
        raise ValueError(f"{path}: the prompt file is empty; give at least one prompt")
    _report(path, list(kept.values()), empty, num_repeated)
    return list(kept.values())


def load_prompt_set(path: str | Path, settings: Mapping[str, Any], seed: int) -> list[Prompt]:
    """Read the prompt set that an entry of config section `prompts` describes.

    Args:
        path: its file.
        settings: the entry: num (prompts, None for all), draw (True draws them, False takes the first), member and
            caption as in `load_prompts`.
        seed: run seed.

    Raises:
        ValueError: as `load_prompts` and `choose_prompts`.
    """
    prompts = load_prompts(path, member=settings.get("member"), caption=settings.get("caption") or "longest", seed=seed)
    num, is_drawn = settings.get("num"), bool(settings.get("draw"))
    if num is not None and num > len(prompts):
        logger.warning("%s: only %d of the %d prompts asked for", path, len(prompts), num)
    return choose_prompts(prompts, num, is_drawn=is_drawn, seed=seed)


def choose_prompts(prompts: Sequence[Prompt], num: int | None, *, is_drawn: bool, seed: int) -> list[Prompt]:
    """Take `num` prompts, the first or a random choice, in the order of `prompts`; all where there are no more.

    The choice depends on the seed and on how many prompts there are, and a smaller choice is part of a larger one.
    """
    if num is None or num >= len(prompts):
        return list(prompts)
    if not is_drawn:
        return list(prompts[:num])
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(len(prompts))
    return [prompts[index] for index in sorted(order[:num])]


def scene_of(text: str) -> dict | None:
    """Return the scene of a caption of the embedded world, None for any other text."""
    try:
        return parse_caption(text).to_dict()
    except ValueError:
        return None


def _make_prompt(path: Path, number: int, row: Mapping[str, Any], default_id: str) -> Prompt | None:
    """None for a row without a text."""
    text = str(row["text"] if row["text"] is not None else "").strip()
    if not text:
        return None
    id = str(row["id"] if row.get("id") is not None else "").strip() if "id" in row else default_id
    if not id:
        raise ValueError(f"{path}, row {number}: empty id; give every prompt an id")
    try:
        return Prompt(id, text, scene_of(text))
    except ValueError as error:
        raise ValueError(f"{path}, row {number}: {error}") from error


def _name_of(letter: str) -> str:
    return "half of a surrogate pair" if unicodedata.category(letter) == "Cs" else "control character or line end"


def _report(path: Path, prompts: Sequence[Prompt], empty: Sequence[int], num_repeated: int) -> None:
    if empty:
        logger.warning("%s: left out %d rows without a text, the first is row %d", path, len(empty), empty[0])
    if num_repeated:
        logger.warning("%s: left out %d rows that repeat an id and its text", path, num_repeated)
    num_again = len(prompts) - len({prompt.text for prompt in prompts})
    if num_again:
        logger.info("%s: %d of %d prompts have the text of an earlier one; kept", path, num_again, len(prompts))
