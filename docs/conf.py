# SPDX-License-Identifier: Apache-2.0
"""How Sphinx makes the site from the pages of the repository: `make docs`.

The sources begin at the root of the repository, so that a link from page to page, to a notebook or
to a file is the same on GitHub and on the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from rcg.version import __version__

project = "rcg"
version = release = __version__

root_doc = "docs/index"
include_patterns = ["docs/**", "notebooks/*.ipynb", "*.md"]
exclude_patterns = [".*", "README.md", "build", "docs/pictures", "rcg", "tests", "widgets"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# Notebooks show what is stored in them: a picture where a widget would need a kernel.
nb_execution_mode = "off"
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]
suppress_warnings = ["mystnb.unknown_mime_type"]  # plotly's JSON: its picture is shown
nb_render_error_lexer = "none"  # rcg's tracebacks are not in IPython's form
myst_heading_anchors = 4
highlight_language = "none"
pygments_dark_style = "github-dark"

autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Traits", "params_style")]

html_theme = "furo"
html_title = f"rcg {__version__}"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "site/scorer.js")
html_extra_path = ["site/index.html"]
html_copy_source = False
html_show_copyright = html_show_sphinx = False

_PICTURE: Final = re.compile(r"!\[([^]]*)\]\((\S+)-light\.svg\)")
myst_enable_extensions = ["attrs_inline"]


def both_looks(_app: object, _page: str, source: list[str]) -> None:
    """Show the picture of the reader's choice, light or dark; GitHub shows the light one."""
    source[0] = _PICTURE.sub(
        lambda found: (
            f"![{found[1]}]({found[2]}-light.svg){{.only-light}}"
            f"![{found[1]}]({found[2]}-dark.svg){{.only-dark}}"
        ),
        source[0],
    )


def setup(app: Any) -> dict[str, bool]:
    """Register what changes pages."""
    app.connect("source-read", both_looks)
    return {"parallel_read_safe": True}
