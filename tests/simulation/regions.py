"""The regions of a scene: real owners, tables and sinks; the rows of a group are made here, in the place of Spark."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
from by_hand import SCHEMA_JSON, HandFed
from hand_runs import stage_by_hand
from slices_by_hand import read_slices

from drainmark.jobs import world
from drainmark.jobs.formats.bad_records import BadRecord
from drainmark.jobs.operators.sources.source import SlicedSource
from drainmark.jobs.protocol.claimed_code import Code
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.jobs.protocol.records.manifest import Image, RegionTable, TableRole
from drainmark.jobs.protocol.records.state_generations import labels_in_force, state_table
from drainmark.jobs.protocol.records.triggers import Trigger, file_key
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.commit.ledger import Identity
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable
from drainmark.jobs.runtime.group.backlog import Limits
from drainmark.jobs.runtime.input.inbox import Group, GroupInbox
from drainmark.jobs.runtime.input.quarantine_rows import Quarantine, quarantine_table
from drainmark.jobs.runtime.messages import scanned_identity
from drainmark.jobs.runtime.region_run import RegionRun
from drainmark.jobs.scan.folder import identity_key
from drainmark.orchestration.runs.interruption import Interruption
from drainmark.orchestration.runs.region_runs import region_outside
from drainmark.orchestration.runs.run_loop import RegionLoop, RunOptions, Watch
from drainmark.orchestration.verbs.plan import carry_out
from drainmark.orchestration.workplace.workplace import Opened, drainmark_version
from simulation.model import DELETE, UNREADABLE, quarantined, readable

ROWS = pa.schema([("value", pa.string()), ("_sequence_id", pa.int64())])
CHANGES = pa.schema([("value", pa.string()), ("_gone", pa.bool_()), ("_sequence_id", pa.int64())])
_OF_CHANGES = json.dumps({"type": "struct", "fields": [
    {"name": name, "type": kind, "nullable": True, "metadata": {}}
    for name, kind in (("value", "string"), ("_gone", "boolean"), ("_sequence_id", "long"))
]})  # fmt: skip
STATE = "state"
Contents = dict[tuple[str, str], Sequence[str]]
"""The values of each version of each file, by uri and key of its identity."""


def key_of(identity: Mapping[str, Any]) -> str:
    """Return the key of a file's identity, be it a trigger's, or that of a checkpoint row."""
    return file_key(identity_key(scanned_identity(identity)))


def reading_of(region: str, number: int) -> tuple[str, str]:
    """Return the name under which a scene keeps what a region read of another one's table with an id."""
    return f"{region}#{number}", ""


# --- tables -------------------------------------------------------------------------------------------------------

SINKS: Mapping[str, tuple[str, TableRole, str, Mapping[str, str]]] = {
    "upsert": ("lake/last{n}", TableRole.UPSERT, "", {}),
    "marked": ("lake/last{n}", TableRole.UPSERT, "", {"merge": "on-read"}),
    "latest": ("database/shop/latest{n}", TableRole.UPSERT, "database", {"database": "shop", "table": "latest{n}"}),
    "rows": ("database/shop/rows{n}", TableRole.COPY, "database", {"database": "shop", "table": "rows{n}"}),
    "files": (
        "files/home/out{n}",
        TableRole.COPY,
        "file",
        {"path": "{home}/out{n}", "format": "json", "layout": "file", "name": "part-{sequence_id}"},
    ),
    "newest": ("lake/newest{n}", TableRole.OVERWRITE, "", {}),
    "mirror": ("lake/mirror{n}", TableRole.UPSERT, "", {}),
    "mirror_marked": ("lake/mirror{n}", TableRole.UPSERT, "", {"merge": "on-read"}),
    "mirror_rows": (
        "database/shop/mirror{n}",
        TableRole.UPSERT,
        "database",
        {"database": "shop", "table": "mirror{n}"},
    ),
}
"""The kinds of sinks, besides the append table of each region: name, role, kind and options; `{n}` is its number."""

KEYED = ("upsert", "marked", "latest")
"""The sinks that show the state of the region."""

