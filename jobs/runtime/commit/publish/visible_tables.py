"""Visible tables of one row a key, brought up to their histories: at once while they are small, else by budget.

A change of few keys touches many files of such a table, and they are written anew. So a large one may lag behind what
is committed: its history has all rows, so nothing is lost. Which tables lag, and up to which id they show the region,
rides with the notes of what is published (`lags`). A table whose history was kept while the code had no such table, an
aggregate's, lags as well when it is declared. A lag ends after `max_lag`, with the run, with a rewind, which goes
by it, and with `drainmark publish`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.ids import INITIAL_ID, txn_version
from drainmark.jobs.protocol.records.manifest import Manifest, RegionTable, StagedFile, TableRole
from drainmark.jobs.runtime.commit.ledger import Ledger
from drainmark.jobs.runtime.commit.rewind_reach import out_of_reach
from drainmark.jobs.runtime.outside import RegionStore, TableFiles
from drainmark.jobs.state.keyed_parts import last_of_keys, parts_of
from drainmark.jobs.state.keyed_rows import last_per_key

if TYPE_CHECKING:
    import pyarrow as pa

MAX_LAG_SECONDS = 60.0
"""Of a table whose sink says nothing of it."""

SMALL_BYTES = 4 * 2**20
"""A table of fewer bytes is brought up with every group."""

_QUICK_SECONDS = 0.05
"""What takes no longer is small, whatever its size."""

_WORK_PER_SECOND = 4.0
"""A large table is brought up once the region has worked so many times as long as that took the last time."""

_BYTES_PER_SECOND = 50 * 2**20
"""How fast a table is taken to be rewritten until this owner has done it once."""


@dataclass(slots=True)
class _Pace:
    """What bringing up one table costs.

    Attributes:
        size: bytes of the table, when it was brought up last or first seen; 0 where that was quick.
        seconds: how long that took, or may take.
        ended: when the table was up to date, by the monotonic clock.
    """

    size: int
    seconds: float
    ended: float


@dataclass(slots=True, kw_only=True)
class VisibleTables:
    """The visible tables of one owner's region."""

    ledger: Ledger
    _paces: dict[str, _Pace] = field(default_factory=dict)

    def may_wait(self, table: RegionTable, row: CheckpointRow, manifest: Manifest) -> bool:
        """Is a table better brought up later than with the group of a row?

        Stages bring rows of earlier ids late, and what a group replaces leaves at once: there no table waits. Nor does
        one that others write to, or that is no Delta table.
        """
        if manifest.replaced or self.ledger.history.flow.through:
            return False
        if not _can_wait(table) or row.kind is not RowKind.STATE:
            return False
        pace = self._pace_of(table)
        if pace is None or pace.size <= SMALL_BYTES:
            return False
        most = float(table.options.get("max_lag", MAX_LAG_SECONDS))
        return time.monotonic() - pace.ended < min(most, _WORK_PER_SECOND * pace.seconds)

    def wait(self, table: RegionTable, row: CheckpointRow) -> None:
        """Leave a table behind the group of a row."""
        first = row.group_first if row.group_first is not None else row.sequence_id
        self.ledger.lags.setdefault(table.name, first - 1)

    def lags(self, table: RegionTable) -> bool:
        """Is a table behind its history, apart from the group that is published now?"""
        return table.name in self.ledger.lags

    def bring_up(self, table: RegionTable, version: int, upto: int) -> int:
        """Merge into a table that lags what its history has got since; return Delta's version.

        Args:
            version: that the commit carries.
            upto: all up to this id is published, and nothing after it.
        """
        store, history, lag = self.ledger.outside.store, self.ledger.history, self.ledger.lags[table.name]
        kept = store.table(table.history or "").files
        files = [file for file in kept.live() if (file.last_id or 0) > lag]
        if lag < history.dropped.get(table.history or "", INITIAL_ID):  # a table that came late, or came back
            image = history.image_held(table.history or "", upto, kept.holds)
            files += image.files if image is not None else ()
        return merge_history(store, table, version, files, self.ledger.epoch, above=lag)

    def timed(self, table: RegionTable, show: Callable[[], int]) -> int:
        """Bring a table up by a function that returns Delta's version, and note how long that took; return it."""
        began, version = time.monotonic(), show()
        seconds = time.monotonic() - began
        self.ledger.lags.pop(table.name, None)
        if _can_wait(table):
            size = self._bytes_of(table) if seconds > _QUICK_SECONDS else 0
            self._paces[table.name] = _Pace(size, seconds, time.monotonic())
        return version

    def _pace_of(self, table: RegionTable) -> _Pace | None:
        """Return what bringing up a table costs: by its size where this owner has not done it, and found no lag.

        The first state after a take-over need not wait for a large table then. None where it lagged before: for how
        long nobody knows.
        """
        if table.name not in self._paces and table.name not in self.ledger.lags:
            size = self._bytes_of(table)
            self._paces[table.name] = _Pace(size, size / _BYTES_PER_SECOND, time.monotonic())
        return self._paces.get(table.name)

    def _bytes_of(self, table: RegionTable) -> int:
        managed = self.ledger.outside.store.table(table.name)
        return sum(file.size for file in managed.files.live()) if managed.exists() else 0

    def bring_up_former(self) -> None:
        """Bring up what lags and is no table of the code any more: its history may go on without it from here on."""
        declared = {table.name for table in self.ledger.history.tables}
        if any(name not in declared for name in self.ledger.lags):
            self.bring_up_all()

    def bring_up_all(self) -> int:
        """Bring up what lags, unless something that is committed is not published; return how many tables did."""
        ledger, history = self.ledger, self.ledger.history
        if ledger.behind:
            return 0
        for table in history.former:
            if table.name in ledger.lags and out_of_reach(ledger.outside.store, table):
                del ledger.lags[table.name]
        tables = {table.name: table for table in (*history.former, *history.tables)}
        lagging = [tables[name] for name in sorted(ledger.lags) if name in tables]
        version = txn_version(ledger.epoch, history.committed_id)  # above those that fenced older owners off
        for table in lagging:
            show = partial(self.bring_up, table, version, history.committed_id)
            ledger.versions[table.name] = self.timed(table, show)
        return len(lagging)


