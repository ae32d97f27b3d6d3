"""Runs without Spark: scans, owners, loops, tables and verbs are real; the rows of a group are made in plain Python.

`without_spark` lets every run of this process make its groups so: by the command line, by Dagster, by the kit. An
application is declared as always, with one `DirectoryScan` of text or CSV or with `TableSource`s, with functions,
aggregates (count, sum, max, min and last) and sinks. But a function gets the rows of one file as a list of
dictionaries, and returns one; `gives`, or in
the text of an application an annotation as in `-> "k string, v bigint"`, names other columns than those that it gets.
What it raises is blamed on it as always. If a test module has a mapping `BY_HAND`, its functions take the place of
those of operators, by name.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pytest
from slices_by_hand import read_slices

from drainmark.jobs import world
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.formats.bad_records import BadRecord
from drainmark.jobs.graph.blame import blaming
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.graph.params import Params
from drainmark.jobs.graph.sessionless import function_called
from drainmark.jobs.operators.sinks.sink import Sink
from drainmark.jobs.operators.sources.source import SlicedSource, Source
from drainmark.jobs.operators.windows.running_aggregate import Aggregate
from drainmark.jobs.protocol.claimed_code import Code
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.protocol.records.state_generations import state_table
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime import region_run
from drainmark.jobs.runtime.analysis import blueprint as analysis
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.commit.operator_states import RegionStates
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable
from drainmark.jobs.runtime.hosting.hosted_parts import Hosted
from drainmark.jobs.runtime.input.inbox import Group, GroupInbox
from drainmark.jobs.runtime.input.quarantine_rows import Quarantine, quarantine_table
from drainmark.jobs.runtime.outside import Outside
from drainmark.jobs.runtime.stages.sole_stage import SoleStage
from drainmark.jobs.runtime.stages.stages import Stages
from drainmark.jobs.runtime.timeout import Grace
from drainmark.jobs.state.keyed_state import KeyedState
from drainmark.orchestration.runs import preparation
from drainmark.orchestration.workplace import spark_choice

ID = "_sequence_id"
_TIME = pa.timestamp("us", "UTC")
_ARROW = {
    "string": pa.string(), "long": pa.int64(), "integer": pa.int32(), "double": pa.float64(), "timestamp": _TIME,
}  # fmt: skip
_DDL = {"string": "string", "int64": "bigint", "int32": "int", "double": "double", str(_TIME): "timestamp"}
_STORED = {"bigint": "long", "int": "integer"}
Row = dict[str, Any]
_Function = TypeVar("_Function", bound=Callable[..., Any])
Types = Mapping[str, str]
"""The types of columns, as DDL names them, by name."""


class _NoSession:
    """A session that is handed on and never used."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"Spark must not start: {name}")


class NoSpark:
    """The engine of a process that needs none."""

    is_local = True
    is_remote = False
    session_id = None
    session = _NoSession()

    @contextmanager
    def tagged(self, tag: str) -> Iterator[None]:
        yield

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a function that does nothing: nothing runs in Spark, so nothing is cancelled, prepared or stopped."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: None


# --- the groups of a run ------------------------------------------------------------------------------------------


class Hand(Protocol):
    """What makes the rows of groups."""

    def stage(self, group: Group, history: RegionHistory, states: Mapping[str, KeyedState]) -> StagedGroup:
        """Read the files of a group, and stage its rows."""

    def forget(self) -> None:
        """Forget the groups that were staged and may never be committed."""


@dataclass(slots=True, kw_only=True)
class _WorkByHand:
    """The work of a hand on a group; it drains once its rows are made."""

    hand: Hand
    group: Group
    history: RegionHistory
    states: Mapping[str, KeyedState]
    is_draining: bool = False

    def stage(self) -> StagedGroup:
        world.pass_point(FailPoint.PROCESS_BEFORE)
        found = self.hand.stage(self.group, self.history, self.states)
        world.pass_point(FailPoint.DRAIN)
        self.is_draining = True
        world.pass_point(FailPoint.PROCESS_STAGED)
        return found


@dataclass(slots=True, kw_only=True)
class _StageByHand(SoleStage):
    """The stage of a run whose rows a hand makes."""

    hand: Hand

    def _work_on(self, group: Group) -> Any:
        return _WorkByHand(hand=self.hand, group=group, history=self.owner.history, states=self.states.states)

    def reset(self) -> None:
        self.hand.forget()
        SoleStage.reset(self)


