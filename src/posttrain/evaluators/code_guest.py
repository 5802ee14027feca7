"""The process in which one tested program runs, and the literals that may cross its border.

Standard library only; started as `python -I -S code_guest.py`, without network, files or company.
It never sees a test: it is told a program, then asked to call what the program defines. Whatever the
program does to this process (patched builtins, walked frames, early exits), all that leaves it are
answers to calls, read on the other side as plain literals and compared there.

host  → {"code", "setup"}                              guest → {"ready": true} or {"error"}
host  → {"token", "name" or "object", "args", "kwargs"}  guest → {"token", "value"} or {"token", "error"}
"""

from __future__ import annotations

import json
import os
import sys
import types
from typing import Any

_DEEPEST = 60
_LONGEST = 1_000_000
_SMALL = 1 << 53
_NAMED: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        list,
        tuple,
        set,
        frozenset,
        dict,
        object,
        len,
        sum,
        max,
        min,
    )
}
"""Types and functions that cross by name; tests hand some over."""


class NotLiteral(Exception):
    """A value that cannot cross the border."""


class Foreign:
    """An object that stays in the guest, as the host sees it: something to hand back in a later call.

    It equals nothing, not even itself, so no test can be passed by an object that claims equality.
    """

    def __init__(self, number: int, kind: str) -> None:
        self.number = number
        self.kind = kind

    def __eq__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"<{self.kind} object of the program>"


def encode(value: Any, objects: list[Any] | None = None, depth: int = 0) -> Any:  # noqa: PLR0911 (a table)
    """`value` as JSON with tags. With `objects`, what is no literal is kept there and named by its place."""
    if depth > _DEEPEST:
        raise NotLiteral("too deeply nested")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        whole = int.__index__(value)
        return whole if -_SMALL < whole < _SMALL else {"i": hex(whole)}
    if isinstance(value, float):
        return {"f": float.hex(value)}
    if isinstance(value, complex):
        return {"c": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, bytes | bytearray):
        return {"b": bytes(value).hex()}
    return _encode_container(value, objects, depth)


def _encode_container(value: Any, objects: list[Any] | None, depth: int) -> Any:  # noqa: PLR0911 (a table)
    for kind, tag in ((list, "l"), (tuple, "t"), (set, "s"), (frozenset, "z")):
        if isinstance(value, kind):
            return {tag: [encode(item, objects, depth + 1) for item in kind.__iter__(value)]}  # type: ignore[arg-type]
    if isinstance(value, dict):
        pairs = [[encode(k, objects, depth + 1), encode(v, objects, depth + 1)] for k, v in dict.items(value)]
        return {"d": pairs}
    if isinstance(value, range):
        return {"r": [value.start, value.stop, value.step]}
    if any(value is known for known in _NAMED.values()):
        return {"y": value.__name__}
    if isinstance(value, Foreign):
        return {"o": [value.number, value.kind]}
    if objects is None:
        raise NotLiteral(f"{type(value).__name__} is no literal")
    if isinstance(value, map | filter | zip | reversed | enumerate | types.GeneratorType):
        items = [encode(item, objects, depth + 1) for _, item in zip(range(_LONGEST), value, strict=False)]
        return {"n": items}
    objects.append(value)
    return {"o": [len(objects) - 1, type(value).__name__]}


def decode(data: Any, objects: list[Any] | None = None) -> Any:  # noqa: PLR0911 (a table)
    """The value of tagged JSON; ValueError for anything else. `objects`: those named by number."""
    if data is None or isinstance(data, bool | str | int):
        return data
    if not isinstance(data, dict) or len(data) != 1:
        raise ValueError("not a literal")
    (tag, content), *_ = data.items()
    if tag == "i":
        return int(content, 16)
    if tag == "f":
        return float.fromhex(content)
    if tag == "c":
        return complex(*map(float.fromhex, content))
    if tag == "b":
        return bytes.fromhex(content)
    if tag == "r":
        return range(*content)
    if tag == "y":
        return _NAMED[content]
    if tag == "o":
        number, kind = content
        return Foreign(int(number), str(kind)) if objects is None else objects[number]
    if tag == "d":
        return {decode(key, objects): decode(value, objects) for key, value in content}
    items = [decode(item, objects) for item in content]
    makers: dict[str, Any] = {"l": list, "t": tuple, "s": set, "z": frozenset, "n": iter}
    return makers[tag](items)


def main() -> None:
    """Serve one program; standard streams lead nowhere, the pipes are known to nobody by number."""
    sys.set_int_max_str_digits(0)
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)

    def send(reply: dict[str, Any]) -> None:
        replies.write(json.dumps(reply).encode("ascii") + b"\n")
        replies.flush()

    space: dict[str, Any] = {"__name__": "program"}
    objects: list[Any] = []
    first = json.loads(requests.readline())
    try:
        exec(compile(first["code"], "<program>", "exec"), space)  # noqa: S102 (this process exists to run it)
        exec(compile(first["setup"], "<setup>", "exec"), space)  # noqa: S102
    except BaseException as error:  # noqa: BLE001 (every way to fail is an answer; SystemExit too)
        send({"error": _told(error)})
        return
    send({"ready": True})
    for line in requests:
        request = json.loads(line)
        try:
            value = _serve(request, space, objects)
            reply = {"token": request["token"], "value": encode(value, objects)}
        except BaseException as error:  # noqa: BLE001
            reply = {"token": request["token"], "error": _told(error)}
        send(reply)


def _serve(request: dict[str, Any], space: dict[str, Any], objects: list[Any]) -> Any:
    known = space[request["name"]] if "name" in request else objects[request["object"]]
    if "args" not in request:
        return known
    args = [decode(item, objects) for item in request["args"]]
    kwargs = {name: decode(item, objects) for name, item in request["kwargs"].items()}
    return known(*args, **kwargs)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


if __name__ == "__main__":
    main()
