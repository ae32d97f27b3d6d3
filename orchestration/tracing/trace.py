"""The path of a file and the origin of a row: file -> ids -> tables, and row -> id -> file.

All of it is in the checkpoint table and in the column `_sequence_id`; no Spark is needed. Only files that are pending,
or were passed before they got an id, are in the registry alone.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drainmark.jobs.errors import UnknownName, UsageError
from drainmark.jobs.formats.values.far_times import python_rows
from drainmark.jobs.graph.application import guess
from drainmark.jobs.protocol.chains import reads_in
from drainmark.jobs.protocol.history import RegionHistory, commit_times, retracted_by
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.triggers import PERIOD, RETRACTION, Trigger, TriggerStatus
from drainmark.jobs.protocol.row_conditions import Condition
from drainmark.jobs.runtime.messages import scanned_identity
from drainmark.orchestration.discovery.state_inputs import files_behind
from drainmark.orchestration.inspection.region_view import facts_of
from drainmark.orchestration.inspection.status import iso
from drainmark.orchestration.tracing.traced_tables import TracedTables
from drainmark.orchestration.verbs.file_names import files_named, require_one_file
from drainmark.orchestration.verbs.rewinds.readers import readers_of
from drainmark.orchestration.workplace.workplace import Workplace, existing_registry

_SEQUENCE_ID = "_sequence_id"
NUMBERED = frozenset({RowKind.STATE, RowKind.SKIP})
_COMPARED = 5000
"""Number of names that are compared with a misspelt one, the last in order: a million of them would take minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracer:
    """The answers to questions about one region, as of one read of its checkpoint table.

    Attributes:
        times: commit time of each attempt.
    """

    workplace: Workplace
    region: str
    rows: Sequence[CheckpointRow]
    history: RegionHistory
    times: Mapping[str, dt.datetime]
    tables: TracedTables

    @classmethod
    def of(cls, workplace: Workplace, region: str, *, limit: int = 10) -> Tracer:
        """Return a tracer of a region.

        Args:
            limit: number of rows that are shown of each table; counts are always exact.

        Raises:
            UsageError: the region has never run.
        """
        store = workplace.store(region)
        rows = store.checkpoint.rows() if store.checkpoint.exists() else ()
        if not rows:
            remedy = f"drainmark run {region.partition('/')[0]}"
            raise UsageError(f"region {region!r} has never run: there is nothing to trace", remedy=remedy)
        history = RegionHistory.from_rows(rows)
        tables = TracedTables(store=store, rows=rows, history=history, limit=limit)
        times = commit_times(rows)
        return cls(workplace=workplace, region=region, rows=rows, history=history, times=times, tables=tables)

    # --- forward ---------------------------------------------------------------------------------------------------

    def file(self, name: str) -> dict[str, Any]:
        """Return the history of a file: its path, a path from here, or the end of its path.

        The fields are those of its newest id, or of the present file if it has no id yet; `ids` has one entry for every
        id that it ever had, oldest first: files that changed, rewinds and replacements give several. Triggers that
        never got an id, being superseded or missing, have entries in the same order.

        Raises:
            UnknownName: no file of that name was ever seen; the remedy names the nearest.
            UsageError: the name means several files.
        """
        registry = existing_registry(self.workplace)
        uris = {row.trigger_uri for row in self.rows if row.trigger_uri}
        uris |= set(registry.triggers.known(self.region)) if registry is not None else set()
        found = files_named(name, uris)
        if not found:
            found = sorted(self._slices_with(name))
        if not found:
            msg = f"region {self.region!r} never saw a file {name!r}"
            raise UnknownName(msg, remedy=_nearest_file(name, uris, self.region))
        require_one_file(name, found)
        kinds = NUMBERED | {RowKind.REFUSED}
        rows = [row for row in self.rows if row.kind in kinds and row.trigger_uri == found[0]]
        seen = registry.triggers.by_uri(self.region, found[0]) if registry is not None else []
        settled = {row.trigger_order for row in self.history.states.values()}
        waiting = [trigger for trigger in seen if _is_waiting(trigger, settled)]
        entries = [
            _waiting_entry(each) if isinstance(each, Trigger) else self._entry(each)
            for each in _in_order(rows, waiting, seen)
        ]
        if not entries:  # committed between our two reads
            raise UnknownName(f"{found[0]} is being committed right now", remedy="ask again")
        return {**entries[-1], "ids": entries, **self._chain(entries)}

    def _slices_with(self, name: str) -> set[str]:
        """Return the uris of the periodic states that list a file of that name."""
        periods = [row for row in self.rows if row.trigger_kind == PERIOD and row.kind in NUMBERED]
        files = [(row.trigger_uri or "", {file.uri for file in files_behind(self.workplace, row)}) for row in periods]
        named = set(files_named(name, set().union(*(listed for _, listed in files))))
        return {period for period, listed in files if listed & named}

    def sequence(self, number: int) -> dict[str, Any]:
        """Return the trigger and the state of a sequence id, with its tables.

        Raises:
            UnknownName: no attempt at that id was ever committed; the remedy names the nearest.
        """
        entries = self._entries_of([number])
        if not entries:
            known = [row.sequence_id for row in self.rows if row.kind in NUMBERED]
            closest = min(known, key=lambda each: abs(each - number), default=None)
            is_past = number < self.history.next_id
            why = "its attempt failed, or a rewind took it" if is_past else "it was not reached yet"
            remedy = f"the nearest is {closest}" if closest is not None else "no file was committed yet"
            raise UnknownName(f"no state of {self.region!r} has the id {number}: {why}", remedy=remedy)
        return {**entries[-1], "ids": entries, **self._chain(entries)}

    # --- and back --------------------------------------------------------------------------------------------------

    def row(self, table: str, where: Sequence[Condition], *, everything: bool = False) -> dict[str, Any]:
        """Return the files that made the rows of a table for which all of some conditions hold.

        Args:
            table: a sink, or a path below DRAINMARK_HOME such as `state/APP/OPERATOR`.
            where: the value `null` means no value.
            everything: for tables of one row per key, return all ids that changed these keys, not only the last one.

        Raises:
            UnknownName: no such table or column.
            UsageError: a value does not fit the type of its column.
        """
        wanted = self.tables.called(table)
        found = self.tables.meant(wanted, where)
        numbers = set(found.column(_SEQUENCE_ID).to_pylist())
        if everything and wanted.keys and found.num_rows:
            numbers |= self.tables.changes(wanted, found)
        ids = self._entries_of(sorted(numbers), with_tables=False)
        return {
            "region": self.region,
            "table": wanted.name,
            "where": {each.column: each.values[0] if len(each.values) == 1 else [*each.values] for each in where},
            "rows": found.num_rows,
            "sample": python_rows(found.slice(0, self.tables.limit)),
            "triggers": sorted({entry["trigger"] for entry in ids if entry["trigger"] is not None}),
            "ids": ids,
            "origins": self._origins(ids),
        }

    def _chain(self, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the states of other regions that the given states come from, and those that read them."""
        ids = [entry["sequence_id"] for entry in entries if entry["sequence_id"] in self.history.states]
        return {"origins": self._origins(entries), "readers": readers_of(self.workplace, self.region, ids)}

    def _origins(self, entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the states of other regions of this home whose rows the given states read, nearest first.

        Each has `region`, `sequence_id` and `trigger`; also the states that those read, and so on. Those of a
        region in another home have no entry: its `trace` tells them.
        """
        waiting = [(read["region"], *read["ids"]) for entry in entries for read in entry["reads"] if not read["home"]]
        found: dict[tuple[str, int], dict[str, Any]] = {}
        histories = {self.region: self.history}
        while waiting:
            region, first, last = waiting.pop(0)
            history = histories.setdefault(region, self.workplace.history(region))
            for number, row in history.states.above(first - 1).items():
                if number > last:
                    break
                if (region, number) in found:
                    continue
                found[region, number] = {"region": region, "sequence_id": number, "trigger": row.trigger_uri}
                reads = reads_in(row.trigger_identity or {})
                waiting += [(each.region, each.first, each.last) for each in reads if not each.home]
        return list(found.values())

    # --- entries -----------------------------------------------------------------------------------------------------

    def _entries_of(self, numbers: Iterable[int], *, with_tables: bool = True) -> list[dict[str, Any]]:
        """Return an entry for every row of some ids, oldest first."""
        wanted = set(numbers)
        found = [row for row in self.rows if row.kind in NUMBERED and row.sequence_id in wanted]
        return [self._entry(row, with_tables=with_tables) for row in found]

    def _entry(self, row: CheckpointRow, *, with_tables: bool = True) -> dict[str, Any]:
        """Return the entry of one committed row of a trigger; every key is always present."""
        row = self.history.states.rows.told(row)
        is_state = row.kind is RowKind.STATE
        identity = scanned_identity(row.trigger_identity or {})
        return {
            "region": self.region,
            "trigger": row.trigger_uri,
            "trigger_kind": row.trigger_kind,
            "identity": identity,
            "output": (row.trigger_identity or {}).get("output") or None,
            **facts_of(row, self.history),
            "sequence_id": row.sequence_id if row.kind in NUMBERED else None,
            "epoch": row.epoch,
            "status": self._status(row),
            "withdrawn_by": self._withdrawn_by(row),
            "unmet": dict(row.detail.get("unmet") or {}) if is_state else None,
            "committed_at": iso(self.times.get(row.attempt, row.recorded_at)),
            "attempt": row.attempt,
            "run_id": row.run_id,
            "graph_fingerprint": row.graph_fingerprint,
            "params_hash": row.params_hash,
            "drainmark_version": row.drainmark_version,
            "reads": [each.to_json() for each in reads_in(row.trigger_identity or {})],
            "sinks": self.tables.sinks(row) if is_state and with_tables else [],
        }

    def _status(self, row: CheckpointRow) -> str:
        if row.kind is RowKind.REFUSED:
            return TriggerStatus.REFUSED.value
        if row.sequence_id not in self.history.states:
            return "withdrawn"
        if row.kind is RowKind.SKIP:
            return TriggerStatus.SKIPPED.value
        if row.trigger_kind == RETRACTION:
            return RETRACTION
        if retracted_by(self.history, row.sequence_id) is not None:
            return "retracted"
        return "replaced" if self.history.replaced_by(row.sequence_id) is not None else TriggerStatus.COMMITTED.value

    def _withdrawn_by(self, row: CheckpointRow) -> int | None:
        """Return the id of the rewind that withdrew a state, None if no rewind did."""
        if row.kind not in NUMBERED or row.sequence_id in self.history.states:
            return None
        later = (r for r in self.rows if r.kind is RowKind.REWIND and r.sequence_id > row.sequence_id)
        return next((r.sequence_id for r in later if r.detail["to"] < row.sequence_id), None)


def _is_waiting(trigger: Trigger, settled: set[int | None]) -> bool:
    """Say whether only the registry knows a trigger: it is pending, missing, or superseded by another identity."""
    passed = (TriggerStatus.COMMITTED, TriggerStatus.SKIPPED, TriggerStatus.REFUSED)
    return trigger.status not in passed and trigger.order_index not in settled


def _in_order(
    rows: Sequence[CheckpointRow], waiting: Sequence[Trigger], seen: Sequence[Trigger]
) -> list[CheckpointRow | Trigger]:
    """Return the history of a file, oldest first: passed triggers are in their places, pending ones at the end."""
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
    """Return the place of a row's trigger in the region's order; rows of refused ones did not have it before 0.4."""
    if row.trigger_order is not None:
        return row.trigger_order
    identity = scanned_identity(row.trigger_identity or {})
    return next((trigger.order_index for trigger in seen if dict(trigger.identity) == identity), 0)


def _nearest_file(name: str, uris: Iterable[str], region: str) -> str:
    """Return the remedy that names the file with a last part most like the name's."""
    known = sorted({uri.rpartition("/")[2] for uri in uris})[-_COMPARED:]
    return guess(name.rpartition("/")[2], known) or f"drainmark scan {region.partition('/')[0]} looks for new files"


def _waiting_entry(trigger: Trigger) -> dict[str, Any]:
    """Return the entry of a trigger that has no id."""
    return {
        "region": trigger.region,
        "trigger": trigger.uri,
        "trigger_kind": "file",
        "identity": dict(trigger.identity),
        "output": trigger.output or None,
        **dict.fromkeys(_OF_STATES),
        "status": trigger.status.value,
        "bytes_in": trigger.size_bytes,
        "reason": trigger.reason,
        "reads": [each.to_json() for each in reads_in(trigger.identity)],
        "sinks": [],
    }


_OF_STATES = (
    *("sequence_id", "epoch", "withdrawn_by", "replaced_by", "retracted_by", "group", "rows_in", "rows_quarantined"),
    *("unmet", "committed_at", "attempt", "run_id", "graph_fingerprint", "params_hash", "drainmark_version"),
)
"""Keys of an entry that are null for a trigger without an id."""
