"""Keep the pages of results, docs/results/*.md, true to the rows in results/.

    python docs/pages.py

A page is Markdown written by hand. Its comments say where its numbers come from; they hold Python expressions over the
functions below, one a line, continued on indented lines:

    <!-- rows                                          names for the rest of the page, and checks of the prose above
    runs := at(rows("cluster", "runs"), "name")
    0.59 where cores are busy = runs["busy"].ratio
    -->
    <!-- generated: row in runs.values()               a table, written up to the closing comment: a line a column;
    run = row.name                                     `a | b = ...` are two columns, `column` is the heading
    int8 | int4 = row[column]
    -->
    <!-- generated -->
    <!-- generated: source("cluster") -->              text that a function makes, up to the closing comment
    <!-- figure cluster: row in runs.values()          docs/results/_figures/cluster.png: label, group, value, low and
    label = row.name                                   high of each row; other lines are options of figures.points
    value = row.ratio
    -->

The numbers of a check's text have to be those of its value, to as many digits as are typed. A value that is a truth
has to be true. `python docs/pages.py` writes tables and figures again and reports each number that differs.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal
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
MARK = "<!-- generated: make pages -->\n"
NUMERIC = re.compile(r"(≥ |> |[±×\[])?[−+-]?\d|–$")
TARGETS = {
    "boards": "boards",
    "chaos": "chaos",
    "chaos-checkpoint": "chaos",
    "fuzz": "fuzz",
    "mixed-precision-updates": "bench-mixed-precision",
    "runtimes": "runtimes",
    "study-kills": "kills",
    "weight-decay": "bench-weight-decay-0` to `make bench-weight-decay-1e-2",
}
"""What make is asked for to measure a study again, where that is not its name with bench- before it."""
BLOCK = re.compile(
    r"<!-- generated:(?P<made>.*?)-->.*?<!-- generated -->|<!-- (?P<kind>rows|figure)\b(?P<said>.*?)-->", re.DOTALL
)
WORDS = ["none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
NUMBER = re.compile(rf"(?<![\w.])[−-]?\d+(?:,\d{{3}})*(?:\.\d+)?(?:e[−-]?\d+)?|\b(?:{'|'.join(WORDS)})\b")


class Row(dict[str, Any]):
    """A row whose fields are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            value = self[name]
        except KeyError:
            raise AttributeError(f"the row has no {name}") from None
        return Row(value) if isinstance(value, dict) else value


FORMER = ("ptq", "paper-ptq")
"""Studies of what was the default scheme when they were first measured, and is called mid-tread today."""


def rows(study: str, table: str | None = None, **wanted: Any) -> list[Row]:
    """The rows of a study's table, from all machines, whose fields have these values; a list names several."""
    measured = [Row(row) for row in results.read(study, table)]
    for row in measured:
        if study in FORMER and row.get("scheme") == "mid-tread":
            row["scheme"] = "default"
    return [
        row
        for row in measured
        if all(row.get(key) in (value if isinstance(value, list) else [value]) for key, value in wanted.items())
    ]


def row(study: str, table: str, **wanted: Any) -> Row:
    """The only such row; ValueError where there are none or several."""
    (only,) = rows(study, table, **wanted)
    return only


