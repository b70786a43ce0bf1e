"""How the documentation is built: `make docs`, warnings are errors."""

import bgtplanner

project = "bgtplanner"
author = "The bgtplanner developers"
release = version = bgtplanner.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = f"bgtplanner {release}"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
myst_heading_anchors = 3
nitpicky = False
