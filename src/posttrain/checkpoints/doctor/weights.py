"""Weights: the grader's own tensor rules, and what other loaders stumble over."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from posttrain.checkpoints.architecture import read_config
from posttrain.checkpoints.comparing import Compared
from posttrain.checkpoints.doctor.findings import Draft, Finding, Patient, listed
from posttrain.checkpoints.headers import INDEX_NAME, SAVE_AGAIN, SINGLE_NAME, Weights, read_weights
from posttrain.checkpoints.matching import head_in_files, plan_submission, token_count
from posttrain.core.errors import SubmissionFault

_TAKEN = ("F32", "F16", "BF16")
_DIVERGED = (
    "Training diverged. Guard against non-finite loss and gradients; go back to an earlier checkpoint."
)
_MUCH_ZEROED = 0.001


def check_weights(patient: Patient, draft: Draft) -> Iterator[Finding]:
    """Are these the tensors of the base, whole and under their names? Headers only."""
    try:
        weights = _match(patient, draft)
    except SubmissionFault as fault:
        draft.complete = False
        yield Finding(code="weights", level="fault", text=fault.reason, remedy=_remedy(patient, fault))
        return
    repairs = weights.repairs if draft.plan is None else draft.plan.repairs
    for repair in repairs:
        yield Finding(code="tensors", level="fault", text=repair, remedy=SAVE_AGAIN, mended=True)
    yield from _form(patient, weights)


def _match(patient: Patient, draft: Draft) -> Weights:
    """Settle which tensors there are and where they go in the copy."""
    if patient.base is None:
        draft.weights = read_weights(patient.folder)
        return draft.weights
    base, config = read_weights(patient.base), read_config(patient.base) or {}
    draft.head = head_in_files(base, config)
    tokens = partial(token_count, patient.base)
    draft.plan = plan_submission(patient.folder, base, base_config=config, head=draft.head, tokens=tokens)
    return draft.plan.weights


def _form(patient: Patient, weights: Weights) -> Iterator[Finding]:
    if weights.metadata.get("format") not in ("pt", "tf", "flax", "mlx"):
        yield Finding(
            code="tensors.format",
            level="fault",
            text="the safetensors metadata does not name the format; transformers 4 refuses such files",
            remedy='save_file(tensors, path, metadata={"format": "pt"})',
            mended=True,
        )
    dtypes = {tensor.dtype for tensor in weights.tensors.values()}
    if dtypes - set(_TAKEN):
        yield Finding(
            code="tensors.dtype",
            level="fault",
            text=f"tensors are stored as {listed(dtypes - set(_TAKEN))}",
            remedy="Save in bfloat16, float16 or float32.",
        )
    elif len(dtypes) > 1:
        yield Finding(code="tensors.dtype", level="note", text=f"several precisions: {listed(dtypes)}")
    elif dtypes == {"F32"}:
        yield Finding(
            code="tensors.dtype",
            level="note",
            text="stored in float32: twice the memory of bfloat16 wherever it is served as it is stored",
        )
    if SINGLE_NAME in patient.names and INDEX_NAME in patient.names:
        text = f"{INDEX_NAME} lies beside {SINGLE_NAME}; loaders disagree which counts, here the single file"
        yield Finding(
            code="index.stale", level="fault", text=text, remedy=f"Delete {INDEX_NAME}.", mended=True
        )


def check_values(patient: Patient, draft: Draft, compared: Compared | None) -> Iterator[Finding]:
    """What only reading every weight shows."""
    says_untied = (patient.read("config.json") or {}).get("tie_word_embeddings") is False
    if compared is None:
        draft.own_head = says_untied  # the folder's word, as long as nobody has compared the two
        return
    found, provenance = compared.findings, compared.provenance
    if found.not_finite:
        draft.complete = False
        text = f"{len(found.not_finite)} tensors hold values that are not finite ({listed(found.not_finite)})"
        yield Finding(code="values.finite", level="fault", text=text, remedy=_DIVERGED)
    if draft.plan is None:
        return
    yield from _head(draft, found.head_equals_embedding, says_untied=says_untied)
    if found.zeroed or found.zeroed_share > _MUCH_ZEROED:
        text = (
            f"{100 * found.zeroed_share:.1f} % of the elements are 0 where the base's are not; wholly 0: "
            f"{listed(found.zeroed) or 'no tensor'}"
        )
        remedy = "Saving may have been interrupted: save again and compare."
        yield Finding(code="values.zero", level="warning", text=text, remedy=remedy)
    if provenance.copy_of_base:
        text = "every element is the base's: nothing was learnt, or a merge had no effect"
        remedy = "Check that the adapter was loaded before merge_and_unload and that training stepped."
        yield Finding(code="values.unchanged", level="warning", text=text, remedy=remedy)
    elif found.unchanged:
        text = f"{len(found.unchanged)} of {found.tensors} tensors are exactly the base's"
        yield Finding(code="values.unchanged", level="note", text=text)


def _head(draft: Draft, equals_embedding: bool | None, *, says_untied: bool) -> Iterator[Finding]:
    """A head that the base ties and the folder brings all the same."""
    assert draft.plan is not None
    if draft.plan.head is None:
        return
    draft.own_head = equals_embedding is False
    if draft.own_head and says_untied:
        text = f"{draft.plan.head} is a head of its own, which the base does not have"
        yield Finding(code="tensors.head", level="note", text=text)
        return
    if draft.own_head:
        text = f"{draft.plan.head} differs from the embedding although the base ties them: loaders drop one"
        remedy = "Set tie_word_embeddings to false, or train with tied weights."
    else:
        text = f"{draft.plan.head} repeats the embedding that it is tied to; some loaders refuse that"
        remedy = "model.tie_weights() before saving."
    yield Finding(code="tensors.head", level="fault", text=text, remedy=remedy, mended=True)


def _remedy(patient: Patient, fault: SubmissionFault) -> str:
    """The usual remedy; where the folder only holds the model's folder, that."""
    inner = sorted(path.parent.name for path in patient.folder.glob("*/*.safetensors"))
    if inner and not any(name.endswith(".safetensors") for name in patient.names):
        return f"Weights lie in {listed(set(inner))}: give that folder."
    return fault.hint
