"""Golden codes: the shipped models generate the tokens that they generated before, in the same steps."""

from __future__ import annotations

import json

import pytest
from every_method import VARIANTS

from helpers.golden_codes import BATCH, CASES, PATH, first_difference, generate, load_model, name_of

GOLDEN = json.loads(PATH.read_text(encoding="utf-8"))
# `make test` shows every preset on both models and at both temperatures, but not in all combinations.
FAST = (("embedded", 1.0), ("fashion", 0.0))


def mark(case) -> object:
    world, method, temperature = case
    is_fast = (world, temperature) in FAST and method not in VARIANTS
    return pytest.param(case, id=name_of(case), marks=pytest.mark.sensitive if is_fast else pytest.mark.slow)


def compare(case, batch_size: int) -> None:
    """Assert that the images of a case are the golden ones, up to the ties that the file names."""
    expected = GOLDEN[name_of(case)]
    for number, (found, *golden) in enumerate(
        zip(generate(load_model(case[0]), case, batch_size), expected["codes"], expected["lengths"], strict=True)
    ):
        place = first_difference(found, tuple(golden))
        ties = expected["ties"].get(str(number), {})
        assert place is None or str(place) in ties, (
            f"{name_of(case)}, image {number}: token {place} is {found[0][place]} instead of {golden[0][place]}, or a "
            f"step ends elsewhere; known ties (token: smallest change of the weights that shows it): {ties}; "
            "if this is meant, helpers/golden_codes.py writes the file again"
        )


@pytest.mark.parametrize("case", map(mark, CASES))
def test_images_are_those_that_were_generated_before(case):
    compare(case, BATCH)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name_of(case)) for case in CASES if case[::2] == ("fashion", 1.0)]
)
def test_one_image_at_a_time(case):
    compare(case, 1)


def test_every_case_is_stored():
    assert set(GOLDEN) == {name_of(case) for case in CASES}
