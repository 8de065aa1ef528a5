"""Entries of the config section `resources`: what is malformed is named."""

import pytest

from hub_server import COMMIT
from lantern_pipeline.fetch.entries import check_reference, parse_entries, parse_entry, resource_of

FILE = {"model.pt": None}
GOOD_URL = {"url": "https://example.org/model.pt", "files": FILE}
GOOD_REPO = {"repo": "someone/model", "revision": COMMIT, "files": FILE}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "must have a path (a copy that you have), a url or a repo, got none of them"),
        ({**GOOD_URL, **GOOD_REPO}, "got url and repo"),
        ({**GOOD_URL, "url": "http://example.org/model.pt"}, "url must start with https://"),
        ({**GOOD_URL, "url": "ftp://example.org/model.pt"}, "url must start with https://"),
        ({**GOOD_URL, "files": {}}, "files must name the one file that the url gives, got 0 names"),
        ({**GOOD_URL, "revision": COMMIT}, "revision belongs to a repo"),
        ({**GOOD_REPO, "repo": "model"}, "repo must be owner/name"),
        ({**GOOD_REPO, "revision": "main"}, "must be a commit of 40 digits, since a branch may change, got 'main'"),
        ({**GOOD_REPO, "revision": "main"}, "/someone/model HEAD` prints the newest one"),
        ({**GOOD_REPO, "files": {}}, "files must name the files of someone/model that are wanted"),
        ({**GOOD_REPO, "files": {"../model.pt": None}}, "got '../model.pt'"),
        ({**GOOD_REPO, "files": {".record.json": None}}, "got '.record.json'"),
        ({**GOOD_REPO, "files": {"model.pt": "abc"}}, "resources.weights.files.model.pt must be the file's SHA-256"),
        ({"path": "nowhere.pt"}, "resources.weights.path: there is no file or folder nowhere.pt"),
    ],
)
def test_a_malformed_entry_is_named(entry, words):
    with pytest.raises(ValueError, match=r"^config key resources\.weights") as caught:
        parse_entry("weights", entry)
    assert words in str(caught.value)


def test_well_formed_entries():
    entries = {"file": GOOD_URL, "repo": GOOD_REPO, "unpinned": {**GOOD_REPO, "revision": None}, "gone": None}
    assert list(parse_entries(entries)) == ["file", "repo", "unpinned"] and parse_entries(None) == {}


def test_a_config_value_is_an_entry_or_a_path(tmp_path):
    resources = parse_entries({"llamagen": GOOD_REPO})
    assert resource_of("llamagen", resources) == "resources/llamagen.json"
    assert resource_of("ckpts/model.pt", resources) == "ckpts/model.pt"
    assert resource_of(None, resources) == []
    for value in (None, "llamagen", str(tmp_path)):
        check_reference("target.checkpoint", value, resources)
    with pytest.raises(ValueError, match=r"config key target\.checkpoint .* got 'lamagen'; did you mean llamagen\?"):
        check_reference("target.checkpoint", "lamagen", resources)
