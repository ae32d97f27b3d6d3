"""Times of files: the system stamps them by its own clock, and the product compares them with another one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_LATER_SECONDS = 86400.0


def stamp(place: Path, since: float, now: float) -> None:
    """Give the files below a place that the system has stamped since a moment the time of the simulation.

    The clock of a simulation is years away from that of the system, so each file is stamped once.
    """
    time = int(now * 1e9)
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(place) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                stamp(Path(entry.path), since, now)
            elif 0 <= entry.stat(follow_symlinks=False).st_mtime - since < _LATER_SECONDS:
                os.utime(entry.path, ns=(time, time), follow_symlinks=False)
