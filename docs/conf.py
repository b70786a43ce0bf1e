"""How the documentation is built: `make docs`, warnings are errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

import bgtplanner

project = "bgtplanner"
author = "The bgtplanner developers"
release = version = bgtplanner.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "myst-nb"}
exclude_patterns = ["writing"]
html_theme = "furo"
html_math_renderer = "mathml"  # browsers draw it themselves: pages need nothing from elsewhere
html_title = f"bgtplanner {release}"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nitpicky = False
nb_execution_mode = "auto"  # of the notebooks, which are stored without their output
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = -1  # none: how long a cell takes depends on the machine
nb_output_stderr = "remove"


def setup(app: Sphinx) -> None:
    """Say how docstrings and formulas become pages."""
    app.connect("autodoc-process-docstring", _escape, priority=900)  # after napoleon
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))


def _escape(*arguments: object) -> None:
    """A name that ends in an underscore would be a link in reStructuredText."""
    lines = arguments[-1]
    lines[:] = [line.replace("numpy.str_", r"numpy.str\_") for line in lines]


def _inline(page: HTML5Translator, node: nodes.math) -> None:
    page.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _display(page: HTML5Translator, node: nodes.math_block) -> None:
    formula = convert(node.astext(), display="block")
    page.body.append(f'<div class="math" style="overflow-x: auto">{formula}</div>')
    raise nodes.SkipNode
