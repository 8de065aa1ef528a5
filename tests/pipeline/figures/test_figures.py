"""Figures: what they show, and that their files are reproducible."""

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_rgb
from torch import nn

from lantern.methods import PRESETS, MethodSpec
from lantern.prompts import Prompt
from lantern.records import GenerationRecords
from lantern_pipeline.analysis.method_labels import method_colour
from lantern_pipeline.data.tables import method_columns
from lantern_pipeline.figures.ambiguity import draw_ambiguity
from lantern_pipeline.figures.image_grid import PictureGrid, draw_pictures
from lantern_pipeline.figures.samples import select_samples
from lantern_pipeline.figures.style import save_figure
from lantern_pipeline.figures.tradeoff import draw_tradeoff, split_curves

SETTINGS = {"headline_prompt_set": "seen", "headline_temperature": 1.0}


def lantern(k, delta):
    return MethodSpec.of(
        "lantern",
        tree="chain5",
        drafts="sampled",
        acceptance="additive",
        residual="paper",
        neighbours="l2_normalised",
        k=k,
        delta=delta,
        method_id=f"lantern-{k}-{delta}",
    )


def make_summary(specs):
    generator = np.random.default_rng(0)
    rows = []
    for spec in specs:
        row = method_columns(spec.to_dict())
        row |= {"prompt_set": "seen", "temperature": 1.0, "cfg_scale": 3.0, "num_images": 8}
        row |= {"repeat": "s0n0", "num_repeats": 1}
        for name in ("speedup", "mean_accepted_length", "nll", "prompt_accuracy"):
            value = generator.uniform(0.8, 1.0)
            row |= {name: value, f"{name}_low": value - 0.1, f"{name}_high": value + 0.05}
        rows.append(row)
    return pd.DataFrame(rows)


@pytest.fixture
def summary():
    exact = [
        MethodSpec.of("autoregressive", method_id="autoregressive"),
        MethodSpec.of("coupled", tree="chain3", drafts="coupled", method_id="c"),
    ]
    grid = [lantern(k, delta) for k in (10, 20) for delta in (0.4, 0.1, 0.03)]
    return make_summary([*exact, *grid])


@pytest.fixture
def grid():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8, 3), dtype=np.uint8)
    titles = ["autoregressive", "coupled", "LANTERN\nk 20, δ 0.1"]
    notes = [["1.00", "1.90", "2.50"]] * 2
    return PictureGrid(pixels, ["a small red ring on grass", "b"], titles, notes, "tokens / forward")


@pytest.fixture
def ambiguity():
    generator = np.random.default_rng(0)
    parts = [
        pd.DataFrame({"cfg_scale": s, "top1": generator.beta(1, 5, 99), "top10": generator.beta(3, 3, 99)})
        for s in (1, 3)
    ]
    return pd.concat(parts)


def test_files_are_the_same_every_time(summary, grid, ambiguity, tmp_path):
    draws = {
        "a": lambda: draw_pictures(grid),
        "b": lambda: draw_tradeoff(summary, SETTINGS),
        "c": lambda: draw_ambiguity(ambiguity),
    }
    for name, draw in draws.items():
        for run in ("one", "two"):
            save_figure(draw(), [tmp_path / f"{run}_{name}.png", tmp_path / f"{run}_{name}.pdf"], dpi=60)
        for suffix in ("png", "pdf"):
            first, second = ((tmp_path / f"{run}_{name}.{suffix}").read_bytes() for run in ("one", "two"))
            assert first == second
            assert len(first) > 2000


def test_text_is_large_enough_to_read(summary, grid, ambiguity):
    for figure in (draw_pictures(grid), draw_tradeoff(summary, SETTINGS), draw_ambiguity(ambiguity)):
        texts = [text for text in figure.findobj(lambda o: hasattr(o, "get_fontsize")) if text.get_text()]
        assert texts
        assert min(text.get_fontsize() for text in texts) >= 8
        assert figure.get_figwidth() <= 7.0


def test_every_preset_has_a_colour_of_its_own():
    colours = [to_rgb(method_colour(name)) for name in PRESETS]
    assert len(set(colours)) == len(PRESETS)


def test_only_png_and_pdf(grid, tmp_path):
    with pytest.raises(ValueError, match=r"\.png or \.pdf"):
        save_figure(draw_pictures(grid), [tmp_path / "figure.jpg"])
    assert not list(tmp_path.iterdir())


