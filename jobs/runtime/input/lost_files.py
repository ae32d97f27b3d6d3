"""What is said of files that are no longer what was scanned."""

from __future__ import annotations

from collections.abc import Sequence

from drainmark.jobs.errors import InputChanged, InputMissing
from drainmark.jobs.protocol.records.triggers import Trigger

_SKIP = "put it back, or: drainmark skip {} --file '{}' --reason '…'"


def missing_files(triggers: Sequence[Trigger], why: str) -> InputMissing:
    """Return the error for files that are gone."""
    first = triggers[0]
    msg = f"{first.uri} was scanned and cannot be read any more: {why}"
    return InputMissing(msg, remedy=_SKIP.format(first.region, first.uri), triggers=tuple(triggers))


def changed_files(triggers: Sequence[Trigger]) -> InputChanged:
    """Return the error for files that are other ones now."""
    msg = f"{triggers[0].uri} is not the file that was scanned: it changed since"
    remedy = "it is scanned anew; write files elsewhere and rename them into place"
    return InputChanged(msg, remedy=remedy, triggers=tuple(triggers))
