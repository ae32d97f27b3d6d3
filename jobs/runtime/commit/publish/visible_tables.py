"""Visible tables of one row a key: small ones are brought up to their histories with each group, large ones later.

A change of few keys rewrites many files of such a table. So a large table may lag behind the committed id. Its history
has all rows, so nothing is lost. The notes of publishing say which tables lag, and the last id that each shows
(`lags`). A table that is declared when its history already has rows, as an aggregate's history can, lags at first, too.
A lag ends after `max_lag`, at the end of the run, with a rewind (which starts from the id shown), and with
`drainmark publish`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.ids import INITIAL_ID, txn_version
from drainmark.jobs.protocol.records.manifest import Manifest, RegionTable, StagedFile, TableRole
from drainmark.jobs.runtime.commit.ledger import Ledger
from drainmark.jobs.runtime.commit.rewind_contents import takes_no_groups
from drainmark.jobs.state.keyed_parts import last_of_keys, parts_of
from drainmark.jobs.state.keyed_rows import kept_columns, last_per_key, present
from drainmark.resources.delta.managed_table import KeyedTable

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.resources.checkpoints.region_store import RegionTables
    from drainmark.resources.delta.table_files import TableFiles

MAX_LAG_SECONDS = 60.0
"""Default of `max_lag`."""

PROMPT_BYTES = 4 * 2**20
"""A table of fewer bytes is brought up with every group."""

_QUICK_SECONDS = 0.05
"""A table that is brought up within this time never waits, even if it has more bytes."""

_WORK_PER_SECOND = 4.0
"""A large table is brought up again after this many times the seconds that bringing it up took the last time."""

_BYTES_PER_SECOND = 50 * 2**20
"""Assumed speed of rewriting a table until this owner has rewritten it once."""

_LONGEST_PAUSE_SECONDS = 3600.0
"""The longest time between two runs that are made only to bring up a table."""


@dataclass(slots=True)
class _UpdateCost:
    """The cost of bringing up one table.

    Attributes:
        size: bytes of the table, when it was last brought up or first seen; 0 if that was quick.
        seconds: duration of that, measured or estimated.
        ended: when the table was up to date, by the monotonic clock.
    """

    size: int
    seconds: float
    ended: float


@dataclass(slots=True, kw_only=True)
class VisibleTables:
    """The visible tables of one owner's region.

    Attributes:
        prompt_bytes: a table of at most so many bytes is brought up with every group.
        work_per_second: a larger one rests for so many times the seconds that bringing it up took the last time.
    """

    ledger: Ledger
    prompt_bytes: int = field(default_factory=lambda: PROMPT_BYTES)
    work_per_second: float = field(default_factory=lambda: _WORK_PER_SECOND)
    _paces: dict[str, _UpdateCost] = field(default_factory=dict)

    def may_wait(self, table: RegionTable, row: CheckpointRow, manifest: Manifest) -> bool:
        """Say whether to bring up a table later than with the group of a row.

        No table waits in a region with stages, which bring rows of earlier ids late, or if the group replaces rows,
        which must leave at once. A table that others write to, or that is no Delta table, never waits.
        """
        if manifest.replaced or self.ledger.history.flow.through:
            return False
        if not _can_wait(table) or row.kind is not RowKind.STATE:
            return False
        pace = self._pace_of(table)
        if pace is None or pace.size <= self.prompt_bytes:
            return False
        most = float(table.options.get("max_lag", MAX_LAG_SECONDS))
        return world.monotonic() - pace.ended < min(most, self.work_per_second * pace.seconds)

    def wait(self, table: RegionTable, row: CheckpointRow) -> None:
        """Note that a table lags behind the group of a row."""
        self.ledger.lags.setdefault(table.name, row.first_id - 1)

    def lags(self, table: RegionTable) -> bool:
        """Say whether a table lags behind its history, apart from the group that is published now."""
        return table.name in self.ledger.lags

    def bring_up(self, table: RegionTable, version: int, upto: int) -> int:
        """Merge the later rows of its history into a table that lags; return Delta's version.

        Args:
            version: txnVersion of the commit.
            upto: last id that is published (inclusive).
        """
        store, history, lag = self.ledger.outside.store, self.ledger.history, self.ledger.lags[table.name]
        kept = store.table(table.history or "").files
        files, whole = [file for file in kept.live() if (file.last_id or 0) > lag], False
        if lag < history.dropped.get(table.history or "", INITIAL_ID):  # the table was declared late, or again
            image = history.image_held(table.history or "", upto, kept.holds)
            files += image.files if image is not None else ()
            whole = table.deletes  # an image has no row of a key that is gone
        return merge_history(store, table, version, files, self.ledger.epoch, above=lag, whole=whole)

    def timed(self, table: RegionTable, show: Callable[[], int]) -> int:
        """Bring up a table with `show`, which returns Delta's version; note the duration, and return the version."""
        began, version = world.monotonic(), show()
        seconds = world.monotonic() - began
        self.ledger.lags.pop(table.name, None)
        if _can_wait(table):
            size = self._bytes_of(table) if seconds > _QUICK_SECONDS else 0
            self._paces[table.name] = _UpdateCost(size, seconds, world.monotonic())
        return version

    def _pace_of(self, table: RegionTable) -> _UpdateCost | None:
        """Return the cost of bringing up a table, estimated by its size if this owner has not done it yet.

        With an estimate, the first state after a take-over does not wait for a large table. None if the table lagged
        before: the duration of its lag is unknown.
        """
        if table.name not in self._paces and table.name not in self.ledger.lags:
            size = self._bytes_of(table)
            self._paces[table.name] = _UpdateCost(size, size / _BYTES_PER_SECOND, world.monotonic())
        return self._paces.get(table.name)

    def _bytes_of(self, table: RegionTable) -> int:
        managed = self.ledger.outside.store.table(table.name)
        return sum(file.size for file in managed.files.live()) if managed.exists() else 0

    def bring_up_former(self) -> None:
        """Bring up lagging tables if one of them is not declared any more: its history may continue without it."""
        declared = {table.name for table in self.ledger.history.tables}
        if any(name not in declared for name in self.ledger.lags):
            self.bring_up_all()

    def bring_up_all(self) -> int:
        """Bring up all lagging tables, unless a committed group is not published; return the number of tables."""
        ledger, history = self.ledger, self.ledger.history
        if ledger.behind:
            return 0
        for table in history.former:
            if table.name in ledger.lags and takes_no_groups(ledger.outside.store, table):
                del ledger.lags[table.name]
        tables = history.tables_by_name
        lagging = [tables[name] for name in sorted(ledger.lags) if name in tables]
        version = txn_version(ledger.epoch, history.committed_id)  # above the versions that fence off older owners
        for table in lagging:
            show = partial(self.bring_up, table, version, history.committed_id)
            ledger.versions[table.name] = self.timed(table, show)
        return len(lagging)


