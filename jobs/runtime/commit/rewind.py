"""The steps of a rewind: they are carried out one by one, or the rows that each would change are counted.

Like publishing, a rewind is rolled forward: idempotent commits under the txnVersion of its row, which any owner can do.
It needs the row and the staged files, not the application. It needs Spark for adopted tables only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.id_runs import Ids
from drainmark.jobs.protocol.records.checkpoint_row import FORMAT_VERSION, CheckpointRow, RowKind, format_of
from drainmark.jobs.protocol.records.ids import INITIAL_ID, txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable, RowsOf
from drainmark.jobs.protocol.records.triggers import TriggerStatus
from drainmark.jobs.protocol.rewind_steps import (
    CopiesLeave,
    KeysReturn,
    NewestReturns,
    Rewind,
    RowsLeave,
    TableStep,
    TriggersReturn,
)
from drainmark.jobs.protocol.transitions import Event
from drainmark.jobs.runtime.commit.ledger import Ledger
from drainmark.jobs.runtime.commit.replacement import rows_of
from drainmark.jobs.runtime.commit.rewind_contents import contents_of
from drainmark.jobs.runtime.commit.table_damage import put_right_within
from drainmark.jobs.state.keyed_parts import count_keys, parts_of
from drainmark.resources.delta.keyed.keyed_changes import Restored, schema_of
from drainmark.resources.delta.managed_table import KeyedTable

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.resources.checkpoints.region_store import RegionTables
    from drainmark.resources.delta.commits import Published
    from drainmark.resources.delta.managed_table import ManagedTable

_LOST = "lost when its state was withdrawn"
_LEAST_ROW_BYTES = 16
_MOST_REFUSED = 500_000
"""Refused triggers in one commit; a commit has room for a million rows (`checkpoint_rows.POSITION_BITS`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindCommits:
    """The committer of rewinds, which takes back every table of the region."""

    ledger: Ledger

    def rewind(self, to: int, horizon: int, lost: Sequence[CheckpointRow] = ()) -> int:
        """Take state and every sink of the region back to a committed id; return how many triggers are pending again.

        Args:
            lost: the states above `to` whose input can never be read again: their triggers are refused, by the same
                commit.

        Raises:
            RewindRefused: see `rewind_contents.contents_of`; nothing was changed.
        """
        ledger = self.ledger
        reached = contents_of(ledger.outside.store, ledger.history, to, horizon)
        gone = tuple(Ids.of(each.sequence_id for each in lost).runs())
        wanted = replace(reached, lags=dict(ledger.lags), lost=gone)
        number = ledger.outside.registry.progress.take_ids(ledger.region, ledger.epoch, 1)
        back = (file for part in wanted.restored for files in part.files.values() for file in files)
        is_plain = not wanted.lags and not any(file.partition for file in back)
        known = format_of(wanted.tables) if is_plain else FORMAT_VERSION
        row = ledger.row(RowKind.REWIND, number, format_version=known, **wanted.to_detail())
        refused = [self._refused(each, to) for each in lost]
        ledger.append([*ledger.open_note(), row, *refused[:_MOST_REFUSED]], number)
        for first in range(_MOST_REFUSED, len(refused), _MOST_REFUSED):
            ledger.note(refused[first : first + _MOST_REFUSED])
        ledger.lags.clear()
        ledger.controller.moved(Event.REWIND_ASKED, ledger.history)
        pending = self.roll_forward(row)
        ledger.note_published()
        return pending

    def roll_forward(self, row: CheckpointRow) -> int:
        """Carry out the steps of a rewind that is committed; return how many triggers are pending again."""
        ledger, store, rewind = self.ledger, self.ledger.outside.store, Rewind.from_row(row)
        versions, pending = put_right_within(store, ledger.history, row, ledger.epoch), 0
        for step in rewind.steps:
            if isinstance(step, TriggersReturn):
                ledger.versions.update(versions)
                self._pass(Ids(step.lost))
                pending = ledger.outside.registry.triggers.requeue_above(ledger.region, ledger.epoch, step.to)
            elif step.table.name not in versions and not (step.is_former and not store.is_own(step.table)):
                versions[step.table.name] = take_back(store, step, row, ledger.epoch).delta_version
        ledger.done(row)
        ledger.report("rewind", {"to": rewind.to, "rewind_id": row.sequence_id, "pending": pending})
        return pending

    def _refused(self, state: CheckpointRow, to: int) -> CheckpointRow:
        return self.ledger.row(
            RowKind.REFUSED,
            to,
            trigger_uri=state.trigger_uri,
            trigger_kind=state.trigger_kind,
            trigger_identity=state.trigger_identity,
            trigger_order=state.trigger_order,
            reason=_LOST,
        )

    def _pass(self, lost: Ids) -> None:
        """Mark the triggers of withdrawn states as missing; may be repeated."""
        ledger, registry = self.ledger, self.ledger.outside.registry
        states = ledger.history.states.rows.among(lost)
        uris = {row.trigger_order: row.trigger_uri for _, row in states if row.trigger_order is not None}
        found = registry.by_order(ledger.region, list(uris)) if uris else ()
        ids = [trigger.id for trigger in found if trigger.uri == uris[trigger.order_index]]
        if ids:
            registry.triggers.mark(ledger.region, ledger.epoch, ids, TriggerStatus.MISSING, _LOST)


def take_back(store: RegionTables, step: TableStep, row: CheckpointRow, epoch: int) -> Published:
    """Carry out one step of the rewind that a row records, in one commit.

    Args:
        epoch: of the owner that carries it out; rewritten files are staged under it.
    """
    table, to, version = step.table, step.to, txn_version(row.epoch, row.sequence_id)
    match step:
        case NewestReturns():
            history, staging = store.table(table.history or ""), store.staging(table, epoch, world.token())

            def newest() -> RowsOf:
                return history.files.newest(history.files.live(), to, deletes=table.deletes)

            return store.overwritten(table.name).rewind_overwrite(version, to, history, newest, staging)
        case CopiesLeave():
            return store.external(table, epoch).rewind_rows(version, to, restored=_restored(store, step))
        case KeysReturn():
            history = store.table(table.history or "")
            visible = store.external(table, epoch) if table.external else store.delta(table)
            if step.is_former and visible.newest_id() <= to:
                to = row.sequence_id  # its history may have gone on without it: show none of these rows
            since = min(to, to if step.shown is None else step.shown)
            if table.deletes and not table.adopted and step.images and since < to:
                return _filled(store, step, version, epoch, to)
            return visible.rewind_upsert(version, Restored(to, history, table.keys, table.columns, step.images, since))
        case RowsLeave(restored=restored) if restored:
            staging = store.staging(table, epoch, world.token())
            back = [(part.ids, part.files) for part in restored]
            return store.table(table.name).rewind_rows(version, to, staging, restored=back)
    return store.delta(table).rewind_rows(version, to, store.staging(table, epoch, world.token()))


def _filled(store: RegionTables, step: KeysReturn, version: int, epoch: int, to: int) -> Published:
    """Give a table that lags all rows up to an id, and no others: an image does not tell which keys are gone."""
    table, history = step.table, store.table(step.table.history or "")
    changes = Restored(to, history, table.keys, table.columns, step.images).everything()
    shown = store.open(table)
    if isinstance(shown, KeyedTable):
        return shown.fill(version, changes, verb="rewind_table")
    parts, schema = parts_of(changes.size // _LEAST_ROW_BYTES), schema_of(history.folder, table.columns)

    def rows(_: Collection[int]) -> Iterator[pa.Table]:
        return (changes.part(schema, number, parts)[1] for number in range(parts))

    return store.external(table, epoch).put_right(version, rows, written=(), leaving=(), keys=table.keys)


def _restored(store: RegionTables, step: CopiesLeave) -> Iterator[pa.Table]:
    """Yield the rows that come back to a sink outside Delta."""
    history = store.table(step.table.history or "").files
    for part in step.restored:
        rows = rows_of(history, part.files, part.ids)
        if rows is not None:
            yield rows.select(list(step.table.columns))


def counted(store: RegionTables, history: RegionHistory, step: TableStep) -> TableStep:
    """Return a step with the number of rows that leave its table; for a table of one row a key, of its changed keys.

    A managed table that is emptied is not read: a damaged file does not hinder it.
    """
    table, to = step.table, step.to
    if table.is_derived and (step.is_former or to < history.trimmed.get(table.history or "", INITIAL_ID)):
        return step.counted(_rows_above(store, table, to))  # its history may lack the rows
    kept = store.table(table.history) if table.history else store.open(table)
    if not kept.exists():
        return step.counted(0)
    if isinstance(step, KeysReturn) and not (to == INITIAL_ID and table.is_managed):
        return step.counted(_keys_above(store.table(table.history or ""), to, table.keys))
    if table.external:
        return step.counted(store.table(table.history or "").files.rows_above(to))
    return step.counted(_rows_above(store, table, to))


def _rows_above(store: RegionTables, table: RegionTable, to: int) -> int:
    """Return the number of rows with an id above `to` in a table."""
    if table.is_managed:
        return store.table(table.name).files.rows_above(to)
    return (store.external(table) if table.external else store.adopted(table.name)).rows_above(to)


def _keys_above(history: ManagedTable, to: int, keys: Sequence[str]) -> int:
    """Return the number of keys that have a row with an id above `to`."""
    import pyarrow.compute as pc

    files = [file for file in history.files.live() if (file.last_id or 0) > to]

    def read() -> Iterator[pa.Table]:
        for rows in history.files.pieces(files, [SEQUENCE_ID, *keys]):
            yield rows.filter(pc.field(SEQUENCE_ID) > to)

    return count_keys(read, history.files.rows_above(to), keys)
