"""Puts a fault into a module when it is imported, and notes which lines are reached.

Both are asked for by environment variables, so that processes which a test starts take part as
well (``site/sitecustomize.py`` calls :func:`from_environment` in each of them). The files on the
disk are never edited. Standard library only, and nothing of this package: it is loaded first.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

MUTANT = "BGTPLANNER_MUTANT"
TRACE = "BGTPLANNER_TRACE"

context = "import"
"""Whose lines they are: a test, a fixture, or ``import``."""

_tracer: Any = None


class Loader(importlib.machinery.SourceFileLoader):
    """Compiles the source with the fault in it; nothing of it is cached."""

    fault: dict[str, Any]
    finder: Finder

    def get_code(self, _: str) -> CodeType:
        self.finder.used = True
        source = Path(self.path).read_bytes()
        text = self.fault["text"].encode()
        source = source[: self.fault["start"]] + text + source[self.fault["end"] :]
        return compile(source, self.path, "exec", dont_inherit=True)


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, fault: dict[str, Any]) -> None:
        self.fault = fault
        self.used = False  # whether the module was imported, with the fault in it

    def find_spec(
        self, name: str, _path: object = None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.fault["module"]:
            return None
        loader = Loader(name, self.fault["path"])
        loader.fault, loader.finder = self.fault, self
        return importlib.util.spec_from_file_location(name, self.fault["path"], loader=loader)


def install(fault: dict[str, Any]) -> Finder:
    """From now on the module has the fault when it is imported."""
    finder = Finder(fault)
    sys.meta_path.insert(0, finder)
    return finder


def trace(out: str, files: list[str]) -> None:
    """Append ``context <tab> file <tab> line`` to a file when a line is first reached in it."""
    descriptor = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    watched = set(files)
    write = os.write  # which a test may put another in place of
    seen: set[tuple[str, str, int]] = set()

    def note(code: CodeType, line: int) -> None:
        # The body of a module or of a class runs once, for all that follows.
        whose = context if code.co_flags & inspect.CO_OPTIMIZED else "import"
        reached = (whose, code.co_filename, line)
        if reached not in seen:
            seen.add(reached)
            with contextlib.suppress(OSError):  # a test may forbid that files grow
                write(descriptor, f"{whose}\t{code.co_filename}\t{line}\n".encode())

    def each_line(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            note(frame.f_code, frame.f_lineno)
        return each_line

    def each_call(frame: FrameType, _event: str, _: object) -> Any:
        if frame.f_code.co_filename not in watched:
            return None
        note(frame.f_code, frame.f_code.co_firstlineno)
        return each_line

    global _tracer
    _tracer = each_call
    threading.settrace(each_call)
    sys.settrace(each_call)


def trace_on() -> None:
    """Go on noting: Python stops where a test leaves no room for one more call on the stack."""
    sys.settrace(_tracer)


def from_environment() -> None:
    """What a process that a test has started does first."""
    global context
    if MUTANT in os.environ:
        install(json.loads(os.environ[MUTANT]))
    if TRACE in os.environ:
        context = os.environ.get("BGTPLANNER_CONTEXT", "import")
        asked = json.loads(os.environ[TRACE])
        trace(asked["out"], asked["files"])
