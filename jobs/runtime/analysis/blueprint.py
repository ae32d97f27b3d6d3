"""The blueprint of a region: its types, its tables, and which operators vectorise; found over empty frames.

The analysis is the first half of a dry run and the start of every run: a wrong column, an unsupported type or a missing
tag is an error here, before anything is claimed or committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import SchemaMismatch
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.row_order import in_given_order
from drainmark.jobs.frames.tags import GONE, ORDINAL, SEQUENCE_ID, spark_type
from drainmark.jobs.graph.blame import blaming
from drainmark.jobs.graph.context import OperatorContext, empty_like
from drainmark.jobs.graph.operator import KeptState, Operator, Positions, StepResult, Vectorises
from drainmark.jobs.graph.params import Params
from drainmark.jobs.operators.changes.apply_changes import ApplyChanges
from drainmark.jobs.operators.row_wise.expect import Expect
from drainmark.jobs.operators.sinks.quarantine import QuarantineSink
from drainmark.jobs.operators.sinks.sink import Sink
from drainmark.jobs.operators.sources.source import Source, empty_rows
from drainmark.jobs.protocol.claimed_code import NO_CODE, Code
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.protocol.records.state_generations import state_table
from drainmark.jobs.protocol.stage_flow import ChannelLink
from drainmark.jobs.regions.change_streams import change_streams, keepers
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.analysis.column_types import (
    check_channel_keys,
    check_gone,
    check_keys,
    check_layouts,
    check_measured,
    check_names,
    check_types,
)
from drainmark.jobs.runtime.analysis.lookup_rows import newest_rows
from drainmark.jobs.runtime.analysis.vectorisation import GroupVerdict, runs_in_python, unlike_rows, verdict_of
from drainmark.jobs.runtime.input.quarantine_rows import quarantine_table
from drainmark.jobs.runtime.outside import Outside
from drainmark.resources.delta.staging import nullable_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """A region plan with the results of its analysis.

    Attributes:
        tables: every table of the region; histories and states come before the visible tables that depend on them.
        verdicts: by name of a checked operator, whether it vectorises, and if not, why.
        written_by: operator name -> name of the table that it stages.
        kept: (operator name, part) -> name of the table of a state that the operator keeps beside its output.
        code: the facts about the code that the claim keeps.
        own_places: see `OperatorContext`.
        multiplied: streams in which a function may make several rows from one; ordinals tell them apart.
        made: see `OperatorContext.once_a_run`.
        carried: by name, the types of the streams that channels carry.
        results: by name of an operator, the results of its outputs over empty frames.
        sharing: the sinks whose history is the state of the operator before them.
    """

    region: RegionPlan
    application: str
    params: Params
    tables: tuple[RegionTable, ...]
    verdicts: Mapping[str, GroupVerdict]
    written_by: Mapping[str, str]
    kept: Mapping[tuple[str, str], str] = field(default_factory=dict)
    code: Code = NO_CODE
    own_places: frozenset[str] = frozenset()
    multiplied: frozenset[str] = frozenset()
    made: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    carried: Mapping[str, StructType] = field(default_factory=dict, compare=False)
    results: Mapping[str, Sequence[DataFrame]] = field(default_factory=dict, compare=False, repr=False)
    sharing: tuple[Operator, ...] = ()

    def in_python(self) -> tuple[Operator, ...]:
        """Return the operators that call functions in Spark's Python workers; needed when a worker died."""
        names = {name for name, frames in self.results.items() if any(map(runs_in_python, frames))}
        return tuple(operator for operator in self.region.run_order if operator.name in names)

    @property
    def forced_single(self) -> Mapping[str, str]:
        """Return the operators that force groups of one, with the reason."""
        declared = {name: self.region.operator(name).single_because for name in self.region.forced_single}
        found = {name: verdict.reason for name, verdict in self.verdicts.items() if not verdict.vectorises}
        return {**declared, **found}

    @property
    def memory_factor(self) -> int:
        """Return how many times the setting `small_group_bytes` a group may have and go by this process.

        Twice if changes are applied, which tasks do only behind an exchange by key: of a group with 12 MB of changes,
        from a million keys and on two cores, this process has the newest rows in less than half the time of the tasks.
        """
        in_memory = (isinstance(each, ApplyChanges) for each in self.region.operators)
        return 2 if any(in_memory) else 1

    def readers(self, name: str, output: str = "") -> int:
        """Return the number of connections that read the rows of an output: a sink that shares a state reads none."""
        ports = [port for operator in self.sharing for port in operator.inputs]
        return self.region.consumers(name, output) - sum(
            port.upstream == name and port.output == output for port in ports
        )

    def table(self, name: str) -> RegionTable:
        return next(table for table in self.tables if table.name == name)

    def states(self) -> Mapping[str, tuple[Operator, KeptState]]:
        """Return every keyed state by the name of its table: its operator, and its keys."""
        found: dict[str, tuple[Operator, KeptState]] = {}
        for operator in self.region.stateful:
            if operator.output_state is not None:
                found[self.written_by[operator.name]] = (operator, operator.output_state)
            for kept in operator.kept:
                found[self.kept[operator.name, kept.part]] = (operator, kept)
        return found

    def upserts(self) -> tuple[RegionTable, ...]:
        """Return the tables, and the sinks outside Delta, that are derived from a history."""
        return tuple(table for table in self.tables if table.is_derived)


