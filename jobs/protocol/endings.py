"""The end of an owner of a region, as its last row or its successor tells it."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """How an owner ended; CRASHED is what the next owner concludes when there is no word."""

    NONE = "none"  # there was no owner yet
    CLEAN = "clean"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    CRASHED = "crashed"


UNCLEAN = frozenset({Outcome.FAILED, Outcome.CRASHED})
