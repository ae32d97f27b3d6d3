"""Files of the tests in memory: on a disk, Delta, SQLite and PostgreSQL wait for thousands of syncs.

A killed process loses no file in memory either; these tests do not cover a power failure.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

_MEMORY = "/dev/shm"
_ROOM = 6 * 1024**3
_VARIABLE = "TMPDIR"
_OF_PYTEST = "PYTEST_DEBUG_TEMPROOT"  # the folders of pytest, which it keeps for failed tests


def quicken() -> None:
    """Let this process and its children keep temporary files in memory; a setting of the environment stays."""
    if _VARIABLE not in os.environ and _is_fit():
        os.environ.setdefault(_OF_PYTEST, _MEMORY)
        os.environ[_VARIABLE] = tempfile.tempdir = tempfile.mkdtemp(prefix="drainmark-tests-", dir=_MEMORY)
        os.chmod(tempfile.tempdir, 0o711)  # noqa: S103 - PostgreSQL runs as a user of its own
        atexit.register(_remove, os.environ[_VARIABLE], os.getpid())


def _is_fit() -> bool:
    try:
        found = os.statvfs(_MEMORY)
    except OSError:
        return False
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= _ROOM and os.access(_MEMORY, os.W_OK)


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not in its forks
        shutil.rmtree(folder, ignore_errors=True)
