"""Tests of figures of tables: legible, within the page, equal every time, and each shows its numbers."""

import warnings
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib import font_manager
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text

from helpers import figure_tables as tables
from helpers.figure_tables import (
    AUTOREGRESSIVE,
    COUPLED,
    MASSES,
    PROXIMITY,
    SAMPLED,
    SETTINGS,
    make_records,
    make_summary,
)
from lantern.methods import MethodSpec, make_method
from lantern.registry import PRESETS
from lantern_pipeline.data.tables import method_columns
from lantern_pipeline.figures.style import (
    SPARE_COLOURS,
    column_titles,
    first_of_each_preset,
    half_widths,
    method_look,
    name_rows,
    new_figure,
    paper_style,
    save_figure,
)
from lantern_pipeline.figures.tradeoff import _draw_baseline, split_curves
from lantern_pipeline.tables.claims import ACCURACY_TOLERANCE
from lantern_pipeline.tables.comparisons import OWN_MODEL, read_published

PUBLISHED = read_published()
OF_SUMMARY = {"summary": make_summary(), "settings": SETTINGS}
ARGUMENTS = {
    "ablations": {"table": tables.ablation_table()},
    "ambiguity": {"ambiguity": tables.ambiguity_table()},
    "frontier": OF_SUMMARY,
    "generality": {"table": tables.generality_table()},
    "grid_sizes": {"table": tables.grid_table()},
    "nodes": {"summary": tables.node_summary(), "settings": SETTINGS, "trees": {}},
    "premise": {"premise": tables.premise_table()},
    "published": {"published": PUBLISHED, **OF_SUMMARY},
    "total_variation": {"curves": tables.curve_table(), "methods": tables.method_table(), **OF_SUMMARY},
    "tradeoff": OF_SUMMARY,
}


def draw(name, **changes):
    return getattr(import_module(f"lantern_pipeline.figures.{name}"), f"draw_{name}")(**ARGUMENTS[name] | changes)


drawn = cache(draw)  # for tests that only read


def texts(labels):
    return [label.get_text() for label in labels]


def points(axes):
    """Return the coordinates of the first point of each line with error bars."""
    return [container.lines[0].get_xydata()[0].tolist() for container in axes.containers]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_figure_is_legible_and_within_its_page(name):
    figure = drawn(name)
    figure.draw_without_rendering()  # places its parts
    shown = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    assert shown and min(text.get_fontsize() for text in shown) >= 7
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()  # inches
    assert width <= 7 and min(box.x0, box.y0, width - box.x1, height - box.y1) > -0.02, box
    for legend in figure.legends:
        assert len(set(texts(legend.get_texts()))) == len(legend.get_texts())


def test_every_preset_has_a_colour_of_its_own_and_a_marker():
    known = [*PRESETS, "lantern_chain"]
    looks = [method_look(name) for name in known]
    assert len({to_rgb(look["color"]) for look in looks}) == len(known) and all(look["marker"] for look in looks)
    found = [looks[known.index(name)] for name in ("gsd", "lantern_chain")]
    assert [(look["color"], look["marker"]) for look in found] == [("#661177", "H"), ("#882255", "h")]


def test_a_users_method_has_a_colour_by_its_name_that_no_preset_has():
    colours = {method_look(f"mine{number}")["color"] for number in range(40)}
    assert colours == set(SPARE_COLOURS) and method_look("mine7") == method_look("mine7")
    assert not colours & {method_look(name)["color"] for name in (*PRESETS, "lantern_chain")}


def test_half_widths_are_zero_without_an_interval():
    rows = pd.DataFrame({"x": [1.0, 2.0], "x_low": [0.5, np.nan], "x_high": [1.25, np.nan]})
    assert half_widths(rows, "x", factor=100).tolist() == [[50, 0], [25, 0]]


def test_first_of_each_preset_and_titles():
    codes = torch.zeros(1, 4, dtype=torch.int32)
    records = {spec.method_id: make_records(spec, codes) for spec in (COUPLED, PROXIMITY, SAMPLED, AUTOREGRESSIVE)}
    ids = first_of_each_preset(records)
    assert ids == ["autoregressive", "coupled", "proximity-k5", "lantern-k20"]
    titles = column_titles([records[i] for i in ids])
    assert titles == [
        "auto-\nregressive",
        "coupled\n(chain3)",
        "proximity\n(chain3)\nk 5",
        "LANTERN\nchain5\nk 20, δ 0.1",
    ]


