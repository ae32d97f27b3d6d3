"""The note beside the files of a sink: their owner, and the version that they have reached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drainmark.jobs.errors import ForeignTable, SplitBrain
from drainmark.jobs.protocol.records.ids import split_txn_version
from drainmark.resources.sinks.sink_files import FilePlace


class VersionNote:
    """The note of one sink.

    Args:
        place: holds the files of the sink.
        region: the region whose rows they hold.
        operator: the sink.
        identity: returns the unique id of the region's checkpoint table, None before that table exists.
    """

    def __init__(self, place: FilePlace, region: str, operator: str, identity: Callable[[], str | None]) -> None:
        self._place = place
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
        note = self._place.note()
        if note is None:
            msg = f"the note of the version of {self._place.uri} is gone from _drainmark/: the version is not known"
            raise SplitBrain(msg, remedy="restore the folder from a backup, or write to another")
        return note

    def version(self) -> int:
        """Return the version that the files have reached, 0 before the first."""
        return int(self.read()["version"])

    def is_reached(self, version: int) -> bool:
        """Say whether the files have reached a version, or a later one."""
        return self.version() >= version

    def require_mine(self, found: dict[str, Any]) -> None:
        """Check that the place belongs to this sink, and not to a region of the same name in another home.

        Raises:
            ForeignTable: it belongs to another sink or home.
        """
        identity, uri = self._identity(), self._place.uri
        if (found["region"], found["operator"]) != (self._region, self._operator):
            msg = f"{uri} is written by {found['operator']} of region {found['region']!r}: ids must not mix"
            raise ForeignTable(msg, remedy="choose another path")
        if identity is not None and found["checkpoints"] != identity:
            msg = f"{uri} was filled by another home's region {self._region!r}, up to {found['sequence_id']}"
            raise ForeignTable(msg, remedy="run there, or choose another path; to begin anew, empty the folder")
