"""The user's own files, looked at before any job: a folder of images, prompt files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lantern_pipeline.downloads.entries import Resource

MAX_BYTES = 10**7  # of a prompt file that is read at once; a larger one is left to its job


def check_user_files(config: Mapping[str, Any], resources: Mapping[str, Resource]) -> None:
    """Checks that data.folder is there, and that prompt files hold prompts that the text encoder can read."""
    data = config["data"]
    if data["source"] == "folder" and not Path(data["folder"]).is_dir():
        raise ValueError(
            f"config key data.folder: {data['folder']} is not a folder; give one of name.png and name.txt files"
        )
    for name, entry in config["prompts"].items():
        file = (entry or {}).get("file")
        path = resources[file].path if file in resources else file
        if path is None or entry.get("member") or Path(path).stat().st_size > MAX_BYTES:
            continue  # no file, one to be fetched, or a published collection
        try:
            _check_prompts(Path(path), entry, config)
        except (ValueError, OSError) as error:
            raise ValueError(f"config key prompts.{name}.file: {error}") from error


def _check_prompts(path: Path, entry: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Imports torch, which takes a second that only runs with own prompt files spend."""
    from lantern_pipeline.data.prompt_files import load_prompt_set
    from lantern_pipeline.data.text_encoders import make_text_encoder

    prompts = load_prompt_set(path, entry, config["seed"])
    if config["text"]["encoder"] in ("words", "word_ids", "classes"):  # others know every word, and cut long prompts
        encoder = make_text_encoder(config["text"], config["data"]["source"])
        for prompt in prompts:
            encoder.check(prompt.text)
