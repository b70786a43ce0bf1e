"""Look for bytes that break a reader: ``python -m fuzz TARGET [SECONDS]``, needs atheris.

What is found goes to ``build/fuzz/TARGET``; bytes that broke something belong into the corpus,
once it is mended.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["bgtplanner"]):
    from fuzz.targets import TARGETS


def main() -> None:
    name = sys.argv[1]
    seconds = sys.argv[2] if len(sys.argv) > 2 else "60"
    home = Path(__file__).resolve().parent
    found = home.parents[1] / "build" / "fuzz" / name
    found.mkdir(parents=True, exist_ok=True)
    folders = [str(found), str(home / "corpus" / name)]
    limits = [f"-max_total_time={seconds}", f"-artifact_prefix={found}/", "-max_len=4096"]
    atheris.Setup([sys.argv[0], *limits, *folders], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
