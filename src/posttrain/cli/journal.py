"""The research journal of a run as a tree: which idea came of which, and what it brought."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from posttrain.cli.output import print_json, printable
from posttrain.core.errors import UsageError
from posttrain.core.paths import RunPaths
from posttrain.llm.messages import Usage
from posttrain.research.digest import clip, grade_text
from posttrain.research.journal import read_journal
from posttrain.research.nodes import Node
from posttrain.research.places import Places
from posttrain.research.policy import best_of

_MOST_CHARS = 160


def show_journal(paths: RunPaths, *, as_json: bool) -> None:
    """Print the journal; UsageError where a run has none."""
    path = Places(paths.workspace).journal
    nodes = read_journal(path)
    if not nodes and not path.exists():
        raise UsageError(f"--journal: run {paths.run_id} has no research journal ({path} does not exist)")
    if as_json:
        print_json({"run_id": paths.run_id, "journal": str(path), "nodes": list(nodes)})
        return
    for line in tree_lines(nodes):
        print(printable(line))
    print(printable(_sums(nodes)))


def tree_lines(nodes: Sequence[Node]) -> Iterator[str]:
    """Every node below its parent, in order."""
    best = best_of(nodes)
    roots = [node for node in nodes if node.parent is None]
    for node in roots:
        yield from _branch(node, nodes, best, prefix="", first="")


def _branch(
    node: Node, nodes: Sequence[Node], best: Node | None, *, prefix: str, first: str
) -> Iterator[str]:
    children = [each for each in nodes if each.parent == node.number]
    bar = "│  " if children else "   "
    mark = " ★" if best is not None and node.number == best.number else ""
    idea = clip(_one_line(node.hypothesis), _MOST_CHARS) or "(no idea)"
    yield f"{prefix}{first}#{node.number} {node.kind}{mark}: {idea}"
    inner = prefix + ("" if not first else "   " if first == "└─ " else "│  ")
    yield f"{inner}{bar}  {_result(node)}"
    for child in children:
        last = child is children[-1]
        yield from _branch(child, nodes, best, prefix=inner, first="└─ " if last else "├─ ")


def _result(node: Node) -> str:
    if node.grade is not None:
        kept = "kept" if node.decision.kept else "discarded"
        return (
            f"submission {node.grade.submission_id}, {grade_text(node.grade)}; {kept}: {node.decision.reason}"
        )
    fault = node.failure.fault if node.failure else "ungraded"
    return f"failed, {fault}: {clip(_one_line(node.decision.reason), _MOST_CHARS)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _sums(nodes: Sequence[Node]) -> str:
    usage = sum((node.usage for node in nodes), Usage())
    kept = sum(node.decision.kept for node in nodes)
    graded = sum(node.grade is not None for node in nodes)
    about = "about " if usage.estimated else ""
    money = "cost unknown" if usage.cost is None else f"${usage.cost:.4f}"
    return (
        f"{len(nodes)} iterations, {graded} graded, {kept} kept; driver model: {usage.calls} answers, "
        f"{about}{usage.input_tokens} + {usage.output_tokens} tokens, {money}"
    )
