"""What an expression of a training script comes to, as far as its syntax tree tells; nothing is executed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

Constant = int | float | str | bool | None
_MOST = 16
_DEEPEST = 12
_STEPS = 2_000
"""For one expression: names that refer to each other in many ways multiply."""
_ALL_STEPS = 300_000
"""For one script."""
_MOST_BITS, _LONGEST = 128, 200
_CASTS = {"int", "float", "str", "bool"}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True)
class Values:
    """The constants that an expression may have."""

    found: frozenset[Constant] = frozenset()
    complete: bool = False
    """Nothing else is possible, except what `flags` and `variables` say."""
    flags: frozenset[str] = frozenset()
    """Options of the command line that decide it; the value found is their default."""
    environment: bool = False
    """An environment variable decides it."""

    def __or__(self, other: Values) -> Values:
        return Values(
            self.found | other.found,
            self.complete and other.complete,
            self.flags | other.flags,
            self.environment or other.environment,
        )


UNKNOWN = Values()


def constant(value: Constant) -> Values:
    """One value; nothing is known of one that is no hyper-parameter for its size."""
    return Values(frozenset({value}), complete=True) if value is None or _is_small(value) else UNKNOWN


@dataclass
class Names:
    """Where names of one script get their values."""

    assigned: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    """None stands for something that cannot be known."""
    attributes: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    """Fields of classes, and attributes that are set."""
    options: dict[str, Values] = field(default_factory=dict)
    """Options of argparse by the name of their attribute."""
    _steps: int = 0
    _all_steps: int = 0

    def value(self, node: ast.expr | None, depth: int = 0) -> Values:
        """What an expression comes to."""
        self._steps = 0 if depth == 0 else self._steps + 1
        self._all_steps += 1
        if node is None or depth > _DEEPEST or self._steps > _STEPS or self._all_steps > _ALL_STEPS:
            return UNKNOWN
        handler = _HANDLERS.get(type(node))
        return UNKNOWN if handler is None else handler(self, node, depth + 1)

    def every(self, nodes: Iterable[ast.expr | None], depth: int) -> Values:
        whole: Values | None = None
        for node in nodes:
            values = self.value(node, depth)
            whole = values if whole is None else whole | values
            if len(whole.found) > _MOST:
                return UNKNOWN
        return whole or UNKNOWN

    # --- one method a kind of node

    def _constant(self, node: ast.Constant, _depth: int) -> Values:
        value = node.value
        return constant(value) if value is None or isinstance(value, int | float | str) else UNKNOWN

    def _name(self, node: ast.Name, depth: int) -> Values:
        return self.every(self.assigned.get(node.id, []), depth)

    def _attribute(self, node: ast.Attribute, depth: int) -> Values:
        option = self.options.get(node.attr)
        fields = self.attributes.get(node.attr, [])
        if option is None:
            return self.every(fields, depth)
        return option | self.every(fields, depth) if fields else option

    def _unary(self, node: ast.UnaryOp, depth: int) -> Values:
        if not isinstance(node.op, ast.USub):
            return UNKNOWN
        return self._mapped(self.value(node.operand, depth), operator.neg)

    def _binary(self, node: ast.BinOp, depth: int) -> Values:
        apply = _ARITHMETIC.get(type(node.op))
        if isinstance(node.op, ast.Pow):
            apply = _small_power
        left, right = self.value(node.left, depth), self.value(node.right, depth)
        if apply is None:
            return UNKNOWN
        results = [_applied(apply, pair) for pair in product(left.found, right.found)]
        if not results or None in results or len(results) > _MOST:
            return UNKNOWN
        together = left | right
        return Values(frozenset(results), together.complete, together.flags, together.environment)

    def _either(self, node: ast.BoolOp, depth: int) -> Values:
        """`os.environ.get("LR") or "1e-5"`."""
        values = [self.value(part, depth) for part in node.values]
        environment = any(part.environment for part in values[:-1])
        if isinstance(node.op, ast.Or) and environment:
            return Values(values[-1].found, values[-1].complete, environment=True)
        return UNKNOWN

    def _choice(self, node: ast.IfExp, depth: int) -> Values:
        both = self.every([node.body, node.orelse], depth)
        return both if both.complete else UNKNOWN

    def _item(self, node: ast.Subscript, depth: int) -> Values:
        if _is_environ(node.value):
            return Values(environment=True)
        key = self.value(node.slice, depth).found
        tables = self.assigned.get(node.value.id, []) if isinstance(node.value, ast.Name) else [node.value]
        entries: list[ast.expr | None] = []
        for table in tables:
            pairs = pairs_of(table)
            if pairs is None:
                return UNKNOWN
            entries += [value for name, value in pairs if name in key]
        return self.every(entries, depth)

    def _call(self, node: ast.Call, depth: int) -> Values:
        name = called(node)
        if name in ("getenv", "get") and _reads_environment(node):
            default = node.args[1] if len(node.args) > 1 else None
            default = default or next((k.value for k in node.keywords if k.arg == "default"), None)
            known = self.value(default, depth)
            return Values(known.found, known.complete or default is None, known.flags, environment=True)
        if name in _CASTS and len(node.args) == 1:
            cast: Callable[[Any], Any] = {"int": int, "float": float, "str": str, "bool": bool}[name]
            return self._mapped(self.value(node.args[0], depth), cast)
        if name == "field":
            return self.every([k.value for k in node.keywords if k.arg == "default"], depth)
        return UNKNOWN

    def _mapped(self, values: Values, apply: Callable[[Any], Any]) -> Values:
        results = [_applied(lambda value, _: apply(value), (value, None)) for value in values.found]
        if None in results:
            return UNKNOWN
        return Values(frozenset(results), values.complete, values.flags, values.environment)


_HANDLERS: dict[type[ast.expr], Callable[[Names, Any, int], Values]] = {
    ast.Constant: Names._constant,
    ast.Name: Names._name,
    ast.Attribute: Names._attribute,
    ast.UnaryOp: Names._unary,
    ast.BinOp: Names._binary,
    ast.BoolOp: Names._either,
    ast.IfExp: Names._choice,
    ast.Subscript: Names._item,
    ast.Call: Names._call,
}


def pairs_of(table: ast.expr | None) -> list[tuple[Constant, ast.expr]] | None:
    """Names and values of `{"lr": 1e-5}` or `dict(lr=1e-5)`; None for another expression."""
    if isinstance(table, ast.Dict):
        named = zip(map(_name_in, table.keys), table.values, strict=True)
        return [(name, value) for name, value in named if name is not None]
    if isinstance(table, ast.Call) and called(table) == "dict" and not table.args:
        return [(keyword.arg, keyword.value) for keyword in table.keywords if keyword.arg is not None]
    return None


def _name_in(key: ast.expr | None) -> Constant:
    """What an entry is called; None where that isn't plain."""
    value = key.value if isinstance(key, ast.Constant) else None
    return value if isinstance(value, str | int) else None