MIRRORS = ("mirror", "mirror_marked", "mirror_rows")
"""The sinks from which values delete keys; each has a history of its own, so files can be retracted."""


def tables_of(number: int, sinks: Sequence[str], *, is_keyed: bool, label: str = "") -> tuple[RegionTable, ...]:
    """Return the tables of a region with some sinks; histories come before the tables that show them.

    Args:
        is_keyed: it keeps the state that the keyed sinks show, if it has one or not.
        label: of the state's generation.
    """
    state = f"{STATE}{number}"
    found = [_table(f"lake/kept{number}", TableRole.APPEND, f"kept{number}")]
    if is_keyed:
        found.append(_table(state_table("sim", state, label=label), TableRole.CHANGES, state, keys=("value",)))
    for sink in sinks:
        found += _shown(number, sink, state_table("sim", state, label=label))
    return tuple(found)


def _shown(number: int, sink: str, state: str) -> Iterator[RegionTable]:
    name, role, external, options = SINKS[sink]
    operator = f"{sink}{number}"
    history = state if sink in KEYED else f"state/sim/{sink}{number}"
    if sink in MIRRORS:
        yield replace(_table(history, TableRole.CHANGES, operator, keys=("value",)), schema_json=_OF_CHANGES)
    elif sink not in KEYED:
        yield _table(history, TableRole.APPEND, operator)
    yield _table(
        name.replace("{n}", str(number)),
        role,
        operator,
        history=history,
        keys=("value",) if role is TableRole.UPSERT else (),
        deletes=sink in MIRRORS,
        columns=("value", "_sequence_id"),
        external=external,
        options={key: text.replace("{n}", str(number)) for key, text in options.items()},
    )


def _table(name: str, role: TableRole, operator: str, **more: Any) -> RegionTable:
    return RegionTable(name=name, role=role, operator=operator, schema_json=SCHEMA_JSON, **more)


def _changes(found: Sequence[tuple[str, int]]) -> pa.Table:
    """Return the last change of each key by each id."""
    told = {(number, value.removeprefix(DELETE)): value.startswith(DELETE) for value, number in found}
    rows = [{"value": key, "_gone": is_gone, "_sequence_id": number} for (number, key), is_gone in told.items()]
    return pa.Table.from_pylist(rows, schema=CHANGES)


# --- a region as a process sees it ----------------------------------------------------------------------------------