# --- (b) ------------------------------------------------------------------------------------------


def curves_of(*specs):
    curves = split_curves(pd.DataFrame([method_columns(spec.to_dict()) for spec in specs]))
    return {
        label: (rows["delta"].tolist(), rows["place"].iloc[0]) for label, rows in curves.groupby("curve", sort=False)
    }


def test_one_curve_per_method_and_k_along_delta():
    grid = [
        replace(SAMPLED, parameters={**SAMPLED.parameters, "k": k, "delta": delta}, method_id=f"{k}-{delta}")
        for k in (10, 20)
        for delta in (0.4, 0.1, 0.03)
    ]
    assert curves_of(*grid) == {
        "LANTERN chain5: k 10, δ 0.03–0.4": ([0.03, 0.1, 0.4], 0),
        "LANTERN chain5: k 20, δ 0.03–0.4": ([0.03, 0.1, 0.4], 1),
    }
    trees = [MethodSpec.of("coupled", tree=tree, drafts="coupled", method_id=tree) for tree in ("chain3", "chain5")]
    assert list(curves_of(*trees)) == ["coupled (chain3)", "coupled (chain5)"]  # never joined


def test_a_curve_runs_along_any_parameter_that_varies():
    falls = [make_method("cool", omega=2, fall=fall, method_id=f"fall{fall}") for fall in (0.7, 0, -0.7)]
    squares = [make_method("gsd", d_max=d_max, method_id=f"d{d_max}") for d_max in (1, 2)]
    curves = split_curves(pd.DataFrame([method_columns(spec.to_dict()) for spec in (*falls, *squares)]))
    assert list(curves["curve"].unique()) == [
        "COOL-SD: ω 2, fall -0.7–0.7",
        "GSD: h 7, Δp 0.15, d² 1–2",
    ]
    assert curves["fall"].dropna().tolist() == [-0.7, 0, 0.7]


def test_tradeoff_shows_values_and_intervals_and_says_what_is_missing():
    axes = next(a for a in drawn("tradeoff").axes if "prompt accuracy" in a.get_ylabel())
    line, _, bars = next(c for c in axes.containers if c.get_label() == "coupled (chain3)").lines
    assert line.get_xydata().tolist() == [[2, 200]]
    ends = np.concatenate([bar.get_segments()[0] for bar in bars])
    assert ends.min(0).tolist() == [1.75, 175] and ends.max(0).tolist() == [2.5, 250]
    untimed = draw("tradeoff", summary=make_summary().assign(speedup=np.nan))
    assert sum(texts(axes.texts) == ["not timed on these prompts"] for axes in untimed.axes) == 2


def test_the_legend_names_what_some_panel_shows():
    summary = make_summary()
    summary.loc[1, ["nll", "prompt_accuracy"]] = np.nan
    summary.loc[2, "prompt_accuracy"] = np.nan
    (legend,) = draw("tradeoff", summary=summary).legends
    curves = ["autoregressive", "LANTERN chain5: k 20, δ 0.1", "proximity (chain3): k 5"]
    lines = ["autoregressive decoding", "within 2 points of autoregressive"]
    assert texts(legend.get_texts()) == [*lines, *curves]


def test_likelihood_has_no_better_direction_but_the_line_of_the_targets_own():
    upper = drawn("tradeoff").axes[0]
    assert upper.get_ylabel().endswith("nearer the line is closer)")
    (line,) = (line for line in upper.lines if line.get_label() == "autoregressive decoding")
    assert set(line.get_ydata()) == {1.0}  # autoregressive decoding's


# --- (c) -----------------------------------------------------------------------------------------


def test_ambiguity_states_the_means():
    means = tables.ambiguity_table().groupby("cfg_scale").top1.mean()
    title = drawn("ambiguity").axes[0].get_title(loc="left")
    assert title == f"means {means[1]:.2f} (guidance 1), {means[3]:.2f} (guidance 3)"


# --- (h) ------------------------------------------------------------------------------------------


