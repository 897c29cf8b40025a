"""How much there is to read: what is counted only goes down, or up with a reason in the same commit."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "studies", "docs", "scripts", "results")
"""Whose Python counts as the package's; what measures, in benchmarks, has a bound of its own."""
STATEMENTS, CODE_LINES, BENCHMARK_LINES = 30_412, 31_197, 2_175
"""At most: by `ast`, by `tokenize` (without blank lines, comments and docstrings), and as the files stand."""
DOCSTRING_LINES = 1.493
"""At least, of a public function or method in the mean."""
LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(*folders: str) -> list[str]:
    """The text of each Python file."""
    return [path.read_text() for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def statements(source: str) -> int:
    """Docstrings are statements, too."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(source)))


def code_lines(source: str) -> int:
    """Lines that hold a token of code. A string that stands for itself, as a docstring does, is none."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def public_functions(body: list[ast.stmt]) -> Iterator[Function]:
    """Those of a module and of its classes whose names begin with no underscore."""
    for node in body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from public_functions(node.body)


def docstring_lines(function: Function) -> int:
    """0 where there is none."""
    return len((ast.get_docstring(function) or "").splitlines())


SAMPLE = '''"""Of a module."""

X = (  # opens
    1,

    2)


class Shown:
    def shown(self):
        """Two
        lines."""
        return X

    def _hidden(self): ...


def bare(): pass
'''


def test_what_is_counted_of_a_sample():
    assert statements(SAMPLE) == 10
    assert code_lines(SAMPLE) == 8
    functions = list(public_functions(ast.parse(SAMPLE).body))
    assert [(function.name, docstring_lines(function)) for function in functions] == [("shown", 2), ("bare", 0)]


@pytest.mark.parametrize(("count", "bound"), [(statements, STATEMENTS), (code_lines, CODE_LINES)])
def test_the_package_stays_within_its_budget(count, bound):
    assert sum(map(count, sources(*FOLDERS))) <= bound


def test_benchmarks_stay_within_their_budget():
    assert sum(len(source.splitlines()) for source in sources("benchmarks")) <= BENCHMARK_LINES


def test_public_functions_say_what_they_do():
    functions = [function for source in sources(*FOLDERS) for function in public_functions(ast.parse(source).body)]
    assert sum(map(docstring_lines, functions)) / len(functions) >= DOCSTRING_LINES
