"""README and docs: links lead somewhere, and README is short enough to be read."""

from __future__ import annotations

import re

import pytest

from documents import NUMBER, PAGES, ROOT, anchors, links, numbers, paragraphs, relative, target

README = ROOT / "README.md"
MAX_LINES, MAX_WORDS, MAX_LETTERS, MAX_PARAGRAPH = 200, 2000, 120, 6
MEASURED = re.compile(r"\d[\d,.]*\s?(%|[xskMG]B?\b|[µm]s\b)|\b\d+\.\d+")
"""A number with a unit, a factor or a share, or a decimal fraction."""
STATED = re.compile(r"`[^`]*`|Python \d\.\d+|margin \d+ %|Apache-2\.0")
"""Numbers that nobody measured."""
TO_RESULT = re.compile(r"\[([^]]*)\]\(((?:\.\./|docs/)*results/[\w-]+\.md)[^)]*\)")


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_inside_the_repository_lead_to_a_file_and_to_a_heading(page):
    dead = []
    for link in links(page):
        aim = target(page, link)
        if aim is None:
            continue
        path, anchor = aim
        there = path.exists() and path.is_relative_to(ROOT)
        if not there or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            dead.append(link)
    assert not dead


def test_readme_can_be_read_at_one_sitting():
    text = README.read_text()
    lines = text.splitlines()
    assert len(lines) <= MAX_LINES
    assert len(text.split()) <= MAX_WORDS
    assert [line for line in lines if len(line) > MAX_LETTERS] == []
    assert [line for line, length in paragraphs(README) if length > MAX_PARAGRAPH] == []


def test_every_measured_number_of_readme_stands_in_a_line_with_a_link():
    prose = re.sub(r"^```.*?^```", "", README.read_text(), flags=re.MULTILINE | re.DOTALL)
    measured = [line for line in prose.splitlines() if MEASURED.search(STATED.sub("", line))]
    assert len(measured) >= 5
    assert [line for line in measured if "](" not in line] == []


@pytest.mark.parametrize("page", [page for page in PAGES if TO_RESULT.search(page.read_text())], ids=relative)
def test_a_number_in_a_link_to_a_result_stands_there_too(page):
    wrong = []
    for words, link in TO_RESULT.findall(page.read_text()):
        path, _ = target(page, link)
        there = [float(number) for number in numbers(path.read_text())]
        for number in NUMBER.findall(words):
            rounding = 0.5 * 10.0 ** -len(number.partition(".")[2]) + 1e-9
            if not any(abs(float(*numbers(number)) - value) <= rounding for value in there):
                wrong.append((words, number))
    assert not wrong
