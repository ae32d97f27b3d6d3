"""The entries of a table's log, with author and changes of each commit; and the check that only one region writes rows.

A commit of a region carries its transaction id. A commit without it that added or removed rows was made by somebody
else, without a checkpoint row. A commit that leaves the rows unchanged (OPTIMIZE, VACUUM, properties) is harmless.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import ObjectMissing, SplitBrain
from drainmark.jobs.protocol.records.ids import app_id
from drainmark.jobs.tasks.parquet_shares import content_of
from drainmark.jobs.world import Seam
from drainmark.resources.storage.folder import Folder

LOG = "_delta_log"
LOG_ENTRY = re.compile(r"\d{20}\.(json|checkpoint\..*)")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")

REPAIR = "drainmark.repair"
"""Key in the commitInfo of a commit that repairs a table after changes by others: older commits are settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCommit:
    """One commit, read from its log entry.

    Attributes:
        is_own: the region made it.
        transaction: the region's `txnVersion` in it, None if it has none.
        mark: id of a repair of earlier changes by others; None for every other commit.
        user: the user that made it, if the engine names one.
        changes_data: it added or removed rows.
        added, removed: bytes by path, relative to the table.
        marked: paths of the files that it removed with a deletion vector.
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
    marked: Set[str] = frozenset()

    @property
    def is_repair(self) -> bool:
        """Say whether the commit repaired earlier changes by others."""
        return self.mark is not None

    @property
    def is_damage(self) -> bool:
        """Say whether somebody else changed rows."""
        return self.changes_data and not self.is_own

    def __str__(self) -> str:
        return f"version {self.version}, {self.operation} by {self.engine}{f' ({self.user})' if self.user else ''}"


def lines_of(folder: Folder, path: str) -> list[str]:
    """Return the lines of a small text file of a table.

    Only a line feed ends a line: writers leave the other line ends of Unicode unchanged in JSON.

    Raises:
        FileNotFoundError: there is no such file.
    """
    return world.across(Seam.STORE_READ, lambda: content_of(folder.source(path)), folder / path).decode().split("\n")


def commits_back(folder: Folder, region: str, newest: int) -> Iterator[LogCommit]:
    """Yield a table's commits from `newest` back to the creation, one log entry at a time; stop if the log was cut.

    The creation has no transaction and counts as the region's: a table that another region made is refused earlier.
    """
    for version in range(newest, -1, -1):
        try:
            actions = actions_at(folder, version)
        except (FileNotFoundError, ObjectMissing):
            return
        yield _commit(version, region, actions)


def actions_at(folder: Folder, version: int) -> list[dict[str, Any]]:
    """Return the actions of a version, from its log entry.

    Raises:
        FileNotFoundError: there is none any more.
    """
    return [json.loads(line) for line in lines_of(folder, entry_path(version)) if line.strip()]


def entry_path(version: int) -> str:
    """Return the path of a commit's entry, relative to the table."""
    return f"{LOG}/{version:020d}.json"


def newest_checkpoint(folder: Folder, upto: int | None = None) -> int | None:
    """Return the version of the log's newest checkpoint in one file; None if there is none.

    A listing that lags may lack it, so that it is also looked for by the name that the log gives.

    Args:
        upto: the last version that counts (inclusive).
    """
    found = (int(name[:20]) for name in folder.names(LOG) if _CHECKPOINT.fullmatch(name))
    listed = max((version for version in found if upto is None or version <= upto), default=None)
    last = named_checkpoint(folder)
    is_newer = (listed is None or last > listed) and (upto is None or last <= upto)
    return last if last >= 0 and is_newer and has_file(folder, checkpoint_path(last)) else listed


def named_checkpoint(folder: Folder) -> int:
    """Return the version of the checkpoint that the log gives as its last one; -1 if it gives none."""
    try:
        return int(json.loads("".join(lines_of(folder, f"{LOG}/_last_checkpoint")))["version"])
    except (FileNotFoundError, ObjectMissing, ValueError, LookupError, TypeError):  # others may have written anything
        return -1


def has_file(folder: Folder, path: str) -> bool:
    """Ask for a file by its name: a listing may lag."""
    try:
        folder.size(path)
    except (FileNotFoundError, ObjectMissing):
        return False
    return True


def checkpoint_path(version: int) -> str:
    """Return the path of the log's checkpoint of a version, relative to the table."""
    return f"{LOG}/{version:020d}.checkpoint.parquet"


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
        marked=_sizes([each for each in actions if each.get("remove", {}).get("deletionVector")], "remove").keys(),
    )


def _sizes(actions: list[dict[str, Any]], kind: str) -> dict[str, int]:
    found = (action[kind] for action in actions if kind in action)
    return {urllib.parse.unquote(each["path"]): each.get("size") or 0 for each in found}


class SoleWriter:
    """The check, before a commit of a region, that nobody else changed the table's rows; one object for each table.

    Each check reads the entries back to the region's last commit, nearly always only that one. Entries that this
    object has read before are not read again.

    Attributes:
        through: the version up to which (inclusive) all commits are known to be sound; -1 for none.
        kept: the `DeltaTable` of the last look, if nobody uses it; see `delta_tables.newest`.
        known: a `DeltaTable`, a version of it, and the region's `txnVersion` there; see `transaction`.
    """

    def __init__(self, folder: Folder, region: str) -> None:
        self.folder = folder
        self.region = region
        self.through = -1
        self.kept: list[Any] = []
        self.known: tuple[Any, int, int | None] = (None, -1, None)

    def transaction(self, table: Any) -> int | None:
        """Return the newest `txnVersion` of the region in an opened table.

        `DeltaTable` replays the log since its last checkpoint for it; that of a version never changes.
        """
        version = int(table.version())
        if self.known[0] is not table or self.known[1] != version:
            self.known = (table, version, table.transaction_version(app_id(self.region)))
        return self.known[2]

    def committed(self, table: Any, version: int) -> LogCommit | None:
        """Return the commit of a version that `table` has not read yet; None if the region has none there.

        If there is one, `transaction` knows that of the version.
        """
        found = next(commits_back(self.folder, self.region, version), None)
        if found is None or found.transaction is None:
            return None
        self.known = (table, version, found.transaction)
        return found

    def require(self, version: int) -> None:
        """Check the commits up to `version`, inclusive.

        Raises:
            SplitBrain: somebody else changed rows; or this is unknown, because the log was cut and no longer has the
                region's last commit (`is_cut` among its facts).
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
            msg = f"the log of {self.folder} was cut: changes of rows by others since our last commit cannot be found"
            raise SplitBrain(msg, remedy=_REMEDY, table=self.folder.uri, is_cut=True)
        self.through = version

    def has_moved(self) -> bool:
        """Say whether there may be commits that were not checked yet, by one look at one file."""
        if self.through < 0:
            return True
        try:
            self.folder.size(entry_path(self.through + 1))
        except FileNotFoundError:
            return False
        return True

    def _changed(self, damage: list[LogCommit]) -> SplitBrain:
        last, more = damage[0], f", and {len(damage) - 1} before" if len(damage) > 1 else ""
        msg = f"another program changed rows of {self.folder}, which {self.region} alone may write: {last}{more}"
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


_REMEDY = "make sure that only Drainmark writes to it"
