"""Errors of operators that the author writes in Python: handlers, permits, and where their checkpoints are kept."""

from __future__ import annotations

from jobs.errors import DrainmarkError, Retry


class ResetWanted(DrainmarkError):
    """An operator asked for a reset of its region, upon a passing error of its own (E19)."""

    id = "RESET_WANTED"


class PermitViolation(DrainmarkError):
    """A thread submitted or waited against the protocol of permits (V128, V135): code to be mended."""

    id = "PERMIT_VIOLATION"
    retry = Retry.PERMANENT


class CheckpointUnreadable(DrainmarkError):
    """A handler reads other values than it wrote, or what it wrote is damaged or gone (V120)."""

    id = "CHECKPOINT_UNREADABLE"
    retry = Retry.PERMANENT


class ValueTooLarge(DrainmarkError):
    """A value is larger than a data store takes (V156)."""

    id = "VALUE_TOO_LARGE"
    retry = Retry.PERMANENT
