"""The prose of docstrings, comments, messages and documentation: habits that stop a reader, per 1,000 words."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import quarl
from test_docstrings import public_functions

SOURCE = Path(quarl.__file__).parent
VERBS = "is|was|are|were|has|had|does|did|can|comes?|takes?|makes?|it|they|a|an|the|no|one|each|every"
RATES = {
    "a clause with what": (
        rf"(?<!{') (?<!'.join(('say', 'show', 'know', 'decides', 'of'))} )\bwhat (?:{VERBS})\b",
        0.5,
    ),
    "where for if": (r"(?<!show )(?<!say )(?<![\w`-])where\b(?![^.]*\?)", 1.5),
    "archaic": (r"\b(?:anew|whoever|whosoever|whereof|thereof|be it|lest|nought|amid)\b", 0.3),
    "is no": (r"(?<!there )\b(?:is|are|was|were) (?:no|none|nothing)\b(?! longer)", 0.3),
    "goes on": (r"\bgo(?:es)? on\b", 0.3),
    "British spelling": (
        r"\b(?:artefact|quantis|normalis|optimis|initialis|recognis|neighbour|behaviour|colour)",
        0.05,
    ),
}
"""Habit -> pattern, and the most per 1,000 words of a kind of text."""
FRAGMENT = re.compile(r"(?:Of|What|Whether|By|Where|Who|Whose|Such|So) ")
"""Begins a docstring that is neither a sentence nor a noun."""


def code() -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of each docstring, string under a field, message of an error and comment."""
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield "docstrings", node.value.value
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Error", "say", "note", "refuse")):
                found = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
                yield "messages", " ".join(each for each in found if isinstance(each, str))
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        yield from (("comments", token.string.strip("# ")) for token in tokens if token.type == tokenize.COMMENT)


def documentation() -> Iterator[tuple[str, str]]:
    """Yield the paragraphs of hand-written pages, without code, tables, headings and comments."""
    root = SOURCE.parents[1]
    for path in (*root.glob("*.md"), *root.glob("docs/**/*.md")):
        text = re.sub(r"```.*?```|<!--.*?-->|\]\([^)]*\)", "", path.read_text(), flags=re.S)
        for paragraph in text.split("\n\n") if "reference" not in path.parts and "_build" not in path.parts else ():
            yield "documentation", "\n".join(line for line in paragraph.split("\n") if line[:1] not in ("|", "#"))


@cache
def texts_of() -> dict[str, list[str]]:
    """Return the texts of each kind."""
    found: dict[str, list[str]] = {}
    for kind, text in (*code(), *documentation()):
        found.setdefault(kind, []).append(text)
    return found


@pytest.mark.parametrize("kind", ["docstrings", "messages", "comments", "documentation"])
def test_prose_keeps_to_plain_english(kind: str):
    texts = texts_of()[kind]
    words = sum(len(text.split()) for text in texts)
    long = sum(len(sentence.split()) > 30 for text in texts for sentence in re.split(r"(?<=[.!?])\s", text))
    counts = {
        habit: sum(len(re.findall(pattern, text, re.I)) for text in texts) for habit, (pattern, _) in RATES.items()
    }
    found = {habit: count for habit, count in counts.items() if count > max(RATES[habit][1] * words / 1000, 3)}
    assert found == {}
    assert 1000 * long <= 6 * words


def test_docstrings_begin_with_a_sentence_or_a_noun():
    texts = texts_of()["docstrings"]
    fragments = [text.split("\n")[0] for text in texts if FRAGMENT.match(text)]
    assert 1000 * len(fragments) <= 0.5 * sum(len(text.split()) for text in texts), fragments[:20]


def test_public_functions_have_docstrings_and_describe_their_arguments():
    trees = [ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")]
    functions = [one for tree in trees for one in public_functions(tree.body)]
    assert sum(ast.get_docstring(one) is not None for one in functions) >= 0.88 * len(functions)
    names = [
        (one, {each.arg for each in (*one.args.args, *one.args.kwonlyargs)} - {"self", "cls"}) for one in functions
    ]
    many = [ast.get_docstring(one) or "" for one, arguments in names if len(arguments) > 2]
    assert sum("Args:" in docstring for docstring in many) >= 0.8 * len(many)
