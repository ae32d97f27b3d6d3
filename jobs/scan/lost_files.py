"""Messages about files that changed or vanished after they were scanned."""

from __future__ import annotations

from collections.abc import Sequence

from drainmark.jobs.errors import InputChanged, InputMissing
from drainmark.jobs.protocol.records.triggers import Trigger


def missing_files(triggers: Sequence[Trigger], why: str) -> InputMissing:
    """Return the error for files that are gone."""
    first = triggers[0]
    msg = f"{first.uri} was scanned and cannot be read any more: {why}"
    return InputMissing(msg, remedy="put it back", triggers=tuple(triggers))


def changed_files(triggers: Sequence[Trigger]) -> InputChanged:
    """Return the error for files that changed after the scan."""
    msg = f"{triggers[0].uri} is not the file that was scanned: it changed since"
    remedy = "Drainmark scans it again; write files elsewhere and rename them into place"
    return InputChanged(msg, remedy=remedy, triggers=tuple(triggers))
