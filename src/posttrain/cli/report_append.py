"""`posttrain report append`: what an agent calls after each round."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from pydantic import ValidationError

from posttrain.cli.output import print_json, printable
from posttrain.cli.report_check import finding_text
from posttrain.cli.report_facts import Place, in_workspace
from posttrain.core.errors import UsageError
from posttrain.reports.summaries.check import check_summary
from posttrain.reports.summaries.compose import Draft, compose, next_round
from posttrain.reports.summaries.findings import Finding
from posttrain.reports.summaries.text import parse
from posttrain.reports.summaries.told import config as read_config
from posttrain.reports.summaries.words import Lang
from posttrain.reports.summary import MARKDOWN, Iteration, append_iteration, row, section, with_title

_LARGEST = 1 << 20


def append(
    what: Annotated[str | None, typer.Option(help="做了什么: what was done in this round.")] = None,
    why: Annotated[
        str | None,
        typer.Option(
            help="为什么: the reason; from the second round on it cites scores.json, run.log or agent.log."
        ),
    ] = None,
    progress: Annotated[
        str | None, typer.Option(help="问题/进步: in words; the process metrics are added.")
    ] = None,
    cause: Annotated[
        str | None, typer.Option(help="Of a failure: the error as a log has it. Default: the last one there.")
    ] = None,
    news: Annotated[
        str | None, typer.Option(help="What is new, where the cause of the last failure came again.")
    ] = None,
    exit_code: Annotated[
        int | None, typer.Option(help="Of the training process. [0]", show_default=False)
    ] = None,
    failure_type: Annotated[
        str | None, typer.Option(help="Default: by fact (copy of the base, not loadable, …).")
    ] = None,
    train_type: Annotated[
        str | None,
        typer.Option(help="GRPO, SFT, PPO, copy_model, placeholder, unknown. Default: from the script."),
    ] = None,
    config: Annotated[str | None, typer.Option(help="lr=1e-5, batch=2, …. Default: from the script.")] = None,
    script: Annotated[
        str | None, typer.Option(help="The training script. [code/train.py]", show_default=False)
    ] = None,
    key_code: Annotated[
        str | None, typer.Option(help="3 to 5 lines of it, as 12-16 or as text. Default: chosen.")
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(help="15 to 40 lines, as 34-60, or `same`. Default: the function around the key code."),
    ] = None,
    duration: Annotated[
        int | None, typer.Option(help="Seconds of this round. Default: since the last section.")
    ] = None,
    submission: Annotated[
        list[int] | None,
        typer.Option(help="Number of a submission of this round. Default: all since the last."),
    ] = None,
    from_file: Annotated[
        str | None,
        typer.Option("--from", help="JSON or YAML file with these fields; - reads standard input."),
    ] = None,
    lang: Annotated[str, typer.Option(help="zh or en: the language of the labels.")] = "zh",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the section, write nothing.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Append although the check finds faults in it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> int:
    """Append one iteration to summary.md and summary.jsonl.

    Number, time, duration, score, improvement, best, metrics, train type, hyper-parameters and code are taken
    from scores.json, run_meta.json, the grading server and the training script; only --what and --why are
    needed. The section is checked first: what has a fault is not appended (exit code 1), the remedy is told.
    """
    language = _language(lang)
    given: dict[str, Any] = {
        "what": what,
        "why": why,
        "progress": progress,
        "cause": cause,
        "news": news,
        "exit_code": exit_code,
        "failure_type": failure_type,
        "train_type": train_type,
        "config": None if config is None else _config(config),
        "script": script,
        "key_code": key_code,
        "context": context,
        "duration_s": duration,
        "submissions": tuple(submission) if submission else None,
    }
    fields = _from(from_file) | {name: value for name, value in given.items() if value is not None}
    draft = _draft(fields)
    place = in_workspace()
    iteration = _compose(draft, place, language)
    faults = _faults(iteration, place, language)
    refused = bool(faults) and not force
    if not refused and not dry_run:
        try:
            append_iteration(place.folder, iteration, lang=language)
        except OSError as error:
            raise UsageError(f"{place.folder}: {error.strerror}") from error
    _report(iteration, faults, written=not refused and not dry_run, lang=language, as_json=as_json)
    return 1 if refused else 0


def _language(lang: str) -> Lang:
    if lang not in get_args(Lang):
        raise UsageError(f"--lang: {lang!r} is not one of 'zh', 'en'")
    return "zh" if lang == "zh" else "en"


def _config(text: str) -> dict[str, str]:
    if text.strip().lower() in ("", "unknown"):
        return {}
    document = parse(f"# \n## Iteration 1 (x)\n- **关键配置**: {' '.join(text.split())}\n".encode())
    found = read_config(document.sections[0])
    if not found:
        raise UsageError("--config: write name=value, name=value, … or unknown")
    return found


def _from(source: str | None) -> dict[str, Any]:
    """Fields from a file; UsageError names what cannot be read."""
    if source is None:
        return {}
    try:
        text = sys.stdin.read(_LARGEST) if source == "-" else Path(source).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"--from: {source} cannot be read: {error}") from error
    import yaml

    try:
        content = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(
            f"--from: {source} is neither JSON nor YAML: {' '.join(str(error).split())}"
        ) from error
    if not isinstance(content, dict):
        raise UsageError(f"--from: {source} holds no fields; there are {', '.join(Draft.model_fields)}")
    fields = {str(name): value for name, value in content.items()}
    if isinstance(fields.get("config"), str):
        fields["config"] = _config(fields["config"])
    if isinstance(fields.get("config"), dict):
        fields["config"] = {str(name): str(value) for name, value in fields["config"].items()}
    return fields


def _draft(fields: dict[str, Any]) -> Draft:
    for name in ("what", "why"):
        if not str(fields.get(name) or "").strip():
            raise UsageError(f"--{name}: say it in a sentence (as an option, or as a field of --from FILE)")
    try:
        return Draft.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        known = f"; fields are {', '.join(Draft.model_fields)}" if first["type"] == "extra_forbidden" else ""
        raise UsageError(f"--{name.replace('_', '-')}: {first['msg']}{known}") from error


def _compose(draft: Draft, place: Place, lang: Lang) -> Iteration:
    document = parse(place.markdown or b"")
    try:
        written = (place.folder / MARKDOWN).lstat().st_mtime
    except OSError:
        written = None
    this = next_round(draft, document, place.facts, now=time.time(), last_written=written)
    try:
        return compose(draft, this, document, place.facts, lang=lang)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UsageError(f"{'.'.join(map(str, first['loc'])) or 'the iteration'}: {first['msg']}") from error


def _faults(iteration: Iteration, place: Place, lang: Lang) -> list[Finding]:
    """What a check would find in the new section, before it is written."""
    before = place.markdown or b""
    markdown = before + with_title(before, section(iteration, lang=lang), lang=lang).encode(
        "utf-8", "replace"
    )
    rows = (place.rows or b"").rstrip(b"\n")
    line = json.dumps(row(iteration), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    result = check_summary(markdown, rows + b"\n" + line if rows else line, place.facts)
    return [finding for finding in result.findings if finding.iteration == iteration.number]


def _report(iteration: Iteration, faults: list[Finding], *, written: bool, lang: Lang, as_json: bool) -> None:
    state: Literal["appended", "not appended"] = "appended" if written else "not appended"
    if as_json:
        print_json(
            {
                "iteration": iteration.number,
                "appended": written,
                "findings": [finding.model_dump() for finding in faults],
                "section": section(iteration, lang=lang),
                "row": row(iteration),
            }
        )
        return
    print(printable(section(iteration, lang=lang)))
    for finding in faults:
        print(finding_text(finding), file=sys.stderr)
    print(f"Iteration {iteration.number}: {state}", file=sys.stderr)
