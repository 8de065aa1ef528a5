"""Fetching: files come whole and with the right content, and every fault is one sentence."""

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import deque, namedtuple
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants, snapshot_download

from conftest import ROOT
from hub_server import COMMIT, Fault, HubServer
from lantern_pipeline.fetch import fetch as fetching
from lantern_pipeline.fetch.entries import parse_entry
from lantern_pipeline.fetch.fetch import fetch_resource, network_allowed
from lantern_pipeline.fetch.manifest import resource_path, resource_sha256

CONTENT = bytes(range(256)) * 40  # 10,240 bytes
OTHER = CONTENT[::-1]
NOTHING = [Fault(cut_after=0)] * 30  # the connection breaks before a byte of the body has come


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server on this machine, an empty working folder, and no patience."""
    monkeypatch.chdir(tmp_path)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr(fetching, "ANSWER_S", 2)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    server = HubServer()
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    close_session()
    yield server
    server.close()
    close_session()


def plain(url, **changes):
    return parse_entry("weights", {"url": url, "files": {"model.pt": None}, **changes})


def on_hub(**changes):
    files = {"config.json": None, "model.safetensors": None}
    return parse_entry("weights", {"repo": "someone/model", "revision": COMMIT, "files": files, **changes})


def one_sentence(caught):
    """The error's text; it names the file, its source and the place for a copy made by hand."""
    text = str(caught.value)
    assert "\n" not in text and "resource weights" in text
    return text


# --- plain files -------------------------------------------------------------------------------------


def test_a_file_is_fetched_recorded_and_not_asked_for_again(server):
    url = server.add("model.pt", CONTENT)
    manifest = fetch_resource(plain(url))
    path = Path("resources/weights/model.pt")
    assert path.read_bytes() == CONTENT and manifest["path"] == path.as_posix()
    assert manifest["sha256"] == sha256(CONTENT) == manifest["files"]["model.pt"]["sha256"]
    assert sorted(os.listdir(path.parent)) == [".record.json", "model.pt"]
    asked = len(server.served)
    assert fetch_resource(plain(url)) == manifest and len(server.served) == asked
    assert os.environ["HF_HUB_OFFLINE"] == "1" and constants.HF_HUB_OFFLINE  # for everything else


def test_a_transfer_cut_off_in_the_middle_goes_on_where_it_stopped(server):
    url = server.add("model.pt", CONTENT, Fault(), Fault(cut_after=3000), Fault(cut_after=5000))
    fetch_resource(plain(url, files={"model.pt": sha256(CONTENT)}))
    assert Path("resources/weights/model.pt").read_bytes() == CONTENT
    # The first request only reads the answer's head.
    assert [one.byte_range for one in server.gets("model.pt")] == [None, None, "bytes=3000-", "bytes=8000-"]


@pytest.mark.parametrize(
    "ranges, content, second", [(True, CONTENT, "bytes=4000-"), (True, OTHER, None), (False, CONTENT, 0)]
)
def test_the_next_run_goes_on_where_a_broken_one_stopped_if_it_is_the_same_file(server, ranges, content, second):
    server.ranges = ranges
    url = server.add("model.pt", CONTENT, Fault(), Fault(cut_after=4000), *NOTHING)
    with pytest.raises(ConnectionError, match="run again to go on where it stopped") as caught:
        fetch_resource(plain(url))
    assert url in one_sentence(caught) and "resources/weights/model.pt" in one_sentence(caught)
    assert not Path("resources/weights/model.pt").exists()
    if ranges:
        assert Path("resources/weights/model.pt.part").stat().st_size == 4000
    server.add("model.pt", content)
    server.served.clear()
    assert fetch_resource(plain(url))["sha256"] == sha256(content)  # versions are never mixed
    if ranges:
        assert [one.byte_range for one in server.gets("model.pt")] == [None, second]


def test_a_server_that_falls_silent_is_given_up(server):
    url = server.add("model.pt", CONTENT, Fault(), Fault(stall_after=3000), *[Fault(stall_after=0)] * 10)
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1 sends nothing any more; run again to go on") as caught:
        fetch_resource(plain(url))
    one_sentence(caught)
    assert Path("resources/weights/model.pt.part").stat().st_size == 3000


