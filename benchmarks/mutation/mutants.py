"""Every small fault that is tried on a source file, as an edit of its text.

An edit replaces the bytes from `start` to `end`. What is not logic is left alone: docstrings,
annotations, ``__all__``, the texts of errors, log lines, imports and ``if TYPE_CHECKING`` blocks.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

__all__ = ["Mutant", "mutants_of"]

_COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
}
_NAMES = {
    "min": "max",
    "minimum": "maximum",
    "argmin": "argmax",
    "floor": "ceil",
    "any": "all",
    "logical_and": "logical_or",
}
_SWAPPED = _NAMES | {after: before for before, after in _NAMES.items()}
_LOGGERS = {"log", "_log", "logger", "_logger", "logging"}
_DECORATED = {"frozen", "eq", "order"}  # of a dataclass, these change what it does
_TYPES = {"isinstance", "issubclass", "cast", "TypeVar", "NewType"}


@dataclass(frozen=True)
class Mutant:
    """One small fault.

    Attributes:
        file: The source file, from the root of the repository.
        function: Where in it, by its dotted name; empty at the top of the module.
        operator: What kind of fault.
        start: First byte that is replaced.
        end: The byte after the last one.
        text: What is put there.
        line: The line of the fault, counted from 1.
        lines: First and last line of the statement: a test that reaches one reaches the fault.
        before: The changed lines as they were, without what stands around them.
        after: The changed lines as they are then.
        number: Tells apart faults of which all of this is the same.
    """

    file: str
    function: str
    operator: str
    start: int
    end: int
    text: str
    line: int
    lines: tuple[int, int]
    before: str = ""
    after: str = ""
    number: int = 0

    @property
    def key(self) -> str:
        """By which it is known again when lines above it have come or gone."""
        about = (self.file, self.function, self.operator, self.before, self.after)
        return " | ".join((*about, str(self.number)))

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    """All faults of a file, in the order of its text."""
    found = sorted(_Finder(file, source).found(), key=lambda mutant: (mutant.start, mutant.end))
    seen: Counter[str] = Counter()
    result = []
    for mutant in found:
        before, after = _changed_lines(mutant, source)
        mutant = replace(mutant, before=before, after=after)
        seen[mutant.key] += 1
        result.append(replace(mutant, number=seen[mutant.key] - 1))
    return result


def _changed_lines(mutant: Mutant, source: bytes) -> tuple[str, str]:
    """The lines around the edit as they were and as they are then, blanks made one."""
    first = source.rfind(b"\n", 0, mutant.start) + 1
    last = source.find(b"\n", mutant.end)
    last = len(source) if last < 0 else last
    before = source[first:last].decode()
    after = (
        source[first : mutant.start] + mutant.text.encode() + source[mutant.end : last]
    ).decode()
    return " ".join(before.split()), " ".join(after.split())


class _Finder:
    def __init__(self, file: str, source: bytes) -> None:
        self.file = file
        self.source = source
        self.tree = ast.parse(source)
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.names: list[str] = []
        self.lines = (1, 1)
        self.returns: list[ast.expr | None] = []

    def found(self) -> Iterator[Mutant]:
        yield from self.body(self.tree.body)

    # Where a node stands, and an edit of it.

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr) -> str:
        return self.source[self.start(node) : self.end(node)].decode()

    def edit(self, operator: str, start: int, end: int, text: str) -> Mutant:
        line = self.source.count(b"\n", 0, start) + 1
        function = ".".join(self.names)
        return Mutant(self.file, function, operator, start, end, text, line, self.lines)

    def instead(self, operator: str, node: ast.expr | ast.stmt, text: str) -> Mutant:
        return self.edit(operator, self.start(node), self.end(node), text)

    def between(
        self, operator: str, left: ast.expr, right: ast.expr, pattern: str, text: str
    ) -> Mutant:
        """An edit of the operator that stands between two expressions."""
        start, end = self.end(left), self.start(right)
        gap = re.sub(rb"#[^\n]*", lambda match: b" " * len(match[0]), self.source[start:end])
        match = re.search(pattern.encode(), gap)
        if match is None:
            raise ValueError(f"{self.file}:{left.lineno}: no {pattern} in {gap!r}")
        return self.edit(operator, start + match.start(), start + match.end(), text)

    # Statements.

    def body(self, statements: list[ast.stmt]) -> Iterator[Mutant]:
        for statement in statements:
            yield from self.statement(statement)

    def statement(self, node: ast.stmt) -> Iterator[Mutant]:
        inner = getattr(node, "body", None)
        last = inner[0].lineno - 1 if inner else node.end_lineno or node.lineno
        self.lines = (node.lineno, max(last, node.lineno))
        here = self.lines
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Global() | ast.Nonlocal():
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from self.function(node)
                return
            case ast.ClassDef():
                for decorator in node.decorator_list:
                    yield from self.decorator(decorator)
                self.names.append(node.name)
                yield from self.body(node.body)
                self.names.pop()
                return
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return
            case ast.If() | ast.While():
                yield from self.condition(node.test)
            case ast.For() | ast.AsyncFor():
                yield from self.expression(node.iter)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    yield from self.expression(item.context_expr)
            case ast.Try():
                for handler in node.handlers:
                    if handler.type is not None:
                        self.lines = (handler.lineno, handler.body[0].lineno - 1)
                        yield from self.caught(handler.type)
            case ast.Return(value=ast.expr() as value):
                yield from self.returned(value)
            case ast.Expr(value=ast.Call() as call):
                if not _is_log(call):
                    yield self.instead("delete call", node, "pass")
                    yield from self.expression(call)
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Expr():
                yield from self.expression(node.value)
            case ast.Raise():
                yield self.instead("delete raise", node, "pass")
                if isinstance(node.exc, ast.Call):
                    for keyword in node.exc.keywords:
                        yield from self.expression(keyword.value)
            case ast.AugAssign():
                yield self.instead("delete assignment", node, "pass")
                yield from self.augmented(node)
                yield from self.expression(node.value)
            case ast.Assign():
                if _is_named(node.targets[0], "__all__"):
                    return
                outside = self.names[-1:] != ["__init__"]
                if outside and any(_is_stored(target) for target in node.targets):
                    yield self.instead("delete assignment", node, "pass")
                for target in node.targets:
                    yield from self.target(target)
                yield from self.expression(node.value)
            case ast.AnnAssign(value=ast.expr() as value):
                yield from self.expression(value)
            case ast.Delete():
                if any(isinstance(target, ast.Subscript) for target in node.targets):
                    yield self.instead("delete del", node, "pass")
                    for target in node.targets:
                        yield from self.target(target)
            case ast.Break():
                yield self.instead("break to continue", node, "continue")
            case ast.Continue():
                yield self.instead("continue to break", node, "break")
            case ast.Match():
                for case in node.cases:
                    if case.guard is not None:
                        self.lines = (case.guard.lineno, case.guard.end_lineno or 0)
                        yield from self.condition(case.guard)
                    yield from self.body(case.body)
        for part in ("body", "orelse", "finalbody"):
            if not isinstance(node, ast.Match):
                yield from self.body(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from self.body(handler.body)
        self.lines = here

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Mutant]:
        self.names.append(node.name)
        for decorator in node.decorator_list:
            yield from self.decorator(decorator)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                yield from self.expression(default, logic=True)
        self.returns.append(node.returns)
        yield from self.body(node.body)
        self.returns.pop()
        self.names.pop()

    def decorator(self, node: ast.expr) -> Iterator[Mutant]:
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in _DECORATED:
                    yield from self.expression(keyword.value)

    def caught(self, node: ast.expr) -> Iterator[Mutant]:
        """An ``except`` that catches less: one kind of several, or nothing."""
        if not isinstance(node, ast.Tuple):
            yield self.instead("except", node, "()")
            return
        for index in range(len(node.elts)):
            rest = [self.text(other) for other in node.elts[:index] + node.elts[index + 1 :]]
            yield self.instead("except", node, f"({', '.join(rest)},)")

    def returned(self, value: ast.expr) -> Iterator[Mutant]:
        constant = isinstance(value, ast.Constant)
        if not constant and not _is_named(value, "self"):
            if _is_named(self.returns[-1], "bool"):
                if not isinstance(value, ast.Compare | ast.UnaryOp):
                    yield self.instead("return", value, f"not ({self.text(value)})")
            else:
                yield self.instead("return", value, "None")
        yield from self.expression(value, logic=True)

    def augmented(self, node: ast.AugAssign) -> Iterator[Mutant]:
        before, after = _ARITHMETIC.get(type(node.op), ("", ""))
        if before and isinstance(node.target, ast.expr):
            pattern = re.escape(before + "=")
            yield self.between("arithmetic", node.target, node.value, pattern, after + "=")

    def target(self, node: ast.expr) -> Iterator[Mutant]:
        if isinstance(node, ast.Subscript):
            yield from self.expression(node)
        for part in getattr(node, "elts", []):
            yield from self.target(part)

    # Expressions.

    def condition(self, node: ast.expr) -> Iterator[Mutant]:
        """A test: turned round where none of its parts can be."""
        if not isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp):
            yield self.instead("condition", node, f"not ({self.text(node)})")
        yield from self.expression(node)

    def expression(self, node: ast.expr, *, logic: bool = False) -> Iterator[Mutant]:
        """All faults of an expression; `logic`: where a text or bytes decide something."""
        match node:
            case ast.JoinedStr() | ast.Name():
                return
            case ast.Constant():
                yield from self.constant(node, logic)
                return
            case ast.Compare():
                yield from self.compare(node)
                return
            case ast.BoolOp():
                yield self.connected(node)
            case ast.BinOp():
                yield from self.arithmetic(node)
            case ast.UnaryOp():
                yield self.instead("sign or not", node, f"({self.text(node.operand)})")
                if isinstance(node.operand, ast.Constant):
                    yield from self.constant(node.operand, logic)
                    return
            case ast.IfExp():
                yield from self.condition(node.test)
                yield from self.expression(node.body, logic=logic)
                yield from self.expression(node.orelse, logic=logic)
                return
            case ast.Call():
                yield from self.call(node)
                return
            case ast.Subscript():
                yield from self.subscript(node)
                return
            case ast.Lambda():
                yield from self.expression(node.body)
                return
            case ast.Dict():
                for key in node.keys:
                    if key is not None:
                        yield from self.expression(key, logic=True)
                for value in node.values:
                    yield from self.expression(value, logic=True)
                return
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                for generator in node.generators:
                    yield from self.expression(generator.iter, logic=True)
                    for test in generator.ifs:
                        yield from self.condition(test)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from self.expression(child, logic=logic and isinstance(node, ast.Tuple))

    def constant(self, node: ast.Constant, logic: bool) -> Iterator[Mutant]:
        value = node.value
        if isinstance(value, bool):
            yield self.instead("constant", node, str(not value))
        elif isinstance(value, int):
            yield self.instead("constant", node, str(value + 1))
        elif isinstance(value, float):
            yield self.instead("constant", node, repr(value * 2 if value else 1.0))
        elif isinstance(value, str | bytes) and logic:
            changed = "XX" + value if isinstance(value, str) else b"XX" + value
            yield self.instead("text", node, repr(changed))

    def compare(self, node: ast.Compare) -> Iterator[Mutant]:
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            before, after = _COMPARED[type(op)]
            yield self.between("comparison", left, right, before, after)
            left = right
        for part in (node.left, *node.comparators):
            yield from self.expression(part, logic=True)
            for element in getattr(part, "elts", []):
                if isinstance(element, ast.Constant) and not isinstance(part, ast.Tuple):
                    yield from self.constant(element, logic=True)

    def connected(self, node: ast.BoolOp) -> Mutant:
        before, after = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        text, at = "", self.start(node)
        for left, right in zip(node.values, node.values[1:], strict=False):
            edit = self.between("and or", left, right, rf"\b{before}\b", after)
            text += self.source[at : edit.start].decode() + after
            at = edit.end
        return self.instead("and or", node, f"({text}{self.source[at : self.end(node)].decode()})")

    def arithmetic(self, node: ast.BinOp) -> Iterator[Mutant]:
        before, after = _ARITHMETIC.get(type(node.op), ("", ""))
        joined = any(
            isinstance(part, ast.JoinedStr)
            or (isinstance(part, ast.Constant) and isinstance(part.value, str | bytes))
            for part in (node.left, node.right)
        )
        if before and not joined:
            edit = self.between("arithmetic", node.left, node.right, re.escape(before), after)
            left = self.source[self.start(node) : edit.start].decode()
            right = self.source[edit.end : self.end(node)].decode()
            if isinstance(node.op, ast.Pow | ast.BitAnd | ast.BitOr | ast.BitXor):
                yield self.instead("arithmetic", node, f"({left}{after}{right})")
            else:
                yield edit

    def call(self, node: ast.Call) -> Iterator[Mutant]:
        name = _called(node)
        if name in _TYPES:
            if name in ("isinstance", "cast"):
                yield from self.expression(node.args[0 if name == "isinstance" else 1])
            return
        if _is_log(node):
            return
        if name in _SWAPPED:
            end = self.end(node.func)
            yield self.edit("name", end - len(name), end, _SWAPPED[name])
        if isinstance(node.func, ast.Attribute):
            yield from self.expression(node.func.value)
        arguments = list(node.args)
        if name == "unless" or name.endswith(("Error", "Exceeded")):
            arguments = arguments[:1] if name == "unless" else []  # the rest is its message
        if name == "nextafter" and len(arguments) > 1:
            towards = arguments.pop()
            text = self.text(towards)
            other = f"-({text})" if "inf" in text else 'float("inf")'
            yield self.instead("nextafter", towards, other)
        for argument in arguments:
            yield from self.expression(argument, logic=name in ("get", "pop", "setdefault"))
        for keyword in node.keywords:
            # `strict` of zip only guards against what cannot be.
            if not (name == "zip" and keyword.arg == "strict"):
                yield from self.expression(keyword.value, logic=True)

    def subscript(self, node: ast.Subscript) -> Iterator[Mutant]:
        if _is_named(node.value, "Literal"):
            return
        yield from self.expression(node.value)
        slices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in slices:
            if not isinstance(part, ast.Slice):
                yield from self.expression(part, logic=True)
                continue
            for bound in (part.lower, part.upper, part.step):
                if bound is None:
                    continue
                if not isinstance(bound, ast.Constant | ast.UnaryOp):
                    yield self.instead("slice", bound, f"({self.text(bound)}) + 1")
                yield from self.expression(bound)


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _is_log(node: ast.Call) -> bool:
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id in _LOGGERS


def _is_named(node: ast.expr | None, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (
        isinstance(node, ast.Attribute) and node.attr == name
    )


def _is_stored(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute | ast.Subscript)
