"""Small faults put into a module: one node of its syntax tree becomes another.

Left as they are: annotations, docstrings, texts of messages, assertions (they are for mypy),
decorators, and arguments that only check or point (`strict`, `stacklevel`).
"""

import ast
import copy
import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
PAIRS = (
    *(("min", "max"), ("minimum", "maximum"), ("argmin", "argmax"), ("amin", "amax")),
    *(("any", "all"), ("floor", "ceil"), ("zeros", "ones"), ("zeros_like", "ones_like")),
    *(("log", "log1p"), ("exp", "expm1"), ("sum", "mean")),
)
OTHER = dict(PAIRS) | {b: a for a, b in PAIRS if b not in ("log1p", "expm1")}
BUILT_IN = {"min", "max", "any", "all"}  # of OTHER, as plain names
TELL = {"warn", "info", "warning", "debug", "error", "note", "print"}  # their arguments are texts
TYPES = {"isinstance", "issubclass", "hasattr", "getattr", "cast", "TypeVar"}
UNTOUCHED = {"annotation", "returns", "decorator_list", "type_params", "msg", "type_comment"}
CHECKING = {"strict", "stacklevel"}
MARK = "__ran__"
Path = tuple[tuple[str, int | None], ...]  # from the module to a node: field, index in a list


class Mutation(NamedTuple):
    """A fault: what the statement was, and what it becomes."""

    module: str  # e.g. "training/schedules"
    function: str  # e.g. "Eager.restart"; "" for the module itself
    kind: str
    before: str
    after: str
    line: int
    statement: int  # the line of the statement
    inside: bool  # of a function's body, so that tests can be told by whether they run it
    path: Path
    choice: int

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names it in the list of equivalent ones, whatever its line."""
        return self.module, self.function, self.before, self.after


class _Place(NamedTuple):
    """A node, and where it stands."""

    node: ast.AST
    path: Path
    function: str
    inside: bool
    statement: Path


def mutations(source: str, module: str) -> list[Mutation]:
    """All faults that this module can have, those that come out as the same text left out.

    >>> [(m.before, m.after) for m in mutations("def f(a):\\n    return a < 3", "m")][:2]
    [('return a < 3', 'return a <= 3'), ('return a < 3', 'return a >= 3')]
    """
    tree = ast.parse(source)
    found = []
    seen = set()  # `if not a` negated is `if a` without its `not`
    for place in list(_places(tree, (), "", False, ())):
        node = place.node
        changes = list(_changes(node, place.path, tree))
        before = _header(_at(tree, place.statement)) if changes else ""
        for choice, (kind, new) in enumerate(changes):
            _put(tree, place.path, new)
            after = _header(_at(tree, place.statement))
            _put(tree, place.path, node)
            if after == before or (place.statement, after) in seen:
                continue
            seen.add((place.statement, after))
            found.append(
                Mutation(
                    module=module,
                    function=place.function,
                    kind=kind,
                    before=before,
                    after=after,
                    line=_line(node),
                    statement=_at(tree, place.statement).lineno,
                    inside=place.inside,
                    path=place.path,
                    choice=choice,
                )
            )
    return found


def mutated(source: str, path: Path, choice: int) -> ast.Module:
    """The tree of `source` with the fault of that place."""
    tree = ast.parse(source)
    old = _at(tree, path)
    new = list(_changes(old, path, tree))[choice][1]
    _put(tree, path, ast.copy_location(new, old))
    return ast.fix_missing_locations(tree)


class _Marks(ast.NodeTransformer):
    """Before each statement inside a function a call with its line."""

    def __init__(self) -> None:
        self._inside = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        before, self._inside = self._inside, True
        node.body = self._block(node.body)
        self._inside = before
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                setattr(node, field, self._block(block))
        return node

    def _block(self, block: list[Any]) -> list[Any]:
        new = []
        for child in block:
            text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if self._inside and isinstance(child, ast.stmt) and not text:
                call = ast.Call(ast.Name(MARK, ast.Load()), [ast.Constant(child.lineno)], [])
                new.append(ast.copy_location(ast.Expr(call), child))
            new.append(self.visit(child))
        return new


def marked(source: str) -> ast.Module:
    """The tree of `source` that calls MARK with the line of each statement that it runs.

    >>> print(ast.unparse(marked("def f(a):\\n    return a")))
    def f(a):
        __ran__(2)
        return a
    """
    tree: ast.Module = _Marks().visit(ast.parse(source))
    return ast.fix_missing_locations(tree)


def drawn(found: list[Mutation], count: int, seed: int) -> list[Mutation]:
    """`count` of them, one a place at most. Each is taken or not by a hash of its own text, so that
    a change elsewhere in the module leaves the draw nearly as it was."""
    places: dict[Path, list[Mutation]] = {}
    for one in found:
        places.setdefault(one.path, []).append(one)
    seen: dict[tuple[str, ...], int] = {}
    ranked = []
    for several in places.values():
        number = seen[several[0].key] = seen.get(several[0].key, 0) + 1
        rank = _number(seed, number, *several[0].key)
        ranked.append((rank, several[rank % len(several)]))
    return [one for _, one in sorted(ranked, key=lambda pair: pair[0])[:count]]


def quotas(lines: dict[str, int], most: dict[str, int], count: int) -> dict[str, int]:
    """`count` shared out by lines, the largest remainders rounded up, and no share above `most`.

    >>> quotas({"a": 100, "b": 50, "c": 1}, {"a": 99, "b": 99, "c": 99}, 10)
    {'a': 7, 'b': 3, 'c': 0}
    >>> quotas({"a": 100, "b": 50, "c": 1}, {"a": 99, "b": 2, "c": 99}, 10)
    {'a': 7, 'b': 2, 'c': 1}
    """
    exact = {name: count * n / sum(lines.values()) for name, n in lines.items()}
    shares = {name: min(int(n), most[name]) for name, n in exact.items()}
    while (left := min(count, sum(most.values())) - sum(shares.values())) > 0:
        behind = [name for name in lines if shares[name] < most[name]]
        for name in sorted(behind, key=lambda name: shares[name] - exact[name])[:left]:
            shares[name] += 1
    return shares


def _number(*parts: object) -> int:
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


def _places(
    node: ast.AST, path: Path, function: str, inside: bool, statement: Path
) -> Iterator[_Place]:
    """Every node that may be changed, from the top."""
    if path and isinstance(node, ast.stmt):
        statement = path
    if path:
        yield _Place(node, path, function, inside, statement)
    if isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.Call) and _called(node) in TELL:
        return
    within = function
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        within = f"{function}.{node.name}".lstrip(".")
    for field, value in ast.iter_fields(node):
        if field in UNTOUCHED or (field == "keywords" and isinstance(node, ast.ClassDef)):
            continue
        body = field == "body" and isinstance(node, ast.FunctionDef)
        children = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, child in children:
            if isinstance(child, ast.keyword) and child.arg in CHECKING:
                continue
            if isinstance(child, ast.AST):
                step = (*path, (field, index))
                yield from _places(child, step, within, inside or body, statement)


def _changes(node: ast.AST, path: Path, tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """What can become of this node, each with the kind of the fault. The node stays as it is."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            for other in COMPARED[type(op)]:
                ops = [other() if k == i else o for k, o in enumerate(node.ops)]
                yield "comparison", _with(node, ops=ops)
    elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED and _is_number(node, path, tree):
        yield "arithmetic", _with(node, op=COMPUTED[type(node.op)]())
    elif isinstance(node, ast.AugAssign):
        if type(node.op) in COMPUTED:
            yield "arithmetic", _with(node, op=COMPUTED[type(node.op)]())
        yield "dropped", ast.Pass()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not | ast.Invert):
        yield "sign" if isinstance(node.op, ast.USub) else "negation", node.operand
    elif isinstance(node, ast.BoolOp):
        yield "boolean", _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.Constant):
        yield from (("constant", ast.Constant(value)) for value in _near(node.value))
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            yield "condition", _with(node, test=_negated(node.test))
    elif isinstance(node, ast.comprehension):
        for i in range(len(node.ifs)):
            ifs = [_negated(e) if k == i else e for k, e in enumerate(node.ifs)]
            yield "condition", _with(node, ifs=ifs)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif _droppable(node, path, tree):
        yield "dropped", ast.Pass()


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    name = _called(node)
    if name in OTHER:
        if isinstance(node.func, ast.Attribute):
            yield "function", _with(node, func=_with(node.func, attr=OTHER[name]))
        elif name in BUILT_IN:
            yield "function", _with(node, func=ast.Name(OTHER[name], ast.Load()))
    if len(node.args) >= 2 and name not in TYPES | BUILT_IN | {"minimum", "maximum"}:
        a, b, *rest = node.args
        simple = all(isinstance(e, ast.Name | ast.Attribute | ast.Constant) for e in (a, b))
        if simple and ast.unparse(a) != ast.unparse(b):
            yield "arguments", _with(node, args=[b, a, *rest])


