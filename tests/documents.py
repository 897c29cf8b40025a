"""README and docs as a reader has them: fenced blocks, commands, links, headings and paragraphs.

Every line of a block in `sh` or `bash` is a command; of one in `console`, what begins with `$`: the rest is what that
prints; where no language is said, what begins with `$` or with one of PROGRAMS. `python` is a program, and goes on with
the one before unless it begins with an import. A first line that is `# NAME.SUFFIX` says that the block is that file.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"))
    if page.is_file() and "_build" not in page.parts
)
PROGRAMS = ("quarl", "make", "python", "pip", "git", "cd", "source", ".", "tensorboard")
SHELLS, OUTPUTS, PYTHON = ("sh", "bash"), ("", "console"), ("python",)
SHOWN = ("text", "yaml", "json", "toml", "bibtex", "diff", "ini", "c")
"""Languages of what is only looked at; `{...}` are MyST's directives."""
GENERATED = re.compile(r"<!-- generated.*?(?:<!-- generated.*?-->|\Z)", re.DOTALL)
"""From its mark to the next one, or to the end."""


NAMES = re.compile(r"`[^`]*`|\]\([^)]*\)|\b(?:int|fp|bf|sb|w\d+a)\d+\b|\b[A-Za-z]\w*-v\d+\b|\bZen \d\b|<!--.*?-->")
"""Text whose digits are no measured numbers."""
NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")


def numbers(text: str) -> list[str]:
    """Return the numbers in a text as plain digits: of 1,504 and −0.50, 1504 and -0.5; of 64-64 and 5–7, two each."""
    plain = re.sub(r"(?<=\d)[–-](?=\d)", " ", NAMES.sub(" ", text.replace("```", " ")))
    return [f"{float(word.replace(',', '').replace('−', '-')):.10g}" for word in NUMBER.findall(plain)]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    """Of its first line of text."""
    language: str
    text: str

    @property
    def name(self) -> str:
        """The file that the block is, by its first line; "" where it is none."""
        match = re.match(r"# ([\w-]+\.\w+)\n", self.text)
        return match[1] if match else ""

    def commands(self) -> list[str]:
        """Its commands, a continued one in one line, without comments."""
        commands = []
        for line in re.sub(r"\\\n\s*", "", self.text).splitlines():
            words = re.sub(r"(^|\s+)#.*", "", line.removeprefix("$ ")).strip()
            shown = self.language in OUTPUTS and not line.startswith("$ ")
            if words and not (shown and (self.language == "console" or words.split()[0] not in PROGRAMS)):
                commands.append(words)
        return commands


def relative(page: Path) -> str:
    """The page as a test names it."""
    return page.relative_to(ROOT).as_posix()


def written(page: Path) -> str:
    """The page's text, with empty lines where it is generated."""
    return GENERATED.sub(lambda match: "\n" * match[0].count("\n"), page.read_text())


def blocks(page: Path, *, generated: bool = False) -> Iterator[Block]:
    """The page's fenced blocks; with `generated`, those too that a program wrote."""
    for token in _tokens(page.read_text() if generated else written(page)):
        if token.type == "fence" and token.map:
            language = (token.info.split() or [""])[0]
            yield Block(page, token.map[0] + 2, language, token.content)


def links(page: Path) -> Iterator[str]:
    """Targets of the page's links and images."""
    for token in _tokens(page.read_text()):
        for child in token.children or ():
            for name in ("href", "src"):
                if name in child.attrs:
                    yield str(child.attrs[name])


@cache
def anchors(page: Path) -> frozenset[str]:
    """What a link may have after `#`: headings as GitHub and MyST name them, and targets that are set by hand."""
    tokens = _tokens(page.read_text())
    headings = [after for before, after in pairwise(tokens) if before.type == "heading_open"]
    times: Counter[str] = Counter()
    names = []
    for heading in headings:
        slug = _slug(
            "".join(child.content for child in heading.children or () if child.type in ("text", "code_inline"))
        )
        names.append(f"{slug}-{times[slug]}" if times[slug] else slug)
        times[slug] += 1
    by_hand = re.findall(r"<a (?:id|name)=\"([^\"]+)\"|^\(([\w-]+)\)=$|^\{#([\w-]+)\}$", page.read_text(), re.MULTILINE)
    return frozenset([*names, *(name for match in by_hand for name in match if name)])


def paragraphs(page: Path) -> Iterator[tuple[int, int]]:
    """(first line, lines) of every paragraph, those of lists and quotations included."""
    for token in _tokens(page.read_text()):
        if token.type == "paragraph_open" and token.map:
            yield token.map[0] + 1, token.map[1] - token.map[0]


def target(page: Path, link: str) -> tuple[Path, str] | None:
    """The file and the anchor that an internal link means; None for one to elsewhere."""
    if re.match(r"[a-z][a-z+.-]*:", link):
        return None
    path, _, anchor = link.partition("#")
    return ((page.parent / path).resolve() if path else page), anchor


def _slug(heading: str) -> str:
    kept = (c for c in heading.strip().lower() if c in " -_" or unicodedata.category(c)[0] in "LNM")
    return "".join(kept).replace(" ", "-")


def _tokens(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)
