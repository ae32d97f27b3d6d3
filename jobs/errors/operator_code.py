"""Errors of operators that the author writes in Python: handlers, permits, counted streams, stores of checkpoints."""

from __future__ import annotations

from drainmark.jobs.errors import DrainmarkError, Retry


class ResetWanted(DrainmarkError):
    """An operator asked for a reset of its region, after a temporary error of its own."""

    id = "RESET_WANTED"


class PermitViolation(DrainmarkError):
    """A thread submitted or waited against the protocol of permits: fix its code."""

    id = "PERMIT_VIOLATION"
    retry = Retry.PERMANENT


class CheckpointUnreadable(DrainmarkError):
    """A handler reads other values than it wrote, or its checkpoint is damaged or gone."""

    id = "CHECKPOINT_UNREADABLE"
    retry = Retry.PERMANENT


class ValueTooLarge(DrainmarkError):
    """A value is larger than a data store takes."""

    id = "VALUE_TOO_LARGE"
    retry = Retry.PERMANENT


class ReferenceMiscounted(DrainmarkError):
    """A node of a counted stream took or released a reference that is not there: fix its code."""

    id = "REFERENCE_MISCOUNTED"
    retry = Retry.PERMANENT


class StreamClosed(DrainmarkError):
    """A counted stream is closed: the data that it kept are dropped, and do not count as done."""

    id = "STREAM_CLOSED"


class StreamStuck(DrainmarkError):
    """Data of a counted stream wait at a node for room or for other data, and no work in progress brings any."""

    id = "STREAM_STUCK"


class StreamRefused(DrainmarkError):
    """A counted stream cannot begin a consistent region: a node remembers data that no replay gives it again."""

    id = "STREAM_REFUSED"
    retry = Retry.PERMANENT
