"""Every small fault that is tried on a source file, as an edit of its text.

Docstrings, annotations, ``__all__``, imports and the texts of errors are left alone: a fault there
changes no behaviour that a test of numbers could notice.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Fault", "faults_of"]

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "/", ast.Mod: "*",
    ast.Pow: "*", ast.LShift: ">>", ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip
_NAMES = {"min": "max", "minimum": "maximum", "floor": "ceil", "any": "all", "argmin": "argmax"}
_SWAPPED = _NAMES | {after: before for before, after in _NAMES.items()}


class Fault(NamedTuple):
    """One small fault: the bytes from `start` to `end` of `file` become `text`."""

    file: str
    kind: str
    start: int
    end: int
    text: str
    line: int
    key: str = ""

    def applied(self, source: bytes) -> bytes:
        """Return the source with the fault in it."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def faults_of(file: str, source: bytes) -> list[Fault]:
    """Return the faults of a file in the order of its text; a key survives moves of the line."""
    seen: Counter[str] = Counter()
    found = []
    for fault in sorted(_Finder(file, source).all(), key=lambda fault: (fault.start, fault.end)):
        lines = source.decode().splitlines()
        about = f"{file} | {' '.join(lines[fault.line - 1].split())} | {fault.kind}"
        seen[about] += 1
        found.append(fault._replace(key=f"{about} | {seen[about]}"))
    return found


class _Finder:
    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def all(self) -> Iterator[Fault]:
        yield from self._within(ast.parse(self.source))

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        end_line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[end_line - 1] + end

    def _instead(self, kind: str, node: ast.expr | ast.stmt, text: str) -> Fault:
        start, end = self._span(node)
        return Fault(self.file, kind, start, end, text, node.lineno)

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self.source[start:end].decode()

    def _within(self, node: ast.AST) -> Iterator[Fault]:
        for part in _logic_of(node):
            if isinstance(part, ast.stmt):
                yield from self._statement(part)
            elif isinstance(part, ast.expr):
                yield from self._expression(part)
            yield from self._within(part)

    def _statement(self, node: ast.stmt) -> Iterator[Fault]:
        match node:
            case ast.Raise() | ast.AugAssign() | ast.Expr(value=ast.Call()):
                yield self._instead("delete", node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
                yield self._instead("delete", node, "pass")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield self._instead("return", value, "None")
            case ast.If(test=test) | ast.While(test=test):
                if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
                    yield self._instead("condition", test, f"not ({self._text(test)})")

    def _expression(self, node: ast.expr) -> Iterator[Fault]:
        match node:
            case ast.Constant(value=bool() as value):
                yield self._instead("constant", node, str(not value))
            case ast.Constant(value=int() as value):
                yield self._instead("constant", node, str(value + 1))
            case ast.Constant(value=float() as value):
                yield self._instead("constant", node, repr(value * 2 if value else 1.0))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                text = f"({self._text(left)}) {_OPERATORS[type(op)]} ({self._text(right)})"
                yield self._instead("comparison", node, f"({text})")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                if not _is_text(left) and not _is_text(right):
                    text = f"({self._text(left)}) {_OPERATORS[type(op)]} ({self._text(right)})"
                    yield self._instead("arithmetic", node, f"({text})")
            case ast.BoolOp(op=op, values=values):
                word = " or " if isinstance(op, ast.And) else " and "
                joined = word.join(f"({self._text(value)})" for value in values)
                yield self._instead("and or", node, f"({joined})")
            case ast.UnaryOp(operand=operand):
                yield self._instead("sign or not", node, f"({self._text(operand)})")
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _SWAPPED:
                _, end = self._span(node.func)
                text = _SWAPPED[name]
                yield Fault(self.file, "name", end - len(name), end, text, node.lineno)


def _is_text(node: ast.expr) -> bool:
    constant = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return constant or isinstance(node, ast.JoinedStr)


def _logic_of(node: ast.AST) -> Iterator[ast.AST]:
    """The children of a node in which a fault would change what the code does."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name.endswith("Error"):
            return  # the rest is its message
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from (*node.body, *(value for value in node.args.defaults))
            yield from (value for value in node.args.kw_defaults if value is not None)
        case ast.AnnAssign():
            yield from () if node.value is None else (node.value,)
        case _:
            yield from ast.iter_child_nodes(node)
