"""Figures draw what the rows say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from quarl.calibration import round_layers
from quarl.errors import QuarlError
from quarl.inspection import whole
from quarl.policy.layers import LayerWeights
from quarl.quant.spec import QuantSpec
from quarl.report import ptq_figures, style, weight_figures
from quarl.report.weight_figures import MAX_MODELS, weights_of_models


def lines(axes, label):
    """y of the line with that label."""
    return next(c[0].get_ydata() for c in axes.containers if c.get_label() == label)


def test_the_sweet_spot_has_one_line_a_scheme_over_precisions_from_wide_to_narrow(rows):
    (axes,) = ptq_figures.sweet_spot(rows[::-1], "title").axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["fp32", "fp16", "int8", "int4", "int2"]
    assert lines(axes, "scheme: default").tolist() == [199.0, 195.0, 40.0]
    assert lines(axes, "scheme: naive").tolist() == [170.0]
    assert lines(axes, "float formats").tolist() == [200.0, 200.5]
    assert axes.get_title(loc="left") == "title"


def test_simulated_points_are_hollow(rows):
    rows[3]["measured"] = False
    (axes,) = ptq_figures.sweet_spot(rows, "").axes
    hollow = [mean for line in axes.lines if line.get_markerfacecolor() == style.PAPER for mean in line.get_ydata()]
    assert hollow == [rows[3]["mean"]]
    assert sum(len(points[0].get_ydata()) for points in axes.containers) == len(rows)


@pytest.mark.slow
def test_figures_of_float_rows_alone_can_be_drawn(rows):
    for figure in (ptq_figures.sweet_spot, ptq_figures.choice, ptq_figures.difference):
        assert style.to_svg(figure(rows[:2], "")).endswith("</svg>\n")
        assert style.to_svg(figure(rows[:1], "")).endswith("</svg>\n")


def places(axes):
    """What each name is written beside, in the axes' numbers."""
    limits = axes.transLimits.inverted()
    return {text.get_text(): tuple(np.round(limits.transform(text.xy), 6)) for text in axes.texts}


def test_the_choice_names_a_point_at_each_latency_and_each_size(rows):
    rows = rows[:5]
    for row, latency in zip(rows, (4.0, 3.0, 2.0, 1.5, 1.0), strict=True):
        row["latency_us_p50"] = latency
    left, right = ptq_figures.choice(rows, "").axes
    assert places(left) == {row["precision"]: (row["latency_us_p50"], row["mean"]) for row in rows}
    assert places(right)["int4"] == (36.0, 195.0)  # 9,000 bytes a bit
    assert left.get_xlim()[0] == right.get_xlim()[0] == 0


def test_the_choice_joins_the_points_that_no_other_beats_in_latency_and_return(rows):
    rows = [rows[0], *rows[2:5]]
    for row, latency in zip(rows, (4.0, 2.0, 2.5, 1.0), strict=True):
        row["latency_us_p50"] = latency
    left, _ = ptq_figures.choice(rows, "").axes
    (best,) = (line for line in left.lines if line.get_label() == "no other is better in both")
    # int4 is slower than int8 and returns less
    assert best.get_xydata().tolist() == [[1.0, 40.0], [2.0, 199.0], [4.0, 200.0]]


def test_names_of_points_in_one_place_do_not_hide_one_another(rows):
    left, _ = ptq_figures.choice(rows, "").axes  # all take as long
    heights = sorted(text.get_position()[1] for text in left.texts)
    assert len(heights) == len(rows)
    assert np.diff(heights).min() > 0.07
    for row in rows[1:]:
        row["mean"] = 40.0
    left, _ = ptq_figures.choice(rows, "").axes
    assert all(0 < text.get_position()[1] < 1 for text in left.texts)  # not over the labels of the axes


def test_what_is_simulated_has_a_size_and_no_latency(rows):
    rows[3]["measured"] = False
    left, right = ptq_figures.choice(rows[:5], "").axes
    assert set(places(left)) == {"fp32", "fp16", "int8", "int2"}
    assert set(places(right)) == {"fp32", "fp16", "int8", "int4", "int2"}
    assert left.get_title("left") == "simulated, so without a latency: int4"
    hollow = [line.get_xydata().tolist() for line in right.lines if line.get_markerfacecolor() == style.PAPER]
    assert [points for points in hollow if points] == [[[36.0, 195.0]]]
    for row in rows:
        row["measured"] = False
    assert style.to_svg(ptq_figures.choice(rows, "")).endswith("</svg>\n")


def test_the_difference_is_that_of_the_verdict_over_its_margin(rows):
    (axes,) = ptq_figures.difference(rows, "").axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["fp16", "int8", "int4", "int2"]
    assert lines(axes, "scheme: default").tolist() == [-1.0, -5.0, -160.0]
    (margin,) = (line for line in axes.lines if line.get_label() == "5 % below fp32, the margin")
    assert margin.get_ydata() == [-10.0, -10.0]
    # what four margins do not hold stands there as a number
    assert axes.get_ylim()[0] == -50.0
    assert [(text.get_text(), text.xy) for text in axes.texts] == [("−160.0 ↓", (3, -50.0))]
    (axes,) = ptq_figures.difference([*rows, {**rows[4], "scheme": "naive"}], "").axes
    below, above = (text.get_position()[1] for text in axes.texts)
    assert above - below > axes.texts[0].get_fontsize()  # not over one another