def stage_by_hand(blueprint: Blueprint, owner: RegionOwner, hosted: Hosted, grace: Grace, *, hand: Hand) -> Stages:
    """Return the stage of a run whose rows a hand makes."""
    states = RegionStates(blueprint=blueprint, outside=owner.outside, hosted=hosted)
    return _StageByHand(blueprint=blueprint, owner=owner, states=states, grace=grace, hand=hand)


# --- what an application declares ---------------------------------------------------------------------------------


_FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""The functions that take the place of those of operators, by name of the operator."""


def gives(columns: str) -> Callable[[_Function], _Function]:
    """Declare the columns that a function gives by hand, as DDL."""

    def declared(function: _Function) -> _Function:
        function.gives = columns  # type: ignore[attr-defined]
        return function

    return declared


def _function_of(operator: Any) -> Callable[..., Any]:
    return _FUNCTIONS.get(operator.name, operator.function.function)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blueprint(Blueprint):
    """A blueprint with the types of all streams."""

    types: Mapping[str, Types]


def analyse(
    region: RegionPlan,
    application: str,
    params: Params,
    outside: Outside,
    *,
    states: Mapping[str, str] | None = None,
    dropped: Collection[str] = (),
) -> _Blueprint:
    """Find the types of all streams, and name the tables; see `blueprint.analyse`."""
    types: dict[str, Types] = {}
    tables: dict[str, RegionTable] = {}
    written: dict[str, str] = {}
    for operator in region.run_order:
        types[operator.name] = _types(operator, types, outside)
        for table in _tables(operator, region, application, types, states or {}):
            tables.setdefault(table.name, table)
            if not table.is_derived:
                written[operator.name] = table.name
    aside = quarantine_table(region)
    code = Code(operators=region.fingerprints, horizon=region.parameters.rewind_horizon, states=states or {},
                dropped=frozenset(dropped))  # fmt: skip
    return _Blueprint(region=region, application=application, params=params, tables=(*tables.values(), aside),
                      verdicts={}, written_by=written, code=code, types=types)  # fmt: skip


def _columns(ddl: str | pa.Schema) -> Types:
    if isinstance(ddl, pa.Schema):
        return {field.name: _DDL[str(field.type)] for field in ddl}
    return dict(part.split()[:2] for part in ddl.split(","))


def _types(operator: Operator, known: Mapping[str, Types], outside: Outside) -> Types:
    if isinstance(operator, Source):
        (output,) = operator.outputs
        return _columns(operator.columns(outside.access, output))
    before = known[operator.inputs[0].upstream]
    if isinstance(operator, Aggregate):
        kinds = {"count": "bigint", "sum": "bigint"}
        values = {name: _parsed(value.label) for name, value in operator.values.items()}
        return {key: before[key] for key in operator.keys} | {
            name: kinds.get(kind) or before[column] for name, (kind, column) in values.items()
        }
    function = _function_of(operator) if hasattr(operator, "function") else None
    annotated = str(getattr(function, "__annotations__", {}).get("return", ""))
    declared = getattr(function, "gives", annotated.strip("'\"") if " " in annotated else "")
    return _columns(declared) if declared else before


def _parsed(label: str) -> tuple[str, str]:
    """Return the kind of an aggregation and its column, "" for none."""
    kind, _, column = label.rstrip(")").partition("(")
    return kind, column


def _tables(
    operator: Operator, region: RegionPlan, application: str, types: Mapping[str, Types], labels: Mapping[str, str]
) -> Iterator[RegionTable]:
    schema = _schema_json(types[operator.name], is_state=isinstance(operator, Aggregate))
    if isinstance(operator, Aggregate):
        name = state_table(application, operator.name, label=labels.get(operator.name, ""))
        retention = {} if operator.retention is None else operator.retention.to_json()
        yield RegionTable(name=name, role=TableRole.CHANGES, operator=operator.name, schema_json=schema,
                          keys=operator.keys, retention=retention)  # fmt: skip
    elif isinstance(operator, Sink):
        if not operator.has_history:
            yield operator.visible(schema)
            return
        upstream = region.operator(operator.inputs[0].upstream)
        if isinstance(upstream, Aggregate) and operator.keys == upstream.keys:
            history = state_table(application, upstream.name, label=labels.get(upstream.name, ""))
            schema = _schema_json(types[upstream.name], is_state=True)
        else:
            history = state_table(application, operator.name)
            role = TableRole.CHANGES if operator.keys else TableRole.APPEND
            yield RegionTable(name=history, role=role, operator=operator.name, schema_json=schema, keys=operator.keys,
                              evolves=operator.evolves)  # fmt: skip
        yield operator.visible(schema, history=history, columns=(*types[operator.name], ID))


def _schema_json(types: Types, *, is_state: bool = False) -> str:
    """Return the schema of rows; those of a state have their id last, as the product writes them."""
    columns = ({**types, ID: "long"} if is_state else {ID: "long", **types}).items()
    fields = [{"name": n, "type": _STORED.get(kind, kind), "nullable": True, "metadata": {}} for n, kind in columns]
    return json.dumps({"type": "struct", "fields": fields})


# --- the rows of a group ------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class HandOfApplication:
    """Makes the rows that an application declares; its states are the product's, and small."""

    blueprint: _Blueprint
    outside: Outside

    def forget(self) -> None:
        """Do nothing: the states have all that is kept."""

    def stage(self, group: Group, history: RegionHistory, states: Mapping[str, KeyedState]) -> StagedGroup:
        """Read the files of a group, and stage its rows.

        Raises:
            InputMissing, InputChanged: a file is gone, or is another one than the scan found.
            OperatorFailed: a function failed.
        """
        aside = Quarantine()
        found: dict[str, list[Row]] = {}
        read = self._read(group, aside)
        last = {name: _newest(state) for name, state in states.items()}
        for number, rows in read.items():
            streams: dict[str, list[Row]] = {}
            for operator in self.blueprint.region.run_order:
                made = streams[operator.name] = self._made(operator, streams, rows, last)
                if operator.name in self.blueprint.written_by:
                    name = self.blueprint.written_by[operator.name]
                    found.setdefault(name, []).extend({**row, ID: number} for row in made)
        uris = {member.sequence_id: member.trigger.uri for member in group.members}
        counts = aside.counts()
        tables = {}
        for table in (table for table in self.blueprint.tables if not table.is_derived):
            if table.name == f"lake/{self.blueprint.region.quarantine}":
                rows_aside = aside.rows(uris)
                tables[table.name] = StagedTable(
                    files=() if rows_aside is None else self._written(table, rows_aside, group)
                )
            else:
                made_of = self._arrow(table, found.get(table.name, []))
                files = () if table.name in states else self._written(table, made_of, group)
                tables[table.name] = StagedTable(files=files, rows=made_of)
        return StagedGroup(
            group=group,
            rows_in={number: sum(map(len, rows.values())) + counts.get(number, 0) for number, rows in read.items()},
            tables=tables,
            lookups={},
            process_seconds=0.25,
            drain_seconds=0.25,
            upserts=tuple(table.name for table in self.blueprint.upserts()),
            rows_quarantined=counts,
            refused=aside.files,
            states=states,
        )

    def _arrow(self, table: RegionTable, rows: list[Row]) -> pa.Table:
        columns = json.loads(table.schema_json)["fields"]
        schema = pa.schema([(column["name"], _ARROW[column["type"]]) for column in columns])
        return pa.Table.from_pylist(rows, schema=schema)

    def _written(self, table: RegionTable, rows: pa.Table, group: Group) -> Any:
        staging = self.outside.store.staging(table, group.epoch, group.attempt)
        return staging.write(rows, "rows") if rows.num_rows else ()

    # --- one file -------------------------------------------------------------------------------------------------

    def _read(self, group: Group, aside: Quarantine) -> dict[int, dict[str, list[Row]]]:
        """Return the rows by id and start."""
        starts, horizon = self.blueprint.region.starts, self.blueprint.region.parameters.rewind_horizon
        if all(isinstance(start, SlicedSource) for start in starts):
            found: dict[int, dict[str, list[Row]]] = {each.sequence_id: {} for each in group.members}
            for start in starts:
                for number, batches in read_slices(start, group.members, self.outside, horizon):
                    found[number][start.name] = [row for batch in batches for row in batch.to_pylist()]
            return found
        name = self.blueprint.region.first_start.name
        return {number: {name: rows} for number, rows in self._read_files(group, aside).items()}

    def _read_files(self, group: Group, aside: Quarantine) -> dict[int, list[Row]]:
        inbox = GroupInbox(self.outside.store.inbox(group.epoch, group.attempt), group, self.outside.inputs)
        try:
            inbox.fill()
            found = {each.sequence_id: self._rows(inbox.path(each), each.sequence_id, aside) for each in group.members}
            inbox.check()
        finally:
            inbox.remove()
        return found

    def _rows(self, path: Path, number: int, aside: Quarantine) -> list[Row]:
        """Return the rows of a file; a line of CSV that does not fit its columns goes aside, or the file if all do."""
        start = self.blueprint.region.first_start
        types, lines = self.blueprint.types[start.name], path.read_text().splitlines()
        if "value" in types and len(types) == 1:
            return [{"value": line} for line in lines]
        good: list[Row] = []
        bad: list[BadRecord] = []
        for place, (line, cells) in enumerate(zip(lines, csv.reader(lines), strict=True), 1):
            try:
                good.append({name: _value(cell, types[name]) for name, cell in zip(types, cells, strict=True)})
            except ValueError as error:
                bad.append(BadRecord(position=place, raw=line, reason=str(error)))
        if bad and not good:
            aside.refuse(number, bad[0].reason)
        else:
            aside.keep(number, bad)
        return good

    def _made(
        self,
        operator: Operator,
        streams: Mapping[str, list[Row]],
        rows: Mapping[str, list[Row]],
        last: Mapping[str, _Last],
    ) -> list[Row]:
        if isinstance(operator, Source):
            return self._called(operator, [rows.get(operator.name, [])])
        inputs = [streams[port.upstream] for port in operator.inputs if not port.control]
        if isinstance(operator, Aggregate):
            return _totals(operator, inputs[0], last[self.blueprint.written_by[operator.name]])
        if isinstance(operator, Sink):
            return list({tuple(row[key] for key in operator.keys) or place: row
                         for place, row in enumerate(inputs[0])}.values())  # fmt: skip
        return self._called(operator, inputs)

    def _called(self, operator: Any, inputs: Sequence[list[Row]]) -> list[Row]:
        function = operator.function
        arguments = dict(zip(function.streams, inputs, strict=True)) | dict.fromkeys(
            function.params, self.blueprint.params
        )
        with blaming(operator), function_called():
            return list(_function_of(operator)(**arguments))


