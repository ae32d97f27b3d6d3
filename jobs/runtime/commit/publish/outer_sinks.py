"""Sinks outside Delta that are ahead of the checkpoint table, or behind it: found at each claim, and repaired.

Such a sink keeps the version of its last commit beside its rows. Nothing keeps a database or a bucket together with
the home: one of them is restored from a backup, or a standby takes over that lacks the last transactions. Then groups
would be taken for published before, or ids would be missing, and the next group would hide it. A claim takes an epoch
and ids above those of its sinks, so nothing that the region does later is mistaken for what it does not know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.errors import SplitBrain, StoreUnavailable, UsageError
from drainmark.jobs.frames.row_order import row_counts
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.history import RegionHistory, manifest_of
from drainmark.jobs.protocol.records.checkpoint_row import WITH_IDS, CheckpointRow, RowKind
from drainmark.jobs.protocol.records.ids import INITIAL_ID, split_txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile
from drainmark.jobs.protocol.repairs import SinkRepair
from drainmark.jobs.protocol.rewind_steps import Rewind
from drainmark.jobs.runtime.commit.replacement import rows_of
from drainmark.jobs.state.keyed_parts import last_of_keys
from drainmark.jobs.state.keyed_rows import kept_columns, present

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.resources.checkpoints.region_store import RegionTables
    from drainmark.resources.delta.commits import Published

_LOOK = "see what a repair would change: drainmark doctor --repair"


def outer(tables: Iterable[RegionTable]) -> list[RegionTable]:
    """Return the sinks outside Delta among tables."""
    return [table for table in tables if table.external]


def newest_of_all(
    store: RegionTables, tables: Iterable[RegionTable], former: Iterable[RegionTable] = ()
) -> tuple[int, int]:
    """Return the newest epoch, and the newest id, that the sinks of a region have which others keep.

    Args:
        former: tables that the code has no more; of these, sinks that cannot be asked are passed over.

    Raises:
        StoreUnavailable: a declared sink does not answer.
    """
    found = [(INITIAL_ID, INITIAL_ID), *(_newest(store, table) for table in tables)]
    for table in former:
        with suppress(StoreUnavailable, UsageError):
            found.append(_newest(store, table))
    return max(epoch for epoch, _ in found), max(number for _, number in found)


def _newest(store: RegionTables, table: RegionTable) -> tuple[int, int]:
    if table.adopted:
        adopted = store.adopted(table.name)
        return split_txn_version((adopted.txn_version() if adopted.exists() else None) or 0)
    if not table.external:  # its versions are compared with the checkpoint table, and it is repaired as it was
        return INITIAL_ID, INITIAL_ID
    sink = store.external(table)
    return sink.newest_epoch(), split_txn_version(sink.txn_version() or 0)[1]


def require_known(store: RegionTables, history: RegionHistory) -> None:
    """Check that each declared sink outside Delta is where the checkpoint table says; it may lack what is unpublished.

    Raises:
        SplitBrain: one is ahead, behind, or gone.
        StoreUnavailable: one does not answer.
    """
    for table in outer(history.tables):
        if (repair := repair_of(store, history, table)) is not None:
            raise SplitBrain(f"{table.name} {repair.why}", remedy=_LOOK, table=table.name)


def repairs_of(
    store: RegionTables, history: RegionHistory, tables: Iterable[RegionTable], *, whatever: Collection[str] = ()
) -> Iterator[SinkRepair]:
    """Yield the repairs of sinks; one that cannot be asked keeps no other from its repair: a claim names it.

    Args:
        whatever: names of sinks that get a repair wherever they are.
    """
    for table in outer(tables):
        try:
            repair = repair_of(store, history, table, whatever=table.name in whatever)
        except (StoreUnavailable, UsageError):
            continue
        if repair is not None:
            yield repair


def repair_of(
    store: RegionTables, history: RegionHistory, table: RegionTable, *, whatever: bool = False
) -> SinkRepair | None:
    """Return the repair of a sink, None if it is where the checkpoint table says.

    A run may commit meanwhile: `history`, which is older than the look at the sink, has the least that the sink must
    have reached; the rows that are read after it have the most that it can have reached.
    """
    sink = store.external(table)
    version = sink.txn_version() or 0
    least = _least(history, table)
    if not _is_known(store, history, version):
        epoch, number = split_txn_version(version)
        why = f"is at id {number} of epoch {epoch}, which the checkpoint table does not know, at {history.committed_id}"
        return _Content(store, history, table).repair(f"{why}: was a backup restored?", version)
    if split_txn_version(version)[1] >= least:
        return _Content(store, history, table).repair("follows its history", version) if whatever else None
    there = f"is at id {split_txn_version(version)[1]}" if sink.exists() else "is gone"
    why = f"{there}, but was at {least}: was a backup restored, or did a standby take over?"
    repair = _Content(store, history, table).repair(why, version)
    return repair if whatever or repair.written or repair.leaving or repair.lost else None  # it has all that it had


def is_gone(store: RegionTables, history: RegionHistory, table: RegionTable) -> bool:
    """Say whether a sink that should have rows of the region was deleted, or lost its version."""
    was_there = table.name in history.versions
    return was_there and not store.external(table).exists() and repair_of(store, history, table) is not None


def put_right(store: RegionTables, history: RegionHistory, repair: SinkRepair, epoch: int, version: int) -> Published:
    """Carry out a repair in one commit; after a crash it is planned again, or found done.

    Args:
        epoch: of the owner.
        version: of the commit: above that of the sink, and of every row that is not published to it yet.

    Raises:
        SplitBrain: the sink has a later version, of an owner that the checkpoint table does not know.
    """
    table = next(each for each in (*history.tables, *history.former) if each.name == repair.table)
    if not store.external(table).exists():
        store.create(table)
    content = _Content(store, history, table)
    done = store.external(table, epoch).put_right(
        version, content.rows, written=repair.written, leaving=repair.leaving, keys=table.keys
    )
    if done.done_before:
        msg = f"{table.name} {repair.why} Its version is above that of this repair, {version}"
        raise SplitBrain(msg, remedy="end the other owner, then: drainmark doctor --repair --yes", table=table.name)
    return done


def _least(history: RegionHistory, table: RegionTable) -> int:
    """Return the id that a sink must have reached: the newest that a note names, or the newest published group."""
    newest = history.states.get(history.published_id)
    manifest = manifest_of(newest) if newest is not None and not history.rewinding else None
    has_rows = manifest is not None and table.name in manifest.upserts and manifest.files.get(table.history or "")
    return max(history.versions.get(table.name, INITIAL_ID), history.published_id if has_rows else INITIAL_ID)


def _is_known(store: RegionTables, history: RegionHistory, version: int) -> bool:
    """Say whether a row of the checkpoint table has a version, or a repair that followed a claim."""
    epoch, number = split_txn_version(version)
    state = history.states.get(number)
    if not version or (state is not None and state.epoch == epoch):
        return True
    return any(_gives(row, epoch, number) for row in store.checkpoint.rows(since=number))


def _gives(row: CheckpointRow, epoch: int, number: int) -> bool:
    if row.epoch != epoch:
        return False
    return (row.kind, row.sequence_id) == (RowKind.CLAIM, number + 1) or (
        row.kind in WITH_IDS and row.sequence_id == number
    )


@dataclass(slots=True)
class _Content:
    """The rows that a sink should have, also those of rows that are committed and not published yet."""

    store: RegionTables
    history: RegionHistory
    table: RegionTable

    def repair(self, why: str, version: int) -> SinkRepair:
        """Return the repair that leaves these rows and no others of the region in the sink."""
        found = self.store.external(self.table).counts()
        wanted = row_counts(self._last_rows([*self.table.keys, SEQUENCE_ID])) if self.table.keys else self._counts()
        written = [number for number, rows in wanted.items() if _differs(found, number, rows)]
        leaving = [number for number in found if number not in wanted and not self._is_trusted(number)]
        return SinkRepair(
            table=self.table.name,
            why=why,
            txn_version=version,
            written=tuple(sorted(written)),
            leaving=tuple(sorted(leaving)),
            lost=tuple(sorted(self._lost(found, version))),
        )

    def rows(self, ids: Collection[int]) -> Iterator[pa.Table]:
        """Yield the rows of some ids; of a sink with keys the last row of each key, whatever the ids."""
        columns, files = list(self.table.columns), self._files()
        if self.table.keys:
            yield from (rows.select(columns) for rows in self._last_rows(columns))
            return
        for file in files:
            found = rows_of(self.store.table(self._name).files, [file], ids)
            if found is not None:
                yield found.select(columns)

    @property
    def _name(self) -> str:
        return self.table.history or ""

    @property
    def _edge(self) -> int:
        return self.history.trimmed.get(self._name, INITIAL_ID)

    def _is_in_force(self, number: int) -> bool:
        return number in self.history.states and number not in self.history.replaced

    def _is_trusted(self, number: int) -> bool:
        """Say whether the history may have dropped the rows of an id, which only the sink has."""
        return number <= self._edge and self._is_in_force(number)

    def _files(self) -> list[StagedFile]:
        """Return the files with the rows: of the history, of what is not published yet, and what a rewind restores."""
        kept = self.store.table(self._name)
        found = {file.path: file for file in (kept.files.live() if kept.exists() else ())}
        for row in self.history.unpublished:
            manifest = manifest_of(row)
            named = [*filter(self._has_states, manifest.files.get(self._name, ()))] if manifest is not None else []
            if row.kind is RowKind.REWIND:
                named += [file for part in Rewind.from_row(row).restored_to(self._name) for file in part.files]
            found.update({file.path: file for file in named})
        return sorted(found.values(), key=lambda file: (file.first_id or 0, file.path))

    def _has_states(self, file: StagedFile) -> bool:
        """Say whether a file may have rows of states in force; that of a withdrawn group may be gone."""
        number = self.history.states.ids.at_least(file.first_id or INITIAL_ID)
        return number is not None and (file.last_id is None or number <= file.last_id)

    def _counts(self) -> Mapping[int, int]:
        files = self.store.table(self._name).files
        counts = row_counts(files.pieces(self._files(), [SEQUENCE_ID]))
        found = {number: rows for number, rows in counts.items() if self._is_in_force(number)}
        return dict.fromkeys(self._with_a_file(), 0) | found

    def _with_a_file(self) -> Iterator[int]:
        """Yield the ids that have a file even without rows, if the sink was declared so."""
        for row in self.store.checkpoint.rows() if self.table.options.get("every_id") else ():
            manifest = manifest_of(row)
            if manifest is not None and self.table.name in manifest.upserts:
                for first, last in manifest.spans.get(self.table.name, ((row.first_id, row.sequence_id),)):
                    yield from filter(self._is_in_force, range(first, last + 1))

    def _lost(self, found: Mapping[int, int | None], version: int) -> Iterator[int]:
        """Yield ids with rows that left the history, beyond the horizon, and that the sink does not have."""
        if self.table.keys or not self._edge:
            return
        held = {number for file in self._files() for number in (file.first_id, file.last_id)}
        for row in self.store.checkpoint.rows():
            manifest = manifest_of(row)
            if manifest is None or self.table.name not in manifest.upserts:
                continue
            for file in manifest.files.get(self._name, ()):  # its first and its last id have rows
                ends = {number for number in (file.first_id, file.last_id) if number is not None}
                yield from (n for n in ends - held if self._is_trusted(n) and n not in found)

    # --- one row a key ---------------------------------------------------------------------------------------------

    def _last_rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the last row of each key up to the committed id."""
        import pyarrow.compute as pc

        kept, to = self.store.table(self._name), self.history.committed_id
        files = [*self._image(), *(file for file in self._files() if (file.first_id or 0) <= to)]

        def read() -> Iterator[pa.Table]:
            for rows in kept.files.pieces(files, kept_columns(self.table, columns)):
                yield rows.filter(pc.field(SEQUENCE_ID) <= to)

        yield from map(present, last_of_keys(read, sum(file.rows for file in files), self.table.keys))

    def _image(self) -> Sequence[StagedFile]:
        """Return the files that stand for dropped changes.

        Raises:
            SplitBrain: they are gone.
        """
        if self._name not in self.history.dropped:
            return ()
        image = self.history.image_held(self._name, None, self.store.table(self._name).files.holds)
        if image is None:
            msg = f"{self.table.name} cannot be brought up: the image of its history {self._name} is gone"
            raise SplitBrain(msg, remedy="restore its files below _staged from a backup", table=self.table.name)
        return image.files


def _differs(found: Mapping[int, int | None], number: int, rows: int) -> bool:
    """Say whether a sink lacks rows of an id; of files it is known only that they are there, since each is whole."""
    return number not in found or found[number] not in (None, rows)
