"""The figure of return against bits."""

from __future__ import annotations

from quarl.report.sweep_figure import return_against_bits


def test_no_line_leads_from_eight_bits_of_activations_to_fewer():
    names = ("int8", "int4", "w6a6", "w4a4")
    summaries = [
        {"method": "qat", "precision": name, "mean": 10.0 * place, "ci_low": 0.0, "ci_high": 40.0}
        for place, name in enumerate(names)
    ]
    axes = return_against_bits(summaries, [{**row, "seed": 0} for row in summaries], "some").axes[0]
    lines = [line for line in axes.get_lines() if line.get_linestyle() == "-"]
    assert [list(line.get_ydata()) for line in lines] == [[0.0, 10.0], [20.0, 30.0]]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(names)
