"""Where a file went and where a row came from: file -> ids -> tables, and row -> id -> file (design.md §6).

All of it stands in the checkpoint table and in the column `_sequence_id`; no Spark. The registry only knows of files
that wait or were passed before they got an id.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import UnknownName, UsageError
from drainmark.jobs.formats.far_times import python_rows
from drainmark.jobs.graph.application import nearest
from drainmark.jobs.protocol.history import RegionHistory, manifest_of
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.protocol.records.triggers import PERIOD, Trigger, TriggerStatus
from drainmark.jobs.runtime.messages import scanned_identity
from drainmark.orchestration.discovery.slice_files import files_behind
from drainmark.orchestration.verbs.interventions import names_file
from drainmark.orchestration.views.status import commit_times, iso
from drainmark.orchestration.workplace.workplace import Workplace, existing_registry
from drainmark.resources.checkpoints.as_of import called

if TYPE_CHECKING:
    import datetime as dt

    import pyarrow as pa

_SEQUENCE_ID = "_sequence_id"
_NUMBERED = frozenset({RowKind.STATE, RowKind.SKIP})
_COMPARED = 5000
"""Names that a misspelt one is compared with, the last in order: with all of a million it would take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracer:
    """Answers questions about one region, as of one look at its checkpoint table.

    Attributes:
        limit: rows a table that are shown; counts are exact whatever it is.
    """

    workplace: Workplace
    region: str
    rows: Sequence[CheckpointRow]
    history: RegionHistory
    limit: int = 10
    _times: Mapping[str, dt.datetime] = field(default_factory=dict)

    @classmethod
    def of(cls, workplace: Workplace, region: str, *, limit: int = 10) -> Tracer:
        """Return a tracer of a region.

        Raises:
            UsageError: it has never run.
        """
        checkpoint = workplace.store(region).checkpoint
        rows = checkpoint.rows() if checkpoint.exists() else ()
        if not rows:
            remedy = f"drainmark run {region.partition('/')[0]}"
            raise UsageError(f"region {region!r} has never run: there is nothing to trace", remedy=remedy)
        history = RegionHistory.from_rows(rows)
        return cls(workplace=workplace, region=region, rows=rows, history=history, limit=limit,
                   _times=commit_times(rows))  # fmt: skip

    # --- forward ---------------------------------------------------------------------------------------------------

    def file(self, name: str) -> dict[str, Any]:
        """Return everything that became of a file: its path, a path from here, or the end of its path.

        The fields are those of its newest id, or of the file that is there now and has none yet; `ids` has one entry
        for every id that it ever had, oldest first: files that changed, rewinds and replacements give several. What was
        there before and never got an id, being superseded or missing, stands before what came after it.

        Raises:
            UnknownName: no file of that name was ever seen; the remedy names the nearest.
            UsageError: the name means several files.
        """
        registry = existing_registry(self.workplace)
        uris = {row.trigger_uri for row in self.rows if row.trigger_uri}
        uris |= set(registry.known(self.region)) if registry is not None else set()
        found = sorted(uri for uri in uris if names_file(uri, name))
        if not found:
            found = sorted(self._slices_with(name))
        if not found:
            msg = f"region {self.region!r} never saw a file {name!r}"
            raise UnknownName(msg, remedy=_nearest_file(name, uris, self.region))
        if len(found) > 1:
            raise UsageError(f"{name!r} names {len(found)} files", remedy=f"give the whole path, e.g. {found[0]}")
        kinds = _NUMBERED | {RowKind.REFUSED}
        rows = [row for row in self.rows if row.kind in kinds and row.trigger_uri == found[0]]
        seen = registry.by_uri(self.region, found[0]) if registry is not None else []
        settled = {row.trigger_order for row in self.history.states.values()}
        waiting = [trigger for trigger in seen if _is_waiting(trigger, settled)]
        entries = [
            _waiting_entry(each) if isinstance(each, Trigger) else self._entry(each)
            for each in _in_order(rows, waiting, seen)
        ]
        if not entries:  # committed between our two looks
            raise UnknownName(f"{found[0]} is being committed right now", remedy="ask again")
        return {**entries[-1], "ids": entries}

    def _slices_with(self, name: str) -> set[str]:
        """Return the uris of the states whose lists have a file of that name."""
        periods = [row for row in self.rows if row.trigger_kind == PERIOD and row.kind in _NUMBERED]
        return {
            row.trigger_uri or "" for row in periods
            if any(names_file(uri, name) for uri, _ in files_behind(self.workplace, row))
        }  # fmt: skip

    def sequence(self, number: int) -> dict[str, Any]:
        """Return what a sequence id stands for, with its tables.

        Raises:
            UnknownName: no attempt at that id was ever committed; the remedy names the nearest.
        """
        entries = self._entries([number])
        if not entries:
            known = [row.sequence_id for row in self.rows if row.kind in _NUMBERED]
            closest = min(known, key=lambda each: abs(each - number), default=None)
            is_past = number < self.history.next_id
            why = "its attempt failed, or a rewind took it" if is_past else "it was not reached yet"
            remedy = f"the nearest is {closest}" if closest is not None else "no file was committed yet"
            raise UnknownName(f"no state of {self.region!r} has the id {number}: {why}", remedy=remedy)
        return {**entries[-1], "ids": entries}

    # --- and back --------------------------------------------------------------------------------------------------

    def row(self, table: str, where: Mapping[str, str], *, everything: bool = False) -> dict[str, Any]:
        """Return which files made the rows of a table that have these values.

        Args:
            table: a sink, or a path below DRAINMARK_HOME such as `state/APP/OPERATOR`.
            where: values by column as text; `null` means no value.
            everything: of tables of one row a key, all ids that ever changed these keys, not the last one alone.

        Raises:
            UnknownName: no such table or column.
            UsageError: a value does not fit the type of its column.
        """
        wanted = self._table(table)
        found = self._read(wanted, _condition(wanted, where))
        numbers = set(found.column(_SEQUENCE_ID).to_pylist())
        if everything and wanted.keys and found.num_rows:
            numbers |= self._changes(wanted, found)
        ids = self._entries(sorted(numbers), with_tables=False)
        return {
            "region": self.region,
            "table": wanted.name,
            "where": dict(where),
            "rows": found.num_rows,
            "sample": python_rows(found.slice(0, self.limit)),
            "triggers": sorted({entry["trigger"] for entry in ids if entry["trigger"] is not None}),
            "ids": ids,
        }

    def _changes(self, table: RegionTable, rows: pa.Table) -> set[int]:
        """Return the ids of all changes of the keys in some rows that are still kept."""
        import numpy as np
        import pyarrow as pa

        from drainmark.jobs.state.keyed_rows import key_codes

        source = self.workplace.store(self.region).table(table.history or table.name)
        changes = source.read([*table.keys, _SEQUENCE_ID])
        of_changes, of_rows = key_codes([changes, rows], table.keys)
        mine = changes.filter(pa.array(np.isin(of_changes, of_rows)))
        return set(mine.column(_SEQUENCE_ID).to_pylist())

    def _table(self, name: str) -> RegionTable:
        found = called(self.history.tables, name)
        if found is not None:
            return found
        known = [table.name.removeprefix("lake/") for table in self.history.tables]
        raise UnknownName(f"region {self.region!r} has no table {name!r}", remedy=nearest(name, known))

    # --- entries ---------------------------------------------------------------------------------------------------

    def _entries(self, numbers: Iterable[int], *, with_tables: bool = True) -> list[dict[str, Any]]:
        wanted = set(numbers)
        found = [row for row in self.rows if row.kind in _NUMBERED and row.sequence_id in wanted]
        return [self._entry(row, with_tables=with_tables) for row in found]

    def _entry(self, row: CheckpointRow, *, with_tables: bool = True) -> dict[str, Any]:
        """Return one committed row of a trigger; every key always present."""
        row = self.history.states.rows.told(row)
        is_state = row.kind is RowKind.STATE
        identity = scanned_identity(row.trigger_identity or {})
        return {
            "region": self.region,
            "trigger": row.trigger_uri,
            "trigger_kind": row.trigger_kind,
            "identity": identity,
            "output": (row.trigger_identity or {}).get("output") or None,
            "sequence_id": row.sequence_id if row.kind in _NUMBERED else None,
            "epoch": row.epoch,
            "status": self._status(row),
            "withdrawn_by": self._withdrawn_by(row),
            "replaced_by": self.history.replaced_by(row.sequence_id) if is_state else None,
            "group": [row.group_first, row.group_last] if is_state else None,
            "rows_in": row.rows_in,
            "rows_quarantined": row.detail.get("rows_quarantined", 0) if is_state else None,
            "bytes_in": row.bytes_in,
            "committed_at": iso(self._times.get(row.attempt, row.recorded_at)),
            "attempt": row.attempt,
            "run_id": row.run_id,
            "graph_fingerprint": row.graph_fingerprint,
            "params_hash": row.params_hash,
            "drainmark_version": row.drainmark_version,
            "reason": row.detail.get("reason"),
            "sinks": self._sinks(row) if is_state and with_tables else [],
        }

    def _status(self, row: CheckpointRow) -> str:
        if row.kind is RowKind.REFUSED:
            return TriggerStatus.REFUSED.value
        if row.sequence_id not in self.history.states:
            return "withdrawn"
        if row.kind is RowKind.SKIP:
            return TriggerStatus.SKIPPED.value
        return "replaced" if self.history.replaced_by(row.sequence_id) is not None else TriggerStatus.COMMITTED.value

    def _withdrawn_by(self, row: CheckpointRow) -> int | None:
        """Return the id of the rewind that took a state back."""
        if row.kind not in _NUMBERED or row.sequence_id in self.history.states:
            return None
        later = (r for r in self.rows if r.kind is RowKind.REWIND and r.sequence_id > row.sequence_id)
        return next((r.sequence_id for r in later if r.detail["to"] < row.sequence_id), None)

    def _sinks(self, row: CheckpointRow) -> list[dict[str, Any]]:
        """Return, for each table, the version that shows a state and the rows that are of it."""
        versions = self._versions(row)
        entries = []
        for table in self.history.tables:
            of_id = self._of_id(table, row.sequence_id)
            entries.append(
                {
                    "table": table.name,
                    "role": table.role.value,
                    "operator": table.operator,
                    "version": versions.get(table.name),
                    "rows": of_id.num_rows,
                    "changed": self._changed(table, row.sequence_id),
                    "sample": python_rows(of_id.slice(0, self.limit)),
                }
            )
        return entries

    def _changed(self, table: RegionTable, number: int) -> int | None:
        """Return how many keys of a table of one row a key a state changed, though a later one may have since."""
        if table.role is not TableRole.UPSERT or table.history is None:
            return None
        history = next(each for each in self.history.tables if each.name == table.history)
        return int(self._of_id(history, number).num_rows)

    def _versions(self, row: CheckpointRow) -> Mapping[str, int]:
        """Return the Delta versions noted after the group of a row; of now, where nobody noted any yet.

        A table to which the group wrote nothing has nothing to publish: it is as it was before.
        """
        last = row.group_last if row.group_last is not None else row.sequence_id
        noted: dict[str, int] = {}
        for note in self.rows:
            if note.kind is not RowKind.PUBLISHED:
                continue
            noted |= note.detail.get("versions") or {}
            is_later = (note.epoch, note.sequence_id) >= (row.epoch, row.sequence_id)
            if is_later and note.detail.get("through", 0) >= last:
                return noted | self._untouched(last, noted)
        store, mine = self.workplace.store(self.region), txn_version(row.epoch, last)
        tables = {table.name: store.open(table) for table in self.history.tables}
        found = {name: table.delta_version() for name, table in tables.items() if (table.txn_version() or 0) >= mine}
        return self._untouched(last, noted) | found

    def _untouched(self, last: int, noted: Mapping[str, int]) -> dict[str, int]:
        """Return the versions of the tables to which a group wrote nothing; as they are now where none was noted."""
        group = self.history.states.rows.get(last)
        manifest = manifest_of(group) if group is not None else None
        touched = {name for name, files in manifest.files.items() if files} if manifest is not None else set()
        store = self.workplace.store(self.region)
        return {
            table.name: noted[table.name] if table.name in noted else store.open(table).delta_version()
            for table in self.history.tables
            if not touched & {table.name, table.history}
        }

    def _of_id(self, table: RegionTable, number: int) -> pa.Table:
        import pyarrow.compute as pc

        return self._read(table, pc.field(_SEQUENCE_ID) == number)

    def _read(self, table: RegionTable, where: pa.compute.Expression | None) -> pa.Table:
        """Return rows of a table, also of a group that is committed and not published yet."""
        import pyarrow as pa

        store = self.workplace.store(self.region)
        if not table.is_managed:
            return store.open(table).read(table.column_names, where)
        managed = store.table(table.name)
        found = managed.read(None, where)
        if table.is_derived or not self.history.unpublished:
            return found
        live = {file.path for file in managed.files.live()}
        manifests = (manifest_of(row) for row in self.history.unpublished)
        files = [file.path for manifest in manifests if manifest for file in manifest.files.get(table.name, ())]
        missing = [path for path in files if path not in live]
        return pa.concat_tables([found, managed.files.read(missing, where)]) if missing else found