def test_bounded_lies_below_the_line_and_the_others_above():
    sampled, top, _ = drawn("total_variation").axes
    lines = {line.get_label(): line for axes in (sampled, top) for line in axes.lines}
    assert lines["TV = δ"].get_xdata().tolist() == lines["TV = δ"].get_ydata().tolist() == [0.1, 0.2, 0.4]
    for rule, factor in tables.FACTORS.items():
        x, y = lines[f"rule {rule}"].get_data()
        assert x.tolist() == [0.1, 0.2, 0.4] and list(y) == pytest.approx(factor * x)
    here = {line.get_label() for line in sampled.lines if line.get_label()[0] != "_"}
    assert here == {"TV = δ", "95th percentile over nodes", "rule sampled_paper"}


def test_values_below_the_axis_are_drawn_at_its_lower_end():
    curves = tables.curve_table()
    names = ["tv_mean", "tv_mean_low", "tv_mean_high", "tv_p95"]
    curves.loc[curves["rule"] == "bounded", names] = 0.0  # the others' least is 0.1 or more
    _, top, _ = draw("total_variation", curves=curves).axes
    (line,) = (line for line in top.lines if line.get_label() == "rule bounded")
    assert list(line.get_ydata()) == [0.05] * 3 and top.get_ylim()[0] == 0.05  # half of the least
    curves.loc[curves["rule"] != "bounded", "tv_mean"] = 1e-4
    assert draw("total_variation", curves=curves).axes[0].get_ylim()[0] == 1e-3


def test_curves_are_labelled_at_each_delta_and_end_just_beyond_them():
    curves = tables.curve_table()
    below = curves[curves["delta"] == 0.1].assign(delta=0.0)  # which a logarithmic axis cannot show
    for axes in draw("total_variation", curves=pd.concat([curves, below])).axes[:2]:
        assert texts(axes.get_xticklabels()) == ["0.1", "0.2", "0.4"] and not list(axes.get_xticks(minor=True))
        assert axes.get_xlim() == pytest.approx((0.1 / 1.15, 0.4 * 1.15)) and axes.get_ylim()[1] == 1.05


@pytest.mark.parametrize(
    ("dropped", "first"),
    [("lantern-k20", "share of substituted tokens, which TV is at most"), ("proximity-k5", "measured TV")],
)
def test_the_legend_of_methods_names_one_mark_if_all_have_the_same(dropped, first):
    methods = tables.method_table()
    figure = draw("total_variation", methods=methods[methods["method_id"] != dropped])
    (legend,) = (legend for legend in figure.findobj(Legend) if legend.axes is None)
    bound = ["parameter δ"] if first == "measured TV" else []  # proximity has none
    assert texts(legend.get_texts()) == [first, *bound]


def test_a_method_without_a_bound_has_no_mark_of_one_and_the_legend_names_what_is_drawn():
    figure = drawn("total_variation")
    (legend,) = (legend for legend in figure.findobj(Legend) if legend.axes is None)
    assert texts(legend.get_texts()) == [
        "measured TV",
        "share of substituted tokens, which TV is at most",
        "parameter δ",
    ]
    axes = figure.axes[2]
    marks = [line.get_ydata()[0] for line in axes.lines if line.get_marker() == "|" and line.get_markersize() == 10]
    assert marks == [0] and axes.get_xlim()[0] == 0  # proximity, in line 1, has none


def test_methods_show_tv_or_the_rate_of_substitutions():
    methods = tables.method_table()
    axes = drawn("total_variation").axes[2]
    assert texts(axes.get_yticklabels()) == ["LANTERN chain5 k 20, δ 0.1", "proximity (chain3) k 5"]
    assert points(axes) == [[0.3, 0], [0.2, 1]]
    assert axes.containers[1].lines[0].get_markerfacecolor() == "white"
    deltas = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "|"]
    assert [0.1] in deltas
    pooled = pd.concat([methods, methods.assign(repeat="pooled", tv_mean=0.5)])  # preferred
    assert points(draw("total_variation", methods=pooled).axes[2])[0] == [0.5, 0]


# --- (l) ------------------------------------------------------------------------------------------