def analyse(
    region: RegionPlan,
    application: str,
    params: Params,
    outside: Outside,
    *,
    states: Mapping[str, str] | None = None,
    dropped: Collection[str] = (),
) -> Blueprint:
    """Apply every operator to empty frames, walk the plans of the author's functions, and name the tables.

    Args:
        states: by operator, the label of a state that is not in its first table; see `state_generations`.
        dropped: the operators among these with a state that begins anew with the next claim.

    Raises:
        OperatorFailed: a function does not accept its columns.
        DeclarationError: a result cannot be stored.
    """
    from drainmark.resources.spark.worker_code import ship

    session = outside.engine.session
    ship((*region.run_order, *region.followers), session)
    frames = _empty_frames(region, params, session, outside)
    walked, multiplied = dict[str, GroupVerdict](), set[str]()
    tables, written_by = list[RegionTable](), dict[str, str]()
    changes: dict[str, dict[str, DataFrame]] = {}
    found_results: dict[str, Sequence[DataFrame]] = {}
    origins = change_streams(region.run_order)
    for operator in region.run_order:
        results, changes[operator.name] = _apply(application, operator, frames)
        found_results[operator.name] = tuple(results.values())
        with blaming(operator):  # a Connect session analyses a plan only when it is asked for the columns
            for output in operator.outputs or ("",):
                result = results[output]
                _walk(operator, result, walked)
                tagged = frames.tagged(operator, result)
                check_gone(operator, origins, result, unlike_rows)
                check_types(application, operator, tagged)
                frames.streams[operator.stream(output)] = empty_like(session, seen(operator, tagged))
            multiplied |= _multiplied(operator, walked, frames)
        for table in _tables_of(operator, region, application, frames, tagged, states=states or {}):
            if all(table.name != other.name for other in tables):
                tables.append(table)
            if not table.is_derived:
                written_by[operator.name] = table.name
    kept = _kept_tables(region, partial(_name_of, application, states or {}), frames, changes, tables)
    if any(isinstance(operator, Source | QuarantineSink | Expect | ApplyChanges) for operator in region.operators):
        tables.append(quarantine_table(region))
    check_keys(application, region, tables)
    check_layouts(application, region, tables)
    _examine_foreign(tables, outside)
    check_channel_keys(application, region, frames.streams)
    carried = {each.stream: _nullable_type(frames.streams[each.stream]) for each in region.channels}
    return Blueprint(
        region=region,
        application=application,
        params=params,
        tables=tuple(tables),
        verdicts=_judged(region, walked),
        written_by=written_by,
        kept=kept,
        code=_code_of(region, states or {}, dropped, carried),
        own_places=_own_places(region, walked),
        multiplied=frozenset(multiplied),
        carried=carried,
        results=found_results,
        sharing=tuple(operator for operator in region.run_order if shares_history(operator, region)),
    )


def _walk(operator: Operator, result: DataFrame, walked: dict[str, GroupVerdict]) -> None:
    """Add the verdict on a result of an operator to those on its other outputs, if the plan decides."""
    if operator.positions is Positions.CHECKED:
        known, found = walked.get(operator.name), verdict_of(result)
        walked[operator.name] = found if known is None else known.with_other(found)


