"""How long `bgtplanner run` on the demo takes, the first time on a machine and the second.

    git worktree add /tmp/old 29ffb3e
    python -m benchmarks.speed.first --against /tmp/old/src --times 3

Both versions run in turn, on the same machine and in the same minutes: wall seconds, the best of
several. The first time means an empty cache folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[2] / "src"
COMMAND = """
import sys
sys.argv[0] = "bgtplanner"
try:
    from bgtplanner.__main__ import main
except ImportError:  # an early version
    from bgtplanner.cli import main
main()
"""


def seconds(source: Path, cache: Path) -> float:
    """Wall seconds of one run, imports and page included."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    usual.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    environment = usual | {"PYTHONPATH": str(source), "XDG_CACHE_HOME": str(cache)}
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", COMMAND, "run", "--out", f"{folder}/run"],
            env=environment, stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, required=True, help="src of another version")
    parser.add_argument("--times", type=int, default=3)
    chosen = parser.parse_args()
    found: dict[str, list[float]] = {"before": [], "first time": [], "second time": []}
    for _ in range(chosen.times):
        with tempfile.TemporaryDirectory() as cache:
            found["before"].append(seconds(chosen.against, Path(cache)))
            found["first time"].append(seconds(HERE, Path(cache)))
            found["second time"].append(seconds(HERE, Path(cache)))
    before = min(found["before"])
    for name, values in found.items():
        print(f"{name:12} {min(values):6.2f} s  {min(values) / before:5.2f}")


if __name__ == "__main__":
    main()