def test_a_busy_server_is_asked_again(server):
    url = server.add("model.pt", CONTENT, Fault(status=503), Fault(status=500), Fault(), Fault(status=502))
    assert fetch_resource(plain(url))["sha256"] == sha256(CONTENT)


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (404, FileNotFoundError, "there is no such file (status 404); correct config key resources.weights"),
        (401, PermissionError, "the server refuses it (status 401)"),
        (403, PermissionError, "the server refuses it (status 403)"),
        (503, ConnectionError, "the server is in trouble (status 503); run again later"),
    ],
)
def test_an_answer_that_is_no_file(server, status, error, words):
    url = server.add("model.pt", CONTENT, *[Fault(status=status)] * 30)
    with pytest.raises(error) as caught:
        fetch_resource(plain(url))
    assert words in one_sentence(caught) and url in one_sentence(caught)
    assert "resources/weights/model.pt" in one_sentence(caught)


def test_a_wrong_hash_names_both_and_moves_the_file_aside(server):
    url = server.add("model.pt", OTHER)
    with pytest.raises(ValueError, match=r"weights/model\.pt has the wrong content") as caught:
        fetch_resource(plain(url, files={"model.pt": sha256(CONTENT)}))
    assert f"expected sha256 {sha256(CONTENT)}" in one_sentence(caught)
    assert f"found {sha256(OTHER)}" in one_sentence(caught) and "model.pt.wrong" in one_sentence(caught)
    assert sorted(os.listdir("resources/weights")) == [".record.json", "model.pt.wrong"]


def test_the_hash_of_the_first_fetch_holds_ever_after(server):
    url = server.add("model.pt", CONTENT)
    fetch_resource(plain(url))
    path = Path("resources/weights/model.pt")
    path.write_bytes(OTHER)
    with pytest.raises(ValueError, match="first fetch"):
        fetch_resource(plain(url))
    assert not path.exists()
    server.add("model.pt", OTHER)  # and the server must not have changed its mind
    with pytest.raises(ValueError, match="first fetch"):
        fetch_resource(plain(url))
    server.add("model.pt", CONTENT)
    assert fetch_resource(plain(url))["sha256"] == sha256(CONTENT)


def test_a_small_disk_is_noticed_before_the_first_byte(server, monkeypatch):
    usage = namedtuple("usage", "total used free")(10**6, 10**6 - 5000, 5000)
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda folder: usage)
    url = server.add("model.pt", CONTENT)
    with pytest.raises(OSError, match=r"needs 0\.0 GB more below resources/weights, where 0\.0 GB are free") as caught:
        fetch_resource(plain(url))
    one_sentence(caught)
    assert os.listdir("resources/weights") == []


# --- no network --------------------------------------------------------------------------------------


def closed_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.parametrize("where", ["plain", "hub"])
def test_without_network_one_sentence_says_what_to_do(server, monkeypatch, where):
    nowhere = f"http://127.0.0.1:{closed_port()}"
    monkeypatch.setenv("HF_ENDPOINT", nowhere)
    resource = on_hub() if where == "hub" else plain(f"{nowhere}/model.pt")
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1 is out of reach \(Connection refused\)") as caught:
        fetch_resource(resource)
    assert time.monotonic() - start < 10
    file = next(iter(resource.files))
    assert resource.address(file) in one_sentence(caught) and nowhere in one_sentence(caught)
    assert f"download it by hand to resources/weights/{file}" in one_sentence(caught)
    assert "set config key resources.weights.path" in one_sentence(caught)


@pytest.mark.parametrize("where", ["plain", "hub"])
def test_a_network_that_swallows_everything_is_given_up_in_time(server, monkeypatch, where):
    tried = []

    def swallow(address, timeout, **options):
        tried.append((address, timeout))
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", swallow)
    monkeypatch.setenv("HF_ENDPOINT", "https://example.invalid")
    resource = on_hub() if where == "hub" else plain("https://example.invalid/model.pt")
    with pytest.raises(ConnectionError, match=r"example\.invalid is out of reach \(no answer within 3 s\)") as caught:
        fetch_resource(resource)
    assert tried == [(("example.invalid", 443), 3)]
    assert "download it by hand to resources/weights/" in one_sentence(caught)


