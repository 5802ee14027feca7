"""All checks over one folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from posttrain.checkpoints.comparing import Compared
from posttrain.checkpoints.doctor.configs import check_config, check_generation, check_processor
from posttrain.checkpoints.doctor.files import check_files
from posttrain.checkpoints.doctor.findings import Draft, Finding, Patient
from posttrain.checkpoints.doctor.tokenizers import check_tokenizer
from posttrain.checkpoints.doctor.weights import check_values, check_weights

Compare = Callable[[], Compared]
"""Reads every weight, in a process of its own; SubmissionFault for what cannot be matched."""


@dataclass(frozen=True)
class Examination:
    """What was found, and the draft of a mended copy."""

    patient: Patient
    findings: tuple[Finding, ...]
    draft: Draft

    @property
    def faults(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "fault")

    @property
    def incurable(self) -> tuple[Finding, ...]:
        """Faults that a copy would still have."""
        return tuple(fault for fault in self.faults if not fault.mended)


def examine(folder: Path, base: Path | None, *, compare: Compare | None = None) -> Examination:
    """Look at a folder, against its base if that is known; without `compare` no weight is read."""
    patient, draft = Patient.of(folder, base), Draft()
    findings = list(check_weights(patient, draft))
    compared = compare() if compare is not None and draft.complete else None
    findings += chain(
        check_values(patient, draft, compared),
        check_config(patient, draft),
        check_generation(patient, draft),
        check_tokenizer(patient, draft),
        check_processor(patient, draft),
        check_files(patient, draft),
    )
    return Examination(patient, tuple(findings), draft)
