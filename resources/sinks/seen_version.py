"""The version that a sink had when this process last saw it: a sink that is older then is another copy.

A standby that takes over within a run may lack the last commits, and the next one would hide that.
"""

from __future__ import annotations

from drainmark.jobs.errors import SplitBrain
from drainmark.jobs.protocol.records.ids import INITIAL_ID, split_txn_version


class SeenVersion:
    """The version that one sink had reached.

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
