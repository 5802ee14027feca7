"""config.json, generation_config.json, processor files: what vLLM and older transformers read out of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from posttrain.checkpoints.doctor.findings import Draft, Finding, Level, Patient, listed

_CONFIG, _GENERATION = "config.json", "generation_config.json"
_PROCESSORS = (
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
    *("image_processor_config.json", "feature_extractor_config.json"),
)
_UNTOLD = {
    *("_name_or_path", "name_or_path", "transformers_version", "_from_model_config", "_attn_implementation"),
    *("dtype", "torch_dtype", "vocab_size", "tie_word_embeddings", "auto_map", "quantization_config"),
    *("architectures", "rope_theta", "rope_scaling", "rope_parameters", "_commit_hash"),
}
"""Fields with a rule of their own, or without effect."""
_SAMPLING = {
    *("do_sample", "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "num_beams"),
    *("max_new_tokens", "max_length", "min_new_tokens", "no_repeat_ngram_size", "stop_strings"),
    *("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"),
    *("bad_words_ids", "eos_token_id", "bos_token_id", "pad_token_id", "guidance_scale", "sequence_bias"),
}
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_BASES = "Take the base's file: training leaves it as it is."
_OLD_ROPE = 10000.0


def check_config(patient: Patient, draft: Draft) -> Iterator[Finding]:
    """Would another stack build the same model from this config?"""
    own, base = patient.read(_CONFIG), patient.read_base(_CONFIG)
    if own is None:
        draft.take_from_base(_CONFIG)
        what = "is no JSON object" if patient.has(_CONFIG) else "is missing"
        if base is None:
            draft.complete = False
        else:
            draft.documents[_CONFIG] = deepcopy(base)
            draft.from_base.discard(_CONFIG)
            _finish_config(draft, draft.documents[_CONFIG])
        yield _fault("config", f"{_CONFIG} {what}", _BASES, mended=base is not None)
        return
    config = draft.documents[_CONFIG] = deepcopy(own)
    yield from _model_class(config, base)
    yield from _rope(config, base)
    if base is not None:
        yield from _other_fields(config, base)
    yield from _dtype(draft, config)
    yield from _sizes(draft, config)


def _finish_config(draft: Draft, config: dict[str, Any]) -> None:
    """A config that was taken from the base is brought to what the weights are, without a word."""
    for _ in (*_rope(config, None), *_dtype(draft, config), *_sizes(draft, config)):
        pass


def _model_class(config: dict[str, Any], base: Mapping[str, Any] | None) -> Iterator[Finding]:
    """What loaders choose the model's class by."""
    wanted = None if base is None else base.get("architectures")
    said = config.get("architectures")
    if wanted and said != wanted:
        config["architectures"] = list(wanted)
        yield _fault("config.architectures", f"architectures is {said}, the base's is {wanted}", _BASES)
    elif base is None and not said:
        text = "architectures is missing; vLLM cannot choose a class"
        yield _fault("config.architectures", text, "Name the class, as in the base's.", mended=False)
    if "auto_map" in config and (base is None or "auto_map" not in base):
        del config["auto_map"]
        text = "auto_map names custom code, which no one should have to run for these weights"
        yield _fault("config.auto_map", text, "Remove auto_map.")
    if "quantization_config" in config and (base is None or "quantization_config" not in base):
        del config["quantization_config"]
        text = (
            "quantization_config is left over although the weights are not quantised: loaders look for scales"
        )
        yield _fault("config.quantization", text, "Remove quantization_config.")


def rope_theta(config: Mapping[str, Any]) -> float | None:
    """The rotary base that a config means, wherever its version of transformers keeps it."""
    inner = config.get("rope_parameters")
    told = inner.get("rope_theta") if isinstance(inner, dict) else None
    found = told if told is not None else config.get("rope_theta")
    return float(found) if isinstance(found, int | float) else None


def _rope(config: dict[str, Any], base: Mapping[str, Any] | None) -> Iterator[Finding]:
    own, wanted = rope_theta(config), None if base is None else rope_theta(base)
    old, new = config.get("rope_theta"), config.get("rope_parameters")
    if base is not None and wanted is not None and (own != wanted or _scaling(config) != _scaling(base)):
        for name in ("rope_theta", "rope_scaling", "rope_parameters"):
            config.pop(name, None)
            if name in base:
                config[name] = deepcopy(base[name])
        text = (
            f"rotary settings are not the base's (rope_theta {own}, the base's {wanted}): every text changes"
        )
        yield _fault("config.rope", text, _BASES)
        old, new, own = config.get("rope_theta"), config.get("rope_parameters"), wanted
    elif isinstance(new, dict) and old is not None and own is not None and float(old) != own:
        text = f"rope_theta says {old}, rope_parameters {own}: old and new stacks build different models"
        yield _fault("config.rope", text, "Make both the value that was trained with.")
    if own is not None and (old is None or float(old) != own):
        config["rope_theta"] = own
        if base is None or old is None:
            text = (
                f"rope_theta {own:g} stands only in rope_parameters; transformers 4 does not look there and "
                f"takes {_OLD_ROPE:g}"
            )
            level: Level = "note" if own == _OLD_ROPE else "fault"
            yield Finding(
                code="config.rope_place", level=level, text=text, remedy="Write rope_theta too.", mended=True
            )
        scaling = _scaling(config)
        if scaling:
            config.setdefault("rope_scaling", {"rope_type": "default", **scaling})


