"""Run in an environment that has the wheel and its base dependencies, and nothing else.

`make wheel` does so: what needs no simulator must work without one, and what needs it must say so.
"""

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import bgtplanner
import bgtplanner.planning
import bgtplanner.privacy
from bgtplanner import Ratings, errors, load_ratings


def main() -> None:
    for absent in ("jax", "optax", "matplotlib", "flwr"):
        if importlib.util.find_spec(absent) is not None:
            raise SystemExit(f"{absent} is installed: this environment is not bare")
    if "site-packages" not in bgtplanner.__file__:
        raise SystemExit(f"imported from {bgtplanner.__file__}, not from the wheel")
    package = Path(bgtplanner.__file__).parent
    for shipped in ("py.typed", "runs/presets/paper.toml", "report/templates/page.html.j2"):
        if not (package / shipped).is_file():
            raise SystemExit(f"the wheel has no {shipped}")

    if not isinstance(load_ratings("demo"), Ratings):
        raise SystemExit("load_ratings does not give Ratings")
    try:
        bgtplanner.simulate("demo")
    except errors.MissingExtraError as error:
        if "bgtplanner[sim]" not in str(error):
            raise SystemExit(f"unhelpful: {error}") from error
    else:
        raise SystemExit("simulate ran without JAX")

    command = Path(sys.executable).parent / "bgtplanner"
    readme = importlib.metadata.metadata("bgtplanner").get_payload()
    if relative := re.findall(r"\]\((?!https?://|#)[^)]*\)", readme):  # indexes have no such files
        raise SystemExit(f"the README that indexes show has links to {relative}")
    pages = (["docs"], 0), (["docs", "start"], 0), (["docs", "elsewhere"], 2)
    for arguments, code in ((["--version"], 0), (["data", "list"], 0), (["run"], 2), *pages):
        done = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != code or "Traceback" in done.stderr:
            raise SystemExit(f"bgtplanner {arguments}: {done.returncode}\n{done.stderr}")
    print(f"bgtplanner {bgtplanner.__version__} works with its base dependencies alone")


if __name__ == "__main__":
    main()
