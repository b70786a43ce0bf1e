"""Who uses a model: the page that computes lists in the browser, and an endpoint for services."""

from pathlib import Path

PAGE = Path(__file__).parent / "page"
"""Where the files of the page are."""

MODEL = "public.model"
"""What the page calls the model file, which lies beside them."""
