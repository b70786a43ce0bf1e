"""Who uses a model: the page that computes lists in the browser, and an endpoint for services."""

from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "page"
"""Where the files of the page are."""

MODEL = "public.model"
"""What the page calls the model file, which lies beside them."""


def facts_of(model: Any) -> dict[str, Any]:
    """Return what a model is, what it promises, and what its lists are worth."""
    return {
        "model": model.ranker, "items": len(model.items), "features": model.names,
        "scale": None if model.implicit else [model.low, model.high],
        "verdict": model.verdict()._asdict(), "guarantee": model.guarantee,
        "training": model.training,
    }  # fmt: skip
