"""Tests that version ranges, locked versions and environment.yml agree, and that no host or machine is named."""

import re
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from helpers.paths import ROOT


def pyproject():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirements():
    """Return all requirements of a run, the tests and the linters. The extras name each other."""
    project = pyproject()["project"]
    extras = [line for part in project["optional-dependencies"].values() for line in part]
    found = [Requirement(line) for line in project["dependencies"] + extras]
    return [requirement for requirement in found if requirement.name != project["name"]]


def locked(name):
    """Return the only locked version of a package."""
    lock = (ROOT / "requirements.lock.txt").read_text()
    (version,) = re.findall(rf"^{re.escape(canonicalize_name(name))}==([^\s;\\]+)", lock, re.M)
    return version


def environment():
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    return next(entry["pip"] for entry in dependencies if isinstance(entry, dict))


def test_environment_yml_has_the_locked_version_of_every_direct_dependency():
    expected = set()
    for requirement in requirements():
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        expected.add(f"{requirement.name}{extras}=={locked(requirement.name)}")
    assert sorted(environment()) == sorted(expected)


def test_every_range_has_a_lowest_version_and_contains_the_locked_one():
    for requirement in requirements():
        assert ">=" in {part.operator for part in requirement.specifier}, requirement
        assert requirement.specifier.contains(locked(requirement.name)), requirement


def test_the_core_needs_little_and_a_run_everything():
    project = pyproject()["project"]
    assert {Requirement(line).name for line in project["dependencies"]} == {
        "torch",
        "numpy",
        "safetensors",
        "tqdm",
        "typing_extensions",
    }
    pipeline = [Requirement(line) for line in project["optional-dependencies"]["pipeline"]]
    assert {"transformers", "pictures"} in [part.extras for part in pipeline if part.name == project["name"]]
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
