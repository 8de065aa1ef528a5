"""Reading and writing of prompt files.

A user's or a published prompt file may be text, a table, JSON or COCO's captions, also inside a zip archive. It has
*rows*, one per prompt. A run writes its prompts as JSON lines. Messages about a file of a user name file and row.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

import numpy as np

from lantern.io import DamagedFileError, check_last_line, write_text
from lantern.prompts import Prompt
from lantern_pipeline.schema.run_config import Captions, PromptSet

logger = logging.getLogger(__name__)

TEXT_KEYS = ("text", "prompt", "caption")
ID_KEYS = ("id", "image_id")
# Largest unpacked size of a prompt file in an archive, since a small archive may unpack into gigabytes.
MAX_MEMBER_BYTES = 1 << 30

# Number of a line or entry, from 1, and its value: a text, or an object with a text.
Rows = Iterable[tuple[int, object]]


def read_prompts(path: Path | str) -> list[Prompt]:
    """Read the prompts of a run from the JSON lines that `write_prompts` wrote.

    Raises:
        DamagedFileError: the file is incomplete, or does not contain prompts.
    """
    check_last_line(path)
    try:
        return load_prompts(path)
    except ValueError as error:
        raise DamagedFileError(path, f"holds no prompts ({error})") from error


def write_prompts(path: Path | str, prompts: Sequence[Prompt]) -> None:
    """Write prompts as JSON lines with the keys `id` and `text`, atomically."""
    write_text(path, "".join(json.dumps(asdict(prompt), ensure_ascii=False) + "\n" for prompt in prompts))


def load_prompt_set(path: str | Path, settings: PromptSet | Captions, seed: int) -> list[Prompt]:
    """Read the prompts that an entry of config section `prompts` selects from a file.

    If `settings.draw` is true, `num` prompts are chosen at random. The result has the order of the file. Then come the
    first repetitions of all prompts, whose ids end in "-r1", the second repetitions ("-r2"), and so on, if
    `settings.copies` is above 1.
    """
    prompts, num = load_prompts(path, settings.member), settings.num
    if num is not None and num > len(prompts):
        logger.warning("%s: only %d of the %d requested prompts", path, len(prompts), num)
    elif num is not None and settings.draw:
        # The first entries of one permutation, so a smaller `num` gives a subset.
        order = np.random.Generator(np.random.Philox(key=seed)).permutation(len(prompts))
        prompts = [prompts[index] for index in sorted(order[:num])]
    chosen = prompts[:num]  # the first, if none were drawn
    repeated = range(1, settings.copies or 1)
    return chosen + [Prompt(f"{prompt.id}-r{turn}", prompt.text) for turn in repeated for prompt in chosen]


def load_prompts(path: str | Path, member: str | None = None) -> list[Prompt]:
    """Read all prompts of a user's or a published prompt file, in the order of the file.

    Formats:
        .txt: one prompt per line.
        .jsonl: one string or object per line.
        .json: a list of strings or objects, an object that maps ids to texts, or COCO's captions.
        .csv, .tsv: the first line names the columns.
        .zip or folder: contains a file of another format. `member` names it if an archive has several.

    The text of a prompt is in the key or column `text`, `prompt` or `caption`, its id in `id` or `image_id`. Rows
    without an id get "<file name without suffix>-00000" and so on, by their position in the file.

    Rows without a text are left out, and so are rows that repeat both id and text. A warning states how many. If
    one text has several ids, as in COCO, there is one prompt per id.

    Raises:
        ValueError: the file has no prompts, is damaged or has an unknown format, or its ids or texts are wrong.
        FileNotFoundError: there is no such file.
    """
    path = Path(path)
    stem = Path(member).stem if member else path.stem
    kept: dict[str, Prompt] = {}
    empty: list[int] = []
    num_repeated = 0
    for position, (number, row) in enumerate(_read_rows(path, member)):
        prompt = _make_prompt(path, number, row, default_id=f"{stem}-{position:05d}")
        if prompt is None:
            empty.append(number)
        elif kept.setdefault(prompt.id, prompt).text != prompt.text:
            raise ValueError(
                f"{path}: the id {prompt.id} has two texts, {kept[prompt.id].text!r:.80} and "
                f"{prompt.text!r:.80}; give each prompt a different id"
            )
        else:
            # `setdefault` above has kept this prompt if it is the first with its id.
            num_repeated += kept[prompt.id] is not prompt
    if not kept:
        raise ValueError(f"{path}: the prompt file is empty; give at least one prompt")
    if empty:
        logger.warning("%s: left out %d rows without a text, the first is row %d", path, len(empty), empty[0])
    if num_repeated:
        logger.warning("%s: left out %d rows that repeat an id and its text", path, num_repeated)
    return list(kept.values())


def _make_prompt(path: Path, number: int, row: object, default_id: str) -> Prompt | None:
    """Build the prompt of one row, or return None if its text is empty."""
    # A row of another type has no keys, which the next check reports.
    values = {"text": row} if isinstance(row, str) else row if isinstance(row, dict) else {}
    cells = {_key_of(name): cell for name, cell in values.items()}
    text_key, id_key = _used_keys(path, number, [*values])
    if not text_key:
        raise ValueError(
            f"{path}, row {number}: expected a text, or an object or columns with {' or '.join(TEXT_KEYS)} (and id, "
            f"where prompts have ids), got {row!r:.80}"
        )
    text, id = cells[text_key], cells[id_key] if id_key else default_id
    if not isinstance(text, str):
        raise ValueError(
            f"{path}, row {number}: the key {text_key} must hold a text in quotes, got {json.dumps(text):.80}"
        )
    # In Python, True is an int.
    if isinstance(id, bool) or not isinstance(id, str | int | float):
        raise ValueError(f"{path}, row {number}: an id must be a text or a number, got {json.dumps(id):.80}")
    text, id = text.strip(), str(id).strip()
    if not text:
        return None
    if not id:
        raise ValueError(f"{path}, row {number}: empty id; give every prompt an id")
    try:
        return Prompt(id, text)
    except ValueError as error:
        raise ValueError(f"{path}, row {number}: {error}") from error


def _key_of(name: object) -> str:
    return str(name).strip().lower()


def _used_keys(path: Path, number: int, names: Sequence[object]) -> tuple[str, str]:
    """Return which of TEXT_KEYS and of ID_KEYS a row uses, "" for none. Upper and lower case do not matter."""
    found = [*map(_key_of, names)]
    text_key, id_key = (next((key for key in keys if key in found), "") for keys in (TEXT_KEYS, ID_KEYS))
    for key in filter(None, (text_key, id_key)):
        # Of two names of one key, such as "Text" and "text", a dict would keep only the last.
        same = [name for name in names if _key_of(name) == key]
        if len(same) > 1:
            raise ValueError(f"{path}, row {number}: {same[0]!r} and {same[1]!r} are both the {key}; rename one")
    return text_key, id_key


# --- from a file to its text ------------------------------------------------------------------------


def _read_rows(path: Path, member: str | None) -> Rows:
    name, content = _read_bytes(path, member)
    if name.suffix.lower() not in _READERS:
        raise ValueError(f"{name}: prompt files end in {', '.join(_READERS)}, got {name.suffix!r}")
    try:
        # utf-8-sig also removes the byte order mark that Excel writes.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name} is not UTF-8 text (byte {error.start}); save it in that encoding (Excel calls it 'CSV UTF-8')"
        ) from error
    return _READERS[name.suffix.lower()](name, text) if text.strip() else []


def _read_bytes(path: Path, member: str | None) -> tuple[Path, bytes]:
    """Return (path, content) of a prompt file, also from an archive or folder. The path ends with the member's name."""
    if path.is_dir() and member:
        inside = PurePosixPath(member)
        # A config from elsewhere must not read files outside of the folder.
        if inside.is_absolute() or ".." in inside.parts:
            raise ValueError(f"the key member must name a file inside {path}, got {member!r}; leave out '..'")
        path, member = path / member, None
    if path.suffix.lower() == ".zip":
        return _read_member(path, member)
    if not path.is_file():
        what = "is a folder; name the file in it (key member)" if path.is_dir() else "is no file; correct the path"
        raise FileNotFoundError(f"prompt file {path} {what}")
    return path, path.read_bytes()