def called(node: ast.Call) -> str:
    """The last part of what is called: `AdamW` of `torch.optim.AdamW(…)`."""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_environ(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id == "environ"
    )


def _reads_environment(node: ast.Call) -> bool:
    return called(node) == "getenv" or (isinstance(node.func, ast.Attribute) and _is_environ(node.func.value))


def _applied(apply: Callable[[Any, Any], Any], pair: tuple[Any, Any]) -> Any:
    """The result, or None where there is none (a text times a number, a division by zero)."""
    if apply is operator.mul and any(isinstance(part, str) for part in pair):
        return None  # `"a" * 10**12` is no hyper-parameter, and no memory has room for it
    try:
        result = apply(*pair)
    except (TypeError, ValueError, ArithmeticError):
        return None
    return result if _is_small(result) else None


def _is_small(value: object) -> bool:
    """Whether it may be a hyper-parameter: a huge whole number cannot even be written out."""
    if isinstance(value, int):
        return value.bit_length() <= _MOST_BITS
    return isinstance(value, float) or (isinstance(value, str) and len(value) < _LONGEST)


def _small_power(base: Any, exponent: Any) -> Any:
    """Powers as people write them in scripts; a huge one is nobody's batch size."""
    if abs(exponent) > 64 or abs(base) > 1e6:
        raise ArithmeticError
    return base**exponent
