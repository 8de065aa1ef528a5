"""Image files below a folder or inside a zip archive (as COCO is published), by name, in one order."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

SUFFIXES = (".png", ".jpg", ".jpeg")


def read_pictures(place: Path | str) -> Iterator[tuple[str, bytes]]:
    """Reads the images below a folder, sub-folders included, or of a zip archive, sorted by name; hidden ones left out.

    Args:
        place: folder, or .zip file.

    Yields:
        (name relative to the place, content of the file).

    Raises:
        ValueError: there is no such folder or archive, the archive is broken, or it holds fewer than two images.
    """
    place = Path(place)
    if place.is_dir():
        names = _select(place, [file.relative_to(place).as_posix() for file in place.rglob("*")])
        yield from ((name, (place / name).read_bytes()) for name in names)
    elif zipfile.is_zipfile(place):
        try:
            with zipfile.ZipFile(place) as archive:
                yield from ((name, archive.read(name)) for name in _select(place, archive.namelist()))
        except zipfile.BadZipFile as error:
            raise ValueError(f"the archive {place} is broken ({error}); fetch it again") from error
    else:
        raise ValueError(
            f"{place} is neither a folder of images nor a zip archive of them; give its path in the config"
        )


def _select(place: Path, names: list[str]) -> list[str]:
    paths = [PurePosixPath(name) for name in names]
    chosen = [path for path in paths if path.suffix.lower() in SUFFIXES and not _is_hidden(path)]
    if len(chosen) < 2:
        raise ValueError(f"{place} holds {len(chosen)} images ({', '.join(SUFFIXES)}); need at least 2")
    return sorted(path.as_posix() for path in chosen)


def _is_hidden(path: PurePosixPath) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in path.parts)
