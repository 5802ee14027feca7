"""Hyper-parameters and train type of a training script, read from its syntax tree or its YAML."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.reports.summaries.constants import UNKNOWN, Constant, Names, Values, called, constant
from posttrain.reports.summaries.script import Script
from posttrain.reports.summaries.words import SHORT_NAMES, TrainType

_CONFIGS = re.compile(r"\w*(?:Config|Arguments|Args|Settings)$")
_OPTIMISERS = re.compile(r"(?:Paged)?(?:Adam\w*|SGD|Adafactor|RMSprop|Lion\w*|Adagrad|NAdam|RAdam|Muon)$")
_EPOCH = re.compile(r"ep(?:och)?(?:_?(?:i|idx|num|no|number))?$", re.IGNORECASE)
_STEP = re.compile(r"(?:global_)?step$|iteration$", re.IGNORECASE)
_FLAG = re.compile(r"""--([A-Za-z][\w-]*)(?:[ =]+)["']?([-+\w.]+)""")
_VARIABLE = re.compile(r"""^\s*(?:export\s+)?([A-Za-z_]\w*)=["']?([-+\w.]+)["']?(?=\s|$|;)""", re.MULTILINE)
_ALIASES = {
    **SHORT_NAMES,
    **dict.fromkeys(
        ("batch_size", "train_batch_size", "per_device_batch_size", "micro_batch_size", "bs", "bsz"), "batch"
    ),
    **dict.fromkeys(("per_gpu_train_batch_size", "train_micro_batch_size_per_gpu"), "batch"),
    **dict.fromkeys(
        ("gradient_accumulation", "grad_accumulation", "grad_accum_steps", "accum_steps"), "grad_accum"
    ),
    **dict.fromkeys(("accumulation_steps", "accum", "grad_acc", "gas"), "grad_accum"),
    **dict.fromkeys(("num_epochs", "epoch", "n_epochs", "train_epochs", "max_epochs"), "epochs"),
    **dict.fromkeys(("lora_r", "lora_rank", "rank"), "r"),
    **dict.fromkeys(("num_steps", "n_steps", "total_steps", "steps", "max_train_steps"), "max_steps"),
    **dict.fromkeys(("max_seq_length", "max_seq_len", "max_len", "cutoff_len", "seq_len"), "max_length"),
    "kl_coef": "beta",
    "num_gen": "num_generations",
    "warmup": "warmup_steps",
    "clip_grad": "max_grad_norm",
}
_RECORDS = frozenset({"SimpleNamespace", "Namespace", "EasyDict", "DotDict", "AttrDict"})
_QUALIFIERS = frozenset(
    ("lora", "adamw", "adam", "sgd", "optimizer", "train", "training", "peak", "max", "base", "initial")
) | frozenset(("sft", "grpo", "ppo", "dpo", "adapter", "learning"))
"""Words before a name that leave it what it is: `LoRA r`, `peak lr`, but not `eval batch`."""
_TRAINERS = {
    "GRPO": TrainType.GRPO,
    "SFT": TrainType.SFT,
    "PPO": TrainType.PPO,
}
_OTHER_TRAINERS = re.compile(r"(?:DPO|KTO|ORPO|CPO|RLOO|Reward|GKD|BCO|XPO|OnlineDPO)(?:Trainer|Config)$")
_OPENING = frozenset(
    ("run", "Popen", "check_call", "check_output", "call", "system", "exec", "eval", "setattr", "update")
) | frozenset(("fine_tune", "HfArgumentParser", "vars", "import_module"))
_STAGES = {"sft": TrainType.SFT, "pt": TrainType.SFT, "ppo": TrainType.PPO, "grpo": TrainType.GRPO}
_DEEPEST, _MOST = 8, 4000
_MOST_CALLS = 20


def short(name: str) -> str:
    """The name of a hyper-parameter as summaries have it."""
    plain = name.strip().strip("`*").lower().replace("-", "_")
    return _ALIASES.get(plain, plain)


def unqualified(name: str) -> str:
    """`r` of `lora r`, `lr` of `peak learning rate`; another name as it is."""
    words = name.split()
    while len(words) > 1 and words[0] in _QUALIFIERS and "_".join(words) not in _ALIASES:
        words = words[1:]
    return short("_".join(words))


@dataclass(frozen=True)
class Setting:
    """One place where a script gives a hyper-parameter its value."""

    values: Values
    strong: bool
    """The value goes to a trainer, an optimiser or a loop; else a name merely looks like the parameter."""
    line: int