def _judged(region: RegionPlan, walked: Mapping[str, GroupVerdict]) -> dict[str, GroupVerdict]:
    """Return the verdicts on the operators for which the analysed plan decides whether they vectorise."""
    return {
        name: verdict for name, verdict in walked.items() if region.operator(name).vectorisation() is Vectorises.CHECKED
    }


def _code_of(
    region: RegionPlan, states: Mapping[str, str], dropped: Collection[str], carried: Mapping[str, StructType]
) -> Code:
    """Return the facts about the code that the claim keeps; stages and channels only if the region has channels."""
    starts = {start.name for start in region.starts}
    stages = region.stages if region.channels else ()
    return Code(
        operators=region.fingerprints,
        horizon=region.parameters.rewind_horizon,
        states=states,
        dropped=frozenset(dropped),
        stages={
            stage.name: tuple(each.name for each in stage.operators if each.name not in starts) for stage in stages
        },
        channels={
            channel.name: ChannelLink(
                stage_from=channel.stage_from,
                stage_to=channel.stage_to,
                columns={
                    column.name: column.dataType.simpleString()
                    for column in carried[channel.stream].fields
                    if column.name != ORDINAL
                },
            )
            for channel in region.channels
        },
    )


def _nullable_type(frame: DataFrame) -> StructType:
    """Return the type of a stream's rows with every level nullable: nullability differs from group to group."""
    return spark_type(nullable_schema(frame.schema.json()))


def _multiplied(operator: Operator, walked: Mapping[str, GroupVerdict], frames: OperatorContext) -> set[str]:
    """Return the streams of an operator that get ordinals, and add the ordinals to their frames."""
    found = walked.get(operator.name)
    if found is None or found.keeps_places or not found.keeps_order:
        return set()
    names = set(map(operator.stream, operator.outputs))
    for name in names:
        frames.streams[name] = empty_like(frames.session, in_given_order(frames.streams[name]))
    return names


def _own_places(region: RegionPlan, verdicts: Mapping[str, GroupVerdict]) -> frozenset[str]:
    """Return the streams in which no two rows of an id share a position, as far as declarations and plans tell."""
    found: set[str] = set()
    for operator in region.run_order:
        ports = [port.stream for port in operator.inputs if not port.control]
        known = verdicts.get(operator.name)
        is_own = {
            Positions.OWN: True,
            Positions.KEPT: len(ports) == 1 and found.issuperset(ports),
            Positions.CHECKED: len(ports) <= 1 and found.issuperset(ports) and known is not None and known.keeps_places,
            Positions.SHARED: False,
        }[operator.positions]
        if is_own:
            found |= set(map(operator.stream, operator.outputs))
    return frozenset(found)


def _examine_foreign(tables: Sequence[RegionTable], outside: Outside) -> None:
    """Refuse at once a schema that an adopted table, or a sink outside Delta, would not take."""
    for table in tables:
        if table.external:
            outside.store.external(table).examine(table.schema_json)
        elif table.adopted:
            outside.store.adopted(table.name).examine(table.schema_json, merged=table.role is TableRole.UPSERT)


def seen(operator: Operator, rows: DataFrame) -> DataFrame:
    """Return the rows of an output as downstream operators see them."""
    return rows if operator.output_state is None else operator.output_state.seen(rows)


def _empty_frames(region: RegionPlan, params: Params, session: SparkSession, outside: Outside) -> OperatorContext:
    scanned: dict[str, DataFrame] = {}
    for operator in region.run_order:
        if isinstance(operator, Source):
            scanned.update(
                {
                    operator.stream(each): empty_rows(session, operator, each, outside.access)
                    for each in operator.outputs
                }
            )
    return OperatorContext(
        session=session,
        params=params,
        first_id=1,
        last_id=1,
        scanned_frames=scanned,
        read_state=lambda operator, partials: (partials, None),
        read_lookup=lambda operator: empty_like(session, newest_rows(session, operator, outside)),
        read_statement=outside.statement,
    )