def test_the_sweet_spot_shows_every_episode_beside_its_mean(rows):
    rows[2]["returns"] = [float(number) for number in range(100)]
    (axes,) = ptq_figures.sweet_spot(rows, "").axes
    dots = [line for line in axes.lines if line.get_markersize() == 2]
    assert [list(line.get_ydata()) for line in dots] == [row["returns"] for row in rows]
    for line, at in zip(dots, (0, 1, 2, 3, 4, 2), strict=True):
        assert all(at < x < at + 0.5 for x in line.get_xdata())
    assert min(dots[5].get_xdata()) > max(dots[2].get_xdata())  # schemes do not hide one another


def test_one_episode_is_one(rows):
    one = [row | {"episodes": 1, "ci_low": None, "ci_high": None, "returns": row["returns"][:1]} for row in rows]
    one = [row | {"difference_low": None, "difference_high": None} for row in one]
    assert ptq_figures.sweet_spot(one, "").axes[0].get_ylabel() == "return (1 episode)"
    assert ptq_figures.sweet_spot(rows, "").axes[0].get_ylabel() == "return (100 episodes)"
    assert style.to_svg(ptq_figures.difference(one, "")).endswith("</svg>\n")


def test_titles_of_layers_stay_over_their_panels(layers):
    long = [
        dataclasses.replace(
            layer, row=dataclasses.replace(layer.row, layer="features_extractor.cnn.of_a_long_name.linear.0")
        )
        for layer in layers
    ]
    drawn = weight_figures.weight_distribution(long, "")
    drawn.draw_without_rendering()
    for axes in drawn.axes:
        (title,) = (text for text in axes.get_children() if getattr(text, "get_text", str)() == axes.get_title("left"))
        assert title.get_window_extent().width < axes.get_window_extent().width


def test_weights_lie_over_the_levels_of_the_quantiser(layers):
    drawn = weight_figures.weight_distribution(layers, "")
    assert len(drawn.axes) == 2
    for axes, layer in zip(drawn.axes, layers, strict=True):
        shown = np.unique(axes.lines[0].get_xdata())
        inside = (layer.grid >= layer.row.min) & (layer.grid <= layer.row.max)
        assert shown.tolist() == layer.grid[inside].tolist()
        assert f"{layer.row.levels} levels" in axes.get_title(loc="left")


def test_more_layers_than_fit_are_left_out_and_said_so(layers):
    drawn = weight_figures.weight_distribution(layers * 6, "title")
    assert len(drawn.axes) == weight_figures.MAX_LAYERS
    assert drawn.get_suptitle() == "title (first 8 of 12 layers)"


def test_equal_rows_make_equal_svg_without_date_or_program(rows):
    first, second = (style.to_svg(ptq_figures.sweet_spot(rows, "")) for _ in range(2))
    assert first == second
    assert "<metadata" not in first
    assert "Matplotlib" not in first


@pytest.mark.slow
def test_files_are_written_whole_or_not_at_all(rows, tmp_path):
    drawn = ptq_figures.choice(rows, "")
    style.save(drawn, tmp_path / "a.png")
    style.save(drawn, tmp_path / "a.pdf")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(QuarlError, match="cannot write"):
        style.save(drawn, tmp_path / "missing" / "a.png")


SPEC = QuantSpec.parse("int8", scheme="per-channel")


def model(name: str, width: float):
    weight = np.random.default_rng(0).uniform(-width, width, (16, 8)).astype(np.float32)
    layers = [LayerWeights("a", "Dense", weight)]
    return whole(name, layers, round_layers(layers, SPEC), SPEC)


def test_each_model_has_a_panel_on_the_same_axis_with_its_extent():
    models = [model("dqn", 2.0), model("ppo", 0.5), model("a2c $1$", 0.25)]
    drawn = weights_of_models(models, "title")
    assert len(drawn.axes) == 3
    assert {axes.get_xlim() for axes in drawn.axes} == {drawn.axes[0].get_xlim()}
    low, high = drawn.axes[0].get_xlim()
    assert low < models[0].min
    assert models[0].max < high
    for axes, one in zip(drawn.axes, models, strict=True):
        assert axes.get_title(loc="left").startswith(f"{one.model}: ")
        (bars,) = [patch for patch in axes.patches if hasattr(patch, "get_data")]
        assert bars.get_data().values.tolist() == one.histogram["counts"]
    assert "a2c $1$" in style.to_svg(drawn)


def test_more_models_than_fit_are_left_out_and_said_so():
    drawn = weights_of_models([model(str(n), 1.0) for n in range(MAX_MODELS + 2)], "title")
    assert len(drawn.axes) == MAX_MODELS
    assert drawn.get_suptitle() == f"title (first {MAX_MODELS} of {MAX_MODELS + 2})"


def test_a_model_without_spread_can_be_drawn():
    layers = [LayerWeights("a", "Dense", np.full((2, 2), 0.5, np.float32))]
    one = whole("flat", layers, round_layers(layers, SPEC), SPEC)
    assert "standard deviations" not in weights_of_models([one], "").axes[0].get_title(loc="left")
