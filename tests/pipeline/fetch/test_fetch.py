"""Tests of downloads: files are complete and correct, and every fault gives one sentence."""

import hashlib
import json
import os
import socket
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from helpers.hub_server import COMMIT, Fault, HubServer
from lantern_pipeline.fetch import fetch as fetching
from lantern_pipeline.fetch.entries import parse_entry
from lantern_pipeline.fetch.fetch import fetch_resource
from lantern_pipeline.fetch.manifest import resource_sha256
from lantern_pipeline.schema.run_config import ResourceEntry

CONTENT = bytes(range(256)) * 40  # 10,240 bytes
OTHER = CONTENT[::-1]
FILES = {"config.json": b"{}", "model.safetensors": CONTENT}
PATIENCE = fetching.ANSWER_S  # tests have less
NOTHING = [Fault(cut_after=0)] * 30  # the connection breaks before a byte of the body has come
FOLDER = Path("resources/weights")
MODEL = FOLDER / "model.pt"


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Start a server with a repository on this machine, in an empty folder, with short timeouts."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr(fetching, "ANSWER_S", 2)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    server = HubServer()
    server.add_repository("someone/model", FILES)
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    close_session()
    yield server
    server.close()
    close_session()


def plain(url, **changes):
    return parse_entry("weights", ResourceEntry(**{"url": url, "files": {"model.pt": None}, **changes}))


def on_hub(**changes):
    entry = {"repo": "someone/model", "revision": COMMIT, "files": dict.fromkeys(FILES)}
    return parse_entry("weights", ResourceEntry(**{**entry, **changes}))


def refused(resource, kind, *words):
    """Fetch a resource that must fail, and return the sentence, which names the resource."""
    with pytest.raises(kind) as caught:
        fetch_resource(resource)
    text = str(caught.value)
    assert "\n" not in text and "resource weights" in text
    for word in words:
        assert word in text


def ranges_asked(server, path):
    return [one.byte_range for one in server.served if one.method == "GET" and path in one.path]


# --- plain files -------------------------------------------------------------------------------------


def test_a_file_is_fetched_recorded_and_not_asked_for_again(server):
    url = server.add("model.pt", CONTENT)
    manifest = fetch_resource(plain(url))
    assert MODEL.read_bytes() == CONTENT and manifest["path"] == MODEL.as_posix()
    assert manifest["sha256"] == sha256(CONTENT) == manifest["files"]["model.pt"]["sha256"]
    assert sorted(os.listdir(FOLDER)) == [".record.json", "model.pt"]
    asked = len(server.served)
    assert fetch_resource(plain(url)) == manifest and len(server.served) == asked
    assert os.environ["HF_HUB_OFFLINE"] == "1" and constants.HF_HUB_OFFLINE  # for everything else
    with pytest.raises(ValueError, match=f"holds files of {url}, but config key resources.weights says {url}2; delete"):
        fetch_resource(plain(f"{url}2"))


def test_a_transfer_cut_off_in_the_middle_goes_on_where_it_stopped(server):
    url = server.add("model.pt", CONTENT, Fault(), Fault(cut_after=3000), Fault(cut_after=5000))
    fetch_resource(plain(url, files={"model.pt": sha256(CONTENT)}))
    assert MODEL.read_bytes() == CONTENT
    # The first request only reads the answer's head.
    assert ranges_asked(server, "model.pt") == [None, None, "bytes=3000-", "bytes=8000-"]


@pytest.mark.parametrize(
    "ranges, content, second", [(True, CONTENT, "bytes=4000-"), (True, OTHER, None), (False, CONTENT, 0)]
)
def test_the_next_run_goes_on_where_a_broken_one_stopped_if_it_is_the_same_file(server, ranges, content, second):
    server.ranges = ranges
    url = server.add("model.pt", CONTENT, Fault(), Fault(cut_after=4000), *NOTHING)
    refused(plain(url), ConnectionError, "run again to resume it", url, str(MODEL))
    assert not MODEL.exists()
    if ranges:
        assert MODEL.with_name("model.pt.part").stat().st_size == 4000
    server.add("model.pt", content)
    server.served.clear()
    assert fetch_resource(plain(url))["sha256"] == sha256(content)  # versions are never mixed
    if ranges:
        assert ranges_asked(server, "model.pt") == [None, second]