def _scaling(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings besides the base; empty for plain ones."""
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, dict):
        return {}
    named = {"rope_type": found.get("rope_type", found.get("type", "default")), **found}
    kept = {name: value for name, value in named.items() if name not in ("rope_theta", "type")}
    return {} if kept == {"rope_type": "default"} else kept


def _other_fields(config: dict[str, Any], base: Mapping[str, Any]) -> Iterator[Finding]:
    """Everything else that the base says otherwise, or that it does not say."""
    names = [name for name in base if name not in _UNTOLD and config.get(name, base[name]) != base[name]]
    lost = [name for name in base if name not in _UNTOLD and name not in config]
    for name in (*names, *lost):
        config[name] = deepcopy(base[name])
    if names:
        yield _fault("config.fields", f"fields that are not the base's: {listed(names)}", _BASES)
    if lost:
        text = f"fields that the base has are missing and take defaults: {listed(lost)}"
        yield Finding(code="config.fields", level="warning", text=text, remedy=_BASES, mended=True)


def _dtype(draft: Draft, config: dict[str, Any]) -> Iterator[Finding]:
    """The precision, under both names that stacks know it by."""
    weights = draft.weights if draft.plan is None else draft.plan.weights
    if weights is None:
        return
    stored = weights.main_dtype()
    said = config.get("dtype", config.get("torch_dtype"))
    if said != stored and stored in _DTYPES.values():
        text = f"dtype says {said}, the weights are {stored}"
        yield Finding(code="config.dtype", level="note", text=text, mended=True)
    if "torch_dtype" not in config:
        text = "torch_dtype is missing; transformers before 4.56 loads in float32, twice the memory"
        yield Finding(code="config.dtype", level="note", text=text, mended=True)
    config["dtype"] = config["torch_dtype"] = stored


def _sizes(draft: Draft, config: dict[str, Any]) -> Iterator[Finding]:
    """Vocabulary and tying as the written weights have them."""
    plan, head = draft.plan, draft.head
    if plan is None or head is None or head.embedding is None or head.embedding not in plan.sources:
        return
    taken = plan.sources[head.embedding]
    rows = taken.info.shape[0] if taken.rows is None or taken.base_rows else taken.rows
    if not taken.base_rows:
        said = config.get("vocab_size")
        config["vocab_size"] = rows
        if said != rows and taken.rows is None:
            yield _fault(
                "config.vocab_size", f"vocab_size is {said}, the embedding has {rows} rows", "Make it so."
            )
    tied = (head.tied and not draft.own_head) or plan.tie
    said_tied = config.get("tie_word_embeddings")
    config["tie_word_embeddings"] = tied
    if said_tied is not None and said_tied != tied:
        text = f"tie_word_embeddings is {said_tied}, the weights are {'tied' if tied else 'not tied'}"
        yield _fault("config.tied", text, "Make the flag say what the weights are.")


def check_generation(patient: Patient, draft: Draft) -> Iterator[Finding]:
    """vLLM takes sampling defaults and end tokens from generation_config.json."""
    own, base = patient.read(_GENERATION), patient.read_base(_GENERATION)
    if own is None and (patient.has(_GENERATION) or base is not None):
        what = "is no JSON object" if patient.has(_GENERATION) else "is missing"
        if base is not None:
            draft.take_from_base(_GENERATION)
        text = f"{_GENERATION} {what}: end tokens that only it names are lost, and answers do not end"
        yield _fault("generation", text, _BASES)
        return
    if own is None:
        return
    if base is not None:
        changed = sorted(
            name for name in _SAMPLING if own.get(name) != base.get(name) and (name in own or name in base)
        )
        draft.take_from_base(_GENERATION)
        if changed:
            text = f"sampling that is not the base's and that vLLM takes over by default: {listed(changed)}"
            yield _fault("generation.sampling", text, _BASES)
        return
    draft.documents[_GENERATION] = own
    set_ = [
        name for name in ("temperature", "top_p", "top_k", "repetition_penalty") if own.get(name) is not None
    ]
    if set_ and not own.get("do_sample"):
        text = (
            f"{listed(set_)} without do_sample: transformers refuses to save it again, vLLM samples with it"
        )
        yield Finding(code="generation.sampling", level="warning", text=text, remedy="Remove them.")


def check_processor(patient: Patient, draft: Draft) -> Iterator[Finding]:
    """Processor files that loaders of some families ask for even for texts."""
    for name in _PROCESSORS:
        if patient.base_has(name):
            draft.from_base.add(name)
            if not patient.has(name):
                yield _fault("processor", f"{name} is missing, which loaders of this family ask for", _BASES)


def _fault(code: str, text: str, remedy: str, *, mended: bool = True) -> Finding:
    return Finding(code=code, level="fault", text=text, remedy=remedy, mended=mended)