def test_one_curve_per_method_and_k_along_delta(summary):
    curves = split_curves(summary.reset_index(drop=True))
    assert [curve.label for curve in curves] == [
        "autoregressive",
        "coupled",
        "LANTERN chain: k 10, δ 0.03–0.4",
        "LANTERN chain: k 20, δ 0.03–0.4",
    ]
    assert curves[2].rows["delta"].tolist() == [0.03, 0.1, 0.4]
    assert [curve.place for curve in curves] == [0, 0, 0, 1]
    assert sum(len(curve.rows) for curve in curves) == len(summary)


def test_curves_of_different_trees_are_not_joined():
    trees = [MethodSpec.of("coupled", tree=tree, drafts="coupled", method_id=tree) for tree in ("chain3", "chain5")]
    rows = make_summary([MethodSpec.of("autoregressive", method_id="autoregressive"), *trees])
    assert [curve.label for curve in split_curves(rows)] == ["autoregressive", "coupled", "coupled (chain5)"]


def test_tradeoff_shows_the_values_and_their_intervals(summary):
    figure = draw_tradeoff(summary, SETTINGS)
    axes = next(a for a in figure.axes if "prompt accuracy" in a.get_ylabel())
    container = next(c for c in axes.containers if c.get_label() == "coupled")
    row = summary[summary.method == "coupled"].iloc[0]
    line, _, bars = container.lines
    assert line.get_xydata().tolist() == [pytest.approx([row["speedup"], 100 * row["prompt_accuracy"]])]
    ends = np.concatenate([bar.get_segments()[0] for bar in bars])
    assert ends[:, 0].min() == pytest.approx(row["speedup_low"])
    assert ends[:, 1].max() == pytest.approx(100 * row["prompt_accuracy_high"])


def test_tradeoff_says_what_is_missing(summary):
    untimed = summary.assign(speedup=np.nan, speedup_low=np.nan, speedup_high=np.nan)
    texts = [text.get_text() for axes in draw_tradeoff(untimed, SETTINGS).axes for text in axes.texts]
    assert texts.count("not timed on these prompts") == 2


def test_ambiguity_states_the_means(ambiguity):
    titles = [axes.get_title(loc="left") for axes in draw_ambiguity(ambiguity).axes]
    means = ambiguity.groupby("cfg_scale").top1.mean()
    assert titles[0] == f"means {means[1]:.2f} (guidance 1), {means[3]:.2f} (guidance 3)"


def test_ambiguity_names_what_it_lacks(ambiguity):
    with pytest.raises(ValueError, match="top10"):
        draw_ambiguity(ambiguity.drop(columns="top10"))


class Painter(nn.Module):
    """Decodes codes to flat images: a pixel is the first code."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def decode(self, codes):
        return (codes[:, 0].float() / 127.5 - 1)[:, None, None, None].expand(-1, 3, 4, 4)


def make_records(spec, codes, forwards):
    n = len(codes)
    ids, metadata = [f"p{i}" for i in range(n)], {"method": spec.to_dict()}
    empty = torch.zeros(n, 0)
    return GenerationRecords(ids, codes, torch.tensor(forwards), empty, empty, empty, empty, empty, metadata)


def test_samples_pair_prompts_methods_and_lengths():
    prompts = [Prompt(f"p{i}", f"prompt {i}") for i in range(3)]
    codes = torch.tensor([[0, 1, 1, 1], [5, 1, 1, 1], [10, 1, 1, 1]])
    records = {
        "lantern-10-0.1": make_records(lantern(10, 0.1), codes + 1, [2, 2, 1]),
        "lantern-20-0.1": make_records(lantern(20, 0.1), codes, [1, 1, 1]),
        "autoregressive": make_records(MethodSpec.of("autoregressive", method_id="autoregressive"), codes, [4, 4, 4]),
    }
    grid = select_samples(records, prompts, Painter(), settings={"sample_prompts": 2, "sample_methods": None})
    assert list(grid.row_titles) == ["prompt 0", "prompt 1"]
    assert grid.column_titles == ["auto-\nregressive", "LANTERN\nchain\nk 10, δ 0.1"]
    assert grid.notes == [["1.00", "2.00"], ["1.00", "2.00"]]
    assert grid.images.shape == (2, 2, 4, 4, 3)
    assert grid.images[:, :, 0, 0, 0].tolist() == [[0, 1], [5, 6]]
    chosen = {"sample_prompts": 3, "sample_methods": ["lantern-20-0.1"]}
    assert select_samples(records, prompts, Painter(), settings=chosen).notes == [["4.00"]] * 3
    with pytest.raises(ValueError, match="no records of 'eagle9'"):
        select_samples(records, prompts, Painter(), settings={"sample_prompts": 1, "sample_methods": ["eagle9"]})