def test_a_server_that_falls_silent_is_given_up_and_a_busy_one_asked_again(server):
    url = server.add("model.pt", CONTENT, Fault(), Fault(stall_after=3000), *[Fault(stall_after=0)] * 10)
    refused(plain(url), ConnectionError, "127.0.0.1 stopped sending; run again to resume")
    assert MODEL.with_name("model.pt.part").stat().st_size == 3000
    server.add("model.pt", CONTENT, Fault(status=503), Fault(status=429), Fault(), Fault(status=502))
    assert fetch_resource(plain(url))["sha256"] == sha256(CONTENT)


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (404, FileNotFoundError, "there is no such file (status 404); correct config key resources.weights"),
        (403, PermissionError, "the server refuses it (status 403)"),
        (500, ConnectionError, "the server reports an error (status 500); run again later"),
    ],
)
def test_an_answer_that_is_no_file(server, status, error, words):
    url = server.add("model.pt", CONTENT, *[Fault(status=status)] * 30)
    refused(plain(url), error, words, url, str(MODEL))


@pytest.mark.parametrize(("status", "waits"), [(599, [1, 2, 4]), (429, [1, 2, 4]), (404, [])])
def test_a_server_in_trouble_is_asked_again_after_longer_and_longer_waits(server, monkeypatch, status, waits):
    waited = []
    monkeypatch.setattr(time, "sleep", waited.append)
    url = server.add("model.pt", CONTENT, *[Fault(status=status)] * 30)
    refused(plain(url), OSError, f"status {status}")
    assert waited == waits and len(server.served) == len(waits) + 1


def test_a_wrong_hash_names_both_and_moves_the_file_aside(server):
    url = server.add("model.pt", OTHER)
    words = (f"expected sha256 {sha256(CONTENT)}", f"found {sha256(OTHER)}", "has the wrong content", "model.pt.wrong")
    refused(plain(url, files={"model.pt": sha256(CONTENT)}), ValueError, *words)
    assert sorted(os.listdir(FOLDER)) == [".record.json", "model.pt.wrong"]


def test_the_hash_of_the_first_fetch_holds_ever_after(server):
    url = server.add("model.pt", CONTENT)
    fetch_resource(plain(url))
    MODEL.write_bytes(OTHER)
    refused(plain(url), ValueError, "first fetch")
    assert not MODEL.exists()
    server.add("model.pt", OTHER)  # and the server must not have changed its mind
    refused(plain(url), ValueError, "first fetch")
    server.add("model.pt", CONTENT)
    assert fetch_resource(plain(url))["sha256"] == sha256(CONTENT)


def test_a_full_disk_is_one_sentence(server, monkeypatch):
    def write(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetching, "http_get", write)
    words = "No space left on device; check the folder resources/weights and run again"
    refused(plain(server.add("model.pt", CONTENT)), OSError, words)


# --- no network --------------------------------------------------------------------------------------


def closed_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{one.getsockname()[1]}"


def entry_of(kind, endpoint):
    return plain(f"{endpoint}/model.pt") if kind == "plain" else on_hub(**({"revision": None} if kind == "new" else {}))


@pytest.mark.parametrize("kind", ["plain", "hub"])
def test_without_network_one_sentence_says_what_to_do(server, monkeypatch, kind):
    nowhere, start = closed_port(), time.monotonic()
    monkeypatch.setenv("HF_ENDPOINT", nowhere)
    resource = entry_of(kind, nowhere)
    file = next(iter(resource.files))
    refused(
        resource,
        ConnectionError,
        "127.0.0.1 cannot be reached (Connection refused)",
        *(resource.download_url(file), nowhere, f"download it by hand to resources/weights/{file}"),
        "set config key resources.weights.path",
    )
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("kind", ["plain", "hub"])
def test_a_network_that_swallows_everything_is_given_up_in_time(server, monkeypatch, kind):
    tried = []

    def swallow(address, timeout, **options):
        tried.append((address, timeout))
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", swallow)
    monkeypatch.setenv("HF_ENDPOINT", "https://example.invalid")
    words = ("example.invalid cannot be reached (no answer within 3 s)", "download it by hand to resources/weights/")
    refused(entry_of(kind, "https://example.invalid"), ConnectionError, *words)
    assert tried == [(("example.invalid", 443), 3)]


