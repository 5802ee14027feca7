"""The engine without a model: a file beside the weights says how good its answers are.

For tests and dry runs. Checkpoints go through the same intake and the same rules of names and shapes as
real ones; only the texts come from `scripted.json`. Without that file a checkpoint answers every second
question right, which ones being decided by its weights.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from posttrain.checkpoints.architecture import check_architecture, read_config
from posttrain.checkpoints.headers import SAVE_AGAIN, Weights, read_weights
from posttrain.core.engine import (
    BaseFacts,
    NumericPlan,
    Progress,
    Prompt,
    PromptSettings,
    RenderedPrompt,
)
from posttrain.core.errors import DeviceBusy, InfrastructureError, Rejected, Unloadable
from posttrain.core.frozen import Frozen
from posttrain.core.grading import LoadReport
from posttrain.core.scores import Output
from posttrain.core.specs import GenerationSettings
from posttrain.engines.prompting import plain_text
from posttrain.infra.digests import digest_file, digest_value

SCRIPT_NAME = "scripted.json"
_BOOLEAN = re.compile(r"(?:\b(?:True|False|and|or|not)\b|[()]|\s)+")
_SUM = re.compile(r"(-?\d+)\s*([-+*])\s*(-?\d+)(?!.*\d\s*[-+*]\s*\d)", re.DOTALL)

_STAND_IN = 4096
"""Elements of the model that stands in for a base."""


class Script(Frozen):
    """How a scripted checkpoint behaves."""

    accuracy: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of questions answered right, where the right answer can be computed from the question."""
    seed: int | str = 0
    """Decides which; two scripts that differ only here are right on different questions."""
    answers: dict[str, str] = Field(default_factory=dict)
    """Fixed answers, by the text of the last user turn."""
    otherwise: str = ""
    """The answer to a question that is neither listed nor computable."""
    delay_s: float = Field(default=0.0, ge=0.0)
    """Pause before the answers."""
    fault: Literal["unloadable", "rejected", "busy", "error", "crash", "hang"] | None = None
    """`busy`: as if another process held the device's memory."""
    at: Literal["open", "load", "generate", "sleep"] = "load"
    """Where the fault happens; `open` is for the script of a base."""