@dataclass
class Reading:
    """What scripts say about training."""

    settings: dict[str, list[Setting]] = field(default_factory=dict)
    types: set[TrainType] = field(default_factory=set)
    """What the code may be called; empty where it doesn't tell."""
    parsed: bool = True
    open: bool = False
    """Something from elsewhere may decide what stands nowhere: `Config(**read())`, another program."""

    def add(self, name: str, values: Values, *, strong: bool, line: int) -> None:
        self.settings.setdefault(short(name), []).append(Setting(values, strong, line))

    def config(self) -> dict[str, Constant]:
        """Hyper-parameters that go to a trainer, an optimiser or a loop and have one certain value."""
        found: dict[str, Constant] = {}
        for name, settings in self.settings.items():
            known = [s for s in settings if s.strong] or [s for s in settings if name in _WORTH_TELLING]
            values = {value for setting in known for value in setting.values.found}
            if len(values) == 1 and all(setting.values.complete for setting in known):
                found[name] = values.pop()
        return found


_WORTH_TELLING = ("lr", "batch", "epochs", "grad_accum", "max_steps")


def read_scripts(scripts: Iterable[Script]) -> Reading:
    """What some scripts say together."""
    return together(read_script(script) for script in scripts)


def together(readings: Iterable[Reading]) -> Reading:
    """Several readings as one; training in one of them outweighs copying in another."""
    whole = Reading()
    kinds = set[TrainType]()
    for reading in readings:
        whole.parsed = whole.parsed and reading.parsed
        whole.open = whole.open or reading.open
        for name, settings in reading.settings.items():
            whole.settings.setdefault(name, []).extend(settings)
        kinds |= reading.types
    idle = {TrainType.COPY_MODEL, TrainType.PLACEHOLDER}
    whole.types = kinds - idle or kinds
    return whole


def read_script(script: Script) -> Reading:
    """What one script says; a text that is no Python or YAML says nothing."""
    if script.suffix == ".py":
        return _read_python(script.text)
    if script.suffix == ".sh":
        return _read_shell(script.text)
    return _read_tables(script)


# --- Python


def _read_python(text: str) -> Reading:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in the agent's strings
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Reading(parsed=False)
    try:
        return _Python(tree).reading
    except RecursionError:
        return Reading(parsed=False)


