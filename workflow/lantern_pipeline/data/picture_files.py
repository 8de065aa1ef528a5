"""Image files below a folder or inside a zip archive (as COCO is published), by name, in one order."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

SUFFIXES = (".png", ".jpg", ".jpeg")
MAX_PICTURE_BYTES = 1 << 28  # unpacked, of an image in an archive


def read_pictures(place: Path | str) -> Iterator[tuple[str, bytes]]:
    """Reads the images below a folder, sub-folders included, or of a zip archive, sorted by name; hidden ones left out.

    Args:
        place: folder, or .zip file.

    Yields:
        (name relative to the place, content of the file).

    Raises:
        ValueError: there is no such folder or archive, the archive is broken, it holds fewer than two images, or
            one that is too large when unpacked.
    """
    place = Path(place)
    if place.is_dir():
        names = _select(place, [file.relative_to(place).as_posix() for file in place.rglob("*") if file.is_file()])
        yield from ((name, (place / name).read_bytes()) for name in names)
    elif zipfile.is_zipfile(place):
        try:
            with zipfile.ZipFile(place) as archive:
                for name in _select(place, archive.namelist()):
                    size = archive.getinfo(name).file_size  # zipfile gives no more bytes, whatever is packed
                    if size > MAX_PICTURE_BYTES:
                        raise ValueError(
                            f"{name!r} in {place} must be at most {MAX_PICTURE_BYTES} bytes when unpacked, got {size}; "
                            "remove it"
                        )
                    yield name, archive.read(name)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # RuntimeError: encrypted
            raise ValueError(f"the archive {place} is broken ({error}); fetch it again") from error
    else:
        raise ValueError(
            f"{place} is neither a folder of images nor a zip archive of them; give its path in the config"
        )


def _select(place: Path, names: list[str]) -> list[str]:
    chosen = [name for name in names if _is_picture(PurePosixPath(name))]
    if len(chosen) < 2:
        raise ValueError(f"{place} holds {len(chosen)} images ({', '.join(SUFFIXES)}); need at least 2")
    return sorted(chosen)


def _is_picture(path: PurePosixPath) -> bool:
    return path.suffix.lower() in SUFFIXES and not any(part.startswith((".", "__MACOSX")) for part in path.parts)
