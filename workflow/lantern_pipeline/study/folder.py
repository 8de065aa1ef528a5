"""Where the readers' files lie. Imported while Snakemake reads the workflow: no torch here."""

from __future__ import annotations

from pathlib import Path


def find_answers(folder: Path | str, page: Path | str) -> list[str]:
    """Lists the answer files of a study.

    Paths of its *.json files, sorted. `folder`: of the files that readers saved. `page`: the study's page, for the
    sentence below.
    """
    files = sorted(file.as_posix() for file in Path(folder).glob("*.json"))
    if not files:
        raise ValueError(
            f"there is no answer file in {folder}: let readers open {page} (`snakemake build_study` writes it), put "
            "the .json files that they save into that folder, or name another one in the config key study.answers"
        )
    return files