@dataclass
class SimRegion(HandFed):
    """One region, in one process.

    Attributes:
        number: of the region within its application.
        sinks: the kinds of sinks that its code has.
        is_keyed: see `tables_of`.
        lag: if not 0, visible tables of any size rest for so many times as long as bringing them up takes.
        has_bad: it has a quarantine.
        horizon: number of ids that a rewind can go back.
        label: of the generation of its state; `drop` is set to let the state begin anew under this label.
        contents: what a file has that the run reads.
        forgotten: what was erased: region, id, value.
        application: the code, opened once for all processes: it never changes.
        version: of its code.
        outside: of its run at work.
        images: the state has an image with every so many ids; 0 for none.
    """

    number: int = 0
    sinks: tuple[str, ...] = ()
    is_keyed: bool = False
    has_bad: bool = False
    horizon: int = 0
    label: str = ""
    drop: bool = False
    contents: Contents = field(default_factory=dict)
    forgotten: Collection[tuple[str, int, str]] = ()
    version: int = 1
    images: int = 3
    lag: float = 0.0
    application: Opened | None = None
    outside: Any = field(default=None, repr=False)
    _ahead: dict[str, int] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        found = tables_of(self.number, self.sinks, is_keyed=self.is_keyed, label=self.label)
        return (*found, self._quarantine) if self.has_bad else found

    @property
    def _quarantine(self) -> RegionTable:
        assert self.application is not None
        return quarantine_table(self.application.region(self.region))

    def analysed(self) -> Code:
        """Find the label of the state's generation, or a new one for a state that is dropped; return the code."""
        operator = f"{STATE}{self.number}"
        states = labels_in_force(self.history().generations)
        dropped = frozenset({operator} if self.drop else ())
        self.label = world.token()[:8] if self.drop else states.get(operator, "")
        states |= {operator: self.label} if self.drop else {}
        self.drop = False
        return replace(code_of(self.tables, self.version), states=states, dropped=dropped, horizon=self.horizon)

    @property
    def store(self) -> Any:
        return self.workplace.store(self.region)

    def loop(self, size: int) -> _LoopByHand:
        """Return the loop of `run` over the region.

        Args:
            size: largest number of files in a group.
        """
        opened = self.application
        assert opened is not None
        return _LoopByHand(
            workplace=self.workplace,
            opened=opened,
            region=opened.region(self.region),
            options=RunOptions(max_group=size),
            interruption=_NoSignals(),
            watch=Watch(),
            run_id=world.token(),
            fed=self,
        )

    def drop_state(self) -> None:
        """Let the state begin anew; a region that never ran has none."""
        if self.history().epoch:
            self.drop = True
            carry_out([self.loop(1)._prepared()])

    def forget(self) -> None:
        """Forget the groups that were staged and may never be committed."""
        self._ahead.clear()

    # --- the rows of a group ----------------------------------------------------------------------------------------

    def stage(self, group: Group, history: RegionHistory, states: Mapping[str, Any]) -> StagedGroup:
        """Read the files of a group, and stage its rows.

        Raises:
            InputMissing, InputChanged: a file is gone, or is another one than the scan found.
        """
        read = self._read(group)
        found = [(value, number) for number, values in read.items() for value in readable(values)]
        rows = pa.Table.from_pylist([{"value": v, "_sequence_id": n} for v, n in found], schema=ROWS)
        tables = {}
        bad = self._bad(group, read)
        for table in (table for table in self.tables if not table.is_derived):
            if self.has_bad and table == self._quarantine:
                aside = bad.rows({member.sequence_id: member.trigger.uri for member in group.members})
                tables[table.name] = StagedTable(
                    files=() if aside is None else self._written(table, aside, "rows", group)
                )
            elif table.role is TableRole.CHANGES and "_gone" in table.column_names:
                changes = _changes(found)
                tables[table.name] = StagedTable(files=self._written(table, changes, "changes", group), rows=changes)
            elif table.role is TableRole.CHANGES:
                tables[table.name] = self._state(table, rows, group, history)
            else:
                tables[table.name] = StagedTable(files=self._written(table, rows, "rows", group), rows=rows)
        counts = {number: len(readable(values)) + len(quarantined(values)) for number, values in read.items()}
        return StagedGroup(
            group=group, rows_in=counts, tables=tables, lookups={}, process_seconds=0.25, drain_seconds=0.25,
            upserts=tuple(table.name for table in self.tables if table.is_derived),
            rows_quarantined=bad.counts(), refused=bad.files,
        )  # fmt: skip

    def _bad(self, group: Group, read: Mapping[int, Sequence[str]]) -> Quarantine:
        bad = Quarantine()
        for number, values in read.items():
            if UNREADABLE in values:
                bad.refuse(number, UNREADABLE)
            else:
                kept = enumerate(quarantined(values), 1)
                bad.keep(number, [BadRecord(position=place, raw=value, reason=value) for place, value in kept])
        return bad

    def _read(self, group: Group) -> dict[int, Sequence[str]]:
        assert self.application is not None
        start = self.application.region(self.region).first_start
        if isinstance(start, SlicedSource):
            found = dict.fromkeys((each.sequence_id for each in group.members), ())
            for number, batches in read_slices(start, group.members, self.outside, self.horizon):
                found[number] = tuple(value for batch in batches for value in batch["value"].to_pylist())
                self.contents[reading_of(self.region, number)] = found[number]
            return found
        inbox = GroupInbox(
            self.workplace.home / "inbox" / f"{group.epoch}-{group.attempt}", group, self.workplace.inputs
        )
        try:
            inbox.fill()
            found = {each.sequence_id: self.values_of(each.trigger) for each in group.members}
            inbox.check()
        finally:
            inbox.remove()
        return found

    def values_of(self, trigger: Trigger) -> Sequence[str]:
        """Return the values of a trigger's file, as it was scanned."""
        return self.contents[trigger.uri, key_of(trigger.identity)]

    def _written(self, table: RegionTable, rows: pa.Table, name: str, group: Group) -> Any:
        return self.store.staging(table, group.epoch, group.attempt).write(rows, name) if rows.num_rows else ()

    def _state(self, table: RegionTable, rows: pa.Table, group: Group, history: RegionHistory) -> StagedTable:
        """Stage the last id of each value, and at times an image of all of them."""
        once = rows.group_by(["value", "_sequence_id"]).aggregate([]).select(["value", "_sequence_id"]).sort_by("value")
        staged = StagedTable(files=self._written(table, once, "once", group), rows=once)
        last = self._last(history)
        for row in once.to_pylist():
            last[row["value"]] = max(row["_sequence_id"], last.get(row["value"], 0))
        self._ahead.update(last)
        if not self.images or group.last_id % self.images:
            return staged
        whole = pa.Table.from_pylist([{"value": v, "_sequence_id": n} for v, n in sorted(last.items())], schema=ROWS)
        files = self._written(table, whole, "image", group)
        return replace(staged, image=Image(table=table.name, at=group.last_id, files=files))

    def _last(self, history: RegionHistory) -> dict[str, int]:
        """Return the last id of each value, from the states in force and the group before, which may be under way."""
        last: dict[str, int] = {}
        state = state_table("sim", f"{STATE}{self.number}", label=self.label)
        for number, row in history.states.items():
            if row.kind is RowKind.STATE and self._has(state, history, row):
                place = reading_of(self.region, number)
                if place not in self.contents:
                    place = row.trigger_uri or "", key_of(row.trigger_identity or {})
                values = self.contents[place]
                stays = (value for value in readable(values) if (self.region, number, value) not in self.forgotten)
                last.update(dict.fromkeys(stays, number))
        return {**last, **{value: n for value, n in self._ahead.items() if n > last.get(value, 0)}}

    def _has(self, state: str, history: RegionHistory, row: CheckpointRow) -> bool:
        """Say whether a generation of the state has the changes of a row."""
        operator = f"{STATE}{self.number}"
        first = [number for number, label in history.generations.get(operator, ()) if label == self.label]
        return row.sequence_id >= max(first, default=0)


