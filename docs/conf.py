"""The documentation site: `make docs`. Every warning is an error."""

from __future__ import annotations

import inspect
import re
from typing import Any

from quarl import __version__

project = "QuaRL"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "dev/patches"]
html_theme = "furo"
html_title = f"QuaRL {release}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_show_sourcelink = False
html_copy_source = False
myst_enable_extensions = ["attrs_block"]
myst_heading_anchors = 4
myst_url_schemes = ["http", "https", "mailto"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {name: name for name in ("Array", "ArrayLike")}
default_role = "code"  # `name` in docstrings


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", list_parameters)
    app.connect("autodoc-process-signature", name_aliases)


def list_parameters(app: Any, what: str, name: str, documented: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring's paragraph of lines such as `episodes: at each precision` into the list of parameters."""
    names = {*inspect.signature(documented).parameters} if what in ("class", "function", "method") else set()
    listed = False
    for number, line in enumerate(lines):
        match = re.match(r"((?:\w+, )*\w+):(?= )", line)
        if match and names.issuperset(match[1].split(", ")):
            listed = True
            together = match[1].replace(" ", "\N{ZERO WIDTH SPACE}")  # the first word must not become a type
            line = f":param {together}{line[match.end(1) :]}"
        elif not line:
            listed = False
        elif listed:
            line = f"    {line}"
        lines[number] = line


def name_aliases(
    app: Any, what: str, name: str, documented: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Return both with the names of autodoc_type_aliases in place of their expansions between other types."""
    plain = [text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text) for text in (signature, returns)]
    return plain[0], plain[1]