@pytest.mark.parametrize("kind", ["plain", "hub", "new"])
def test_a_server_that_accepts_and_stays_silent_is_asked_once(server, monkeypatch, kind):
    assert fetching.REACH_S + PATIENCE < 10
    monkeypatch.setattr(fetching, "ANSWER_S", 0.2)
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def accept():
            while True:
                try:
                    accepted.append(silent.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        words = "127.0.0.1 accepts connections but gives no answer within 0.2 s; download it by hand to resources/"
        refused(entry_of(kind, endpoint), ConnectionError, words)
        silent.shutdown(socket.SHUT_RDWR)
    assert len(accepted) == 1
    accepted[0].close()


def test_where_large_files_lie_must_be_in_reach(server, monkeypatch):
    monkeypatch.setattr(HubServer, "cdn", closed_port())
    refused(on_hub(), ConnectionError, "127.0.0.1 cannot be reached (Connection refused)")
    assert not (FOLDER / "model.safetensors").exists()


# --- the user's own copy -----------------------------------------------------------------------------


def test_files_put_there_by_hand_need_no_network(server):
    FOLDER.mkdir(parents=True)
    for name, content in FILES.items():
        (FOLDER / name).write_bytes(content)
    manifest = fetch_resource(on_hub(revision=None))
    assert manifest["path"] == "resources/weights" and server.served == []
    assert manifest["files"]["model.safetensors"]["sha256"] == sha256(CONTENT)
    assert fetch_resource(on_hub())["sha256"] == manifest["sha256"]  # a commit looked up later is no other file


def test_an_own_file_is_used_where_it_is_and_must_fit_a_hash_in_the_config(server):
    Path("mine.pt").write_bytes(CONTENT)
    manifest = fetch_resource(plain("https://example.invalid/model.pt", path="mine.pt"))
    assert manifest["path"] == "mine.pt" and manifest["sha256"] == sha256(CONTENT)
    with pytest.raises(ValueError, match=r"resources\.weights\.files\.model\.pt: mine\.pt has another content"):
        fetch_resource(plain("https://example.invalid/model.pt", path="mine.pt", files={"model.pt": sha256(OTHER)}))
    assert Path("mine.pt").read_bytes() == CONTENT and not Path("resources").exists() and server.served == []


def test_an_own_folder_must_hold_the_files_whose_hashes_are_in_the_config(server):
    Path("mine").mkdir()
    for name in ("config.json", "model.bin"):
        Path("mine", name).write_bytes(CONTENT)
    words = rf"files\.model\.safetensors: mine lacks this file: expected sha256 {sha256(OTHER)}, found nothing; set it"
    with pytest.raises(ValueError, match=words):
        fetch_resource(on_hub(path="mine", files={"config.json": None, "model.safetensors": sha256(OTHER)}))
    assert list(fetch_resource(on_hub(path="mine"))["files"]) == ["config.json", "model.bin"]


def test_an_own_folder_is_described_file_by_file(server):
    Path("mine/deep").mkdir(parents=True)
    Path("mine/.cache").write_bytes(b"not this")
    Path("mine/config.json").write_bytes(b"{}")
    Path("mine/deep/model.bin").write_bytes(CONTENT)
    manifest = fetch_resource(parse_entry("weights", ResourceEntry(path="mine")))
    found = {file: one["sha256"] for file, one in manifest["files"].items()}
    assert found == {"config.json": sha256(b"{}"), "deep/model.bin": sha256(CONTENT)}
    lines = "".join(f"{digest}  {file}\n" for file, digest in found.items())
    assert manifest["sha256"] == sha256(lines.encode()) == resource_sha256("mine")


# --- the hub -----------------------------------------------------------------------------------------


def test_a_token_goes_to_the_hub_and_not_to_where_it_redirects(server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_not_a_real_token")
    fetch_resource(on_hub())
    sent = {one.path.split("/")[1]: one.authorization for one in server.served}
    assert sent == {"someone": "Bearer hf_not_a_real_token", "cdn": None}
    server.served.clear()
    other = ResourceEntry(url=server.add("other.pt", CONTENT), files={"other.pt": None})
    fetch_resource(parse_entry("other", other))
    assert {one.authorization for one in server.served} == {None}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"revision": "f" * 40}, FileNotFoundError, "someone/model has no commit ffffffff"),
        ({"files": {"model.bin": None}}, FileNotFoundError, "someone/model has no such file at this commit"),
        ({"repo": "no/body"}, FileNotFoundError, "the hub has no no/body, or shows it to members only"),
        ({"repo": "no/body", "revision": None}, FileNotFoundError, "the hub has no no/body, or shows it to members"),
        ({"repo": "behind/gate"}, PermissionError, "accept its terms at http://127.0.0.1"),
    ],
)
def test_what_the_hub_refuses(server, changes, error, words):
    server.add_repository("behind/gate", {"config.json": b"{}"}, gated=True)
    refused(on_hub(**changes), error, words)


