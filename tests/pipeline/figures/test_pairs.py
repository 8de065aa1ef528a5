"""Figure (k): pairs of images."""

import pytest
import torch

from figure_tables import AUTOREGRESSIVE, COUPLED, PROXIMITY, SAMPLED, Mosaic, make_records
from lantern.prompts import Prompt
from lantern_pipeline.figures.pairs import AMPLIFIED, select_pairs

SETTINGS = {"sample_prompts": 2, "pair_methods": None}
PROMPTS = [Prompt(f"p{i}", f"prompt {i}") for i in range(3)]


@pytest.fixture
def records():
    codes = torch.tensor([[4, 4, 4, 4], [0, 1, 2, 3], [7, 7, 7, 7]], dtype=torch.int32)
    relaxed = codes.clone()
    relaxed[0, 2:] = torch.tensor([5, 6])  # one substitution, and a token that follows from it
    is_substituted = torch.zeros(3, 4, dtype=torch.bool)
    is_substituted[0, 2] = True
    return {
        "autoregressive": make_records(AUTOREGRESSIVE, codes),
        "lantern-k20": make_records(SAMPLED, codes),
        "coupled": make_records(COUPLED, codes),
        "proximity-k5": make_records(PROXIMITY, relaxed, is_substituted=is_substituted),
    }


def test_difference_and_substitutions(records):
    grid = select_pairs(records, PROMPTS, Mosaic(), settings=SETTINGS)
    assert grid.row_titles == ["prompt 0", "prompt 1"]
    assert grid.column_titles[1:] == ["coupled", "proximity\nk 5", "difference\n× 2"]
    assert grid.notes == [
        ["", "identical", "1 substituted", "2 differ"],
        ["", "identical", "0 substituted", "identical"],
    ]
    difference = grid.images[0, 3, ::2, ::2, 0]  # one pixel of each token; a code is a quarter of the range of 2
    assert difference.tolist() == [[0, 0], [round(AMPLIFIED * 127.5 / 4), round(AMPLIFIED * 127.5 / 2)]]
    assert not grid.images[1, 3].any()
    assert grid.marks[:, 2].tolist() == [[False, False, True, False], [False] * 4]
    assert not grid.marks[:, [0, 1, 3]].any()


def test_the_relaxed_method_with_most_substitutions_is_chosen(records):
    few = records["proximity-k5"]
    many = make_records(PROXIMITY, few.codes, is_substituted=~few.is_substituted)
    many.metadata["method"]["k"] = 60
    found = select_pairs({**records, "proximity-k60": many}, PROMPTS, Mosaic(), settings=SETTINGS)
    assert found.column_titles[2] == "proximity\nk 60"
    chosen = {**SETTINGS, "pair_methods": ["coupled", "proximity-k5"]}
    found = select_pairs({**records, "proximity-k60": many}, PROMPTS, Mosaic(), settings=chosen)
    assert found.column_titles[2] == "proximity\nk 5"


def test_methods_that_cannot_be_paired_are_rejected(records):
    def select(methods):
        return select_pairs(records, PROMPTS, Mosaic(), settings={**SETTINGS, "pair_methods": methods})

    with pytest.raises(ValueError, match="no records of 'eagle9'"):
        select(["coupled", "eagle9"])
    with pytest.raises(ValueError, match=r"substitutions of lantern-k20 are not recorded .* drafts coupled or top"):
        select(["coupled", "lantern-k20"])
    del records["proximity-k5"]
    with pytest.raises(ValueError, match=r"set figures\.pair_methods"):
        select(None)