# --- the run -------------------------------------------------------------------------------------------------------


class _NoSignals(Interruption):
    """No signal comes: actors are no processes."""

    def __init__(self) -> None:
        self.event = world.event()  # type: ignore[assignment]

    def arm(self) -> None:
        """Nothing is to be handled."""


@dataclass(slots=True, kw_only=True)
class _LoopByHand(RegionLoop):
    """The loop of `run`, whose code needs no analysis."""

    fed: SimRegion

    def _prepared(self) -> RegionRun:
        fed = self.fed
        code = fed.analysed()
        blueprint = Blueprint(
            region=self.region, application="sim", params=self.opened.params, tables=fed.tables, verdicts={},
            written_by={}, code=code,
        )  # fmt: skip
        fed.outside = region_outside(self.workplace, self.region.name, self.opened.application)
        identity = Identity(
            region=self.region.name,
            run_id=self.run_id,
            drainmark_version=drainmark_version(),
            graph_fingerprint=self.region.fingerprint,
            code=self.code,
        )
        run = RegionRun.of(
            blueprint,
            RegionOwner.of(identity, fed.outside, self._step),
            limits=Limits(triggers=self.options.max_group or 1),
            interrupted=self.interruption.event,
            stages_of=partial(stage_by_hand, hand=fed),
        )
        if fed.lag:
            run.owner.visible.prompt_bytes, run.owner.visible.work_per_second = -1, fed.lag
        return run


def code_of(tables: Sequence[RegionTable], version: int) -> Code:
    """Return the code that writes some tables; another version has other fingerprints."""
    return Code(operators={table.operator: f"{table.operator}-{version}" for table in tables})
