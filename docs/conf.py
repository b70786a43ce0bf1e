"""How the documentation is built: `make docs`, warnings are errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from writing.reference import commands_page, settings_page

import bgtplanner

project = "bgtplanner"
author = "The bgtplanner developers"
release = version = bgtplanner.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
source_suffix = {".md": "myst-nb"}
exclude_patterns = ["writing"]
html_theme = "furo"
html_title = f"bgtplanner {release}"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nitpicky = False
nb_execution_mode = "auto"  # of the notebooks, which are stored without their output
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_output_stderr = "remove"

GENERATED = {"reference/commands": commands_page, "reference/settings": settings_page}


def setup(app: object) -> None:
    """Pages that are made from the code, so that they cannot say anything else than it does."""

    def read(_: object, name: str, source: list[str]) -> None:
        if name in GENERATED:
            source[0] += "\n" + GENERATED[name]()

    app.connect("source-read", read)  # type: ignore[attr-defined]
