"""Tokenizer and chat template: other token ids are another model, and stacks differ in what they read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from posttrain.checkpoints.doctor.findings import Draft, Finding, Patient, listed, read_object

_TOKENIZER, _SETTINGS, _JINJA = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
_OTHER_FILES = (
    *("vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "tekken.json"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.json"),
)
_NEW_CLASSES = ("TokenizersBackend", "SentencePieceBackend", "PythonBackend")
"""Names that transformers 4 does not know."""
_OLD_CLASS = "PreTrainedTokenizerFast"
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_DECIDING = (
    *(
        "bos_token",
        "eos_token",
        "pad_token",
        "unk_token",
        "add_bos_token",
        "add_eos_token",
        "add_prefix_space",
    ),
    *("model_max_length", "clean_up_tokenization_spaces", "legacy", "split_special_tokens"),
)
_BASES = "Take the base's file: training leaves the tokenizer as it is."


def check_tokenizer(patient: Patient, draft: Draft) -> Iterator[Finding]:
    """Does every stack read the base's token ids from this folder?"""
    present = [name for name in (_TOKENIZER, *_OTHER_FILES[:6]) if patient.has(name)]
    if not present:
        taken = _take_all(patient, draft)
        yield _fault("tokenizer", "no tokenizer in the folder", _BASES, mended=taken)
        yield from _template(patient, draft, {})
        return
    draft.from_folder |= {name for name in _OTHER_FILES if patient.has(name)} - {"chat_template.json"}
    yield from _vocabulary(patient, draft)
    settings = _settings(patient, draft)
    yield from settings.findings
    yield from _template(patient, draft, settings.document)
    yield from _legacy_files(patient, draft)


def _take_all(patient: Patient, draft: Draft) -> bool:
    """All tokenizer files of the base; whether there are any."""
    names = [name for name in (_TOKENIZER, _SETTINGS, *_OTHER_FILES) if patient.base_has(name)]
    for name in names:
        draft.take_from_base(name)
    return bool(names)


# --- tokenizer.json


def _vocabulary(patient: Patient, draft: Draft) -> Iterator[Finding]:
    if not patient.has(_TOKENIZER):
        return
    own, base = patient.read(_TOKENIZER), patient.read_base(_TOKENIZER)
    if own is None or not isinstance(own.get("model"), dict):
        if base is not None:
            draft.take_from_base(_TOKENIZER)
        yield _fault("tokenizer.json", f"{_TOKENIZER} cannot be read", _BASES, mended=base is not None)
        return
    tokenizer = draft.documents[_TOKENIZER] = deepcopy(own)
    for name in ("truncation", "padding"):
        if own.get(name) is not None and (base is None or base.get(name) is None):
            tokenizer[name] = None
            text = f"{_TOKENIZER} has {name} switched on, as a trainer left it: prompts are cut or padded"
            yield _fault(f"tokenizer.{name}", text, f"tokenizer.backend_tokenizer.no_{name}() before saving.")
    if base is not None:
        yield from _against_base(tokenizer, base, draft)


def _against_base(own: Mapping[str, Any], base: Mapping[str, Any], draft: Draft) -> Iterator[Finding]:
    mine, wanted = _ids(own), _ids(base)
    moved = [token for token, number in wanted.items() if mine.get(token) != number]
    added = [token for token in mine if token not in wanted]
    parts = [name for name in _PARTS if own.get(name) != base.get(name)]
    if own["model"].get("merges") is not None and _merges(own) != _merges(base):
        parts.append("merges")
    if _specials(own) != _specials(base) and not added:
        parts.append("added_tokens")
    if moved:
        yield _fault("tokenizer.ids", f"{len(moved)} tokens of the base have another id or none", _BASES)
    if parts:
        text = f"{listed(parts)} of {_TOKENIZER} are not the base's: texts become other token ids"
        yield _fault("tokenizer.parts", text, _BASES)
    if added:
        text = f"{len(added)} tokens beyond the base's ({listed(added, 3)}): prompts are graded without them"
        remedy = "Do not add tokens; write them as plain text."
        yield Finding(code="tokenizer.added", level="warning", text=text, remedy=remedy, mended=True)
    draft.take_from_base(_TOKENIZER)  # equal to it or mended by it, and then the same bytes