_Last = dict[tuple[Any, ...], Row]
"""The newest row of each key of a state."""


def _newest(state: KeyedState) -> _Last:
    assert state.is_in_memory
    rows = state.rows.to_pylist() if state.rows is not None else []
    return {tuple(row[key] for key in state.per_key.keys): row for row in rows}


def _totals(operator: Aggregate, rows: list[Row], last: _Last) -> list[Row]:
    """Return the keys of an aggregate that change, with their new values, which become the last ones."""
    changed: _Last = {}
    for row in rows:
        key = tuple(row[name] for name in operator.keys)
        before = changed.get(key) or last.get(key) or {}
        changed[key] = {name: row[name] for name in operator.keys}
        for name, value in operator.values.items():
            kind, column = _parsed(value.label)
            changed[key][name] = _MERGES[kind](before.get(name), row.get(column))
    last.update(changed)
    return list(changed.values())


def _value(cell: str, kind: str) -> Any:
    return int(cell) if kind in ("bigint", "int") else float(cell) if kind == "double" else cell


_MERGES: Mapping[str, Callable[[Any, Any], Any]] = {
    "count": lambda before, _: (before or 0) + 1,
    "sum": lambda before, value: (before or 0) + value,
    "max": lambda before, value: value if before is None else max(before, value),
    "min": lambda before, value: value if before is None else min(before, value),
    "last": lambda _, value: value,
}


