"""The entries of a table's log: who made a commit, and what it changed; and that one region alone changes the data.

A commit of a region carries its transaction id. One without it that added or removed rows is somebody else's doing, for
which no checkpoint row stands; what leaves the rows as they are (OPTIMIZE, VACUUM, properties) is harmless.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drainmark.jobs.errors import ObjectMissing, SplitBrain
from drainmark.jobs.protocol.records.ids import app_id
from drainmark.resources.storage.folder import Folder

LOG = "_delta_log"
LOG_ENTRY = re.compile(r"\d{20}\.(json|checkpoint\..*)")
COMMIT_ENTRY = re.compile(r"(\d{20})\.json")

REPAIR = "drainmark.repair"
"""In the commitInfo of a commit that put right what others did to a table: what is older is settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCommit:
    """One commit, as its entry tells.

    Attributes:
        is_own: the region's.
        transaction: the region's `txnVersion` in it, None where it carries none.
        mark: of a repair, which put right what others had done before; None of every other commit.
        user: who made it, where the engine says so.
        changes_data: did rows come or go?
        added, removed: bytes by path, relative to the table.
    """

    version: int
    is_own: bool
    transaction: int | None
    mark: str | None
    operation: str
    engine: str
    user: str | None
    changes_data: bool
    added: Mapping[str, int] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_repair(self) -> bool:
        """Did it put right what others had done before?"""
        return self.mark is not None

    @property
    def is_damage(self) -> bool:
        """Did somebody else change rows?"""
        return self.changes_data and not self.is_own

    def __str__(self) -> str:
        return f"version {self.version}, {self.operation} by {self.engine}{f' ({self.user})' if self.user else ''}"


def lines_of(folder: Folder, path: str) -> list[str]:
    """Return the lines of a small text file of a table.

    A line ends at a line feed and nowhere else: writers leave the other line ends of Unicode as they are in JSON.

    Raises:
        FileNotFoundError: there is none.
    """
    source = folder.source(path)
    content: bytes = Path(source).read_bytes() if isinstance(source, str) else source.read()
    return content.decode().split("\n")


def commits_back(folder: Folder, region: str, newest: int) -> Iterator[LogCommit]:
    """Yield a table's commits from a version back to the creation, one entry read each; ends where the log was cut.

    The creation has no transaction, and is the region's: a table of another's is refused before.
    """
    for version in range(newest, -1, -1):
        try:
            lines = lines_of(folder, entry_path(version))
        except (FileNotFoundError, ObjectMissing):
            return
        yield _commit(version, region, [json.loads(line) for line in lines if line.strip()])


def entry_path(version: int) -> str:
    """Return the path of a commit's entry, relative to the table."""
    return f"{LOG}/{version:020d}.json"


def _commit(version: int, region: str, actions: list[dict[str, Any]]) -> LogCommit:
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    transactions = (action["txn"] for action in actions if "txn" in action)
    own = next((int(each["version"]) for each in transactions if each["appId"] == app_id(region)), None)
    is_own = version == 0 or own is not None
    changes = [action[kind] for action in actions for kind in ("add", "remove") if kind in action]
    return LogCommit(
        version=version,
        is_own=is_own,
        transaction=own,
        mark=info.get(REPAIR) if is_own else None,
        operation=info.get("operation", "unknown"),
        engine=info.get("engineInfo", "unknown"),
        user=info.get("userName") or info.get("userMetadata"),
        changes_data=any(change.get("dataChange", True) for change in changes),
        added=_sizes(actions, "add"),
        removed=_sizes(actions, "remove"),
    )


def _sizes(actions: list[dict[str, Any]], kind: str) -> dict[str, int]:
    found = (action[kind] for action in actions if kind in action)
    return {urllib.parse.unquote(each["path"]): each.get("size") or 0 for each in found}


class SoleWriter:
    """Sees to it that a region commits to a table only where nobody else changed its rows; one object a table.

    What is asked with every commit: the entries since the region's last one, in nearly all cases that one alone; what
    this object has seen is not read again.

    Attributes:
        through: the newest version whose commits are known to be sound; -1 for none.
    """

    def __init__(self, folder: Folder, region: str) -> None:
        self.folder = folder
        self.region = region
        self.through = -1

    def require(self, version: int) -> None:
        """Check the commits up to a version.

        Raises:
            SplitBrain: somebody else changed rows; or the log was cut behind the region's last commit, so that nobody
                can tell (`is_cut` among its facts).
        """
        if version <= self.through:
            return
        damage, is_whole = [], False
        for commit in commits_back(self.folder, self.region, version):
            is_whole = commit.version - 1 <= self.through or commit.is_own
            damage += [commit] if commit.is_damage else []
            if is_whole:
                break
        if damage:
            raise self._changed(damage)
        if not is_whole:
            msg = f"the log of {self.folder} was cut: nobody can tell whether others changed rows since our last commit"
            raise SplitBrain(msg, remedy=_REMEDY, table=self.folder.uri, is_cut=True)
        self.through = version

    def has_moved(self) -> bool:
        """Say whether there may be commits that were not looked at: one look at one file."""
        if self.through < 0:
            return True
        try:
            self.folder.size(entry_path(self.through + 1))
        except FileNotFoundError:
            return False
        return True

    def _changed(self, damage: list[LogCommit]) -> SplitBrain:
        last, more = damage[0], f", and {len(damage) - 1} before" if len(damage) > 1 else ""
        msg = f"somebody else changed rows of {self.folder}, which {self.region} alone may write: {last}{more}"
        return SplitBrain(
            msg,
            remedy=_REMEDY,
            table=self.folder.uri,
            version=last.version,
            operation=last.operation,
            engine=last.engine,
            user=last.user,
            is_cut=False,
        )


_REMEDY = "see that nobody but Drainmark writes to it"
