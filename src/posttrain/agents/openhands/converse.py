"""One turn of an OpenHands conversation; runs in the Python that has openhands-sdk, without posttrain.

    converse.py --state FOLDER [--conversation ID] < prompt

prints one JSON object for each event. The conversation is kept in FOLDER and goes on where its id is given.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO
from uuid import UUID, uuid4

_DEFAULT_MODEL = "gpt-5.2"
_INTERRUPTED = "the run was interrupted while this was at work; look at what it has left"


def main() -> int:
    """0 when the turn came to its end, 1 when it broke off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--conversation", type=UUID)
    options = parser.parse_args()
    out, sys.stdout = sys.stdout, sys.stderr  # what the SDK prints is no event
    talk = _Talk(out, options.conversation or uuid4(), options.state)
    return talk.turn(sys.stdin.read())


class _Talk:
    """The SDK's conversation, and its events as JSON lines."""

    def __init__(self, out: TextIO, conversation: UUID, state: Path) -> None:
        from openhands.sdk import Conversation

        self._out = out
        llm = _llm(os.environ)
        self._conversation = Conversation(
            agent=_agent(llm),
            workspace=os.environ["WORKSPACE"],
            persistence_dir=state,
            conversation_id=conversation,
            callbacks=[self._hear],
            max_iteration_per_run=int(os.environ.get("MAX_ITERATIONS") or 500),
            stuck_detection=False,  # looking at a training log again and again is work
            visualizer=None,
            delete_on_close=False,
        )
        self._catch_up()
        self._used = self._usage()
        self._tell(kind="conversation", id=str(conversation))  # one that can be gone on with

    def turn(self, prompt: str) -> int:
        from openhands.sdk.conversation.exceptions import ConversationRunError
        from openhands.sdk.conversation.state import ConversationExecutionStatus

        self._conversation.send_message(prompt)
        try:
            self._conversation.run()
        except ConversationRunError as error:
            self._tell(kind="error", text=str(error))
            return 1
        finally:
            used = {name: value - self._used[name] for name, value in self._usage().items()}
            self._tell(kind="usage", **used)
            self._conversation.close()
        status = self._conversation.state.execution_status
        return 1 if status == ConversationExecutionStatus.ERROR else 0

    def _catch_up(self) -> None:
        """Show the model what it was at when it was killed.

        The SDK notes which event is the last one only after a step: the action of a step that was killed
        stands in its log, but on a branch that is left. Nor is an action shown that has no result.
        """
        from openhands.sdk.event.conversation_error import ConversationErrorEvent
        from openhands.sdk.event.conversation_state import ConversationStateUpdateEvent

        no_steps = (ConversationErrorEvent, ConversationStateUpdateEvent)
        steps = (
            event for event in reversed(self._conversation.state.events) if not isinstance(event, no_steps)
        )
        last = next(steps, None)
        if last is not None:
            self._conversation.navigate_to(last.id)
            self._conversation.reject_pending_actions(_INTERRUPTED)
            self._conversation.state.rebuild_view()  # it had left out what had no result

    def _hear(self, event: Any) -> None:
        from openhands.sdk.event import (
            ActionEvent,
            AgentErrorEvent,
            MessageEvent,
            ObservationEvent,
        )
        from openhands.sdk.event.conversation_error import ConversationErrorEvent

        if isinstance(event, MessageEvent):
            self._tell(kind="message", source=event.source, text=_words(event.llm_message.content))
        elif isinstance(event, ActionEvent):
            arguments = event.action.model_dump(mode="json", exclude_none=True) if event.action else {}
            arguments.pop("kind", None)
            self._tell(kind="action", tool=event.tool_name, text=_words(event.thought), arguments=arguments)
        elif isinstance(event, ObservationEvent):
            told = _words(event.observation.to_llm_content)
            self._tell(kind="observation", tool=event.tool_name, text=told)
        elif isinstance(event, AgentErrorEvent):
            self._tell(kind="error", text=event.error)
        elif isinstance(event, ConversationErrorEvent):
            self._tell(kind="error", text=f"{event.code}: {event.detail}")

    def _usage(self) -> dict[str, float]:
        metrics = self._conversation.conversation_stats.get_combined_metrics()
        tokens = metrics.accumulated_token_usage
        return {
            "input_tokens": tokens.prompt_tokens if tokens else 0,
            "output_tokens": tokens.completion_tokens if tokens else 0,
            "dollars": metrics.accumulated_cost,
        }

    def _tell(self, **event: Any) -> None:
        print(json.dumps(event, ensure_ascii=False, default=str), file=self._out, flush=True)


def _llm(env: Mapping[str, str]) -> Any:
    """The model that the agent's variables name; a bare name is one of an OpenAI-compatible endpoint."""
    from openhands.sdk import LLM
    from pydantic import SecretStr

    model = env.get("LLM_MODEL") or env.get("CHAT_MODEL") or _DEFAULT_MODEL
    base = env.get("LLM_BASE_URL") or env.get("OPENAI_API_BASE") or None
    key = env.get("LLM_API_KEY") or env["OPENAI_API_KEY"]
    more = {"reasoning_effort": env["EFFORT"]} if env.get("EFFORT") else {}
    named = model if "/" in model else f"openai/{model}"
    return LLM(model=named, base_url=base, api_key=SecretStr(key), usage_id="agent", **more)


def _agent(llm: Any) -> Any:
    """The SDK's own default agent, but for its terminal.

    Under tmux it types its prompt into the shell a tenth of a second after the start: on a busy machine
    the first command is lost. The other kind hands the prompt over in the environment.
    """
    from openhands.sdk import Tool
    from openhands.tools.preset.default import get_default_agent
    from openhands.tools.terminal import TerminalTool

    agent = get_default_agent(llm=llm, cli_mode=True)
    terminal = Tool(name=TerminalTool.name, params={"terminal_type": "subprocess"})
    tools = [terminal if tool.name == TerminalTool.name else tool for tool in agent.tools]
    return agent.model_copy(update={"tools": tools})


def _words(content: Any) -> str:
    return "\n".join(part.text for part in content if getattr(part, "text", None))


if __name__ == "__main__":
    sys.exit(main())
