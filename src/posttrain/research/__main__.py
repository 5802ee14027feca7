"""`python -m posttrain.research`: the loop inside a run's workspace, told everything by its environment."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path

from posttrain.core.errors import InfrastructureError, PosttrainError, UsageError, boundary
from posttrain.core.paths import Workspace
from posttrain.grading import client
from posttrain.infra.processes import Spawner
from posttrain.llm.client import LlmClient
from posttrain.llm.settings import LlmSettings
from posttrain.llm.transcript import Transcript
from posttrain.research.account import Account, Stopwatch
from posttrain.research.loop import Bench, Loop
from posttrain.research.places import Places
from posttrain.research.policy import STEPS_AN_ITERATION, Policy, best_of
from posttrain.research.post_training.execution import Runner
from posttrain.research.post_training.handing_in import Desk
from posttrain.research.post_training.scenario import PostTraining
from posttrain.research.prompts import LEAST, MOST

_NEEDED = ("WORKSPACE", "MODEL_PATH", "DATA_PATH", "OUTPUT_DIR", "GRADING_SERVER_URL")
BEGAN = time.monotonic()


def main(environ: Mapping[str, str]) -> int:
    """Exit 0 if something was graded, 1 if nothing was, 2 for wrong settings."""
    try:
        with boundary(PosttrainError, "the research loop"):
            account, graded = research(environ)
    except UsageError as error:
        _say(str(error))
        return 2
    except PosttrainError as error:
        _say(str(error))
        return 1
    _say(last_line(account))
    return 0 if graded else 1


def research(environ: Mapping[str, str]) -> tuple[Account, bool]:
    """Run the loop; its account, and whether any iteration got a score."""
    missing = [name for name in _NEEDED if not environ.get(name)]
    if missing:
        raise UsageError(f"{', '.join(missing)} not set: the research loop runs inside a posttrain run")
    settings = LlmSettings.from_environment(environ)
    for name in settings.unused:
        _say(f"{name} is set and not used: there is one backend, and there are no embeddings")
    policy = Policy(most_iterations=_most_iterations(environ), share=_share(environ))
    most_chars = _count(environ, "CHAT_PROMPT_CHARS", MOST, least=LEAST)
    url = environ["GRADING_SERVER_URL"]
    deadline = time.monotonic() + _remaining(url)

    def remaining() -> float:
        return deadline - time.monotonic()

    workspace = Workspace(Path(environ["WORKSPACE"]))
    places = Places(workspace)
    transcript = Transcript(places.transcript, secrets=(*settings.secrets, url))
    _say(f"driver model {settings.model} ({settings.provider}), {remaining():.0f} s left")
    # no namespace of its own: the agent's tree is in one already, where none can be made inside
    with Spawner(kill_mode="best-effort") as spawner:
        scenario = PostTraining(
            workspace,
            environ=environ,
            runner=Runner(
                spawner=spawner,
                python=Path(environ.get("POSTTRAIN_PYTHON") or sys.executable),
                environ=environ,
                seed=_count(environ, "SEED", 0, least=0),
            ),
            desk=Desk(url=url, workspace=workspace.root, remaining=remaining, log=_say),
            most_chars=most_chars,
            lang="en" if environ.get("REPORT_LANG", "").lower() == "en" else "zh",
        )
        bench = Bench(
            scenario=scenario,
            llm=LlmClient(settings, transcript=transcript, remaining=remaining),
            places=places,
            policy=policy,
            remaining=remaining,
            log=_say,
            most_chars=most_chars,
        )
        loop = Loop(bench, watch=Stopwatch(began=BEGAN))
        account, nodes = loop.run(), loop.nodes
    best = best_of(nodes)
    if best is not None and best.grade is not None:
        _say(f"best: iteration {best.number}, submission {best.grade.submission_id}, {best.grade.score:.1f}")
    return account, any(node.grade is not None for node in nodes)


def _remaining(url: str) -> float:
    reply = client.call(url, "/time", timeout_s=30)
    remaining = reply.content.get("remaining")
    if not isinstance(remaining, int | float):
        raise InfrastructureError(f"the grading server tells no time: {reply.content.get('error')}")
    return float(remaining)


def _most_iterations(environ: Mapping[str, str]) -> int | None:
    """The smaller of LOOP_N and STEP_N, a step being a fifth of an iteration."""
    limits = []
    if environ.get("LOOP_N", "").strip():
        limits.append(_count(environ, "LOOP_N", 0, least=1))
    if environ.get("STEP_N", "").strip():
        limits.append(_count(environ, "STEP_N", 0, least=STEPS_AN_ITERATION) // STEPS_AN_ITERATION)
    return min(limits, default=None)


def _share(environ: Mapping[str, str]) -> float:
    """Of the time that is left, for one training."""
    text = environ.get("TRAIN_SHARE", "").strip()
    try:
        share = float(text) if text else Policy().share
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise UsageError(f"TRAIN_SHARE: {text!r} is not a number above 0, up to 1")
    return share


def _count(environ: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and int(text) >= least):
        raise UsageError(f"{name}: {text!r} is not a whole number of at least {least}")
    return int(text)


def last_line(account: Account) -> str:
    """The account for people."""
    usage = account.usage
    money = "cost unknown" if usage.cost is None else f"${usage.cost:.4f}"
    about = "about " if usage.estimated else ""
    return (
        f"{account.iterations} iterations, ended because {account.ended}; {account.wall_s:.0f} s: training "
        f"{account.training_s:.0f}, driver model {account.llm_s:.0f}, grading {account.grading_s:.0f}, "
        f"own {account.own_s:.1f} ({100 * account.own_share:.1f} %); {usage.calls} answers, "
        f"{about}{usage.input_tokens} + {usage.output_tokens} tokens, {money}"
    )


def _say(text: str) -> None:
    # as reports quote it: in one line, without backticks
    told = " ".join(text.split()).replace("`", "'")
    with suppress(OSError):  # on a full disk the log ends, not the loop
        sys.stdout.write(f"[{time.monotonic() - BEGAN:7.1f} s] {told}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if isinstance(sys.stdout, TextIOWrapper):
        # whatever the locale: the log is read as UTF-8, and driver models write in any language
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    sys.exit(main(os.environ))
