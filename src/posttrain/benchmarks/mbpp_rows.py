"""MBPP rows, as two tasks use them: with the tests in the question, or in HumanEval's form."""

from __future__ import annotations

import ast
import textwrap
from typing import Any

from posttrain.benchmarks.rows import either, read_lines

SPLITS = {"prompt": (1, 10), "test": (11, 510), "validation": (511, 600), "train": (601, 974)}
"""Official splits by task_id, first and last."""
_HUB = "google-research-datasets/mbpp"


def read_mbpp(source: Any) -> list[dict[str, Any]]:
    """All 974 rows in the order of their ids, from the hub's splits or from the one original file."""
    rows = either(
        lambda: [row for split in SPLITS for row in source.rows(_HUB, "full", split)],
        lambda: read_lines(source.file(_HUB, "mbpp.jsonl")),
    )
    return sorted(rows, key=lambda row: int(row["task_id"]))


def in_split(row: dict[str, Any], split: str) -> bool:
    first, last = SPLITS[split]
    return first <= int(row["task_id"]) <= last


def with_tests(row: dict[str, Any]) -> dict[str, Any]:
    """The row as a question that shows its tests."""
    tests = "\n".join(row["test_list"])
    return {
        "question": f"{row['text'].strip()}\nYour code should pass these tests:\n\n{tests}",
        "answer": _unix(row["code"]),
        "test": tests,
        "setup": _unix(row["test_setup_code"]),
        "task_id": f"MBPP/{row['task_id']}",
    }


def as_humaneval(row: dict[str, Any]) -> dict[str, Any]:
    """The row as the head of a function with a docstring; the answer is the function's body.

    What else the solution defines stands before the head, as HumanEval's helpers do.
    """
    code = _unix(row["code"])
    tree = ast.parse(code)
    entry = _tested_function(tree, row["test_list"][0])
    others = [ast.unparse(node) for node in tree.body if node is not entry]
    head = ast.unparse(ast.FunctionDef(**{**_fields(entry), "body": [ast.Pass()]})).rsplit("\n", 1)[0]
    examples = "\n".join(f">>> {test.removeprefix('assert ').strip()}" for test in row["test_list"])
    shown = f"{row['text'].strip()}\n{examples}".replace("\\", "\\\\").replace('"""', "'''")
    docstring = textwrap.indent(f'"""{shown}\n"""', "    ")
    body = "\n".join(ast.unparse(node) for node in entry.body)
    prefix = "\n\n".join([*others, f"{head}\n{docstring}\n"])
    return {
        "question": prefix,
        "answer": textwrap.indent(body, "    ") + "\n",
        "entry_point": entry.name,
        "prefix": prefix,
        "test": "\n".join(row["test_list"]),
        "setup": _unix(row["test_setup_code"]),
        "task_id": f"MBPP/{row['task_id']}",
    }


def _tested_function(tree: ast.Module, test: str) -> ast.FunctionDef:
    """The function of the solution that the first test calls."""
    called = [node.id for node in ast.walk(ast.parse(test.strip())) if isinstance(node, ast.Name)]
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    return next(functions[name] for name in called if name in functions)


def _fields(node: ast.AST) -> dict[str, Any]:
    return {**dict(ast.iter_fields(node)), "lineno": 1}


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
