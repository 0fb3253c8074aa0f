"""How the pages of this folder become a site: ``make docs``."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
from notebooks import with_link, write_notebooks  # noqa: E402
from site_pages import filled  # noqa: E402

from fxquant.commandline import VERSION  # noqa: E402

logging.getLogger("fxquant").setLevel(logging.WARNING)  # Sphinx listens to all, and would print each pass

project = "fxquant"
author = "fxquant developers"
copyright = "2026, fxquant contributors"
version = release = VERSION

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "index"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Source", "notes_style")]

html_theme = "furo"
html_title = f"fxquant {VERSION}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False


def setup(app: Sphinx) -> None:
    """Fill pages as they are read, and write tutorials as notebooks beside them."""

    def fill(app: Sphinx, page: str, source: list[str]) -> None:
        path = Path(app.env.doc2path(page))
        source[0] = with_link(filled(source[0], path), path)

    def write(app: Sphinx, error: Exception | None) -> None:
        if error is None:
            write_notebooks(Path(app.srcdir), Path(app.outdir))

    app.connect("source-read", fill)
    app.connect("build-finished", write)
