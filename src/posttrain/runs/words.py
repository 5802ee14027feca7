"""An operator's word on a closed run: kept in its ledger after everything else, changing no number."""

from __future__ import annotations

from posttrain.core.errors import LedgerError, UsageError
from posttrain.core.paths import RunPaths
from posttrain.grading.ledger import Ledger, read_rows
from posttrain.runs.folder import locked
from posttrain.runs.history import History, Word
from posttrain.runs.resuming import closed_record


def say_word(paths: RunPaths, *, accepted: bool, why: str, by: str) -> tuple[Word, str]:
    """Append a verdict; returns it with the ledger's new head. UsageError if the run is not closed."""
    if closed_record(paths) is None:
        raise UsageError(f"RUN: {paths.run_id} is not closed; --resume it first")
    word = Word(accepted=accepted, why=why, by=by)
    with locked(paths), Ledger(paths.ledger, torn=paths.torn) as ledger:
        ledger.append("verdict", word)
        return word, ledger.head


def read_word(paths: RunPaths) -> Word | None:
    """What an operator said last about a run, if anything and if its ledger can be read."""
    try:
        return History(read_rows(paths.ledger)).word
    except (OSError, LedgerError):
        return None