def table(headings: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; columns of numbers stand right, what is None is an en dash."""
    cells = [["–" if value is None else str(value).replace("|", "\\|") for value in line] for line in lines]
    numeric = [all(not cell or NUMERIC.match(cell) for cell in column) for column in zip(*cells, strict=True)]
    rule = ["---:" if number else "---" for number in numeric] or ["---"] * len(headings)
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, rule, *cells))


def fixed(value: float | None, decimals: int = 0, sign: str = "") -> str:
    """A number with so many decimals, halves rounded away from 0; an en dash for None. sign: "+" to have one."""
    if value is None:
        return "–"
    rounded = Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    return f"{rounded:{sign}z,f}".replace("-", "−")


def between(value: float | None, low: float | None, high: float | None, decimals: int = 0, sign: str = "") -> str:
    """A number with its interval, if it has one."""
    ends = "" if low is None or high is None else f" [{fixed(low, decimals)}, {fixed(high, decimals)}]"
    return fixed(value, decimals, sign) + ends


def ceiling(value: float, decimals: int) -> float:
    """The next number with so many decimals that is not below: what a value is at most."""
    return float(Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-decimals), ROUND_CEILING))


def source(*studies: str) -> str:
    """By which commands the rows of the studies are made, and when, at which commits and where they were."""
    lines = ["| rows | command | date | commit | machine |", "|---|---|---|---|---|"]
    for study in studies:
        command = f"`make {TARGETS.get(study, f'bench-{study}')}`"
        for path in sorted((results.RESULTS / study).glob("*/about.json")):
            about, folder = json.loads(path.read_text()), path.parent
            place = f"../../{folder.relative_to(ROOT)}"
            machine = f"[{about['machine']['cpu']}](machines.md#{folder.name})"
            measured = [row for row in results.read(study) if row["machine"] == folder.name]
            parts = [about, *(row["about"] for row in measured if "about" in row)]
            dates, commits = ({part[key] for part in parts if part.get(key)} for key in ("date", "commit"))
            when = " to ".join(sorted({min(dates), max(dates)}))
            at = f"[{', '.join(sorted({commit[:7] for commit in commits}))}]({place}/about.json)"
            lines.append(f"| [{study}/{folder.name}]({place}/rows.jsonl) | {command} | {when} | {at} | {machine} |")
    return "\n".join(["## Measured by", "", *lines])


def verdict(fp32: Sequence[float], returns: Sequence[float], margin_pct: float) -> str:
    """The word on returns against fp32's of the same episodes."""
    pair = np.array([fp32, returns])
    return stats.verdict(pair[0], pair[1], margin_pct, np.random.default_rng(0)).verdict


def machines() -> dict[str, Row]:
    """By folder name, what about.json says of each machine, its versions included, and which studies it measured."""
    every: dict[str, Row] = {}
    for path in sorted(results.RESULTS.glob("*/*/about.json")):
        about = json.loads(path.read_text())
        machine = every.setdefault(path.parent.name, Row(about["machine"], versions=about["versions"], studies=[]))
        machine.studies.append(path.parents[1].name)
    return every


def by(rows: Iterable[Row], *keys: str) -> dict[Any, list[Row]]:
    """The rows of each value of the key, or of each tuple of values of the keys."""
    return grouped(rows, itemgetter(*keys))


def at(rows: Iterable[Row], *keys: str) -> dict[Any, Row]:
    """The first row of each value of the key, or of each tuple of values of the keys."""
    return {key: members[0] for key, members in by(rows, *keys).items()}


class Page:
    """One page: `text`, and what differs from the rows in `faults`."""

    def __init__(self, name: str, folder: Path) -> None:
        """Read the page `name`, write its figures to the folder, fill in its tables and check its numbers."""
        self._folder, self._source, self._read = folder, (PAGES / f"{name}.md").read_text(), 0
        self._scope: dict[str, Any] = {function.__name__: function for function in HELPERS}
        self._scope |= {"f": formats, "stats": stats, "np": np}
        self.faults: list[str] = []
        self._name = name
        self.text = BLOCK.sub(self._block, self._source)

    def _block(self, match: re.Match[str]) -> str:
        prose, self._read = (self._read, match.start()), match.end()
        lines = re.split(r"\n(?!\s)", (match["made"] or match["said"] or "").strip())
        try:
            if match["made"]:
                made = self._table(*lines) if lines[1:] else self._value(lines[0])
                return f"<!-- generated:{match['made']}-->\n\n{made}\n\n<!-- generated -->"
            if match["kind"] == "figure":
                self._figure(*lines)
            else:
                for line in filter(None, lines):
                    self._check(line, prose)
        except Exception as error:
            error.add_note(f"in {self._place(match.start())}")
            raise
        return match[0]

    def _value(self, expression: str) -> Any:
        return eval(f"({expression})", self._scope)

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
        self._folder.mkdir(exist_ok=True)
        style.save(figures.points(drawn, **options), self._folder / f"{name}.png")

    def _check(self, line: str, prose: tuple[int, int]) -> None:
        text, sign, expression = re.split(r" (:?=)\s+", line, maxsplit=1)
        value = self._value(expression)
        if sign == ":=":
            names = text.split(", ")
            self._scope |= zip(names, value if names[1:] else [value], strict=True)
            return
        typed = re.compile(r"\s+".join(map(re.escape, text.split()))).search(self._source, *prose)
        if not typed:
            self.faults.append(f"{self._place(prose[1])}: the text before does not say {text!r}")
        elif found := differs(text, value):
            self.faults.append(f"{self._place(typed.start())}: {text}, but the rows say {found}")

    def _place(self, at: int) -> str:
        return f"{self._name}.md:{1 + self._source.count(chr(10), 0, at)}"


def differs(text: str, value: Any) -> str:
    """Return what the rows say in place of the text's numbers; "" where they agree."""
    if isinstance(value, bool | np.bool_ | str):
        return "" if value in (True, text) else str(value)
    values = list(value) if isinstance(value, Iterable) else [value]
    typed = NUMBER.findall(text)
    agree = len(typed) == len(values) and all(map(_agree, typed, values))
    return "" if agree else ", ".join("nothing" if each is None else f"{each:,.6g}" for each in values)


def _agree(typed: str, value: float | None) -> bool:
    """Whether the number is the value, rounded to the digits that are typed."""
    if typed in WORDS:
        return value == WORDS.index(typed)
    plain = typed.replace(",", "").replace("−", "-")
    mantissa, _, exponent = plain.partition("e")
    half = 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    return value is not None and abs(float(plain) - value) <= half * (1 + 1e-6)


def render(name: str, folder: Path = PAGES / "_figures") -> str:
    """Return the page's text with its tables as the rows are now, and draw its figures into the folder.

    Raises:
        ValueError: a line for each number in the prose that is not the rows'.
    """
    page = Page(name, folder)
    if page.faults:
        raise ValueError("\n".join(page.faults))
    return page.text


def readme(text: str) -> str:
    """README's text with the table of the index, between two marks, as the rows are now."""
    before, _, after = text.split(MARK)
    glance = re.findall(r"^\|.*\n", (PAGES / "index.md").read_text(), re.MULTILINE)
    return f"{before}{MARK}\n{''.join(glance).replace('](', '](docs/results/')}\n{MARK}{after}"


def names() -> list[str]:
    """Of all pages; the index, which says what the others begin with, is the last."""
    every = {path.stem for path in PAGES.glob("*.md")}
    return [*sorted(every - {"index"}), "index"]


def answers(*names: str) -> str:
    """A list of the pages: the question that is a page's title, and the sentences up to its first number."""
    lines = []
    for name in names:
        text = re.sub(r"<!--.*?-->", "", (PAGES / f"{name}.md").read_text(), flags=re.DOTALL).strip()
        title, first, *_ = re.split(r"\n{2,}", text)
        sentences = re.split(r"(?<=[.?!]) (?=[A-Z])", " ".join(first.replace("**", "").split()))
        end = next((at for at, sentence in enumerate(sentences) if re.search(r"(?<!\w)\d", sentence)), 0)
        lines.append(f"- [{title.removeprefix('# ')}]({name}.md) {' '.join(sentences[: end + 1])}")
    return "\n".join(lines)


HELPERS = (Row, rows, row, by, at, machines, fixed, between, ceiling, listed, verdict, source, answers)
"""What a page's expressions may call, beside Python's own functions, `f` (quarl.formats), `stats` and `np`."""


if __name__ == "__main__":
    for name in names():
        (PAGES / f"{name}.md").write_text(render(name))
    front = ROOT / "README.md"
    front.write_text(readme(front.read_text()))