class _Python:
    """One pass over a syntax tree for names, a second for what they are used for."""

    def __init__(self, tree: ast.Module) -> None:
        self.reading = Reading()
        self.names = Names()
        self.aliases: dict[str, str] = {}
        self._nodes = list(ast.walk(tree))
        self._calls = [node for node in self._nodes if isinstance(node, ast.Call)]
        for node in self._nodes:
            self._collect(node)
        self._parameters()
        for node in self._nodes:
            self._use(node)
        self.reading.types = self._types()
        self.reading.open = any(self._opens(call) for call in self._calls)

    def _opens(self, call: ast.Call) -> bool:
        """Whether a call may set parameters that stand nowhere in the script."""
        name = self.aliases.get(called(call), called(call))
        spread = any(keyword.arg is None for keyword in call.keywords)
        return name in _OPENING or (spread and (name[:1].isupper() or _OPTIMISERS.match(name) is not None))

    # names

    def _collect(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, ast.AugAssign):
            self._assign(node.target, None)
        elif isinstance(node, ast.For | ast.comprehension):
            self._loop(node)
        elif isinstance(node, ast.ClassDef):
            self._class(node)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            self.aliases |= {a.asname: a.name.split(".")[-1] for a in node.names if a.asname}
        elif isinstance(node, ast.Call):
            self._declared(node)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                if item.optional_vars is not None:
                    self._assign(item.optional_vars, None)

    def _assign(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            self.names.assigned.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Attribute):
            self.names.attributes.setdefault(target.attr, []).append(value)
        elif isinstance(target, ast.Subscript):
            self._set_item(target, value)
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) else None
            for index, inner in enumerate(target.elts):
                same = parts is not None and len(parts) == len(target.elts)
                self._assign(inner, parts[index] if same and parts is not None else None)

    def _declared(self, node: ast.Call) -> None:
        """An option of argparse, or attributes of a `SimpleNamespace(lr=1e-5)`."""
        if called(node) == "add_argument":
            self._option(node)
        elif called(node) in _RECORDS:
            for keyword in node.keywords:
                if keyword.arg is not None:
                    self.names.attributes.setdefault(keyword.arg, []).append(keyword.value)

    def _set_item(self, target: ast.Subscript, value: ast.expr | None) -> None:
        """`cfg["lr"] = 1e-5`: one more table of that name, with one entry."""
        if isinstance(target.value, ast.Name) and isinstance(target.slice, ast.Constant):
            table = None if value is None else ast.Dict(keys=[target.slice], values=[value])
            self.names.assigned.setdefault(target.value.id, []).append(table)

    def _loop(self, node: ast.For | ast.comprehension) -> None:
        source = node.iter
        values: Sequence[ast.expr | None] = [None]
        if isinstance(source, ast.Tuple | ast.List) and isinstance(node.target, ast.Name):
            values = source.elts
        for value in values:
            self._assign(node.target, value)

    def _class(self, node: ast.ClassDef) -> None:
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                self.names.attributes.setdefault(part.target.id, []).append(part.value)

    def _option(self, node: ast.Call) -> None:
        written = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        flags = [name for name in written if name.startswith("-")]
        keywords = {k.arg: k.value for k in node.keywords}
        longest = max(flags or written, key=len, default="")
        attribute = keywords.get("dest")
        name = attribute.value if isinstance(attribute, ast.Constant) else longest.lstrip("-")
        known = self.names.value(keywords["default"]) if "default" in keywords else UNKNOWN
        values = Values(
            known.found, known.complete, frozenset(flags) or frozenset({longest}), known.environment
        )
        self.names.options[str(name).replace("-", "_")] = values
        self.reading.add(str(name), values, strong=False, line=node.lineno)

    def _parameters(self) -> None:
        """Parameters of functions have their defaults and what calls in this script give them."""
        by_name: dict[str, list[ast.Call]] = {}
        for call in self._calls:
            by_name.setdefault(called(call), []).append(call)
        for node in self._nodes:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            plain = [*node.args.posonlyargs, *node.args.args]
            defaults: list[ast.expr | None] = [None] * (len(plain) - len(node.args.defaults))
            given = dict(zip((a.arg for a in plain), (*defaults, *node.args.defaults), strict=True))
            given |= dict(zip((a.arg for a in node.args.kwonlyargs), node.args.kw_defaults, strict=True))
            calls = by_name.get(node.name, [])
            for index, (name, default) in enumerate(given.items()):
                passed = [self._passed(call, name, index) for call in calls[:_MOST_CALLS]]
                if len(calls) > _MOST_CALLS:
                    passed.append(None)
                values = [value for value in passed if value is not _NOT_GIVEN]
                missing = len(values) < len(passed) or not calls
                self.names.assigned.setdefault(name, []).extend([*values, default] if missing else values)

    def _passed(self, call: ast.Call, name: str, index: int) -> ast.expr | None:
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        if any(keyword.arg is None for keyword in call.keywords) or any(
            isinstance(argument, ast.Starred) for argument in call.args
        ):
            return None
        return call.args[index] if index < len(call.args) else _NOT_GIVEN

    # uses

    def _use(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.For):
            self._counted(node)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    self._add(key.value, value, strong=False)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                name = getattr(target, "id", None) or getattr(target, "attr", None)
                if name and node.value is not None:
                    self._add(name, node.value, strong=False)

    def _add(self, name: str, value: ast.expr, *, strong: bool) -> None:
        self.reading.add(name, self.names.value(value), strong=strong, line=value.lineno)

    def _call(self, node: ast.Call) -> None:
        name = self.aliases.get(called(node), called(node))
        optimiser = _OPTIMISERS.match(name) is not None
        strong = optimiser or _CONFIGS.match(name) is not None or name == "DataLoader"
        for keyword in node.keywords:
            if keyword.arg is not None:
                self._add(keyword.arg, keyword.value, strong=strong)
        if optimiser and len(node.args) > 1:
            self._add("lr", node.args[1], strong=True)
        if name == "DataLoader" and len(node.args) > 1:
            self._add("batch", node.args[1], strong=True)
        if name == "clip_grad_norm_" and len(node.args) > 1:
            self._add("max_grad_norm", node.args[1], strong=True)
        if name == "range" and len(node.args) == 3:
            self._add("batch", node.args[2], strong=False)

    def _counted(self, node: ast.For) -> None:
        """`for epoch in range(3)`."""
        target, source = node.target, node.iter
        if not (isinstance(target, ast.Name) and isinstance(source, ast.Call)):
            return
        if called(source) in ("tqdm", "trange") and source.args and isinstance(source.args[0], ast.Call):
            source = source.args[0]
        if called(source) not in ("range", "trange") or not source.args:
            return
        name = "epochs" if _EPOCH.match(target.id) else "max_steps" if _STEP.match(target.id) else None
        if name is None or len(source.args) == 3:
            return
        if len(source.args) == 1:
            self._add(name, source.args[0], strong=True)
            return
        first, last = (self.names.value(argument) for argument in source.args)
        span = ast.BinOp(source.args[1], ast.Sub(), source.args[0])
        values = self.names.value(span) if first.found and last.found else UNKNOWN
        self.reading.add(name, values, strong=True, line=node.lineno)

    # train type

    def _types(self) -> set[TrainType]:
        used = {self.aliases.get(called(call), called(call)) for call in self._calls}
        for node in self._nodes:
            if isinstance(node, ast.ClassDef):
                used |= {base.id for base in node.bases if isinstance(base, ast.Name)}
                used |= {base.attr for base in node.bases if isinstance(base, ast.Attribute)}
        named = {kind for prefix, kind in _TRAINERS.items() if {f"{prefix}Trainer", f"{prefix}Config"} & used}
        trainers = {
            kind for prefix, kind in _TRAINERS.items() if any(n.endswith(f"{prefix}Trainer") for n in used)
        }
        if any(_OTHER_TRAINERS.match(name) for name in used):
            named = named or {TrainType.UNKNOWN}
        if "fine_tune" in used:  # of posttrain.training.simple
            named = named or {TrainType.SFT}
        if trainers or named:
            return trainers or named
        if used & {"backward", "train_epoch", "Trainer", "Seq2SeqTrainer"}:
            return _plain_types(used, self._words())
        if used & {"train", "fit", "run", "Popen", "check_call", "check_output", "call", "system"}:
            return set()  # something is started here, and who knows what
        return {TrainType.COPY_MODEL, TrainType.PLACEHOLDER}

    def _words(self) -> set[str]:
        found = set[str]()
        for node in self._nodes:
            if isinstance(node, ast.Name):
                found.add(node.id.lower())
            elif isinstance(node, ast.Attribute):
                found.add(node.attr.lower())
            elif isinstance(node, ast.keyword) and node.arg:
                found.add(node.arg.lower())
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name.lower())
        return found


