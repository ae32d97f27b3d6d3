"""The version that a sink had when this process last saw it: a sink that is older then is another copy.

A standby that takes over within a run may lack the last commits, and the next one would hide that.
"""

from __future__ import annotations

from drainmark.jobs.errors import SplitBrain
from drainmark.jobs.protocol.records.ids import INITIAL_ID, split_txn_version


class SeenVersion:
    """The id that one sink had reached.

    Args:
        table: name of the sink.
        seen: such ids by sink, of everything that one process does for a region.
    """

    def __init__(self, table: str, seen: dict[str, int] | None = None) -> None:
        self._table = table
        self._seen = {} if seen is None else seen

    def note(self, version: int) -> None:
        self._seen[self._table] = split_txn_version(version)[1]

    def require(self, version: int) -> None:
        """Check that the sink is not older than it was.

        Raises:
            SplitBrain: it is.
        """
        found, before = split_txn_version(version)[1], self._seen.get(self._table, INITIAL_ID)
        if found < before:
            msg = f"{self._table} is at id {found}, but was at {before}: did a standby take over?"
            raise SplitBrain(msg, remedy="see what a repair would change: drainmark doctor --repair", table=self._table)
