"""Reading of the records of a run, which are in one file per method and shard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lantern.records import GenerationRecords, concatenate_records, load_records


def load_shards(paths: Sequence[str | Path], prompt_ids: Sequence[str]) -> dict[str, GenerationRecords]:
    """Read the records of several methods on one prompt set.

    Args:
        paths: files of records. A method may have several files.
        prompt_ids: all ids of the prompt set, in the order of the result.

    Returns:
        method id -> records, in the order in which methods first appear.

    Raises:
        DamagedFileError: as in `load_records`.
        ValueError: an id appears twice for a method, or a method does not have the ids of `prompt_ids`.
    """
    parts: dict[str, list[GenerationRecords]] = {}
    for path in paths:
        records = load_records(Path(path))
        parts.setdefault(records.metadata["method"]["method_id"], []).append(records)
    # Methods are joined one after the other, so that at most one of them is in memory twice.
    return {method_id: concatenate_records(parts.pop(method_id), prompt_ids) for method_id in list(parts)}
