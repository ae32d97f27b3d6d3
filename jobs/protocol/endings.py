"""The end of an owner of a region, as its last row or the next owner records it."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """The way in which an owner ended. The next owner concludes CRASHED if the last one left no record."""

    NONE = "none"  # there was no owner yet
    CLEAN = "clean"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    CRASHED = "crashed"


UNCLEAN = frozenset({Outcome.FAILED, Outcome.CRASHED})
