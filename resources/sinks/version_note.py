"""The note beside the files of a sink: their owner, and their version; and the version that this process last saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drainmark.jobs.errors import ForeignTable, SplitBrain
from drainmark.jobs.protocol.records.ids import INITIAL_ID, split_txn_version
from drainmark.resources.sinks.sink_files import FileTarget


class VersionNote:
    """The note of one sink.

    Args:
        target: holds the files of the sink.
        region: the region whose rows they hold.
        operator: the sink.
        identity: returns the unique id of the region's checkpoint table, None before that table exists.
    """

    def __init__(self, target: FileTarget, region: str, operator: str, identity: Callable[[], str | None]) -> None:
        self._target = target
        self._region = region
        self._operator = operator
        self._identity = identity

    def text_of(self, version: int) -> dict[str, Any]:
        """Return the content of the note of a version."""
        return {
            "region": self._region,
            "operator": self._operator,
            "checkpoints": self._identity() or "",
            "version": version,
            "sequence_id": split_txn_version(version)[1],
        }

    def read(self) -> dict[str, Any]:
        """Return the note of the highest version.

        Raises:
            SplitBrain: the note is gone.
        """
        note = self._target.note()
        if note is None:
            msg = f"the note of the version of {self._target.uri} is gone from _drainmark/: the version is not known"
            raise SplitBrain(msg, remedy="restore the folder from a backup, or write to another")
        return note

    def version(self) -> int:
        """Return the version that the files have reached, 0 before the first."""
        return int(self.read()["version"])

    def is_reached(self, version: int) -> bool:
        """Say whether the files have reached a version, or a later one."""
        return self.version() >= version

    def require_mine(self, found: dict[str, Any]) -> None:
        """Check that the target belongs to this sink, and not to a region of the same name in another home.

        Raises:
            ForeignTable: it belongs to another sink or home.
        """
        identity, uri = self._identity(), self._target.uri
        if (found["region"], found["operator"]) != (self._region, self._operator):
            msg = f"{uri} is written by {found['operator']} of region {found['region']!r}: ids must not mix"
            raise ForeignTable(msg, remedy="choose another path")
        if identity is not None and found["checkpoints"] != identity:
            msg = f"{uri} was filled by another home's region {self._region!r}, up to {found['sequence_id']}"
            raise ForeignTable(msg, remedy="run there, or choose another path; to begin anew, empty the folder")


class SeenVersion:
    """The version that one sink had when this process last saw it: a sink that is older then is another copy.

    A standby that takes over within a run may lack the last commits, and the next one would hide that.

    Args:
        table: name of the sink.
        seen: such versions by sink, of everything that one process does for a region.
    """

    def __init__(self, table: str, seen: dict[str, int] | None = None) -> None:
        self._table = table
        self._seen = {} if seen is None else seen

    def note(self, version: int) -> None:
        self._seen[self._table] = version

    def require(self, version: int, *, is_repair: bool) -> None:
        """Check that the sink is not older than it was; for a repair, that it is as it was when that was planned.

        Raises:
            SplitBrain: it is not.
        """
        before = self._seen.get(self._table, INITIAL_ID)
        (epoch, found), (_, reached) = split_txn_version(version), split_txn_version(before)
        if is_repair and version != before:
            msg = f"{self._table} came to id {found} of epoch {epoch} while its repair was planned"
            remedy = "end the process that writes there; then: drainmark doctor --repair --yes"
            raise SplitBrain(msg, remedy=remedy, table=self._table)
        if found < reached:
            msg = f"{self._table} is at id {found}, but was at {reached}: did a standby take over?"
            raise SplitBrain(msg, remedy="see what a repair would change: drainmark doctor --repair", table=self._table)
