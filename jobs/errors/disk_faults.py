"""Detection of a full or read-only disk: unlike a failed operator, it costs no attempt."""

from __future__ import annotations

import errno

from drainmark.jobs.errors import StoreUnavailable

_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_TEXTS = ("No space left on device", "Disk quota exceeded", "Read-only file system", "disk is full")
"""The texts of the C library, Java and SQLite: errors of Spark and deltalake have no number."""


def no_space(error: BaseException) -> StoreUnavailable | None:
    """Return the error for a full or read-only disk if one is the cause of another error, else None."""
    cause: BaseException | None = error
    while cause is not None:
        text = next((text for text in _TEXTS if text in str(cause)), None)
        if text is not None or (isinstance(cause, OSError) and cause.errno in _NUMBERS):
            msg = f"a disk cannot be written: {text or cause}"
            return StoreUnavailable(msg, remedy="free some space, then start again: no attempt was counted")
        cause = cause.__cause__
    return None