def test_every_published_number_names_its_source_and_its_grade():
    assert set(PUBLISHED["grade"]) == {"P", "R", "S", "T"}
    assert PUBLISHED[["source", "arxiv"]].notna().all(axis=None)
    is_other_model = PUBLISHED["note"].str.startswith(OWN_MODEL, na=False)
    assert set(PUBLISHED.loc[~is_other_model, "method"]) <= {*PRESETS, "pjd", "ssd"}  # not run here
    assert set(PUBLISHED.loc[is_other_model, "method"]) == {"par", "lpd", "flash_ar", "dida"}
    found = PUBLISHED[(PUBLISHED["source"] == "VVS") & (PUBLISHED["model"] == "LlamaGen-XL stage I")]
    assert found["speedup"].tolist() == [1.0, 0.87, 1.45]
    assert found["tokens_per_forward"].tolist() == [1.0, 1.22, 2.1]


def test_the_grid_of_a_published_number_agrees_with_its_forward_passes():
    assert (PUBLISHED.groupby("model")["grid_side"].nunique(dropna=False) == 1).all()
    forwards = PUBLISHED["note"].str.extract(r"forwards (\d+) to")[0].dropna().astype(int)
    assert len(forwards) == 6
    # One pass per code, at most one line end per line, and some passes for the frame of the image.
    assert (forwards**0.5 // 1 == PUBLISHED.loc[forwards.index, "grid_side"]).all()


def test_published_and_own_numbers_stay_in_their_panels():
    left, right = drawn("published").axes
    dots = {container.get_label(): container.lines[0] for container in left.containers}
    assert dots["EAGLE-1"].get_xdata().tolist() == [2.03, 2.37]
    assert all(line.get_linestyle() == "None" for line in dots.values())
    labels = texts(left.get_yticklabels())
    assert labels[0] == "LANTERN, RTX 3090\nLlamaGen-XL stage I, T 0"
    assert "LANTERN++, best case\nmodel not given" in labels and not any("PAR" in label for label in labels)
    assert points(right) == [[2, 0], [3, 1], [4, 2]]
    assert texts(right.get_yticklabels()) == [
        "coupled (chain3)",
        "LANTERN chain5 k 20, δ 0.1",
        "proximity (chain3) k 5",
    ]


def test_markers_of_a_line_that_would_hide_each_other_stand_one_below_the_other():
    left = drawn("published").axes[0]
    labels = texts(left.get_yticklabels())
    for line in ("COOL-SD\nLlamaGen-XL", "COOL-SD\nLumina-mGPT"):
        places = {
            container.get_label(): y - labels.index(line)
            for container in left.containers
            for x, y in container.lines[0].get_xydata()
            if abs(y - labels.index(line)) < 0.5 and x < 2.7
        }
        assert places == pytest.approx({"EAGLE-1": -0.27, "LANTERN++": 0, "COOL-SD": 0.27})
    alone = next(container for container in left.containers if container.get_label() == "LANTERN").lines[0]
    assert all(y == round(y) for y in alone.get_ydata())


# --- (n) ------------------------------------------------------------------------------------------


def test_labels_of_ablations_say_what_differs():
    figure = drawn("ablations")
    lefts, rights = figure.axes[::2], figure.axes[1::2]
    assert [axes.get_title(loc="left") for axes in lefts] == [
        "k (proximity)",
        "tree (coupled)",
        "guidance",
        "drafter steps (coupled)",
    ]
    assert [texts(axes.get_yticklabels()) for axes in lefts] == [
        ["k 1", "k 3"],
        ["chain3", "naive extend 57"],
        ["coupled, guidance 1", "coupled, guidance 3", "proximity, guidance 1", "proximity, guidance 3"],
        ["40 steps", "as trained"],
    ]
    assert np.ravel(points(lefts[0])).tolist() == pytest.approx([1.1, 0, 1.3, 1])
    assert np.ravel(points(rights[0])).tolist() == pytest.approx([0.1, 0, 0.3, 1])
    assert len({axes.get_xlim() for axes in lefts}) == 1  # scales are shared
    low, high = lefts[0].get_xlim()
    assert low < 1 < 1.7 < high
    table = tables.ablation_table()
    assert len(draw("ablations", table=table[table["ablation"] == "k"]).axes) == 2


# --- (p) ------------------------------------------------------------------------------------------


def test_lines_of_nearest_and_random_codes_run_over_k_and_a_level_line_shows_unchanged_codes():
    figure = drawn("premise")
    accuracy, distance, acceptance, variation = figure.axes
    level, nearest, random = (line.get_xydata().tolist() for line in accuracy.lines)
    assert [y for _, y in level] == [90, 90]
    assert np.ravel(nearest) == pytest.approx([1, 89, 5, 85]) and np.ravel(random) == pytest.approx([1, 80])
    assert (accuracy.get_ylabel(), distance.get_ylabel()) == (
        "prompt accuracy\n(%)",
        "Fréchet distance\n(ImageNet features)",
    )
    assert len(acceptance.lines) == len(variation.lines) == 2 * 3  # for each delta a level, nearest and random codes
    colours = [line.get_color() for line in figure.legends[0].get_lines()[3:]]
    assert [axes.lines[place].get_color() for axes in (acceptance, variation) for place in (1, 5)] == 2 * colours
    assert acceptance.lines[4].get_ydata().tolist() == pytest.approx([0.404, 0.42])
    assert "top-1 probability 0.25, entropy 3.00 nats, exact acceptance of a draft 0.40" in figure.get_suptitle()
    names = ["nearest codes", "random codes", "no code replaced", "δ 0.1", "δ 0.4"]
    assert texts(figure.legends[0].get_texts()) == names
    without = tables.premise_table().drop(columns=["efficientnet_frechet_distance"]).assign(frechet_distance=9.0)
    assert draw("premise", premise=without).axes[1].get_ylabel() == "Fréchet distance\n(classifier features)"


# --- (q), (r) -------------------------------------------------------------------------------------


def test_rows_stand_at_their_speed_and_distance():
    figure = drawn("frontier")
    for above, exact in (figure.axes[::2], figure.axes[1::2]):
        assert points(above) == [[3, 0.3], [4, 0.1]] and points(exact) == [[1, 0], [2, 1]]
        faces = [container.lines[0].get_markerfacecolor() for container in (*exact.containers, *above.containers)]
        assert faces[0] == "white" and "white" not in faces[1:]  # all others have a draft model
    named = ["LANTERN chain5: k 20, δ 0.1", "proximity (chain3): k 5", "trained draft model", "no draft model"]
    assert texts(figure.legends[0].get_texts()) == named
    alone = draw("frontier", summary=make_summary().iloc[:1])
    assert texts(alone.legends[0].get_texts()) == ["no draft model"]


def test_what_is_not_known_stands_apart():
    figure = draw("frontier", summary=make_summary().assign(tv_mean=[np.nan, np.nan, np.nan, 0.1]))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["", "", "total variation 0", "", "total variation not known", ""]
    assert texts(figure.axes[4].get_yticklabels()) == ["LANTERN chain5: k 20, δ 0.1"]
    assert [len(axes.containers) for axes in figure.axes] == [1, 1, 2, 2, 1, 1]
    figure = draw("frontier", summary=make_summary().assign(tv_mean=np.nan, substitution_rate=np.nan))
    assert [len(axes.containers) for axes in figure.axes[:2]] == [0, 0]


def test_a_marker_per_method_and_target_and_the_names_apart():
    left, right = drawn("generality").axes
    assert [len(axes.containers) for axes in (left, right)] == [3, 2]
    x = left.containers[0].lines[0].get_xdata()
    assert list(x) == pytest.approx([1 - mass for mass in MASSES.values()])
    faces = [container.lines[0].get_markerfacecolor() for container in left.containers]
    assert faces[0] == "white" and "white" not in faces[1:]
    for axes in (left, right):
        places = sorted(text.get_position()[0] for text in axes.texts)
        assert set(texts(axes.texts)) == set(MASSES) and np.diff(places).min() > 0.05


def test_bars_have_no_length_below_0_and_the_first_row_is_on_top():
    rows = pd.DataFrame({"x": [0.5, 0.5], "x_low": [0.6, np.nan], "x_high": [0.7, np.nan]})
    assert half_widths(rows, "x").T.tolist() == [pytest.approx([0, 0.2]), [0, 0]]
    axes = Figure().subplots()
    name_rows(axes, ["first", "second"])
    bottom, top = axes.get_ylim()
    assert bottom > 1 > 0 > top


def test_the_band_of_kept_accuracy_lies_below_autoregressive_decoding_s():
    axes = Figure().subplots()
    rows = pd.DataFrame({"method_id": ["autoregressive"], "prompt_accuracy": [0.9]})
    _draw_baseline(axes, rows, "prompt_accuracy", 100.0)
    (band,) = axes.patches
    low, high = band.get_path().get_extents(band.get_patch_transform()).intervaly
    assert (low, high) == pytest.approx((90 - 100 * ACCURACY_TOLERANCE, 90))


# --- (s) ------------------------------------------------------------------------------------------


def test_a_line_of_nodes_runs_over_the_sizes_of_the_trees_of_one_kind_of_drafts():
    left, right = drawn("nodes").axes
    lines = {container.get_label(): container.lines[0].get_xydata().tolist() for container in left.containers}
    assert lines == {"Jacobi": [[9, 3], [50, 2]], "hybrid": [[12, 4], [16, 5]]}
    ends = [line.get_ydata().tolist() for line in right.lines]
    assert ends[0] == pytest.approx([3 / 1.53, 2 / 1.53]) and ends[1] == pytest.approx([3 / 0.97, 2 / 0.97])
    assert ends[2] == pytest.approx([4 / 1.45, 5 / 1.45]) and ends[3] == pytest.approx([4 / 1.19, 5 / 1.19])


# --- (t) ------------------------------------------------------------------------------------------


def test_a_line_of_grids_runs_from_the_smallest_to_the_largest():
    left, _ = drawn("grid_sizes").axes
    lines = {container.get_label(): container.lines[0] for container in left.containers}
    sides = [8, 12, 16]
    for place, line in enumerate(lines.values(), 1):
        assert line.get_xydata() == pytest.approx(np.array([[side, place + side / 10] for side in sides]))
    assert list(lines) == [
        "coupled (chain3)",
        "LANTERN chain5 k 20, δ 0.1",
        "proximity (chain3) k 5",
        "proximity (chain3) k 9",
    ]
    styles = [line.get_linestyle() for line in lines.values()]
    assert styles == ["-", "-", "-", "--"]  # the last two have the same colour and marker


def test_published_numbers_of_known_grids_are_hollow_and_name_model_and_paper():
    figure = drawn("grid_sizes")
    right = figure.axes[1]
    dots = {container.get_label(): container.lines[0] for container in right.containers}
    assert dots["PJD (2606.05703)"].get_xydata().tolist() == [[48, 4.95], [32, 4.81]]
    assert dots["LANTERN (2511.13587)"].get_xydata().tolist() == [[16, 2.1], [32, 1.83]]
    assert dots["SSD (2606.20543)"].get_xydata().tolist() == [[24, 7.2]]
    assert {line.get_markerfacecolor() for line in dots.values()} == {"white"}
    assert not any(label.startswith(("COOL-SD", "LANTERN++", "lpd")) for label in dots)  # unknown grid, own model
    models = {"LlamaGen-XL stage I", "LlamaGen-XL stage II", "LlamaGen-XL 512"}
    assert set(texts(right.texts)) == models | {"Janus-Pro-7B", "Lumina-mGPT 7B", "Emu3"}
    assert set(dots) < set(texts(figure.legends[0].get_texts()))


@pytest.mark.parametrize("has_font", [True, False])
def test_letters_that_dejavu_lacks_have_another_font_or_one_warning(tmp_path, monkeypatch, caplog, has_font):
    fonts = [str(Path(mpl.get_data_path(), "fonts", "ttf", "STIXGeneral.ttf"))] * has_font
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: fonts)
    with paper_style(), warnings.catch_warnings():
        warnings.simplefilter("error")  # as matplotlib's for each letter
        figure = new_figure(2, 1)
        figure.text(0.1, 0.5, "a \u1d8a\ufe0f cat" if has_font else "\u732b and \U0001f408\ufe0f")
        save_figure(figure, [tmp_path / "a.png"])
    messages = [record.getMessage() for record in caplog.records]
    assert ["2 letters that no font of this machine has, such as \u732b\U0001f408;" in text for text in messages] == (
        [] if has_font else [True]
    )
    assert figure.texts[0].get_fontfamily() == ["sans-serif", *(["STIXGeneral"] if has_font else [])]


def test_a_figure_is_the_same_every_time_with_any_fonts_of_the_user(tmp_path):
    save_figure(draw("ambiguity"), [tmp_path / "ours.png", tmp_path / "ours.pdf"])
    with mpl.rc_context({"font.sans-serif": ["DejaVu Serif"]}):
        save_figure(draw("ambiguity"), [tmp_path / "users.png", tmp_path / "users.pdf"])
    for suffix in (".png", ".pdf"):
        ours, users = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("ours", "users"))
        assert ours == users and len(ours) > 2000
