"""The page as a folder of static files, for any web server."""

from __future__ import annotations

from pathlib import Path

from bgtplanner.durable import replace_file
from bgtplanner.errors import RunFolderError, StorageError

PAGE = Path(__file__).parent / "page"
"""Where the files of the page are."""

MODEL = "public.model"
"""What the page calls the model file, which lies beside them."""


def write_page(model: bytes, folder: Path) -> None:
    """Write the page and a model file; an earlier page is replaced, somebody else's is not."""
    if (folder / "index.html").exists() and not (folder / MODEL).exists():
        raise RunFolderError(f"--page {folder}: has another index.html; name another folder")
    contents = {of.name: of.read_bytes() for of in PAGE.iterdir()} | {MODEL: model}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            replace_file(folder / name, content)
    except OSError as error:
        raise StorageError.of(f"--page {folder}", error, "choose another with --page") from error
