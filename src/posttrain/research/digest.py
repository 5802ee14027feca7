"""Text for the driver model: the journal in compact form, the ends of logs, parts cut to a size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posttrain.research.nodes import Execution, Graded, Node

CUT = "… (cut)"


def journal_text(nodes: Sequence[Node], *, best: Node | None, most: int) -> str:
    """One paragraph an iteration, newest last; where that is too long, older ones in a single line each."""
    if not nodes:
        return "No iteration yet."
    told = [_paragraph(node, best) for node in nodes]
    short = [_line(node, best) for node in nodes]
    for whole in range(len(nodes), 0, -1):
        text = "\n".join(short[:-whole] + told[-whole:])
        if len(text) <= most:
            return text
    return CUT + "\n" + "\n".join(short)[-most:]


def _paragraph(node: Node, best: Node | None) -> str:
    lines = [_line(node, best)]
    if node.idea:
        told = ", ".join(f"{name}: {value}" for name, value in node.idea.items() if value not in (None, ""))
        lines.append(f"   idea: {clip(told, 500)}")
    run = node.training or node.dry_run
    if run is not None and run.curve.points:
        lines.append(f"   training: {run.seconds:.0f} s, {curve_text(run)}")
    if node.opinion is not None and node.opinion.lesson:
        lines.append(f"   lesson: {clip(node.opinion.lesson, 300)}")
    return "\n".join(lines)


def _line(node: Node, best: Node | None) -> str:
    origin = "draft" if node.parent is None else f"{node.kind} of #{node.parent}"
    head = f"#{node.number} {origin}: "
    if node.grade is not None:
        mark = "KEPT" if node.decision.kept else "discarded"
        mark += ", BEST SO FAR" if best is not None and best.number == node.number else ""
        return f"{head}{grade_text(node.grade)}; {mark} ({node.decision.reason})"
    failure = node.failure.text if node.failure else "no score"
    fault = node.failure.fault if node.failure else "ungraded"
    return f"{head}FAILED ({fault}): {clip(' '.join(failure.split()), 200)}"


def grade_text(grade: Graded) -> str:
    """Score and improvement with their intervals."""
    low, high = grade.ci95
    text = f"score {grade.score:.1f} [{low:.1f}, {high:.1f}], improvement {grade.improvement:+.1f}"
    if grade.improvement_ci95 is not None:
        low, high = grade.improvement_ci95
        text += f" [{low:+.1f}, {high:+.1f}]"
    return f"{text} over the baseline {grade.baseline:.1f} (n = {grade.n})"


def curve_text(run: Execution) -> str:
    """A training curve in a line."""
    curve = run.curve
    shown = ", ".join(
        "nan" if loss is None else f"{loss:.3g}" for loss in curve.sampled[:: max(1, len(curve.sampled) // 8)]
    )
    broken = f", {curve.not_finite} losses are no numbers" if curve.not_finite else ""
    return f"{curve.points} steps, loss {shown}{broken}"


def clip(text: str, most: int) -> str:
    """The beginning of a text."""
    return text if len(text) <= most else text[: max(0, most - len(CUT))].rstrip() + CUT


def tail(path: Path, *, lines: int = 40, most: int = 4000) -> str:
    """The last lines of a log; the end is where a traceback says what happened."""
    if not path.is_file():
        return ""  # a script may have put a pipe there
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            size = file.tell()
            file.seek(max(0, size - 4 * most))
            raw = file.read()
    except OSError:
        return ""
    text = raw.decode("utf-8", "replace").replace("\r\n", "\n").replace("\0", "")
    # of a progress bar, what it showed last
    shown = [line.rsplit("\r", 1)[-1] for line in text.rstrip().split("\n")[-lines:]]
    return "\n".join(shown)[-most:]


def fit(sections: Sequence[tuple[str, str, int]], *, most: int) -> str:
    """Sections (title, text, weight) under their titles; those that take more than their share are cut.

    What light sections leave unused goes to the others.
    """
    kept = {title: text.strip() for title, text, _ in sections if text.strip()}
    weights = {title: weight for title, text, weight in sections if text.strip()}
    room = {title: len(text) for title, text in kept.items()}
    budget = most - sum(len(title) + 8 for title in kept)
    open_titles = set(kept)
    while open_titles and sum(room.values()) > budget:
        free = budget - sum(room[title] for title in kept if title not in open_titles)
        total = sum(weights[title] for title in open_titles)
        light = {title for title in open_titles if len(kept[title]) <= free * weights[title] / total}
        if not light:
            room |= {title: max(0, int(free * weights[title] / total)) for title in open_titles}
            break
        open_titles -= light
    return "\n\n".join(f"## {title}\n{clip(text, room[title])}" for title, text in kept.items())
