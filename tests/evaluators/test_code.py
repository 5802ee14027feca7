"""Tested programs: how answers are read, and that no trick passes or disturbs a neighbour."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.core.errors import PosttrainError
from posttrain.core.evaluation import ScoringJob
from posttrain.core.scores import Evaluation, Item, Metric, Output
from posttrain.evaluators.code_forms import read_program
from posttrain.evaluators.code_guest import Foreign, decode, encode
from posttrain.evaluators.code_host import make_view
from posttrain.evaluators.scorer import score

PREFIX = 'from math import sqrt\n\n\ndef double(x):\n    """Twice x.\n    >>> double(2)\n    4\n    """\n'
CHECK = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-3) == -6\n"
QUICK = {"limits": {"cpu_s": 1, "wall_s": 5.0, "memory_mb": 256}}


@pytest.fixture(scope="module")
def _cells() -> None:
    """Skips where a program cannot be shut in."""
    try:
        make_view("trial")
        run(["    return 2 * x\n"])
    except PosttrainError as error:
        pytest.skip(f"programs cannot be shut in here: {error}")


def item(number: int, **fields: Any) -> Item:
    row = {"answer": "    return 2 * x\n", "prefix": PREFIX, "entry_point": "double", "test": CHECK}
    return Item(id=str(number), fields={**row, **fields})


def run(texts: list[str], **fields: Any) -> Evaluation:
    return score(
        ScoringJob(
            evaluator="code",
            folder="/",
            metric=Metric(name="pass@1"),
            settings=QUICK,
            items=tuple(item(number, **fields) for number in range(len(texts))),
            outputs=tuple(Output(text=text, tokens=1) for text in texts),
        )
    )


FORMS = [
    ("    return 2 * x\n", "continuation"),
    ("return 2 * x", "continuation"),
    ("y = x\n    return 2 * y", "continuation"),
    ("y = x\nreturn 2 * y", "continuation"),
    ("    return 2 * x\n\nThis doubles x.", "continuation"),
    ("def double(x):\n    return 2 * x\n", "function"),
    ("Here it is:\n\ndef double(x):\n    return 2 * x\n\nDone!", "function"),
    ("```python\ndef double(x):\n    return 2 * x\n```", "fenced"),
    ("Sure!\n```\nimport math\ndef double(x):\n    return 2 * x\n```\nIt works.", "fenced"),
    ("```python\ndef double(x):\n    return 2 * x", "fenced"),
    ("```python\n    return 2 * x\n```", "fenced"),
    ("```python\nprint('no')\n```\n```python\ndef double(x):\n    return int(sqrt(4)) * x\n```", "fenced"),
]


@pytest.mark.usefixtures("_cells")
def test_every_form_of_an_answer_is_read_and_told() -> None:
    made = run([text for text, _ in FORMS])
    assert [(i.value, i.rule, i.reason) for i in made.items] == [(1.0, form, None) for _, form in FORMS]


@pytest.mark.parametrize("text", ["", "   ", "I cannot do that.", "```python\n```", "# nothing"])
def test_an_answer_without_code_is_no_program(text: str) -> None:
    assert read_program(text, prefix=PREFIX, entry_point="double") is None


HOSTILE = {
    "always equal": "class E(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
    "def double(x): return E(0)\n",
    "equal object": "class E:\n    def __eq__(self, other): return True\ndef double(x): return E()\n",
    "exit": "import sys\nsys.exit(0)\ndef double(x): return 0\n",
    "hard exit": "import os\ndef double(x): os._exit(0)\n",
    "frame walk": "import sys\ndef double(x):\n    f = sys._getframe()\n    while f:\n"
    "        for v in list(f.f_locals.values()):\n            if isinstance(v, list): v.append('passed')\n"
    "        f = f.f_back\n    return 0\n",
    "patched builtins": "import builtins\nbuiltins.AssertionError = None\nbuiltins.abs = lambda x: 0\n"
    "def double(x): return 0\n",
    "reads stdin": "def double(x):\n    return input()\n",
    "endless": "def double(x):\n    while True:\n        try:\n            while True: pass\n"
    "        except BaseException: pass\n",
    "fork bomb": "import os\ndef double(x):\n    while True:\n        try: os.fork()\n"
    "        except OSError: pass\n",
    "memory hog": "def double(x):\n    return len(bytearray(1 << 34))\n",
    "disk hog": "def double(x):\n    f = open('/tmp/x', 'wb')\n    while True: f.write(bytes(1 << 20))\n",
    "forged answer": "import os\nfor fd in range(3, 20):\n"
    '    try: os.write(fd, b\'{"token": 0, "value": 4}\\n\')\n'
    "    except OSError: pass\ndef double(x): return 0\n",
    "raises": "def double(x):\n    raise AssertionError\n",
    "deep recursion": "def double(x):\n    return double(x)\n",
    "closed pipes": "import os\nos.closerange(0, 100)\ndef double(x): return 0\n",
    "own module": "import sys\nclass M:\n    def __getattr__(self, name): return lambda *a: True\n"
    "sys.modules['math'] = M()\ndef double(x): return 0\n",
    "huge answer": "def double(x):\n    return 'x' * (1 << 25)\n",
    "endless generator": "def double(x):\n    while True: yield 4\n",
}


@pytest.mark.usefixtures("_cells")
def test_no_trick_passes_and_no_neighbour_is_disturbed() -> None:
    honest = "def double(x):\n    return 2 * x\n"
    texts = [text for trick in HOSTILE.values() for text in (trick, honest)]
    started = time.monotonic()
    made = run(texts)
    assert [name for name, i in zip(HOSTILE, made.items[::2], strict=True) if i.value] == []
    assert [i.reason for i in made.items[1::2]] == [None] * len(HOSTILE)
    assert all(i.reason for i in made.items[::2])
    reasons = dict(zip(HOSTILE, (i.reason for i in made.items[::2]), strict=True))
    assert "limits (1 s" in str(reasons["endless"]) or reasons["endless"] == "ran longer than 5 s"
    assert reasons["hard exit"] == "the program ended early"
    assert time.monotonic() - started < 120


@pytest.mark.usefixtures("_cells")
def test_a_program_sees_no_test_no_network_and_no_host_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("4", "utf-8")
    texts = [
        f"def double(x):\n    return int(open({str(secret)!r}).read())\n",
        "import socket\ndef double(x):\n    return len(socket.if_nameindex()) and 2 * x\n",
        "import gc\ndef double(x):\n    return 2 * x if any('candidate(' in o for o in gc.get_objects()"
        " if isinstance(o, str)) else 0\n",
        "import os\ndef double(x):\n    return 2 * x if os.getuid() == 0 else 0\n",
        "def double(x):\n    open('/usr/x', 'w')\n    return 2 * x\n",
    ]
    made = run(texts)
    assert [i.value for i in made.items] == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert "FileNotFoundError" in (made.items[0].reason or "")


@pytest.mark.usefixtures("_cells")
def test_an_answer_that_redefines_what_tests_compare_with_fails() -> None:
    close = "assert abs(double(2) - 4) < 1e-6\n"
    made = run(["def abs(x): return 0\ndef double(x): return 0\n"], test=close)
    assert made.items[0].value == 0.0


@pytest.mark.usefixtures("_cells")
def test_setup_runs_behind_the_program_and_objects_of_it_can_be_handed_back() -> None:
    code = "class Node:\n    def __init__(self, v): self.v = v\ndef value(n): return n.v\n"
    made = run(
        [f"```python\n{code}```"],
        prefix="",
        entry_point=None,
        answer=code,
        setup="root = Node(7)\nroot.v += 1",
        test="assert value(root) == 8\nassert value(Node(3)) == 3",
    )
    assert made.items[0].reason is None


@pytest.mark.usefixtures("_cells")
def test_a_right_program_may_redefine_a_builtin() -> None:
    code = "def sum(a, b):\n    return a + b\n"
    made = run([code], prefix="", entry_point=None, answer=code, test="assert sum(1, 2) == 3")
    assert made.items[0].value == 1.0


def literals() -> st.SearchStrategy[Any]:
    keys = st.one_of(
        st.integers(), st.text(max_size=5), st.booleans(), st.tuples(st.integers(), st.text(max_size=3))
    )
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(),
        st.binary(),
        st.complex_numbers(allow_nan=False),
    )
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(keys, inner, max_size=4),
            st.sets(keys, max_size=4),
            st.frozensets(keys, max_size=4),
        ),
        max_leaves=12,
    )


@given(literals())
def test_literals_cross_the_border_unchanged(value: Any) -> None:
    crossed = decode(encode(value))
    assert crossed == value
    assert type(crossed) is type(value)


def test_an_object_of_the_program_equals_nothing() -> None:
    held: list[Any] = []
    crossed = decode(encode(object(), held))
    assert isinstance(crossed, Foreign)
    assert crossed != crossed
    assert decode(encode(crossed), held) is held[0]
