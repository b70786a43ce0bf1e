"""Paste what commands print into the pages that show it: `make docs-output`.

The pages of the reference that are made from the code are written as well, and README's table from
stored figures; `--reference` writes only these, which takes seconds.

All commands of a page are run in order in one folder with a reader's own tables, at 80 columns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from writing import headline
from writing.blocks import DOCS, Block, Command, blocks_of, commands_of, pages, write_tables
from writing.reference import PAGES, written

__all__ = ["SOMETIMES", "main", "shown_outputs"]

SOMETIMES = "compiling: "
"""How a line begins that is only printed where no programs are kept from an earlier run."""

_ENVIRONMENT = {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb", "TF_CPP_MIN_LOG_LEVEL": "3"}


def shown_outputs(text: str) -> Iterator[tuple[Command, Block | None]]:
    """Every command of a page that is run, with the block that shows what it prints, if any."""
    last: Command | None = None
    for block in blocks_of(text):
        if block.mark == "output":
            if last is None:
                raise SystemExit(f"line {block.line}: an output without a command before it")
            yield last, block
            last = None
        elif block.language == "console" and block.reason is None:
            if last is not None:
                yield last, None
            *others, last = commands_of(block.text)
            yield from ((command, None) for command in others)
    if last is not None:
        yield last, None


def _printed(command: Command, folder: str) -> str:
    words = [str(Path(sys.executable).parent / command.words[0]), *command.words[1:]]
    if "--open" in words:
        words.remove("--open")
    done = subprocess.run(
        words, cwd=folder, env=os.environ | _ENVIRONMENT, capture_output=True, text=True
    )
    if done.returncode != command.exit_code:
        raise SystemExit(f"{' '.join(command.words)}: exit code {done.returncode}\n{done.stderr}")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    return "".join(f"{line}\n" for line in lines if not line.startswith(SOMETIMES))


def main() -> None:
    """Run, paste, say which page changed."""
    headline.write()
    for name in PAGES:
        page = DOCS / name
        text = page.read_text(encoding="utf-8")
        page.write_text(written(name, text), encoding="utf-8")
        print(f"{page}: made from the code")
    for page in [] if "--reference" in sys.argv[1:] else pages():
        text = page.read_text(encoding="utf-8")
        found = list(shown_outputs(text))
        if all(block is None for _, block in found):
            continue
        with tempfile.TemporaryDirectory() as folder:
            write_tables(Path(folder))
            printed = [_printed(command, folder) for command, _ in found]
        for (_, block), output in reversed(list(zip(found, printed, strict=True))):
            if block is not None:
                text = text[: block.span[0]] + output + text[block.span[1] :]
        page.write_text(text, encoding="utf-8")
        print(f"{page}: {sum(block is not None for _, block in found)} outputs")


if __name__ == "__main__":
    main()