def _read_member(path: Path, member: str | None) -> tuple[Path, bytes]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if PurePath(name).suffix.lower() in _READERS]
            if member is None and len(names) == 1:
                member = names[0]
            if member not in names:
                asked = f"holds no {member}" if member else "holds several prompt files"
                raise ValueError(f"{path} {asked}; set the key member to one of {', '.join(names) or 'no file at all'}")
            size = archive.getinfo(member).file_size  # zipfile returns no more bytes than this
            if size > MAX_MEMBER_BYTES:
                raise ValueError(
                    f"{path / member} must be at most {MAX_MEMBER_BYTES} bytes when unpacked, got {size}; unpack it "
                    "yourself if you trust it, and name the file"
                )
            return path / member, archive.read(member)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # RuntimeError: encrypted
        raise ValueError(f"{path} is damaged or is no zip archive ({error}); fetch it again") from error


# --- from the text to rows --------------------------------------------------------------------------


def _lines(text: str) -> list[str]:
    """Split a text at line feeds and carriage returns only.

    `str.splitlines` would also split inside a caption, for example at the character U+2028.
    """
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")


def _read_plain(path: Path, text: str) -> Rows:
    return enumerate(_lines(text), start=1)


def _read_jsonl(path: Path, text: str) -> Rows:
    for number, line in enumerate(_lines(text), start=1):
        yield number, _parse_json(path, number, line) if line.strip() else ""