_NOT_GIVEN = ast.Constant(value=None)


def _plain_types(used: set[str], words: set[str]) -> set[TrainType]:
    """A loop of one's own is reinforcement where rewards or advantages weigh the loss."""
    rewarded = any(mark in word for word in words for mark in ("advantage", "reward"))
    if not rewarded:
        supervised = used & {"cross_entropy", "CrossEntropyLoss", "Trainer", "Seq2SeqTrainer", "nll_loss"}
        return {TrainType.SFT} if supervised or words & {"labels", "loss"} else set()
    if any("critic" in word or "value_head" in word or "ppo" in word for word in words):
        return {TrainType.PPO}
    if any("grpo" in word or "group" in word or "num_generations" in word for word in words):
        return {TrainType.GRPO}
    return {TrainType.GRPO, TrainType.PPO, TrainType.UNKNOWN}


# --- what is no Python


def _read_shell(text: str) -> Reading:
    reading = Reading()
    for match in (*_FLAG.finditer(text), *_VARIABLE.finditer(text)):
        line = text.count("\n", 0, match.start()) + 1
        reading.add(match[1], constant(match[2]), strong=False, line=line)
        if match[1] == "stage" and match[2] in _STAGES:
            reading.types.add(_STAGES[match[2]])
    return reading


def _read_tables(script: Script) -> Reading:
    """YAML of LLaMA-Factory and the like, or JSON: every key with a plain value."""
    import yaml

    reading = Reading()
    try:
        content = json.loads(script.text) if script.suffix == ".json" else yaml.safe_load(script.text)
    except (ValueError, RecursionError, yaml.YAMLError):
        return Reading(parsed=False)
    training = False
    for name, value in _pairs(content, _DEEPEST, [0]):
        if value is None or isinstance(value, str | int | float | bool):
            reading.add(name, constant(value), strong=True, line=_line_of(name, script.text))
            training = training or short(name) in ("lr", "epochs", "max_steps")
    kind = content.get("stage", content.get("rl")) if isinstance(content, dict) else None
    if training and isinstance(kind, str):
        reading.types = {_STAGES.get(kind.lower(), TrainType.UNKNOWN)}
    return reading


def _pairs(content: Any, depth: int, counted: list[int]) -> Iterator[tuple[str, Any]]:
    """Keys and values of nested tables, a bounded number of them: aliases of YAML can nest without end."""
    if depth == 0:
        return
    inner = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for name, value in inner:
        counted[0] += 1
        if counted[0] > _MOST:
            return
        if isinstance(name, str):
            yield name, value
        if isinstance(value, dict | list):
            yield from _pairs(value, depth - 1, counted)


def _line_of(name: str, text: str) -> int:
    place = re.search(rf"^[ \t\"'-]*{re.escape(name)}[\"']?\s*:", text, re.MULTILINE)
    return 1 if place is None else text.count("\n", 0, place.start()) + 1
