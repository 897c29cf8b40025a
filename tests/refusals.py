"""What is refused: in one line, which says what is wrong."""

from __future__ import annotations

import pytest

from quarl.cli import main


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line on stderr of a command that exits with 2 and prints nothing on stdout."""
    capsys.readouterr()  # what was printed before is not of this command
    assert main([str(word) for word in words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("quarl: ")
    return line
