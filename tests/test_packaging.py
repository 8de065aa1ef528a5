"""Ranges, locked versions and environment.yml agree, and nothing names a host or a machine."""

import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conftest import ROOT


def pyproject():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirements():
    """Everything that a run, the tests and the linters need; the extras name each other."""
    project = pyproject()["project"]
    extras = [line for part in project["optional-dependencies"].values() for line in part]
    found = [Requirement(line) for line in project["dependencies"] + extras]
    return [requirement for requirement in found if requirement.name != project["name"]]


def locked(name):
    """The only locked version of a package."""
    lock = (ROOT / "requirements.lock.txt").read_text()
    (version,) = re.findall(rf"^{re.escape(canonicalize_name(name))}==([^\s;\\]+)", lock, re.M)
    return version


def environment(folder=ROOT):
    dependencies = yaml.safe_load((folder / "environment.yml").read_text())["dependencies"]
    return next(entry["pip"] for entry in dependencies if isinstance(entry, dict))


def test_environment_yml_has_the_locked_version_of_every_direct_dependency():
    expected = set()
    for requirement in requirements():
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        expected.add(f"{requirement.name}{extras}=={locked(requirement.name)}")
    assert sorted(environment()) == sorted(expected)


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_every_range_has_a_lowest_version_and_contains_the_locked_one(requirement):
    assert ">=" in {part.operator for part in requirement.specifier}
    assert requirement.specifier.contains(locked(requirement.name))


def test_the_core_needs_little_and_a_run_everything():
    project = pyproject()["project"]
    assert {Requirement(line).name for line in project["dependencies"]} == {"torch", "numpy", "safetensors", "tqdm"}
    pipeline = [Requirement(line) for line in project["optional-dependencies"]["pipeline"]]
    assert {"transformers", "pictures"} in [part.extras for part in pipeline if part.name == project["name"]]
    assert "--extra pipeline --extra dev" in (ROOT / "Makefile").read_text()


def test_locking_writes_the_versions_into_environment_yml(tmp_path):
    (tmp_path / ".ci").mkdir()
    for name in (".ci/pin_environment.py", "pyproject.toml", "requirements.lock.txt", "environment.yml"):
        shutil.copy(ROOT / name, tmp_path / name)
    lock = tmp_path / "requirements.lock.txt"
    lock.write_text(lock.read_text().replace(f"\ntqdm=={locked('tqdm')} ", "\ntqdm==99.1 "))
    subprocess.run([sys.executable, tmp_path / ".ci" / "pin_environment.py"], check=True)
    assert "tqdm==99.1" in environment(tmp_path)
    others = {pin for pin in environment() if not pin.startswith("tqdm==")}
    assert set(environment(tmp_path)) == others | {"tqdm==99.1"}


def test_every_locked_package_has_hashes():
    lock = (ROOT / "requirements.lock.txt").read_text()
    entries = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.M)[1:]
    assert len(entries) > 80
    assert all("--hash=sha256:" in entry for entry in entries)


@pytest.mark.parametrize("name", ["requirements.lock.txt", "pyproject.toml", "environment.yml", "Makefile", ".ci/run"])
def test_no_host_is_named(name):
    assert not re.search(r"https?://|file://|--(extra-)?index-url[ =]", (ROOT / name).read_text())


def test_the_build_backend_is_locked_so_that_the_package_installs_without_isolation():
    (backend,) = map(Requirement, pyproject()["build-system"]["requires"])
    assert backend.name in {Requirement(line).name for line in pyproject()["project"]["optional-dependencies"]["dev"]}
    assert backend.specifier.contains(locked(backend.name))


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
