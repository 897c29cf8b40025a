"""The figure of return against bits."""

from __future__ import annotations

from quarl.report.sweep_figure import return_against_bits


def test_no_line_leads_to_other_bits_of_activations():
    activations = {"int8": 8, "int4": 8, "w6a6": 6, "w4a4": 4, "w3a4": 4}
    names = tuple(activations)
    summaries = [
        {
            "method": "qat",
            "precision": name,
            "bits_activations": activations[name],
            "mean": 10.0 * place,
            "ci_low": 0.0,
            "ci_high": 40.0,
        }
        for place, name in enumerate(names)
    ]
    axes = return_against_bits(
        summaries, [{**row, "seed": 0, "measured": row["precision"] != "w6a6"} for row in summaries], "some"
    ).axes[0]
    lines = [line for line in axes.get_lines() if line.get_linestyle() == "-"]
    assert [list(line.get_ydata()) for line in lines] == [[0.0, 10.0], [20.0], [30.0, 40.0]]
    hollow, key = (line for line in axes.get_lines() if line.get_markerfacecolor() == "white")
    assert list(hollow.get_ydata()) == [20.0]
    legend = axes.get_legend()
    assert legend is not None
    assert str(key.get_label()) in [text.get_text() for text in legend.get_texts()]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(names)
