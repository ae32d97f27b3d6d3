"""The log of a Delta table, entry by entry: what a version added, and which rows a rewind of a region withdrew."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from drainmark.jobs.errors import InputChanged, InputMissing, ObjectMissing
from drainmark.jobs.errors.environment import SHARE_FOLDERS, ClusterRefused
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.operators.sources.contract import Files
from drainmark.jobs.operators.sources.slices import ANEW, Slice
from drainmark.jobs.protocol.records.ids import REWOUND_TO
from drainmark.jobs.tasks.executor import reached
from drainmark.jobs.tasks.parquet_shares import FileErrors, FileShare, RowFile

REWOUND = "rewound_to"
"""In a slice: the lowest id to which its versions took the region of the table back."""

_REMEMBERED_SECONDS = 3600.0
_REMEMBERED_VERSIONS = 100
"""The age, and the number, at which versions without rows become a slice: well before the log is cleaned of them."""

_LOG = "_delta_log"
_Rewinds = list[tuple[int, int]]


@lru_cache(maxsize=64)
def _already_read(uri: str, identity: str) -> list[tuple[int, int, _Rewinds]]:
    """Return the place for what this process has read of a table: the first and the last version, and the rewinds."""
    return []


def actions_of(folder: Files, version: int, table: str) -> list[dict[str, Any]]:
    """Return the actions of one version, from its log file.

    Raises:
        InputMissing: the log does not go back so far.
        InputChanged: the log file is cut off, or is no log file.
    """
    try:
        source = folder.source(f"{_LOG}/{version:020d}.json")
        if isinstance(source, str):
            with open(source, encoding="utf-8", errors="replace") as file:
                text = file.read()
        else:
            content = source.read() if hasattr(source, "read") else source.readall().to_pybytes()
            text = content.decode(errors="replace")
    except (FileNotFoundError, ObjectMissing) as error:
        raise missing_version(table, version, "its log entry is gone") from error
    try:
        actions = [json.loads(line) for line in text.split("\n") if line.strip()]  # splitlines has more line ends
    except ValueError:
        actions = []
    if not actions:  # every commit has actions
        msg = f"the log entry of version {version} of {table} is cut off, or no log entry"
        remedy = f"put it back from a backup; or read a copy of the table {ANEW}"
        raise InputChanged(msg, remedy=remedy, trigger=f"delta:{table}#{version}")
    return actions


def written_at(actions: list[dict[str, Any]]) -> float:
    """Return the time at which a version was written, in seconds since 1970; 0 if its log entry has none."""
    return float(_info(actions).get("timestamp") or 0) / 1000


def is_worth_remembering(versions: int, oldest: float) -> bool:
    """Say whether versions without rows are to become a slice.

    Args:
        versions: their number.
        oldest: when the first of them was written, in seconds since 1970.
    """
    return versions > 0 and (versions >= _REMEMBERED_VERSIONS or time.time() - oldest >= _REMEMBERED_SECONDS)


def rewound_to(actions: list[dict[str, Any]]) -> int | None:
    """Return the id to which a version took the table's region back; None if it is no rewind that withdrew rows."""
    to = _info(actions).get(REWOUND_TO)
    return int(to) if to is not None and any("remove" in entry for entry in actions) else None


def rewinds_between(folder: Files, table: str, identity: str, first: int, last: int) -> _Rewinds:
    """Return the rewinds (version, id) from one version to another one, both inclusive.

    Raises:
        InputMissing, InputChanged: see `actions_of`.
    """
    known = _already_read(folder.uri, identity)
    begun, through, found = known[0] if known else (first, first - 1, [])
    if not begun <= first <= through + 1:  # versions in between may have left the log
        begun, through, found = first, first - 1, []
    for version in range(through + 1, last + 1):
        if (to := rewound_to(actions_of(folder, version, table))) is not None:
            found = [*found, (version, to)]
    known[:] = [(begun, max(through, last), found)]
    return [(version, to) for version, to in found if first <= version <= last]


def ids_in(action: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return the bounds of the ids in an added file, from its statistics; None if they are not known."""
    stats = json.loads(action.get("stats") or "{}")
    first, last = ((stats.get(bound) or {}).get(SEQUENCE_ID) for bound in ("minValues", "maxValues"))
    return first, last


def _info(actions: list[dict[str, Any]]) -> dict[str, Any]:
    return next((entry["commitInfo"] for entry in actions if "commitInfo" in entry), {})


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSlice(Slice):
    """The part of a slice that one task reads."""

    share: FileShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed(FileErrors):
    """A table that is read version by version: the error for a file is the error for the version that added it.

    Attributes:
        seen: the folder in which the run saw all files, if the reader is a worker that may not see them; otherwise "".
    """

    table: str
    seen: str = ""

    def gone(self, file: RowFile, error: Exception) -> Exception:
        if self.seen:
            msg = f"a worker does not find {file.path} of {self.table}, which the run saw below {self.seen}"
            return ClusterRefused(msg, remedy=SHARE_FOLDERS)
        return missing_version(self.table, file.version, f"its file {file.path} is gone")

    def damaged(self, file: RowFile, said: str) -> Exception:
        return InputChanged(
            f"the file {file.path} of version {file.version} of {self.table} is damaged: {said}",
            remedy=f"put it back from a backup; or read a copy of the table {ANEW}",
            trigger=f"delta:{self.table}#{file.version}",
        )

    def out_of_reach(self, file: RowFile, error: OSError) -> Exception:
        return reached(error)


def missing_version(table: str, version: int, why: str) -> InputMissing:
    """Return the error for a version that the log, or the folder, no longer has."""
    msg = f"version {version} of {table} cannot be read any more: {why}"
    remedy = "keep the log and the files longer than a run is away; to begin behind it: starting_version=… "
    return InputMissing(msg, remedy=f"{remedy}{ANEW}", triggers=(), trigger=f"delta:{table}#{version}")
