"""One run as one HTML page to give away: everything is in it, nothing comes from elsewhere, nothing acts.

The page has no script, and its policy forbids any; its only style is the one whose digest the policy names.
Text of others is escaped by the template and made visible here.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from posttrain.reports.figures import Trajectory
from posttrain.reports.svg import draw_svg
from posttrain.reports.visible import Blinds, decoded, visible

_HERE = Path(__file__).parent
_TEMPLATE, _STYLE = "page.html.j2", "page.css"
MOST_ROWS = 1000
"""Rows of a table."""
_LONGEST_CELL = 400


class Table(NamedTuple):
    """A table; cells are any text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[str, ...] = ()
    """Columns that stand at the right."""


class Text(NamedTuple):
    """A text of others."""

    name: str
    content: bytes
    left_out: int = 0
    """Bytes before the content."""


@dataclass(frozen=True)
class Page:
    """Everything that a page shows."""

    run_id: str
    title: str
    status: str
    made: str
    """When and by which version."""
    headline: str
    facts: tuple[tuple[str, str], ...]
    marks: tuple[str, ...]
    figure: Trajectory | None
    submissions: Table
    check: Table | None
    """What a machine found in the summary; None: it was not checked."""
    check_said: str
    summary: Text | None
    metrics: tuple[tuple[str, str], ...]
    plan: tuple[tuple[str, str], ...]
    logs: tuple[Text, ...]


def render_page(page: Page, *, blinds: Blinds) -> str:
    """The page as HTML. What `blinds` names is in none of its texts."""
    style = (_HERE / _STYLE).read_text("utf-8")
    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    shown = _Shown(blinds)
    environment.filters |= {
        "seen": shown.line,
        "cell": shown.cell,
        "text": shown.text,
        "blocks": shown.blocks,
    }
    return environment.get_template(_TEMPLATE).render(
        page=page,
        style=Markup(style),
        policy=_policy(style),
        figure=None if page.figure is None else Markup(draw_svg(_blinded(page.figure, blinds))),
        most_rows=MOST_ROWS,
    )


def _policy(style: str) -> str:
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _blinded(figure: Trajectory, blinds: Blinds) -> Trajectory:
    return figure.model_copy(update={"title": blinds(figure.title), "subtitle": blinds(figure.subtitle)})


class Block(NamedTuple):
    """A part of a Markdown text, as far as a page tells parts apart."""

    kind: str
    """title, section, item, code or plain."""
    text: str


@dataclass(frozen=True)
class _Shown:
    """How texts of others come into the page."""

    blinds: Blinds

    def line(self, text: str) -> str:
        return visible(self.blinds(text))

    def cell(self, text: str) -> str:
        """One line of bounded length."""
        shown = self.line(" ".join(text.split()))
        return shown if len(shown) <= _LONGEST_CELL else f"{shown[:_LONGEST_CELL]}…"

    def text(self, text: Text) -> str:
        return self.line(decoded(text.content))

    def blocks(self, text: Text) -> Sequence[Block]:
        """Headings, items and code of a Markdown text; all of it stays text."""
        return _blocks(self.text(text))


_HEADINGS: Mapping[str, str] = {"# ": "title", "## ": "section", "### ": "section"}


def _blocks(text: str) -> list[Block]:
    found: list[Block] = []
    code: list[str] | None = None
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        if code is not None:
            if fence:
                found.append(Block("code", "\n".join(code)))
                code = None
            else:
                code.append(line)
        elif fence:
            code = []
        elif line.strip():
            found.append(_block(line))
    if code is not None:  # the fence was never closed
        found.append(Block("code", "\n".join(code)))
    return found


def _block(line: str) -> Block:
    for mark, kind in _HEADINGS.items():
        if line.startswith(mark):
            return Block(kind, line.removeprefix(mark))
    stripped = line.lstrip()
    if stripped.startswith(("- ", "* ")):
        return Block("item", stripped[2:].replace("**", ""))
    return Block("plain", line.replace("**", ""))
