"""Where the numbers of the first README went, of which its results were the most.

    python docs/first_readme.py [PAGE ...]

takes every number of it. Those of its results are looked for on the page of results that took over their paragraph,
the others in the other pages and in the README of today; what is left has its reason in docs/results/dropped.csv, a
line for each. Prints the counts; exits with 1 where one is missing, or more than a tenth was dropped.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parent
FIRST = DOCS / "results" / "_pages" / "first-readme.md"
"""As it was at commit 9b401ba."""
PAGES = {
    "## Results": "machines",
    "**Returns**": "ptq",
    "**Latency**": "latency",
    "**Evaluation**": "evaluation",
    "**Fidelity and parity**": "fidelity",
    "**Safety**": "safety",
    "**ActorQ throughput**": "actorq-throughput",
    "**ActorQ, time to reward**": "actorq-time-to-reward",
    "Where the time goes": "actorq-throughput",
    "Old weights cost return": "actorq-staleness",
    "How much int8 gains depends": "actorq-throughput",
    "**ActorQ under faults**": "actorq-faults",
    "**D4PG**": "d4pg",
    "**Repair**": "qat-repair",
    "**The original's table for DDPG**": "paper-ptq",
    "**Wider weights, larger error?**": "spread",
    "**Does weight decay help?**": "weight-decay",
    "**Quantisation-aware training computes": "qat-correctness",
    "**Quantisation-aware training costs**": "qat-cost",
    "**Return against bits**": "qat-bits",
    "**Pong from pixels**": "atari",
    "**Mixed precision on a CPU": "mixed-precision",
    "**A study that is killed**": "studies",
    "**Throughput of a study**": "studies",
}
"""By how a paragraph begins, the page that answers its question; others go with the paragraph before."""
ELSEWHERE = "other pages"
NAMES = re.compile(r"`[^`]*`|\]\([^)]*\)|\b(?:int|fp|bf|sb|w\d+a)\d+\b|\b[A-Za-z]\w*-v\d+\b|\bZen \d\b|<!--.*?-->")
"""What holds digits that are no numbers."""
NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")


def numbers(text: str) -> list[str]:
    """The numbers in a text as plain digits: of 1,504 and −0.50, 1504 and -0.5; of 64-64 and 5–7, two each."""
    plain = re.sub(r"(?<=\d)[–-](?=\d)", " ", NAMES.sub(" ", text.replace("```", " ")))
    return [f"{float(word.replace(',', '').replace('−', '-')):.10g}" for word in NUMBER.findall(plain)]


def paragraphs() -> Iterator[tuple[str, str]]:
    """(page, text) of every paragraph of the first README."""
    page = ELSEWHERE
    for paragraph in FIRST.read_text().split("\n\n"):
        page = ELSEWHERE if paragraph.startswith("## ") else page
        page = next((PAGES[begin] for begin in PAGES if paragraph.startswith(begin)), page)
        yield page, paragraph


def shown() -> dict[str, set[str]]:
    """The numbers on each page of results, and on all other pages together."""
    others = [DOCS.parent / "README.md", *(path for path in DOCS.rglob("*.md") if "results" not in path.parts)]
    pages = {path.stem: set(numbers(path.read_text())) for path in (DOCS / "results").glob("*.md")}
    return {**pages, ELSEWHERE: {number for path in others for number in numbers(path.read_text())}}


def main(only: list[str]) -> int:
    with (DOCS / "results" / "dropped.csv").open(newline="") as file:
        dropped = Counter((line["page"], line["number"]) for line in csv.DictReader(file))
    pages, counts = shown(), {name: Counter[str]() for name in ("on pages", "dropped", "missing")}
    missing: dict[str, list[str]] = {}
    for page, number in ((page, number) for page, paragraph in paragraphs() for number in numbers(paragraph)):
        where = "on pages" if number in pages.get(page, ()) else "dropped" if dropped[page, number] > 0 else "missing"
        counts[where][page] += 1
        if where == "dropped":
            dropped[page, number] -= 1
        if where == "missing":
            missing.setdefault(page, []).append(number)
    for page in only or dict.fromkeys((ELSEWHERE, *PAGES.values())):
        print(f"{page:24}", *(f"{count[page]:5} {name}" for name, count in counts.items()), *missing.get(page, ()))
    totals = {name: count.total() for name, count in counts.items()}
    print(", ".join(f"{total} {name}" for name, total in totals.items()), f"of {sum(totals.values())}")
    return 1 if missing or totals["dropped"] > sum(totals.values()) / 10 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