def may_bring_up(history: RegionHistory) -> bool:
    """Say whether a run may try again to bring up tables; the pause doubles each time, from a minute to an hour.

    Nothing counts these tries: the last claim is compared with the state that was there before the first of them.
    """
    claim, state = history.last_claim, history.states.get(history.committed_id)
    if claim is None:
        return False
    tried = (claim.recorded_at - state.recorded_at).total_seconds() if state is not None else 0.0
    pause = min(max(tried, MAX_LAG_SECONDS), _LONGEST_PAUSE_SECONDS)
    return world.now() - claim.recorded_at.timestamp() > pause


def _can_wait(table: RegionTable) -> bool:
    return table.role is TableRole.UPSERT and table.is_managed


def merge_history(
    store: RegionTables,
    table: RegionTable,
    version: int,
    files: Sequence[StagedFile],
    epoch: int,
    *,
    above: int = INITIAL_ID,
    whole: bool = False,
) -> int:
    """Merge the last row of each key in some files of its history into a visible table; return Delta's version.

    Args:
        version: txnVersion of the commit.
        epoch: of the owner that merges.
        above: rows of ids up to this one (inclusive) are shown already.
        whole: the files have all rows that the region has in the table: others leave, but for an adopted table.
    """
    above = INITIAL_ID if whole else above
    if not table.external:
        shown, changes = store.delta(table), store.changes(table, files, above=above)
        fill = shown.fill if whole and isinstance(shown, KeyedTable) else shown.merge
        return fill(version, changes).delta_version
    history = store.table(table.history or "").files
    columns = kept_columns(table, table.columns)
    last = (rows.select(columns) for rows in _last_rows(history, files, table, columns, above))
    sink = store.external(table, epoch)
    if whole:
        rows = map(present, last)
        return sink.put_right(version, lambda _: rows, written=(), leaving=(), keys=table.keys).delta_version
    return sink.merge(version, last, table.keys).delta_version


def _last_rows(
    history: TableFiles, files: Sequence[StagedFile], table: RegionTable, columns: Sequence[str], above: int
) -> Iterator[pa.Table]:
    """Yield the last row of each key in some files of a history, in several tables if there are many."""
    import pyarrow.compute as pc

    def later(rows: pa.Table) -> pa.Table:
        return rows.filter(pc.field(SEQUENCE_ID) > above) if above > INITIAL_ID else rows

    count = sum(file.rows for file in files)
    if parts_of(count) == 1:
        yield last_per_key(later(_rows_in(history, files, columns)), table.keys)
    else:
        yield from last_of_keys(lambda: map(later, history.pieces(files, columns)), count, table.keys)


def _rows_in(history: TableFiles, files: Sequence[StagedFile], columns: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    found = list(history.read_each(files, list(columns)))
    if not all(set(columns) <= set(rows.column_names) for rows in found) or not found:
        return history.read(files)  # no files, or files from before a column was added
    return pa.concat_tables(found, promote_options="permissive")
