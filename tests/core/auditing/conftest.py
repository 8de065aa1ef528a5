"""Fixture of all tests of audits."""

from functools import cache

import pytest

from lantern import noise


@pytest.fixture(scope="module", autouse=True)
def noise_made_once():
    """Keep the noise of each sequence for the next audit of the same seed. Making it takes most of an audit's time."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in ("uniform_field", "gumbel_field"):
            monkeypatch.setattr(noise, name, cache(getattr(noise, name)))
        yield
