"""The page: self-contained, small, and safe from what files say."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from quarl.post_training.measure import PtqRow
from quarl.report import page, ptq_figures, tables, weight_figures
from quarl.report.compare_figures import differences
from quarl.report.row_schema import terms
from quarl.report.style import INK, PAPER

pytestmark = pytest.mark.slow

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Checker(HTMLParser):
    """Keeps open tags and every attribute that could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.loads += [value for name, value in attributes if name in ("src", "href", "xlink:href", "srcset", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)
        self.loads += [value for name, value in attributes if name in ("src", "href", "xlink:href", "srcset", "data")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def rendered(rows, layers, title="dqn on CartPole-v1"):
    return page.render(
        title=title,
        facts={"model": "a.zip"},
        sentences=["int8 is non-inferior."],
        tables=[("Returns", tables.cells(PtqRow, rows))],
        figures=[
            ("one", ptq_figures.sweet_spot(rows, title)),
            ("two", ptq_figures.choice(rows, title)),
            ("three", weight_figures.weight_distribution(layers * 4, title)),
        ],
        command="quarl ptq a.zip",
    )


@pytest.fixture(scope="module")
def text(settled_rows, layers):
    return rendered(settled_rows, layers)


def test_a_page_is_well_formed_self_contained_and_small(text):
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert all(value.startswith("#") for value in checker.loads)  # within the page
    assert not checker.tags & {"script", "link", "iframe", "img"}
    without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert "://" not in without_names
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert len(text.encode()) < 1_000_000
    assert text.count("<svg") == 3


def test_every_cell_of_the_table_is_on_the_page(text, rows):
    for row in tables.cells(PtqRow, rows).rows:
        assert all(f">{cell}</td>" in text for cell in row)


def test_text_out_of_files_cannot_become_markup(rows, layers):
    text = rendered(rows, layers, title="<script>alert(1)</script> & $x_{$")
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "math" not in text


def test_figures_take_the_page_s_text_colour(text):
    assert not {INK, PAPER} & set(re.findall("#[0-9a-f]{6}", text.partition("<svg")[2]))
    assert "currentColor" in text
    assert "var(--paper)" in text.partition("<svg")[2]


def test_every_column_that_is_shown_is_explained_below_its_table_and_in_its_heading(text, rows):
    terms = re.search(r'<details class="terms" open>.*?</details>', text, re.DOTALL).group()
    for column in tables.cells(PtqRow, rows).columns:
        assert f"<dt>{column.heading}</dt>" in terms
        assert re.search(f'<th[^>]* title="[^"]+">{column.heading}</th>', text)
    for word in (
        "non-inferior",
        "undecided",
        "beyond noise",
        "dynamic",
        "static",
        "Simulated",
        "Interquartile",
        "margin",
    ):
        assert word.lower() in terms.lower()


def test_terms_have_each_text_once_with_the_fields_that_it_is_about():
    said = terms(PtqRow)["verdict"]
    assert said.count("One of the two verdicts, on return and on success") == 1
    assert "verdict_return, verdict_success: One of the two verdicts" in said
    assert terms(PtqRow)["IQM"].startswith("Interquartile mean")


def test_a_comparison_wraps_a_long_baseline_and_names_a_success_that_decides(rows):
    word = {"margin_pct": 5.0, "verdict_return": "non-inferior", "verdict_success": "inferior", "verdict": "inferior"}
    drawn = differences([{**rows[0], "arm": "a/" * 40}, {**rows[2], "arm": "b"} | word, {**rows[3], "arm": "c"}], "t")
    (axes,) = drawn.axes
    assert max(map(len, axes.get_xlabel().split("\n"))) <= 34
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b (success inferior)", "c"]
