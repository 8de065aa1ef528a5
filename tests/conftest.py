"""Fixtures and hooks of all tests. Functions that tests share are in tests/helpers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from helpers.time_limit import pytest_runtest_call  # noqa: F401
from helpers.tiny_models import make_models
from lantern.state import DecodingModels

torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Fail skipped tests if LANTERN_NO_SKIPS is set, except tests that need a GPU.

    `.ci/run` sets the variable if everything that tests need is installed.
    """
    report = yield
    if report.skipped and os.environ.get("LANTERN_NO_SKIPS") and not item.get_closest_marker("gpu"):
        report.outcome, report.longrepr = "failed", f"may not skip here: {report.longrepr[2]}"
    return report


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Return a finished tiny run of the real Snakefile, for tests/workflow and tests/cluster.

    `make test` names a folder for it. Tests read the run; a test that changes something works on a copy.
    """
    from helpers.tiny_run import finished_run

    return finished_run(Path(os.environ.get("LANTERN_TINY_RUN") or tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="session")
def models() -> DecodingModels:
    return make_models()


@pytest.fixture(scope="module")
def browser():
    """Start Chromium. Tests that use it are skipped if it or playwright is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: install the dev extra")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"needs one of {', '.join(names)} on the PATH")
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=arguments)
        except sync_api.Error as error:  # Ubuntu's package of that name only asks for a snap
            pytest.skip(f"{path} does not start: {str(error).splitlines()[0]}")
        yield browser
        browser.close()
