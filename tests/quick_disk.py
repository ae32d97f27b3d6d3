"""Files of the tests lie in memory: on a disk Delta, SQLite and PostgreSQL wait thousands of times for what they sync.

A process that is killed loses nothing that way either; what a failing power supply leaves is no matter of these tests.
"""

from __future__ import annotations

import os
import tempfile

_MEMORY = "/dev/shm"
_ROOM = 6 * 1024**3
_VARIABLE = "TMPDIR"


def quicken() -> None:
    """Have this process and its children keep temporary files there; what the environment says already stays."""
    if _VARIABLE not in os.environ and _is_fit():
        os.environ[_VARIABLE] = _MEMORY
        tempfile.tempdir = None  # asked for already, perhaps


def _is_fit() -> bool:
    try:
        found = os.statvfs(_MEMORY)
    except OSError:
        return False
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= _ROOM and os.access(_MEMORY, os.W_OK)
