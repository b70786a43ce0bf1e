"""Found by every Python that a test starts: the fault, or the tracing, is there as well."""

import importlib.util
from pathlib import Path

_path = Path(__file__).resolve().parents[1] / "hook.py"
_spec = importlib.util.spec_from_file_location("bgtplanner_mutation_hook", _path)
if _spec is not None and _spec.loader is not None:
    _hook = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_hook)
    _hook.from_environment()