def _is_waiting(trigger: Trigger, settled: set[int | None]) -> bool:
    """Say whether the registry alone knows of a trigger: it is pending, missing, or superseded by another identity."""
    passed = (TriggerStatus.COMMITTED, TriggerStatus.SKIPPED, TriggerStatus.REFUSED)
    return trigger.status not in passed and trigger.order_index not in settled


def _in_order(
    rows: Sequence[CheckpointRow], waiting: Sequence[Trigger], seen: Sequence[Trigger]
) -> list[CheckpointRow | Trigger]:
    """Return all that became of a file, oldest first: what is pending is still to come, what was passed is past."""
    places = [_place(row, seen) for row in rows]
    found: list[CheckpointRow | Trigger] = []
    passed = [trigger for trigger in waiting if trigger.status is not TriggerStatus.PENDING]
    for row, place in zip(rows, places, strict=True):
        found += [trigger for trigger in passed if trigger.order_index < place]
        passed = [trigger for trigger in passed if trigger.order_index >= place]
        found.append(row)
    rest = [trigger for trigger in waiting if trigger in passed or trigger.status is TriggerStatus.PENDING]
    return [*found, *rest]


def _place(row: CheckpointRow, seen: Sequence[Trigger]) -> int:
    """Return the place in the region's order of a row's trigger; what was refused has it in the registry alone."""
    if row.trigger_order is not None:
        return row.trigger_order
    identity = scanned_identity(row.trigger_identity or {})
    return next((trigger.order_index for trigger in seen if dict(trigger.identity) == identity), 0)


