"""What else lies in the folder: leftovers, adapters, pickles."""

from __future__ import annotations

import re
from collections.abc import Iterator

from posttrain.checkpoints.doctor.findings import Draft, Finding, Patient, listed

_LEFTOVERS = re.compile(
    r"(?:optimizer|scheduler|scaler|training_args|rng_state.*)\.(?:bin|pt|pth|pkl)|trainer_state\.json"
    r"|latest|zero_to_fp32\.py|.*_optim_states\.pt|.*_model_states\.pt|events\.out\.tfevents.*"
)
_PICKLES = re.compile(r".*\.(?:bin|pt|pth|pkl|ckpt)")
_ADAPTERS = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")


def check_files(patient: Patient, draft: Draft) -> Iterator[Finding]:
    """Files that are no part of the model."""
    leftovers = {name for name in patient.names if _LEFTOVERS.fullmatch(name)}
    pickles = {name for name in patient.names if _PICKLES.fullmatch(name)} - leftovers - set(_ADAPTERS)
    adapters = {name for name in _ADAPTERS if patient.has(name)}
    if leftovers:
        text = f"left over from training, no part of the model: {listed(leftovers)}"
        yield Finding(code="files.leftover", level="note", text=text, mended=True)
    if not draft.complete:
        return
    if pickles:
        text = f"pickles beside the safetensors, which some loaders prefer: {listed(pickles)}"
        yield Finding(code="files.pickle", level="warning", text=text, remedy="Delete them.", mended=True)
    if adapters:
        text = f"an adapter beside whole weights: loaders apply it on top ({listed(adapters)})"
        remedy = "Delete it if it is merged; else merge it: merge_and_unload()."
        yield Finding(code="files.adapter", level="fault", text=text, remedy=remedy, mended=True)
