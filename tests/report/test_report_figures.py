"""Figures draw what the rows say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from quarl.errors import QuarlError
from quarl.report import figures, style, weight_figures


def lines(axes, label):
    """y of the line with that label."""
    return next(c[0].get_ydata() for c in axes.containers if c.get_label() == label)


def test_the_sweet_spot_has_one_line_a_scheme_over_precisions_from_wide_to_narrow(rows):
    (axes,) = figures.sweet_spot(rows[::-1], "title").axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["fp32", "fp16", "int8", "int4", "int2"]
    assert lines(axes, "scheme: default").tolist() == [199.0, 195.0, 40.0]
    assert lines(axes, "scheme: naive").tolist() == [170.0]
    assert lines(axes, "float formats").tolist() == [200.0, 200.5]
    assert axes.get_title(loc="left") == "title"


def test_simulated_points_are_hollow(rows):
    rows[3]["measured"] = False
    (axes,) = figures.sweet_spot(rows, "").axes
    hollow = [mean for line in axes.lines if line.get_markerfacecolor() == "white" for mean in line.get_ydata()]
    assert hollow == [rows[3]["mean"]]
    assert sum(len(points[0].get_ydata()) for points in axes.containers) == len(rows)


def test_figures_of_float_rows_alone_can_be_drawn(rows):
    floats = rows[:2]
    assert style.to_svg(figures.sweet_spot(floats, "")).endswith("</svg>\n")
    assert style.to_svg(figures.gains(floats, "")).endswith("</svg>\n")


def test_gains_show_the_first_scheme_only(rows):
    left, right = figures.gains(rows, "").axes
    assert [axes.get_title(loc="left") for axes in (left, right)] == [
        "latency, µs (median, whisker to p99)",
        "size, kB",
    ]
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["fp32", "fp16", "int8", "int4", "int2"]


def test_what_is_simulated_has_no_latency(rows):
    rows[3]["measured"] = False
    left, _ = figures.gains(rows, "").axes
    assert [np.isnan(bar.get_height()) for bar in left.patches] == [False, False, False, True, False]
    assert [text.get_text().strip() for text in left.texts] == ["simulated"]
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["fp32", "fp16", "int8", "int4", "int2"]
    low, high = left.get_xlim()
    assert low < 0 < left.texts[0].get_position()[0] < high
    for row in rows:
        row["measured"] = False
    left, _ = figures.gains(rows, "").axes
    assert len(left.texts) == len(left.get_xticklabels()) == 5
    assert style.to_svg(figures.gains(rows, "")).endswith("</svg>\n")


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
    first, second = (style.to_svg(figures.sweet_spot(rows, "")) for _ in range(2))
    assert first == second
    assert "<metadata" not in first
    assert "Matplotlib" not in first


def test_files_are_written_whole_or_not_at_all(rows, tmp_path):
    drawn = figures.gains(rows, "")
    style.save(drawn, tmp_path / "a.png")
    style.save(drawn, tmp_path / "a.pdf")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(QuarlError, match="cannot write"):
        style.save(drawn, tmp_path / "missing" / "a.png")
