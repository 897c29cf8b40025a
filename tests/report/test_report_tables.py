"""Cells of tables, by hand."""

from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

import contracts
from quarl import formats
from quarl.post_training.measure import PtqRow
from quarl.report import tables
from quarl.report.tables import escaped, to_markdown


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        (formats.number, {0.0: "0.00", -0.001: "0.00", -1.234: "−1.23", 12.34: "12.3", -1234.6: "−1235", None: "–"}),
        (formats.size, {999: "999 B", 1000: "1 kB", 76_543: "76.5 kB", 8_460_000: "8.46 MB", 999_700: "1000 kB"}),
        (formats.size, {2 * 10**9: "2000 MB"}),
        (formats.three_digits, {9.876: "9.88", 999.4: "999", 999.7: "1000", 12_345.6: "12346"}),
        (formats.percent, {1: "100", 0.99999: "99.9", 0.5: "50.0", 0: "0.0"}),
        (lambda ends: formats.times(2.0, *ends), {(1.5, 3.0): "2.00 [1.50, 3.00]", (1.5, None): "2.00 [1.50, –]"}),
        (lambda ends: formats.times(2.0, *ends), {(None, None): "2.00", (2.0, 2.0): "2.00"}),
    ],
)
def test_numbers_are_shown_by_their_size(form, shown):
    assert {value: form(value) for value in shown} == shown


BY_EPISODE = ("returns", "lengths", "successes")


def test_a_spark_shows_the_logarithm_of_counts_and_leaves_empty_bins_blank():
    assert formats.spark([0, 1, 3, 7, 127]) == " ▂▃▄█"
    assert len(formats.spark([1] * 100)) == formats.SPARK_BINS
    assert formats.spark([0, 0]) == "  "


def test_columns_in_which_rows_agree_move_to_the_caption(rows):
    table = tables.cells(PtqRow, rows)
    heads = [column.heading for column in table.columns]
    assert table.caption == (
        "dynamic activations, on litert, measured kernels, 100 episodes each, margin 5 %, 100 % of the weights covered"
    )
    assert "scheme" in heads
    assert "mode" not in heads
    assert "scheme" not in [column.heading for column in tables.cells(PtqRow, rows[:-1]).columns]


def test_float_formats_have_no_scheme(rows):
    table = tables.cells(PtqRow, rows)
    column = [column.heading for column in table.columns].index("scheme")
    assert [row[column] for row in table.rows] == ["", "", "default", "default", "default", "naive"]


def test_activations_that_are_not_quantised_have_no_mode(rows):
    mixed = [row | {"bits_activations": 32} if row["scheme"] == "naive" else row for row in rows]
    table = tables.cells(PtqRow, mixed)
    assert "dynamic activations" in table.caption  # of those that have a mode
    mixed[2] = mixed[2] | {"mode": "static"}
    table = tables.cells(PtqRow, mixed)
    column = [column.heading for column in table.columns].index("mode")
    assert [row[column] for row in table.rows] == ["", "", "static", "dynamic", "dynamic", ""]


def test_the_terminal_shows_every_cell_however_narrow_it_is(rows):
    table = tables.cells(PtqRow, rows)
    out = io.StringIO()
    Console(file=out, width=200).print(tables.terminal(table, "title [not markup]"))
    assert "title [not markup]" in out.getvalue()
    for row in table.rows:
        assert all(cell in out.getvalue() for cell in row)
    narrow = io.StringIO()
    Console(file=narrow, width=60).print(tables.terminal(table, "title"))
    assert "…" not in narrow.getvalue()


def test_csv_has_every_number_in_full(rows):
    rows[0]["mean"] = 1 / 3
    rows[0]["error_pct"], rows[1]["successes"] = None, [True] * 100
    read = list(csv.DictReader(io.StringIO(tables.to_csv(rows))))
    assert list(read[0]) == [name for name in contracts.rows()["ptq"]["properties"] if name not in BY_EPISODE]
    assert float(read[0]["mean"]) == 1 / 3
    assert read[0]["error_pct"] == ""
    assert len(read) == len(rows)


def test_what_is_simulated_has_neither_latency_nor_file_size(rows):
    rows[0]["measured"] = False
    table = tables.cells(PtqRow, rows)
    shown = [dict(zip([column.heading for column in table.columns], row, strict=True)) for row in table.rows]
    assert [shown[0][name] for name in ("µs p50", "p99", "file")] == ["–"] * 3
    assert shown[1]["file"] == "76.5 kB"
    assert shown[0]["payload"] != "–"


EVIL = "\x1b[31m</td><script>alert(1)</script> a|b `c` [d](javascript:e)"


def test_names_out_of_files_are_shortened_and_obeyed_by_no_terminal(rows):
    rows[0]["precision"] = EVIL + "a" * 100_000
    table = tables.cells(PtqRow, rows)
    shown = table.rows[0][0]
    assert shown.startswith(r"\x1b[31m</td>")
    assert len(shown) < 300
    out = io.StringIO()
    Console(file=out, width=200).print(tables.terminal(table, "title\x1b[31m"))
    assert "\x1b" not in out.getvalue()
    assert r"title\x1b[31m" in out.getvalue()
    assert tables.to_csv(rows).count("a") > 100_000


def test_markdown_holds_no_markup_of_names(rows):
    rows[0]["precision"] = EVIL
    line = to_markdown(tables.cells(PtqRow, rows), "heading").splitlines()[4]
    assert r"| \x1b[31m&lt;/td&gt;&lt;script&gt;alert(1)&lt;/script&gt; a\|b \`c\` [d]\(javascript:e) |" in line
    assert escaped("two\nlines") == "two\nlines"
