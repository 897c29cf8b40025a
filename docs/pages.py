"""Keep the pages of results, docs/results/*.md, true to the rows in results/.

    python docs/pages.py

A page is Markdown written by hand. Comments in it, each a line, say where its tables, figures and numbers come from.
They hold Python expressions over the functions below; a comment that is indented continues the one before:

    <!-- runs := at(rows("cluster", "runs"), "name") -->       A name for the rest of the page.
    <!-- 0.59 where cores are busy = runs["busy"].ratio -->    A check of the prose above.

    <!-- table: run in runs.values() -->                       A table, up to the end. Each line is a column;
    <!-- run = run.name -->                                    `a | b = ...` makes two, and `column` is the heading.
    <!-- int8 | int4 = run[column] -->
    <!-- end -->

    <!-- text: source("cluster") -->                           Text that an expression makes, up to the end.
    <!-- end -->

    <!-- figure cluster: run in runs.values() -->              docs/results/_figures/cluster.png: the fields
    <!-- label = run.name -->                                  figures.KEYS of each point. Other lines are options of
    <!-- value = run.ratio -->                                 figures.points.

The numbers in the text of a check must be those of its value, rounded to the digits that are typed. A value that is
true or false must be true, and a value that is text must be the text itself. The comments are code of this repository,
as this script is: nothing that a user brings is evaluated.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from quarl import formats, stats
from quarl.report import style
from quarl.report.assessment import listed
from quarl.rows import by as grouped

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "docs")]
import figures  # noqa: E402  # a module beside this script

import results  # noqa: E402  # it is a script of benchmarks/

PAGES = ROOT / "docs" / "results"
NAMES = sorted(path.stem for path in PAGES.glob("*.md"))
MARK = "<!-- generated: make pages -->\n"
NUMERIC = re.compile(r"(≥ |> |[±×\[])?[−+-]?\d|–$")
TARGETS = {
    "boards": "boards` and `make bench-boards",
    "chaos": "chaos",
    "chaos-checkpoint": "chaos",
    "fuzz": "fuzz",
    "off-path-returns": "bench-off-path-returns",
    "robust-acrobot": "bench-robust",
    "robust-go1": "bench-robust",
    "robust-halfcheetah": "bench-robust",
    "robust-halfcheetahbullet": "bench-robust",
    "robust-hopper": "bench-robust",
    "robust-lunarlander": "bench-robust",
    "runtimes": "runtimes",
    "study-kills": "kills",
    "weight-decay": "bench-weight-decay-0` to `make bench-weight-decay-1e-2",
}
"""Targets of make that measure a study again, unless the target is bench- and the name of the study."""
BLOCK = re.compile(
    r"^(<!-- (?:table|text): (?:.*-->\n<!-- (?!end ))*.*-->\n)(?s:.*?)<!-- end -->|((?:^<!-- (?!note: ).*-->\n)+)",
    re.MULTILINE,
)
"""A group of comments that generates the text between it and the end, or a group without such text."""
NUMBER = re.compile(r"(?<![\w.])[−-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[−-]?\d+)?")
ANSWER = re.compile(r"^# ([^\n]*)\n\n(.*?(?<!\w)\d.*?[.?!])(?:\*\*)?(?=\s[A-Z*]|\n\n)", re.MULTILINE | re.DOTALL)
"""The title of a page, and its first sentences up to one with a number."""


class Row(dict[str, Any]):
    """A row whose fields are attributes, too, except those that are called as a method of a dict."""

    __getattr__ = dict.__getitem__


@cache
def _read(study: str) -> list[Row]:
    """Return all rows of a study; dicts in them are rows, too."""
    return json.loads(json.dumps(results.read(study)), object_hook=Row)  # type: ignore[no-any-return]


def rows(study: str, table: str | None = None, **wanted: Any) -> list[Row]:
    """Return the rows of a study's table, from all machines, whose fields have these values; a list names several."""
    return [
        row
        for row in _read(study)
        if table in (None, row.table)
        and all(row.get(key) in (value if isinstance(value, list) else [value]) for key, value in wanted.items())
    ]