def _near(value: object) -> list[object]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1] if value else [1]
    if isinstance(value, float):
        return [2 * value, value + 1] if value else [1.0]
    return []


def _droppable(node: ast.AST, path: Path, tree: ast.Module) -> bool:
    """A statement without which the rest still runs: calls, raises, early ends, things put into
    others. To leave out a plain name would only be a NameError."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Raise | ast.Continue | ast.Break | ast.Delete):
        return True
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    # a return that ends a function leaves its value out only; those before it say when to stop
    return isinstance(node, ast.Return) and not isinstance(_at(tree, path[:-1]), ast.FunctionDef)


def _is_number(node: ast.BinOp, path: Path, tree: ast.Module) -> bool:
    """Whether the operator computes: not a text put together, nor a union of types."""
    if isinstance(node.op, ast.BitOr | ast.BitAnd):
        above = [_at(tree, path[:k]) for k in range(len(path))]
        inside = any(isinstance(n, ast.FunctionDef | ast.Lambda) for n in above)
        typing = any(isinstance(n, ast.Call) and _called(n) in TYPES for n in above)
        return inside and not typing
    texts = (ast.JoinedStr, ast.List, ast.Tuple)
    sides = (node.left, node.right)
    return not any(
        isinstance(e, texts) or (isinstance(e, ast.Constant) and isinstance(e.value, str))
        for e in sides
    )


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


def _with(node: Any, **fields: object) -> Any:
    """A copy of the node with other fields."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _called(node: ast.Call) -> str:
    func = node.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def _at(tree: ast.AST, path: Path) -> Any:
    node: Any = tree
    for field, index in path:
        value = getattr(node, field)
        node = value if index is None else value[index]
    return node


def _put(tree: ast.Module, path: Path, node: ast.AST) -> None:
    parent, (field, index) = _at(tree, path[:-1]), path[-1]
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _header(node: ast.stmt) -> str:
    """A statement in one line; of an `if`, a loop or a function what stands before its body."""
    if hasattr(node, "body"):
        node = copy.copy(node)
        node.body = [ast.Pass()]
        for field in ("orelse", "finalbody", "handlers", "decorator_list"):
            if hasattr(node, field):
                setattr(node, field, [])
        if isinstance(node, ast.Try):
            return "try"
        return " ".join(ast.unparse(node).removesuffix("pass").split()).removesuffix(":")
    return " ".join(ast.unparse(node).split())


def _line(node: Any) -> int:
    return int(node.target.lineno if isinstance(node, ast.comprehension) else node.lineno)