def _can_wait(table: RegionTable) -> bool:
    return table.role is TableRole.UPSERT and table.is_managed


def merge_history(
    store: RegionStore,
    table: RegionTable,
    version: int,
    files: Sequence[StagedFile],
    epoch: int,
    *,
    above: int = INITIAL_ID,
) -> int:
    """Merge the last row of each key in some files of its history into a visible table; return Delta's version.

    Args:
        version: that the commit carries.
        epoch: of the owner who does it.
        above: rows of ids up to this one are shown already.
    """
    history = store.table(table.history or "")
    if large := store.large(table, epoch, files):
        return large.merge_files(version, history, files, table.keys, above=above).delta_version
    last = (rows.select(list(table.columns)) for rows in _last_rows(history.files, files, table, above))
    if table.external:
        return store.external(table, epoch).merge(version, last, table.keys).delta_version
    return store.open(table).merge(version, next(last), table.keys).delta_version


def _last_rows(history: TableFiles, files: Sequence[StagedFile], table: RegionTable, above: int) -> Iterator[pa.Table]:
    """Yield the last row of each key in some files of a history; many in several tables, for a sink outside Delta."""
    import pyarrow.compute as pc

    def later(rows: pa.Table) -> pa.Table:
        return rows.filter(pc.field(SEQUENCE_ID) > above) if above > INITIAL_ID else rows

    count = sum(file.rows for file in files)
    if not table.external or parts_of(count) == 1:
        yield last_per_key(later(_rows_in(history, files, table.columns)), table.keys)
    else:
        yield from last_of_keys(lambda: map(later, history.pieces(files, list(table.columns))), count, table.keys)


def _rows_in(history: TableFiles, files: Sequence[StagedFile], columns: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    found = list(history.read_each(files, list(columns)))
    if not all(set(columns) <= set(rows.column_names) for rows in found) or not found:
        return history.read([file.path for file in files])  # staged before the table got a further column; or none
    return pa.concat_tables(found, promote_options="permissive")
