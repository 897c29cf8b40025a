"""The documentation site: `make docs`. Every warning is an error."""

from __future__ import annotations

from quarl import __version__

project = "QuaRL"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "results/_pages", "dev/patches"]
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
nitpicky = False