def _waiting_entry(trigger: Trigger) -> dict[str, Any]:
    none = dict.fromkeys(
        ("sequence_id", "epoch", "withdrawn_by", "replaced_by", "group", "rows_in", "rows_quarantined",
         "committed_at", "attempt", "run_id", "graph_fingerprint", "params_hash", "drainmark_version")
    )  # fmt: skip
    return {
        "region": trigger.region,
        "trigger": trigger.uri,
        "trigger_kind": "file",
        "identity": dict(trigger.identity),
        "output": trigger.output or None,
        **none,
        "status": trigger.status.value,
        "bytes_in": trigger.size_bytes,
        "reason": trigger.reason,
        "sinks": [],
    }


def _nearest_file(name: str, uris: Iterable[str], region: str) -> str:
    """Return the remedy that names the file whose last part is most like the name's."""
    known = sorted({uri.rpartition("/")[2] for uri in uris})[-_COMPARED:]
    close = difflib.get_close_matches(name.rpartition("/")[2], known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"drainmark scan {region.partition('/')[0]} looks for new files"


def _condition(table: RegionTable, where: Mapping[str, str]) -> pa.compute.Expression | None:
    """Return the condition under which a row is meant, values read as the column's type."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from deltalake import Schema

    schema = pa.schema(Schema.from_json(table.schema_json))
    condition: pa.compute.Expression | None = None
    for column, text in where.items():
        if column not in schema.names:
            remedy = nearest(column, [each["name"] for each in json.loads(table.schema_json)["fields"]])
            raise UnknownName(f"table {table.name} has no column {column!r}", remedy=remedy)
        kind = schema.field(column).type
        if pa.types.is_string_view(kind):  # Arrow compares none with the strings that Parquet files have
            kind = pa.string()
        value = pc.field(column).cast(kind)
        if text == "null":
            is_same = value.is_null() | (value == text) if kind == pa.string() else value.is_null()
        else:
            try:
                is_same = value == pa.scalar(text).cast(kind)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                msg = f"{text!r} is no value of {table.name}.{column}, which is {kind}"
                raise UsageError(msg, remedy="timestamps as 2026-01-31T12:00:00Z, dates as 2026-01-31") from error
        condition = is_same if condition is None else condition & is_same
    return condition