@pytest.mark.parametrize("where", ["plain", "hub", "newest commit"])
def test_a_server_that_accepts_and_stays_silent_is_asked_once(server, monkeypatch, where):
    assert fetching.REACH_S + fetching.ANSWER_S < 10
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
        on = {"hub": {}, "newest commit": {"revision": None}}
        resource = plain(f"{endpoint}/model.pt") if where == "plain" else on_hub(**on[where])
        with pytest.raises(ConnectionError, match=r"127\.0\.0\.1 accepts connections but gives no answer") as caught:
            fetch_resource(resource)
        silent.shutdown(socket.SHUT_RDWR)
    assert "within 0.2 s; download it by hand to resources/weights/" in one_sentence(caught)
    assert len(accepted) == 1
    for connection in accepted:
        connection.close()


def test_where_large_files_lie_must_be_in_reach(server, monkeypatch):
    server.add_repository("someone/model", {"config.json": b"{}", "model.safetensors": CONTENT})
    monkeypatch.setattr(HubServer, "cdn", f"http://127.0.0.1:{closed_port()}")
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1 is out of reach \(Connection refused\)") as caught:
        fetch_resource(on_hub())
    one_sentence(caught)
    assert not Path("resources/weights/model.safetensors").exists()


def test_files_put_there_by_hand_need_no_network(server):
    Path("resources/weights").mkdir(parents=True)
    Path("resources/weights/config.json").write_bytes(b"{}")
    Path("resources/weights/model.safetensors").write_bytes(CONTENT)
    manifest = fetch_resource(on_hub(revision=None))
    assert manifest["path"] == "resources/weights" and server.served == []
    assert manifest["files"]["model.safetensors"]["sha256"] == sha256(CONTENT)
    assert fetch_resource(on_hub())["sha256"] == manifest["sha256"]  # a commit looked up later is no other file


def test_behind_a_proxy_the_proxy_must_be_in_reach(server, monkeypatch):
    tried = []

    def refuse(address, timeout, **options):
        tried.append(address)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setattr(socket, "create_connection", refuse)
    for host in ("example.org", "localhost"):
        close_session()
        with pytest.raises(ConnectionError, match=rf"{host} is out of reach \(Connection refused\)"):
            fetch_resource(plain(f"https://{host}/model.pt"))
    assert tried == [("proxy.example", 3128), ("localhost", 443)]


# --- the user's own copy -----------------------------------------------------------------------------


def test_an_own_file_is_used_where_it_is(server):
    Path("mine.pt").write_bytes(CONTENT)
    manifest = fetch_resource(plain("https://example.invalid/model.pt", path="mine.pt"))
    assert manifest["path"] == "mine.pt" and manifest["sha256"] == sha256(CONTENT)
    assert not Path("resources").exists() and server.served == []


def test_an_own_folder_is_described_file_by_file(server):
    Path("mine/deep").mkdir(parents=True)
    Path("mine/.cache").write_bytes(b"not this")
    Path("mine/config.json").write_bytes(b"{}")
    Path("mine/deep/model.bin").write_bytes(CONTENT)
    manifest = fetch_resource(parse_entry("weights", {"path": "mine"}))
    assert {file: one["sha256"] for file, one in manifest["files"].items()} == {
        "config.json": sha256(b"{}"),
        "deep/model.bin": sha256(CONTENT),
    }
    lines = f"{sha256(b'{}')}  config.json\n{sha256(CONTENT)}  deep/model.bin\n"
    assert manifest["sha256"] == sha256(lines.encode()) == resource_sha256("mine")


