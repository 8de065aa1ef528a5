"""The pins agree wherever they are written, and nothing names a host or a machine."""

import re
import shutil
import subprocess
import tomllib

import pytest
import yaml

from conftest import ROOT


def pyproject():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins():
    """Everything that a run, the tests and the linters need; the extras name each other."""
    project = pyproject()["project"]
    extras = [pin for part in project["optional-dependencies"].values() for pin in part]
    return project["dependencies"] + [pin for pin in extras if not pin.startswith("lantern-decoding[")]


def normal(name):
    return re.sub(r"[-_.]+", "-", re.sub(r"\[.*?\]", "", name)).lower()


def test_environment_yml_repeats_the_pins():
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    pip = next(entry["pip"] for entry in dependencies if isinstance(entry, dict))
    assert sorted(pip) == sorted(pins())


def test_every_pin_is_exact_and_locked_with_the_same_version():
    lock = (ROOT / "requirements.lock.txt").read_text()
    locked = {normal(name): version for name, version in re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", lock, re.M)}
    for pin in pins():
        name, version = pin.split("==")
        assert locked[normal(name)] == version, pin


def test_the_core_needs_little_and_a_run_everything():
    project = pyproject()["project"]
    assert {pin.partition("==")[0] for pin in project["dependencies"]} == {"torch", "numpy", "safetensors", "tqdm"}
    assert "lantern-decoding[text]" in project["optional-dependencies"]["pipeline"]
    assert "--extra pipeline --extra dev" in (ROOT / "Makefile").read_text()


def test_every_locked_package_has_hashes():
    lock = (ROOT / "requirements.lock.txt").read_text()
    entries = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.M)[1:]
    assert len(entries) > 80
    assert all("--hash=sha256:" in entry for entry in entries)


@pytest.mark.parametrize("name", ["requirements.lock.txt", "pyproject.toml", "environment.yml", "Makefile", ".ci/run"])
def test_no_host_is_named(name):
    assert not re.search(r"https?://|file://|--(extra-)?index-url[ =]", (ROOT / name).read_text())


def test_the_build_backend_is_locked_so_that_the_package_installs_without_isolation():
    assert set(pyproject()["build-system"]["requires"]) <= set(pins())


def test_the_version_is_the_same_everywhere():
    version = pyproject()["project"]["version"]
    assert f'__version__ = "{version}"' in (ROOT / "lantern" / "__init__.py").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert (
        f"## {version}" in (ROOT / "CHANGELOG.md").read_text() or "## Unreleased" in (ROOT / "CHANGELOG.md").read_text()
    )


@pytest.fixture
def bare(tmp_path):
    """A copy of what make needs, and a PATH with the usual tools but only the Pythons that a test puts there."""
    for name in ("Makefile", "config.yaml", "pyproject.toml", "requirements.lock.txt"):
        shutil.copy(ROOT / name, tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "cat", "cksum", "cut", "sed", "rm", "touch", "find", "mv"):
        (tools / tool).symlink_to(shutil.which(tool))
    return tmp_path


def make(folder, *arguments):
    shell = f"SHELL={folder}/tools/bash"
    return subprocess.run(
        [shutil.which("make"), shell, *arguments],
        cwd=folder,
        env={"PATH": str(folder / "tools")},
        capture_output=True,
        text=True,
    )


def fake_python(folder, name, version, body=""):
    path = folder / "tools" / name
    is_old = int(tuple(map(int, version.split("."))) < (3, 11))
    path.write_text(
        f"#!{folder}/tools/bash\n"
        f"""if [ "$1" = -c ]; then [[ "$2" == *"< (3, 11)"* ]] && exit {is_old}; echo {version}; exit 0; fi\n"""
        f"{body}\n"
    )
    path.chmod(0o755)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_an_old_python_stops_make_with_one_sentence(bare):
    fake_python(bare, "python3", "3.10")
    result = make(bare, "reproduce")
    assert result.returncode != 0
    sentence = result.stderr.splitlines()[0]
    assert "needs Python >= 3.11" in sentence and "python3=3.10" in sentence and "python3.11-venv" in sentence
    assert not (bare / ".venv").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_a_shim_that_refuses_is_passed_over_and_a_missing_venv_module_is_named(bare):
    fake_python(bare, "python3", "3.12", "exit 1")
    shim = bare / "tools" / "python3.13"
    shim.write_text(f"#!{bare}/tools/bash\nexit 127\n")
    shim.chmod(0o755)
    result = make(bare, "test")
    assert result.returncode != 0
    assert (
        "python3 cannot make a virtual environment" in result.stderr and "apt-get install python3-venv" in result.stderr
    )
