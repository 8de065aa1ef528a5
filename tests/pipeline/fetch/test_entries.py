"""Tests of entries of the config section `resources`: malformed ones are named, and no name leaves its folder."""

import pytest

from helpers.hub_server import COMMIT
from lantern_pipeline.fetch.entries import check_reference, parse_entries, parse_entry, resource_of
from lantern_pipeline.schema.run_config import ResourceEntry

FILE = {"model.pt": None}
URL = {"url": "https://example.org/model.pt", "files": FILE}
REPO = {"repo": "someone/model", "revision": COMMIT, "files": FILE}
OUTSIDE = ("/a.pt", "a/../../b.pt", "a\\b.pt", "", "a\nb.pt", ".record.json")


def entry_of(entry):
    return parse_entry("weights", ResourceEntry(**entry))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "must have a path (a copy that you have), a url or a repo, got none of them"),
        ({**URL, **REPO}, "got url and repo"),
        *(
            ({**URL, "url": f"{start}example.org/model.pt"}, "url must start with https://")
            for start in ("http://", "")
        ),
        ({**URL, "files": {}}, "files must name the one file that the url gives, got 0 names"),
        ({**URL, "files": {"a.pt": None, "b.pt": None}}, "got 2 names"),
        ({**URL, "url": "http://127.0.0.1.example.org/model.pt"}, "url must start with https://"),
        ({**URL, "revision": COMMIT}, "revision belongs to a repo"),
        *(({**URL, "files": {"model.pt": digits}}, "SHA-256") for digits in ("a" * 63, "A" * 64)),
        *(
            ({**REPO, "repo": repo}, "resources.weights.repo must be owner/name")
            for repo in ("a/..", "a/b/c", "a", "a/b?x")
        ),
        ({**REPO, "revision": "main"}, "/someone/model HEAD` prints the newest one"),
        ({**REPO, "files": {}}, "files must name the files of someone/model that are wanted"),
        *(({**URL, "files": {file: None}}, "a file's name must be relative, without '..'") for file in OUTSIDE),
        ({**REPO, "files": {"model.pt": "abc"}}, "resources.weights.files.model.pt must be the file's SHA-256"),
        ({"path": "nowhere.pt"}, "resources.weights.path: there is no file or folder nowhere.pt"),
    ],
)
def test_a_malformed_entry_is_named(entry, words):
    with pytest.raises(ValueError, match=r"^config key resources\.weights") as caught:
        entry_of(entry)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["a/b", "", ".x", "x\n"])
def test_the_name_of_an_entry_is_no_path(name):
    with pytest.raises(ValueError, match="a name may hold only letters"):
        parse_entry(name, ResourceEntry(**URL))


def test_a_config_value_is_an_entry_or_a_path(tmp_path):
    entries = {"file": URL, "llamagen": REPO, "unpinned": {**REPO, "revision": None}}
    resources = parse_entries({name: ResourceEntry(**entry) for name, entry in entries.items()})
    assert list(resources) == ["file", "llamagen", "unpinned"]
    assert resource_of("llamagen", resources) == "resources/llamagen.json"
    assert resource_of("ckpts/model.pt", resources) == "ckpts/model.pt"
    for value in (None, "llamagen", str(tmp_path), "results/other/target/s0/model.safetensors"):
        check_reference("target.checkpoint", value, resources)
    with pytest.raises(ValueError, match=r"config key target\.checkpoint .* got 'lamagen'; did you mean llamagen\?"):
        check_reference("target.checkpoint", "lamagen", resources)


def test_the_hubs_address_has_no_slash_at_its_end(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example.org/")
    address = "https://mirror.example.org/someone/model/resolve"
    assert entry_of(REPO).download_url("a.pt") == f"{address}/{COMMIT}/a.pt"
    assert entry_of({**REPO, "revision": None}).download_url("a.pt") == f"{address}/main/a.pt"
    monkeypatch.setenv("HF_ENDPOINT", "")
    assert entry_of(REPO).download_url("a.pt").startswith("https://huggingface.co/someone/model")
    assert entry_of(URL).download_url("model.pt") == URL["url"]


def test_a_server_on_this_machine_may_be_asked_without_encryption(tmp_path):
    for host in ("127.0.0.1", "localhost", "[::1]"):
        assert entry_of({**URL, "url": f"http://{host}:8000/model.pt"}).url
    own = entry_of({**URL, "path": str(tmp_path)})  # replaces the file that a url names
    assert own.path == tmp_path and own.inputs == [tmp_path.as_posix()] and entry_of(URL).inputs == []