def test_an_own_file_must_fit_a_hash_in_the_config(server):
    Path("mine.pt").write_bytes(OTHER)
    with pytest.raises(ValueError, match=r"resources\.weights\.files\.model\.pt: mine\.pt has another content"):
        fetch_resource(plain("https://example.invalid/model.pt", path="mine.pt", files={"model.pt": sha256(CONTENT)}))
    assert Path("mine.pt").read_bytes() == OTHER


# --- the hub -----------------------------------------------------------------------------------------


def test_a_token_goes_to_the_hub_and_not_to_where_it_redirects(server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_not_a_real_token")
    server.add_repository("someone/model", {"config.json": b"{}", "model.safetensors": CONTENT})
    fetch_resource(on_hub())
    sent = {one.path.split("/")[1]: one.authorization for one in server.served}
    assert sent == {"someone": "Bearer hf_not_a_real_token", "cdn": None}
    fetch_resource(parse_entry("other", {"url": server.add("other.pt", CONTENT), "files": {"other.pt": None}}))
    assert {one.authorization for one in server.gets("other.pt")} == {None}


def fetch_after_a_cut(server, resource):
    """Fetches an entry whose large file breaks off; checks that a second call asks for the rest of it only."""
    server.faults[f"/cdn/{sha256(CONTENT)}"] = deque([Fault(cut_after=6000), *NOTHING])
    with pytest.raises(ConnectionError, match="run again to go on"):
        fetch_resource(resource)
    server.faults.clear()
    server.served.clear()
    fetch_resource(resource)
    assert [one.byte_range for one in server.served if one.path.startswith("/cdn")] == ["bytes=6000-"]


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
    server.add_repository("someone/model", {"config.json": b"{}", "model.safetensors": CONTENT})
    server.add_repository("behind/gate", {"config.json": b"{}"}, gated=True)
    with pytest.raises(error) as caught:
        fetch_resource(on_hub(**changes))
    assert words in one_sentence(caught)


def test_without_a_commit_the_newest_is_fetched_named_and_recorded(server, caplog):
    server.add_repository("someone/model", {"config.json": b"{}", "model.safetensors": CONTENT})
    manifest = fetch_resource(on_hub(revision=None))
    assert manifest["source"] == f"someone/model at {COMMIT} on the hub" and manifest["path"] == "resources/weights"
    assert Path("resources/weights/config.json").read_bytes() == b"{}"
    assert Path("resources/weights/model.safetensors").read_bytes() == CONTENT
    assert {one.path.split("/")[4] for one in server.served if "/resolve/" in one.path} == {COMMIT}
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    for words in ("resources.weights.revision is null", COMMIT, "write it into the config"):
        assert words in warning
    record = json.loads(Path("resources/weights/.record.json").read_text())
    assert record["origin"]["revision"] == COMMIT
    # Written into the config, the commit changes nothing.
    asked = len(server.served)
    assert fetch_resource(on_hub()) == manifest and len(server.served) == asked


def test_the_commit_of_the_first_fetch_holds_ever_after(server, caplog):
    files = {"config.json": b"{}", "model.safetensors": CONTENT}
    server.add_repository("someone/model", files)
    first = fetch_resource(on_hub(revision=None))
    caplog.clear()
    Path("resources/weights/config.json").unlink()
    server.served.clear()
    again = fetch_resource(on_hub(revision=None))
    assert (again["source"], again["sha256"]) == (first["source"], first["sha256"])
    assert not [one for one in server.served if one.path.startswith("/api/")]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    Path("resources/weights/config.json").unlink()
    server.add_repository("someone/model", {"config.json": b"[]"}, commit="f" * 40)
    with pytest.raises(FileNotFoundError, match=f"someone/model has no commit {COMMIT}"):
        fetch_resource(on_hub(revision=None))


@pytest.mark.parametrize("revision", [COMMIT, None])
def test_a_large_file_of_the_hub_goes_on_where_it_stopped_at_the_same_commit(server, revision):
    server.add_repository("someone/model", {"model.safetensors": CONTENT})
    fetch_after_a_cut(server, on_hub(revision=revision, files={"model.safetensors": None}))
    assert not [one for one in server.served if one.path.startswith("/api/")]
    with pytest.raises(ValueError, match=f"holds files of someone/model {COMMIT}, but .* says someone/model ffff"):
        fetch_resource(on_hub(revision="f" * 40))


def test_a_hash_that_the_hub_denies_is_noticed_before_the_first_byte(server):
    server.add_repository("someone/model", {"model.safetensors": CONTENT})
    with pytest.raises(ValueError, match=f"expected sha256 {sha256(OTHER)}, the hub has {sha256(CONTENT)}"):
        fetch_resource(on_hub(files={"model.safetensors": sha256(OTHER)}))
    assert not [one for one in server.served if one.path.startswith("/cdn")]


def test_the_mock_speaks_the_hubs_language(server):
    server.add_repository("someone/model", {"config.json": b"{}", "model.safetensors": CONTENT})
    with network_allowed():
        folder = snapshot_download("someone/model", revision=COMMIT, local_dir="snapshot", endpoint=server.endpoint)
    assert Path(folder, "model.safetensors").read_bytes() == CONTENT


# --- from the manifest to the file ------------------------------------------------------------------


def test_a_job_gets_from_the_manifest_to_the_file(server):
    path = Path("resources/weights.json")
    path.parent.mkdir()
    path.write_text(json.dumps(fetch_resource(plain(server.add("model.pt", CONTENT))), indent=1))
    file = Path("resources/weights/model.pt")
    assert resource_path(path) == file and resource_sha256(path) == sha256(CONTENT) == resource_sha256(file)
    os.utime(file, (0, 0))
    assert resource_path(path) == file  # another date, the same content
    file.write_bytes(OTHER)
    with pytest.raises(ValueError, match=f"expected sha256 {sha256(CONTENT)}, found {sha256(OTHER)}; delete resour"):
        resource_path(path)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"resources/weights/model\.pt is gone; delete resources/weights\.json"):
        resource_path(path)