def _stage(**facts: Any) -> Stages:
    return _StageByHand(hand=HandOfApplication(blueprint=facts["blueprint"], outside=facts["owner"].outside), **facts)


@contextmanager
def by_hand(functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Let all runs of this process make their groups by hand, and no engine start Spark.

    Args:
        functions: take the place of those of operators, by name of the operator.
    """
    with pytest.MonkeyPatch.context() as patched:
        for name, function in functions.items():
            patched.setitem(_FUNCTIONS, name, function)
        patched.setattr(analysis, "analyse", analyse)
        patched.setattr(region_run, "SoleStage", _stage)
        patched.setattr(preparation, "probe_first_use", lambda run: None)
        patched.setattr(spark_choice, "make_engine", lambda settings, is_service=False: NoSpark())
        yield


_LASTING = ExitStack()


def stay_by_hand() -> None:
    """Do the same until this process ends: for a code location that a test gives to a real Dagster."""
    _LASTING.enter_context(by_hand({}))


@pytest.fixture(scope="module")
def without_spark(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let all runs of a module's tests make their groups by hand; see `by_hand`."""
    with by_hand(getattr(request.module, "BY_HAND", {})):
        yield


@pytest.fixture(scope="module")
def engine(without_spark: None) -> NoSpark:
    """Return the engine of a module without Spark, in place of the session of the run."""
    return NoSpark()