def _apply(
    application: str, operator: Operator, frames: OperatorContext
) -> tuple[dict[str, DataFrame], dict[str, DataFrame]]:
    """Return an operator's results by output port, and the changes of the states that it keeps."""
    check_names(application, operator, frames)
    check_measured(operator, frames)
    if isinstance(operator, Source):
        return {name: operator.apply_output(frames, name) for name in operator.outputs}, {}
    result: StepResult = frames.guard(operator, lambda: operator.step(frames))
    return {name: result.of(name) for name in operator.outputs or ("",)}, dict(result.changes)


def _kept_tables(
    region: RegionPlan,
    name_of: Callable[[str, str], str],
    frames: OperatorContext,
    changes: Mapping[str, dict[str, DataFrame]],
    tables: list[RegionTable],
) -> dict[tuple[str, str], str]:
    """Add the tables of the states that operators keep beside their outputs, also through control ports."""
    names: dict[tuple[str, str], str] = {}
    for operator in region.operators:
        changed = changes[operator.name] | frames.guard(operator, partial(operator.absorb, frames))
        for kept in operator.kept:
            name = name_of(operator.name, kept.part)
            names[operator.name, kept.part] = name
            derived = (at for at, table in enumerate(tables) if table.history == name)
            tables.insert(next(derived, len(tables)), _of_state(operator, kept, name, changed[kept.part]))
    return names


def _of_state(operator: Operator, kept: KeptState, name: str, rows: DataFrame) -> RegionTable:
    return RegionTable(
        name=name,
        role=TableRole.CHANGES,
        operator=operator.name,
        schema_json=nullable_schema(rows.schema.json()),
        keys=kept.keys,
        evolves=kept.evolves,
        retention={} if kept.retention is None else kept.retention.to_json(),
    )


def _name_of(application: str, states: Mapping[str, str], operator: str, part: str = "") -> str:
    return state_table(application, operator, part, label=states.get(operator, ""))


def _tables_of(
    operator: Operator,
    region: RegionPlan,
    application: str,
    frames: OperatorContext,
    result: DataFrame,
    *,
    states: Mapping[str, str],
) -> list[RegionTable]:
    if operator.output_state is not None:
        return [_of_state(operator, operator.output_state, _name_of(application, states, operator.name), result)]
    if not isinstance(operator, Sink):
        return []
    schema = nullable_schema(result.schema.json())
    if not operator.has_history:
        return [operator.visible(schema)]
    upstream = region.operator(operator.inputs[0].upstream)
    tables, deletes = [], GONE in result.columns
    known = keepers(region.run_order).get(upstream.name, ())
    withdrawn_by = tuple(name and _name_of(application, states, name) for name in known if known != ("",))
    columns = tuple(name for name in result.columns if name != GONE)
    if shares_history(operator, region):
        history = _name_of(application, states, upstream.name)
        if upstream.output_state is not None:
            columns = (*upstream.output_state.columns, SEQUENCE_ID)
            result = frames.streams[upstream.name].select(*(quoted_name(name) for name in columns))
    else:
        history = state_table(application, operator.name)
        tables.append(
            RegionTable(
                name=history,
                role=TableRole.CHANGES if operator.keys else TableRole.APPEND,
                operator=operator.name,
                schema_json=schema,
                keys=operator.keys,
                evolves=operator.evolves or deletes,  # it had no such column before a change stream came
                withdrawn_by=withdrawn_by,
            )
        )
    schema = nullable_schema(result.drop(GONE).schema.json())
    visible = operator.visible(schema, history=history, columns=columns)
    return [*tables, replace(visible, deletes=deletes, withdrawn_by=withdrawn_by)]


def shares_history(operator: Operator, region: RegionPlan) -> bool:
    """Is the state of the operator right before an upsert sink also the sink's history, so that it is written once?"""
    if not isinstance(operator, Sink) or not operator.keys or operator.partition_by:
        return False
    upstream = region.operator(operator.inputs[0].upstream)
    states = upstream.kept if upstream.output_state is None else (upstream.output_state,)
    return any(set(state.history_of) == set(operator.keys) for state in states)


def check_schema(table: RegionTable, schema: StructType) -> None:
    """Compare the type of rows that are about to be staged with the schema of the table.

    Raises:
        SchemaMismatch: names, types or order differ.
    """
    found = nullable_schema(schema.json())
    if found != table.schema_json:
        msg = f"{table.name}: expected {table.schema_json}, got {found}"
        raise SchemaMismatch(msg, operator=table.operator)