def test_without_a_commit_the_newest_is_fetched_named_recorded_and_kept(server, caplog):
    manifest = fetch_resource(on_hub(revision=None))
    assert manifest["source"] == f"someone/model at {COMMIT} on the hub" and manifest["path"] == "resources/weights"
    assert {name: (FOLDER / name).read_bytes() for name in FILES} == FILES
    assert {one.path.split("/")[4] for one in server.served if "/resolve/" in one.path} == {COMMIT}
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert all(word in warning for word in ("resources.weights.revision is null", COMMIT, "write it into the config"))
    assert json.loads((FOLDER / ".record.json").read_text())["origin"]["revision"] == COMMIT
    # Written into the config, the commit changes nothing.
    server.served.clear()
    assert fetch_resource(on_hub()) == manifest and not server.served
    # Nor is the newest one asked for again.
    caplog.clear()
    (FOLDER / "config.json").unlink()
    again = fetch_resource(on_hub(revision=None))
    assert (again["source"], again["sha256"]) == (manifest["source"], manifest["sha256"])
    assert not [one for one in server.served if one.path.startswith("/api/")]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    (FOLDER / "config.json").unlink()
    server.add_repository("someone/model", {"config.json": b"[]"}, commit="f" * 40)
    refused(on_hub(revision=None), FileNotFoundError, f"someone/model has no commit {COMMIT}")


@pytest.mark.parametrize("revision", [COMMIT, None])
def test_a_large_file_of_the_hub_goes_on_where_it_stopped_at_the_same_commit(server, revision):
    resource = on_hub(revision=revision, files={"model.safetensors": None})
    server.faults[f"/cdn/{sha256(CONTENT)}"] = deque([Fault(cut_after=6000), *NOTHING])
    refused(resource, ConnectionError, "run again to resume")
    server.faults.clear()
    server.served.clear()
    fetch_resource(resource)
    assert ranges_asked(server, "/cdn") == ["bytes=6000-"]
    assert not [one for one in server.served if one.path.startswith("/api/")]
    with pytest.raises(ValueError, match=f"holds files of someone/model {COMMIT}, but .* says someone/model ffff"):
        fetch_resource(on_hub(revision="f" * 40))


def test_a_hash_that_the_hub_denies_is_noticed_before_the_first_byte(server):
    words = f"expected sha256 {sha256(OTHER)}, the hub has {sha256(CONTENT)}"
    refused(on_hub(files={"model.safetensors": sha256(OTHER)}), ValueError, words)
    assert not [one for one in server.served if one.path.startswith("/cdn")]


def test_a_mirror_that_answers_with_another_commit_is_not_believed(server, monkeypatch):
    find = fetching.get_hf_file_metadata

    def of_another_commit(*arguments, **options):
        return replace(find(*arguments, **options), commit_hash="f" * 40)

    monkeypatch.setattr(fetching, "get_hf_file_metadata", of_another_commit)
    with pytest.raises(ValueError, match=f"answers with commit {'f' * 40}; is HF_ENDPOINT a hub"):
        fetch_resource(on_hub())
    assert not (FOLDER / "config.json").exists()


SHARDS = {"text/model-1.safetensors": CONTENT, "text/model-2.safetensors": OTHER}
INDEX = "text/model.safetensors.index.json"


def with_index(server, names):
    """Return an entry of an index, with the shards that it may name."""
    index = json.dumps({"weight_map": {f"layer{number}": name for number, name in enumerate(names)}}).encode()
    server.add_repository("someone/model", {INDEX: index, **SHARDS})
    return on_hub(files={INDEX: None})


def test_the_shards_that_an_index_names_are_fetched_with_it(server):
    resource = with_index(server, ["model-1.safetensors", "model-2.safetensors", "model-1.safetensors"])
    manifest = fetch_resource(resource)
    assert list(manifest["files"]) == [*SHARDS, INDEX]
    assert {name: (FOLDER / name).read_bytes() for name in SHARDS} == SHARDS
    server.served.clear()
    known = on_hub(files={INDEX: None, **{name: sha256(content) for name, content in SHARDS.items()}})
    assert fetch_resource(known) == fetch_resource(resource) == manifest and not server.served
    (FOLDER / "text/model-2.safetensors").write_bytes(CONTENT)
    refused(known, ValueError, "model-2.safetensors has the wrong content", "from config key resources.weights.files")


def test_an_index_names_no_file_outside_the_folder(server):
    with pytest.raises(ValueError, match=r"resource weights\.files: a file's name must be relative, without '\.\.'"):
        fetch_resource(with_index(server, ["../../model-1.safetensors"]))