def _ids(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    vocabulary = tokenizer["model"].get("vocab")
    if isinstance(vocabulary, list):  # unigram: pairs of token and score
        vocabulary = {entry[0]: number for number, entry in enumerate(vocabulary)}
    added = {entry["content"]: entry["id"] for entry in tokenizer.get("added_tokens") or ()}
    return {**(vocabulary or {}), **added}


def _merges(tokenizer: Mapping[str, Any]) -> list[str]:
    """Pairs are kept as `a b` by older versions, as lists by newer ones."""
    merges = tokenizer["model"].get("merges") or ()
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def _specials(tokenizer: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    fields = ("id", "content", "special", "lstrip", "rstrip", "normalized", "single_word")
    return [tuple(entry.get(name) for name in fields) for entry in tokenizer.get("added_tokens") or ()]


# --- tokenizer_config.json


class _Settings:
    """tokenizer_config.json as it will be, and what was found in it."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.findings: list[Finding] = []


def _settings(patient: Patient, draft: Draft) -> _Settings:
    own, base = patient.read(_SETTINGS), patient.read_base(_SETTINGS)
    if own is None:
        found = _Settings(deepcopy(base) if base is not None else {})
        what = "cannot be read" if patient.has(_SETTINGS) else "is missing"
        found.findings.append(
            _fault("tokenizer_config", f"{_SETTINGS} {what}", _BASES, mended=base is not None)
        )
        _for_older_stacks(found, base)
    else:
        found = _Settings(deepcopy(own))
        _extra_tokens(found)
        _for_older_stacks(found, base)
        if base is not None:
            _deciding_fields(found, base)
    if found.document:
        draft.documents[_SETTINGS] = found.document
    return found


def _extra_tokens(found: _Settings) -> None:
    """transformers 5 writes a list where 4 expects names; both read additional_special_tokens."""
    extra = found.document.get("extra_special_tokens")
    if isinstance(extra, list):
        del found.document["extra_special_tokens"]
        known = found.document.get("additional_special_tokens") or []
        merged = [*known, *(token for token in extra if token not in known)]
        if merged:
            found.document["additional_special_tokens"] = merged
        text = "extra_special_tokens is a list, which transformers 4 and vLLM built on it cannot read"
        found.findings.append(_fault("tokenizer.extra", text, "Keep them as additional_special_tokens."))


def _for_older_stacks(found: _Settings, base: Mapping[str, Any] | None) -> None:
    said = found.document.get("tokenizer_class")
    wanted = None if base is None else base.get("tokenizer_class")
    if said in _NEW_CLASSES or (said is None and found.document):
        chosen = wanted if wanted and wanted not in _NEW_CLASSES else _OLD_CLASS
        found.document["tokenizer_class"] = chosen
        text = f"tokenizer_class {said} is unknown to transformers 4"
        found.findings.append(_fault("tokenizer.class", text, f"Write {chosen}, which both read."))
    if "auto_map" in found.document and (base is None or "auto_map" not in base):
        del found.document["auto_map"]
        text = f"auto_map in {_SETTINGS} names custom code"
        found.findings.append(_fault("tokenizer.auto_map", text, "Remove auto_map."))


def _deciding_fields(found: _Settings, base: Mapping[str, Any]) -> None:
    """Fields by which prompts become other ids, or are cut."""
    changed = [name for name in _DECIDING if _plain(found.document.get(name)) != _plain(base.get(name))]
    for name in changed:
        if name in base:
            found.document[name] = deepcopy(base[name])
        else:
            found.document.pop(name)
    if changed:
        text = f"{_SETTINGS}: {listed(changed)} are not the base's"
        found.findings.append(_fault("tokenizer.settings", text, _BASES))


def _plain(value: Any) -> Any:
    """A token is a text, or an object with its text as content; a length may be endless."""
    if isinstance(value, dict) and "content" in value:
        return value["content"]
    return "endless" if isinstance(value, int) and value > 10**12 else value


# --- the chat template


def _template(patient: Patient, draft: Draft, settings: dict[str, Any]) -> Iterator[Finding]:
    inner = settings.get("chat_template")
    inline = inner if isinstance(inner, str) else None
    apart = _read_text(patient.folder / _JINJA)
    wanted = base_template(patient.base) if patient.base is not None else None
    template = apart or inline
    if apart is not None and inline is not None and apart != inline:
        text = f"{_JINJA} and {_SETTINGS} hold different chat templates: new and old stacks ask differently"
        yield _fault("template.two", text, "Keep one of them, and write it to both.")
    if wanted is not None and template != wanted:
        what = "no chat template" if template is None else "the chat template is not the base's"
        text = f"{what}: outside this lab the model is asked otherwise than it is graded"
        yield _fault("template", text, "Take the base's template.")
        template = wanted
    elif template is None and inner is None:
        text = "no chat template: chat endpoints answer 400; this lab asks in plain form"
        yield Finding(code="template", level="note", text=text)
    elif wanted is None and patient.base is not None and template is not None:
        text = "a chat template although the base has none: this lab asks in plain form all the same"
        yield Finding(code="template", level="note", text=text)
    yield from _syntax(template)
    if template is not None:
        if apart is not None and inline is None and template == apart:
            text = f"the chat template stands only in {_JINJA}; transformers before 4.52 does not look there"
            yield Finding(
                code="template.place", level="warning", text=text, remedy="Write it to both.", mended=True
            )
        draft.texts[_JINJA] = template
        if settings:
            settings["chat_template"] = template


def _syntax(template: str | None) -> Iterator[Finding]:
    if template is None:
        return
    try:
        ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(
            template.replace("{% generation %}", "").replace("{% endgeneration %}", "")
        )
    except TemplateSyntaxError as error:
        text = f"the chat template is no valid Jinja: {error.message} (line {error.lineno})"
        yield _fault("template.syntax", text, "Take the base's template.", mended=False)


def base_template(folder: Path) -> str | None:
    """The chat template of a folder as transformers reads it: the file before the settings."""
    apart = _read_text(folder / _JINJA)
    if apart is not None:
        return apart
    found = (read_object(folder / _SETTINGS) or {}).get("chat_template")
    return found if isinstance(found, str) else None


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _legacy_files(patient: Patient, draft: Draft) -> Iterator[Finding]:
    """Tables that older stacks read beside tokenizer.json and that may say something else."""
    if patient.base is None:
        return
    for name in _OTHER_FILES:
        same = patient.base_has(name) and read_bytes(patient.base / name) == read_bytes(patient.folder / name)
        if patient.has(name) and not same and name != "chat_template.json":
            draft.drop(name)
            if patient.base_has(name):
                draft.take_from_base(name)
                yield _fault("tokenizer.tables", f"{name} is not the base's", _BASES)
        elif patient.base_has(name):
            draft.take_from_base(name)


def read_bytes(path: Path) -> bytes:
    """The content of a file; empty if there is none."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _fault(code: str, text: str, remedy: str, *, mended: bool = True) -> Finding:
    return Finding(code=code, level="fault", text=text, remedy=remedy, mended=mended)