# --- the rule ----------------------------------------------------------------------------------------

SNAKEFILE = """
from lantern_pipeline.config.resources import growing
from lantern_pipeline.fetch.entries import parse_entries, resource_of
RESOURCES = parse_entries(config["resources"])
ENVIRONMENT = "{root}/environment.yml"
pathvars:
    logs="logs",

{rule}
rule use:
    input: [resource_of(name, RESOURCES) for name in RESOURCES]
    output: "used.txt"
    shell: "cat {{input}} > {{output}}"
"""


def run_snakemake(folder, entries):
    rules = (ROOT / "workflow" / "rules" / "data.smk").read_text()
    rule = re.search(r"^rule fetch_resource:\n(?:    .*\n|\n(?=    ))*", rules, re.M)[0]
    rule = rule.replace('"../scripts/', f'"{ROOT}/workflow/scripts/')
    (folder / "Snakefile").write_text(SNAKEFILE.format(root=ROOT, rule=rule))
    (folder / "config.json").write_text(json.dumps({"resources": entries}))
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--configfile", "config.json", "--", "use"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/workflow", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    return result.returncode, result.stdout + result.stderr


@pytest.mark.slow
def test_the_rule_fetches_once_and_keeps_what_it_has(server, tmp_path):
    server.add_repository("someone/model", {"config.json": b"{}", "model.safetensors": CONTENT})
    Path("mine.pt").write_bytes(CONTENT)
    hub = {"repo": "someone/model", "revision": COMMIT, "files": {"config.json": None, "model.safetensors": None}}
    entries = {"weights": hub, "mine": {"path": "mine.pt"}}
    code, output = run_snakemake(tmp_path, entries)
    assert code == 0, output
    assert resource_path("resources/weights.json") == Path("resources/weights")
    assert resource_path("resources/mine.json") == Path("mine.pt")
    date, asked = Path("resources/weights/model.safetensors").stat().st_mtime_ns, len(server.served)
    hub["files"]["model.safetensors"] = sha256(CONTENT)  # the rule runs again, and fetches nothing
    code, output = run_snakemake(tmp_path, entries)
    assert code == 0 and "fetch_resource" in output, output
    assert Path("resources/weights/model.safetensors").stat().st_mtime_ns == date and len(server.served) == asked