def table(headings: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table: columns of numbers are right-aligned, and None is an en dash."""
    cells = [["–" if value is None else str(value).replace("|", "\\|") for value in line] for line in lines]
    numeric = [all(not cell or NUMERIC.match(cell) for cell in column) for column in zip(*cells, strict=True)]
    rule = ["---:" if number else "---" for number in numeric] or ["---"] * len(headings)
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, rule, *cells))


def fixed(value: float | None, decimals: int = 0, sign: str = "") -> str:
    """Return a number with so many decimals, halves rounded away from 0; an en dash for None.

    Args:
        value: The number.
        decimals: How many digits follow the point.
        sign: "+" to write one before positive numbers.

    Returns:
        The number as text, with commas between thousands.
    """
    if value is None:
        return "–"
    rounded = Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    return f"{rounded:{sign}z,f}".replace("-", "−")


def between(value: float | None, low: float | None, high: float | None, decimals: int = 0, sign: str = "") -> str:
    """Return a number with its interval, if it has one.

    Args:
        value: The number.
        low: The lower end of the interval; None if there is none.
        high: The upper end.
        decimals: How many digits follow the point.
        sign: "+" to write one before a positive number.

    Returns:
        The number, and the ends in brackets.
    """
    ends = "" if low is None or high is None else f" [{fixed(low, decimals)}, {fixed(high, decimals)}]"
    return fixed(value, decimals, sign) + ends


def source(*studies: str) -> str:
    """Return the commands, dates, commits and machines that measured the rows of the studies."""
    head = ["## Measured by", "", "| rows | command | date | commit | machine |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(_origin(study, folder) for study in studies for folder in _folders(study))])


def _folders(study: str) -> list[Path]:
    return sorted(path.parent for path in results.RESULTS.glob(f"{study}/*/about.json"))


def _origin(study: str, folder: Path) -> str:
    place, about = f"../../{folder.relative_to(ROOT)}", results.about(folder)
    parts = [about, *(row.about for row in rows(study, machine=folder.name) if "about" in row)]
    dates, commits = ({part[key] for part in parts if part.get(key)} for key in ("date", "commit"))
    command = f"`make {TARGETS.get(study, f'bench-{study}')}`"
    at = f"[{', '.join(sorted({commit[:7] for commit in commits}))}]({place}/about.json)"
    machine = f"[{about['machine']['cpu']}](machines.md#{folder.name})"
    when = " to ".join(sorted({min(dates), max(dates)}))
    return f"| [{study}/{folder.name}]({place}/rows.jsonl) | {command} | {when} | {at} | {machine} |"


def machines() -> dict[str, Row]:
    """Return the machine, the versions and the studies of each machine, by the name of its folders."""
    folders = grouped(_folders("*"), lambda folder: folder.name)
    return {
        name: Row({**about["machine"], "versions": about["versions"]}, studies=[folder.parent.name for folder in each])
        for name, each in sorted(folders.items())
        for about in [results.about(each[0])]
    }


def by(rows: Iterable[Row], *keys: str) -> dict[Any, list[Row]]:
    """Return the rows of each value of the key, or of each tuple of values of the keys."""
    return grouped(rows, itemgetter(*keys))


def at(rows: Iterable[Row], *keys: str) -> dict[Any, Row]:
    """Return the only row of each value of the key, or of each tuple of values of the keys."""
    return {key: only for key, (only,) in by(rows, *keys).items()}


def answers(*names: str) -> str:
    """Return a list of the pages: the question that is the title, and the sentences up to the first number."""
    texts = (
        (name, re.sub(r"<!--.*?-->\n*", "", (PAGES / f"{name}.md").read_text(), flags=re.DOTALL)) for name in names
    )
    found = ((name, *ANSWER.findall(text)[0]) for name, text in texts)
    return "\n".join(
        f"- [{title}]({name}.md) {' '.join(answer.replace('**', '').split())}" for name, title, answer in found
    )


class Page:
    """One page of results: its `text` as the rows are now, and a line in `faults` for each number that differs."""

    def __init__(self, name: str, folder: Path) -> None:
        """Read the page `name`, fill in its tables, check its numbers, and draw its figures into the folder."""
        self._name, self._folder, self._source = name, folder, (PAGES / f"{name}.md").read_text()
        self._scope = HELPERS.copy()
        self._prose = (0, 0, 0)
        self.faults: list[str] = []
        self.text = BLOCK.sub(self._block, self._source)

    def _block(self, match: re.Match[str]) -> str:
        self._prose = (self._prose[2], match.start(), match.end())
        said = "\n".join(re.findall("^<!-- (.*) -->$", match[1] or match[2], re.MULTILINE))
        kind, _, head = (lines := re.split(r"\n(?!\s)", said))[0].partition(" ")
        if match[1]:
            made = self._table(head, *lines[1:]) if kind == "table:" else self._value(head)
            return f"{match[1]}\n{made}\n\n<!-- end -->"
        if kind == "figure":
            self._figure(head, *lines[1:])
        else:
            self.faults += filter(None, map(self._fault, lines))
        return match[0]

    def _value(self, expression: str) -> Any:
        # a traceback names the page and the line
        return eval(compile(f"({expression})", self._place(self._prose[1]), "eval"), self._scope)

    def _each(self, clauses: str, expressions: Iterable[str]) -> list[tuple[Any, ...]]:
        return self._value(f"[({', '.join(expressions)},) for {clauses}]")  # type: ignore[no-any-return]

    def _table(self, clauses: str, *lines: str) -> str:
        columns = [
            (heading, f"(lambda column: ({expression}))({heading!r})")
            for names, expression in (line.split(" = ", 1) for line in lines)
            for heading in names.split(" | ")
        ]
        headings, expressions = zip(*columns, strict=True)
        # the hyphen of a negative number is a minus
        return re.sub(r"(?<![\w-])-(?=\d)", "−", table(headings, self._each(clauses, expressions)))

    def _figure(self, head: str, *lines: str) -> None:
        name, clauses = head.split(": ", 1)
        said = dict(line.split(" = ", 1) for line in lines)
        keys = [key for key in said if key in figures.KEYS]
        drawn = [dict(zip(keys, row, strict=True)) for row in self._each(clauses, (said[key] for key in keys))]
        options = {key: self._value(expression) for key, expression in said.items() if key not in keys}
        style.save(figures.points(drawn, **options), self._folder / f"{name}.png")

    def _fault(self, line: str) -> str:
        """Define a name, or check a text and return the fault."""
        text, sign, expression = re.split(r" (:?=)\s+", line, maxsplit=1)
        value = self._value(expression)
        if sign == ":=":
            self._scope |= zip(text.split(", "), value if ", " in text else [value], strict=True)
            return ""
        typed = re.compile(r"\s+".join(map(re.escape, text.split()))).search(self._source, *self._prose[:2])
        if not typed:
            return f"{self._place(self._prose[1])}: the text above does not say {text!r}"
        said = differs(text, value)
        return f"{self._place(typed.start())}: {text!r}, but the rows say {said}" if said else ""

    def _place(self, start: int) -> str:
        return f"docs/results/{self._name}.md:{1 + self._source.count(chr(10), 0, start)}"


def differs(text: str, value: Any) -> str:
    """Return the rows' numbers in place of the text's; "" if they agree."""
    if isinstance(value, bool | np.bool_ | str):
        return "" if value in (True, text) else str(value)
    typed = [Decimal(number.replace(",", "").replace("−", "-")) for number in NUMBER.findall(text)]
    values = list(value) if isinstance(value, Iterable) else [value]
    agree = len(typed) == len(values) and all(map(_agree, typed, values))
    return "" if agree else ", ".join(f"{each:,.6g}" for each in values)


def _agree(typed: Decimal, value: float) -> bool:
    """Return whether the number is the value, rounded to the digits that are typed."""
    half = 0.5 * 10.0 ** int(typed.as_tuple().exponent)
    return abs(float(typed) - value) <= half * (1 + 1e-6)


def readme() -> str:
    """Return README's text with the first table of the index between its two marks."""
    before, _, after = (ROOT / "README.md").read_text().split(MARK)
    glance = (PAGES / "index.md").read_text().partition("\n\n|")[2].partition("\n\n")[0]
    return f"{before}{MARK}\n|{glance.replace('](', '](docs/results/')}\n\n{MARK}{after}"


HELPERS: dict[str, Any] = {
    **{"Row": Row, "rows": rows, "by": by, "at": at, "machines": machines, "source": source, "answers": answers},
    **{"fixed": fixed, "between": between, "listed": listed, "f": formats, "stats": stats, "np": np},
}
"""Names in a page's expressions, besides Python's own functions."""


if __name__ == "__main__":
    pages = {name: Page(name, PAGES / "_figures") for name in NAMES}
    for name, page in pages.items():
        (PAGES / f"{name}.md").write_text(page.text)
    (ROOT / "README.md").write_text(readme())
    sys.exit("\n".join(fault for page in pages.values() for fault in page.faults) or None)
