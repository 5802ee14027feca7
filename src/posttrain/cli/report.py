"""`posttrain report append|check|metrics|html`: a group whose commands are imported when they are called.

Agents call it inside their sandbox, where parts of the package are hidden; so no command is imported here.
"""

from __future__ import annotations

import typer

from posttrain.cli.lazy import Entry, LazyGroup

HELP = "Iteration reports: append one, check them, print metrics, make a page."


class _Commands(LazyGroup):
    """The commands of `posttrain report`."""

    entries = {  # noqa: RUF012 (declared a ClassVar above it)
        "append": Entry("report_append:append", "Append one iteration to summary.md and summary.jsonl."),
        "check": Entry("report_check:check", "Hold summary.md and summary.jsonl against rules and facts."),
        "metrics": Entry("report_metrics:metrics", "Print the content of metrics.json, computed anew."),
        "html": Entry("report_html:html", "Write one page about a run, to give away."),
    }


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False)


@app.callback(help=HELP)
def _group() -> None:
    pass