class ScriptedEngine:
    """Answers by script, without torch and without a tokenizer."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._script: Script | None = None
        """None: no checkpoint is loaded."""

    def open(self, base: str, numeric: NumericPlan) -> BaseFacts:  # noqa: ARG002
        self._base = Path(base)
        self._weights = read_weights(self._base)
        self._digest = _digest(self._weights)
        self._config = read_config(self._base) or {}
        self._script = self._base_script = self._read_script(self._base, self._digest)
        self._act_out("open")
        return BaseFacts(
            has_chat_template=_has_template(self._base),
            stop_token_ids=(),
            max_length=None,
            parameters=self._weights.elements,
            versions={"scripted": "1"},
        )

    def load(self, folder: str | None) -> LoadReport:
        if folder is None:
            self._script = self._base_script = self._read_script(self._base, self._digest)
            return LoadReport(dtype=self._weights.main_dtype(), copy_of_base=True, changed_share=0.0)
        self._script = None
        weights = read_weights(Path(folder))
        notes = check_architecture(read_config(Path(folder)), self._config)
        _check_same_shapes(weights, self._weights)
        digest = _digest(weights)
        script = self._read_script(Path(folder), digest)
        if script.at == "load":
            _act_out(script)
        self._script = script
        same = digest == self._digest and script == self._base_script
        dtype = weights.main_dtype()
        return LoadReport(dtype=dtype, copy_of_base=same, changed_share=0.0 if same else None, notes=notes)

    def render(self, prompts: Sequence[Prompt], prompt: PromptSettings) -> list[RenderedPrompt]:  # noqa: ARG002
        texts = [plain_text(asked.turns) for asked in prompts]
        return [RenderedPrompt(text=text, token_ids=tuple(text.encode())) for text in texts]

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        prompt: PromptSettings,  # noqa: ARG002
        generation: GenerationSettings,
        progress: Progress,
    ) -> list[Output]:
        script = self._script
        if script is None:
            raise InfrastructureError("no checkpoint is loaded: the last one could not be taken")
        self._act_out("generate")
        time.sleep(script.delay_s)
        texts = [answer(asked.turns[-1].content, script) for asked in prompts]
        progress(len(texts), len(texts))
        return [
            Output(text=text, tokens=len(text.split())) for text in texts for _ in range(generation.samples)
        ]

    def sleep(self) -> None:
        """There is nothing to give back."""
        self._act_out("sleep")

    def _act_out(self, place: str) -> None:
        if self._script is not None and self._script.at == place:
            _act_out(self._script)

    def _read_script(self, folder: Path, digest: str) -> Script:
        path = folder / SCRIPT_NAME
        if not path.is_file():
            return Script(seed=digest)
        try:
            return Script.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or SCRIPT_NAME
            raise Unloadable(f"{SCRIPT_NAME}: {where}: {first['msg']}", hint="Correct the script.") from error


def answer(question: str, script: Script) -> str:
    """What a checkpoint with this script says to `question`."""
    if question in script.answers:
        return script.answers[question]
    right, wrong = computed(question)
    if right is None or wrong is None:
        return script.otherwise
    drawn = int.from_bytes(hashlib.sha256(f"{script.seed}\0{question}".encode()).digest()[:8], "big")
    return right if drawn / 2**64 < script.accuracy else wrong


def computed(question: str) -> tuple[str | None, str | None]:
    """(right, wrong) answer to a boolean expression or a sum; (None, None) for anything else."""
    value: bool | int | None = _boolean(question)
    if value is not None:
        return str(value), str(not value)
    found = _SUM.search(question)
    if found:
        left, sign, right = int(found.group(1)), found.group(2), int(found.group(3))
        value = left + right if sign == "+" else left - right if sign == "-" else left * right
        return str(value), str(value + 1)
    return None, None


def _boolean(question: str) -> bool | None:
    """The value of the longest boolean expression in a text; None if there is none."""
    expression = max(_BOOLEAN.findall(question), key=len, default="").strip()
    if not {"True", "False"} & set(re.findall(r"\w+", expression)):
        return None
    try:
        return _value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _value(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=bool() as value):
            return value
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand)
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(part) for part in values)
        case ast.BoolOp(op=ast.Or(), values=values):
            return any(_value(part) for part in values)
        case _:
            raise ValueError("not a boolean expression")


def write_scripted(folder: Path, script: Script, *, like: Path) -> None:
    """Make `folder` a checkpoint that behaves as `script` says and has the weights of `like`."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = read_weights(like)
    for path in (*weights.files, like / "config.json"):
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    (folder / SCRIPT_NAME).write_text(script.model_dump_json(indent=2), "utf-8")


def write_scripted_base(folder: Path) -> Path:
    """A stand-in for a base model, of one tensor: what the lab needs of a model when nothing is generated."""
    folder.mkdir(parents=True)
    size = 4 * _STAND_IN
    header = {"model.norm.weight": {"dtype": "F32", "shape": [_STAND_IN], "data_offsets": [0, size]}}
    text = json.dumps(header).encode("ascii")
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "tokenizer.json").write_text("{}", "utf-8")
    (folder / SCRIPT_NAME).write_text(Script().model_dump_json(), "utf-8")
    return folder


def _check_same_shapes(weights: Weights, base: Weights) -> None:
    missing = base.tensors.keys() - weights.tensors.keys()
    unknown = weights.tensors.keys() - base.tensors.keys()
    if missing or unknown:
        named = f"{min(missing)} is missing" if missing else f"{min(unknown)} is not the base's"
        raise Unloadable(f"other tensors than the base: {named}", hint=SAVE_AGAIN)
    for name, tensor in weights.tensors.items():
        if tensor.shape != base.tensors[name].shape:
            raise Unloadable(
                f"{name} has shape {list(tensor.shape)}, the base's is {list(base.tensors[name].shape)}",
                hint="Keep the base's shapes; do not resize embeddings or layers.",
            )


def _act_out(script: Script) -> None:
    match script.fault:
        case "unloadable":
            raise Unloadable("the script says so", hint="Change scripted.json.")
        case "rejected":
            raise Rejected("the script says so", hint="Change scripted.json.")
        case "busy":
            raise DeviceBusy(
                "0.5 GB of device memory are free, grading's share is 4.0 GB: the script says so"
            )
        case "error":
            raise InfrastructureError("the script says so")
        case "crash":
            os.abort()
        case "hang":
            time.sleep(10 * 24 * 3600)
        case None:
            return


def _digest(weights: Weights) -> str:
    return digest_value({path.name: digest_file(path) for path in weights.files})


def _has_template(folder: Path) -> bool:
    try:
        config = json.loads((folder / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        config = {}
    return (folder / "chat_template.jinja").is_file() or bool(config.get("chat_template"))