def _read_json(path: Path, text: str) -> Rows:
    values = _parse_json(path, 1, text)
    if isinstance(values, dict) and "annotations" in values:
        return _read_coco(path, values)
    # An object of id: text. With a key such as "text" it would be a single prompt, which is an error.
    if isinstance(values, dict) and not {*TEXT_KEYS} & {*values}:
        values = [{"id": id, "text": value} for id, value in values.items()]
    if not isinstance(values, list):
        raise ValueError(
            f"{path}: expected a list of strings or objects, an object of id: text, or COCO's captions, got "
            f"{type(values).__name__}"
        )
    return enumerate(values, start=1)


def _parse_json(path: Path, number: int, text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {number + error.lineno - 1}: not JSON ({error.msg})") from error
    # Too many nested brackets, a number with thousands of digits, or a key that `_unique_keys` refuses.
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path}, from line {number}: JSON that cannot be read ({error})") from error


def _unique_keys(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object as a dict. JSON allows a key twice, of which `json` alone would keep the last."""
    found: dict[str, object] = {}
    for key, value in pairs:
        if repr(found.setdefault(key, value)) != repr(value):  # nan differs from itself
            raise ValueError(f"the key {key!r:.80} stands twice in one object, with two values; remove one")
    return found


def _read_csv(path: Path, text: str) -> Rows:
    # A quoted cell may contain line breaks, so the reader gets the whole text. `line_num` counts lines, not rows.
    # newline="" keeps these breaks as they are. skipinitialspace lets a quoted cell begin after ", ".
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    try:
        return _read_table(path, [(reader.line_num, cells) for cells in reader])
    except csv.Error as error:
        raise ValueError(
            f"{path}, line {reader.line_num}: no CSV ({error}); look for a quote that never ends"
        ) from error


def _read_tsv(path: Path, text: str) -> Rows:
    return _read_table(path, [(number, _split_tabs(line)) for number, line in enumerate(_lines(text), start=1)])


def _split_tabs(line: str) -> list[str]:
    """Split a line of a TSV file into cells, without the quotes around whole cells.

    Other quotes belong to the text: for example, a prompt of PartiPrompts begins with `"G I G G L E" painted in`.
    """
    cells = []
    for cell in line.split("\t"):
        inner = cell.strip()[1:-1]
        # Quotes inside a quoted cell are doubled.
        is_quoted = len(cell.strip()) > 1 and cell.strip() == f'"{inner}"' and '"' not in inner.replace('""', "")
        cells.append(inner.replace('""', '"') if is_quoted else cell)
    return cells


def _read_table(path: Path, table: Sequence[tuple[int, list[str]]]) -> Rows:
    """Yield (line number, column -> cell) of each line after the first, which names the columns."""
    header = table[0][1]
    _used_keys(path, table[0][0], header)  # raises here, before a row's dict drops one of two equal names
    for number, cells in table[1:]:
        # Empty cells beyond the header are separators at the end of a line.
        if any(cells[len(header) :]):
            raise ValueError(
                f"{path}, line {number}: {len(cells)} cells under a header of {len(header)}; put a text with the "
                "separator in it into double quotes"
            )
        # Missing cells at the end of a line are empty.
        yield number, dict.fromkeys(header, "") | dict(zip(header, cells, strict=False))


def _read_coco(path: Path, values: Mapping[str, Any]) -> Rows:
    """Yield one caption per image from a file of COCO's captions: the longest, or the first of equally long captions.

    For 5,000 images of COCO's val2017, the result equals the prompt list that LANTERN's authors published, in the same
    order: jadohu/LANTERN@3a56e45, data/prompts/preprocess.py.
    """
    # A dict keeps the order in which images first appear among the annotations.
    captions: dict[int | str, list[str]] = {}
    try:
        for number, annotation in enumerate(values["annotations"], start=1):
            caption = annotation["caption"]
            if not isinstance(caption, str):
                raise ValueError(
                    f"{path}, annotation {number}: a caption must be a text in quotes, got {json.dumps(caption):.80}"
                )
            captions.setdefault(annotation["image_id"], []).append(caption)
        names = {image["id"]: PurePath(image["file_name"]).stem for image in values.get("images", [])}
    except (TypeError, KeyError) as error:
        raise ValueError(
            f"{path}: annotations and images are not as in COCO's captions_*.json ({type(error).__name__}: {error})"
        ) from error
    for number, (image_id, texts) in enumerate(captions.items(), start=1):
        # The id is the image's file name, so that it also names the reference image. COCO pads numbers to 12 digits.
        name = names.get(image_id) or (f"{image_id:012d}" if isinstance(image_id, int) else str(image_id))
        yield number, {"id": name, "text": max([text for text in texts if text.strip()] or [""], key=len)}


_READERS: dict[str, Callable[[Path, str], Rows]] = {
    ".txt": _read_plain,
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
}
