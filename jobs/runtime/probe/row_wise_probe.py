"""The probe: two triggers together must equal two triggers apart, tried on real rows.

The walk of the analysed plan (`vectorisation.verdict_of`) decides which operators may see many triggers. The probe is
the second check, for things that a plan does not show: a UDF that remembers rows, a statement with `vectorised=True`.
It reads up to 200 rows of each of two pending files, commits nothing, and runs at a dry run and at the first use of a
changed function.

Of an operator in Python there is nothing to compare: a handler is called id by id in any grouping. But it must accept
its rows, and `reset` must read the checkpoint that `checkpoint` wrote. Operators downstream are probed on its output.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import DrainTimeout, NotRowWise, OperatorFailed
from drainmark.jobs.errors.operator_code import ResetWanted
from drainmark.jobs.formats.format import row_type
from drainmark.jobs.formats.values.far_times import python_rows
from drainmark.jobs.frames.arrow import arrow_of, frame_of
from drainmark.jobs.frames.row_order import in_order, rows_by_id, untagged
from drainmark.jobs.frames.tags import SEQUENCE_ID, SOURCE_FILE, arrow_schema, tagged_type
from drainmark.jobs.graph.blame import failure_of
from drainmark.jobs.graph.context import OperatorContext, with_source_file
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.handler import Handled
from drainmark.jobs.operators.row_wise.functor import Functor
from drainmark.jobs.operators.row_wise.parallel_map import ParallelMap
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.operators.sources.source import Source, empty_rows
from drainmark.jobs.operators.sql import SqlOperator
from drainmark.jobs.protocol.records.addresses import is_object
from drainmark.jobs.protocol.records.triggers import FILE, Trigger, kind_of
from drainmark.jobs.runtime.analysis.blueprint import Blueprint, seen
from drainmark.jobs.runtime.analysis.lookup_rows import newest_rows
from drainmark.jobs.runtime.hosting.handler_host import host_of
from drainmark.jobs.runtime.input.attempt import Attempt
from drainmark.jobs.runtime.input.file_intake import expected_of
from drainmark.jobs.runtime.input.group_input import GroupInput
from drainmark.jobs.runtime.input.inbox import Assigned, Group, GroupInbox, paths_by_id
from drainmark.jobs.runtime.outside import Outside
from drainmark.jobs.state.placed_rows import ranked
from drainmark.jobs.tasks.file_ranges import InputFile
from drainmark.jobs.tasks.read_files import first_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SAMPLE_ROWS = 200
SAMPLE_CALLS = 20
"""Number of rows of each trigger on which a function of one row is called: a call may be slow, or cost money."""

_PROBED_BYTES = 8 * 1024 * 1024
"""Maximum size of the two triggers of a probe that are fetched to this process; an object is fetched whole."""
_SIDE = "_probe_side"
_TOGETHER, _APART = 0, 1
_FIRST, _SECOND = 1, 2
_FLOAT_DIGITS = ".9g"
_ROW_WISE = (Functor, ParallelMap, Source, SqlOperator)
_LOOK_AHEAD = 64


def changed_functions(
    blueprint: Blueprint, probed: Mapping[str, str], statement: Callable[[str], str] | None = None
) -> tuple[Operator, ...]:
    """Return the operators to probe: handlers, and operators that will see several triggers; not those that passed.

    Args:
        probed: operator -> fingerprint that passed (`RegionProgress.get_probed`).
        statement: returns the text of a SQL operator's statement; with it, a changed text counts as a change.
    """
    return tuple(
        operator
        for operator in blueprint.region.operators
        if (_sees_many(blueprint, operator) or isinstance(operator, Handled))
        and probed.get(operator.name) != fingerprint_of(blueprint, operator, statement)
    )


def fingerprint_of(blueprint: Blueprint, operator: Operator, statement: Callable[[str], str] | None = None) -> str:
    """Return the operator's fingerprint; for a SQL operator, with the digest of its text if `statement` is given."""
    known = blueprint.region.fingerprints[operator.name]
    if statement is None or not isinstance(operator, SqlOperator):
        return known
    return f"{known}-{hashlib.sha256(statement(operator.statement).encode()).hexdigest()[:16]}"


def probe_if_changed(blueprint: Blueprint, outside: Outside) -> bool:
    """Probe changed operators on the two oldest pending triggers of each output, and note the operators that passed.

    If no operator changed, it reads the registry once and starts no Spark job. It notes nothing if fewer than two
    triggers are pending (large objects not counted), or if an operator fails on them.

    Returns:
        whether it noted an operator.

    Raises:
        NotRowWise: see `probe`; nothing is noted.
    """
    registry, region = outside.registry, blueprint.region.name
    changed = changed_functions(blueprint, registry.progress.get_probed(region), outside.statement)
    passed: dict[str, str] = {}
    for pair in pairs(registry.triggers.pending(region, _LOOK_AHEAD)) if changed else ():
        left = [operator for operator in changed if operator.name not in passed]
        with contextlib.suppress(OperatorFailed):  # the run that takes the file counts the attempt and finds the cause
            for name in probe(blueprint, outside, pair, left) if left else ():
                passed[name] = fingerprint_of(blueprint, blueprint.region.operator(name), outside.statement)
    if passed:
        registry.progress.set_probed(region, passed)
    return bool(passed)


def pairs(pending: Sequence[Trigger]) -> Iterator[tuple[Trigger, Trigger]]:
    """Yield the two oldest triggers of each output that has two; large objects are left out."""
    few = [each for each in pending if not is_object(each.uri) or each.size_bytes <= _PROBED_BYTES // 2]
    for output in dict.fromkeys(trigger.output for trigger in few):
        oldest = [trigger for trigger in few if trigger.output == output][:2]
        if len(oldest) == 2:
            yield oldest[0], oldest[1]


def probe(
    blueprint: Blueprint, outside: Outside, triggers: Sequence[Trigger], operators: Sequence[Operator] | None = None
) -> tuple[str, ...]:
    """Compare each row-wise function over two triggers together with the same function over each alone.

    Every function is judged on its own inputs, so state and windows upstream do not affect the verdict. A function
    that returns other rows when it is called again on the same input is not deterministic; that is allowed, and passes.

    Args:
        triggers: two of one output of the source; further ones are ignored.
        operators: those to judge; by default as `changed_functions` with nothing probed.

    Returns:
        names of the operators that passed; none if a file is empty or cannot be read, since that proves nothing.

    Raises:
        NotRowWise: names operator, location and a sample row that is only on one side.
        OperatorFailed: the author's function raised.
    """
    wanted = operators if operators is not None else changed_functions(blueprint, {})
    group = Group(
        members=tuple(Assigned(sequence_id=id_, trigger=t) for id_, t in enumerate(triggers[:2], start=_FIRST)),
        epoch=0,
        attempt=f"probe-{world.token()}",
    )
    sampled = _sampled(blueprint, outside, group)
    fed = {name for name, rows in (sampled or {}).items() if len(set(rows[SEQUENCE_ID].to_pylist())) > 1}
    if sampled is None or not fed:
        return ()
    session, uris = outside.engine.session, paths_by_id(group.members)
    scanned = {name: with_source_file(frame_of(session, rows), _FIRST, uris) for name, rows in sampled.items()}
    for source in (op for op in blueprint.region.feeds if isinstance(op, Source)):  # a probe must not take their input
        for output in source.outputs:
            scanned[source.stream(output)] = empty_rows(session, source, output, outside.access)
    judge = _Judge(blueprint=blueprint, outside=outside, scanned=scanned, fed=fed, wanted={op.name for op in wanted})
    return tuple(judge.passed())


def _sees_many(blueprint: Blueprint, operator: Operator) -> bool:
    if not isinstance(operator, _ROW_WISE):
        return False
    verdict = blueprint.verdicts.get(operator.name)
    return operator.name not in blueprint.region.forced_single and (verdict is None or verdict.vectorises)


def _sampled(blueprint: Blueprint, outside: Outside, group: Group) -> dict[str, pa.Table] | None:
    """Return the first rows of each trigger by stream of a source; None if a trigger cannot be read.

    The error is dropped here: the run that takes the file reports it, with the trigger's name.
    """
    import pyarrow as pa

    sources = [operator for operator in blueprint.region.operators if isinstance(operator, Source)]
    rescues = any(isinstance(source, DirectorySource) and source.scan.on_schema == "rescue" for source in sources)
    if rescues or any(kind_of(member.trigger.identity) != FILE for member in group.members):
        return _taken_sample(blueprint, sources, outside, group)
    follow_links = any(isinstance(source, DirectorySource) and source.scan.follow_links for source in sources)
    inbox = GroupInbox(
        outside.store.inbox(group.epoch, group.attempt), group, outside.inputs, follow_links=follow_links
    )
    scanned: dict[str, pa.Table] = {}
    try:
        inbox.fill()
        for source in (source for source in sources if isinstance(source, DirectorySource)):
            for output in source.outputs:
                expected = expected_of(source, output)
                files = [
                    InputFile(number=member.sequence_id, path=str(inbox.path(member)), size=member.trigger.size_bytes)
                    for member in group.members
                    if member.trigger.output == output
                ]
                empty = arrow_schema(tagged_type(row_type(expected))).empty_table()
                samples = (first_rows(file, expected, SAMPLE_ROWS) for file in files)
                scanned[source.stream(output)] = pa.concat_tables([empty, *samples])
    except Exception:
        return None
    finally:
        inbox.remove()
    return scanned


def _taken_sample(
    blueprint: Blueprint, sources: Sequence[Source], outside: Outside, group: Group
) -> dict[str, pa.Table] | None:
    """Return the first rows of each trigger by stream, read as in a run; None if they are large or unreadable."""
    if group.bytes_to_read > _PROBED_BYTES:
        return None
    attempt = Attempt.of(outside, group, size=0).in_memory()
    taking = GroupInput(attempt=attempt, sources=sources, horizon=blueprint.region.parameters.rewind_horizon)
    try:
        return {
            stream: _first_of_each(frame.drop(SOURCE_FILE).toArrow(), SAMPLE_ROWS)
            for stream, frame in taking.take().items()
        }
    except Exception:
        return None
    finally:
        taking.remove()


def _first_of_each(rows: pa.Table, count: int) -> pa.Table:
    """Return the first rows of each id."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = sorted(set(rows[SEQUENCE_ID].to_pylist()))
    few = [rows.filter(pc.equal(rows[SEQUENCE_ID], number)).slice(0, count) for number in numbers]
    return pa.concat_tables([rows.slice(0, 0), *few])


@dataclass(slots=True, kw_only=True)
class _Judge:
    """The judge of the wanted operators: it runs them, and all upstream of them, over the sample."""

    blueprint: Blueprint
    outside: Outside
    scanned: Mapping[str, DataFrame]
    fed: set[str]
    wanted: set[str]
    streams: dict[str, DataFrame] = field(default_factory=dict)

    @property
    def session(self) -> SparkSession:
        session: SparkSession = self.outside.engine.session
        return session

    def passed(self) -> Iterator[str]:
        needed = self._needed()
        for operator in self.blueprint.region.run_order:
            if operator.name not in needed:
                continue
            for output in operator.outputs:
                self._run(operator, output)
            if operator.name in self.wanted and self._is_fed(operator):
                yield operator.name

    def _needed(self) -> set[str]:
        """Return the wanted operators and all upstream of them."""
        needed = set(self.wanted)
        for operator in reversed(self.blueprint.region.run_order):
            if operator.name in needed:
                needed.update(port.upstream for port in operator.inputs)
        return needed

    def _is_fed(self, operator: Operator) -> bool:
        """Say whether the operator depends on an output of a source that has rows of both triggers."""
        if isinstance(operator, Source):
            return any(operator.stream(output) in self.fed for output in operator.outputs)
        region = self.blueprint.region
        return any(
            port.stream in self.fed
            if isinstance(region.operator(port.upstream), Source)
            else self._is_fed(region.operator(port.upstream))
            for port in operator.inputs
        )

    def _run(self, operator: Operator, output: str) -> None:
        """Apply one operator to its inputs; judge it if it is wanted."""
        name = operator.stream(output)
        if isinstance(operator, Handled):
            self.streams[name] = self._handled(operator)
            return
        if not self._sees_many(operator):
            self.streams[name] = self._apart(operator, output)
            return
        together = self._apply(operator, output, _FIRST, _SECOND)
        given_on = any(together is frame for frame in [*self.scanned.values(), *self.streams.values()])
        if operator.name not in self.wanted or given_on:
            self.streams[name] = together
            return
        both = _marked(together, _TOGETHER).unionByName(_marked(self._apart(operator, output), _APART))
        rows = _computed(operator, both)
        sides = {side: _side(rows, side) for side in (_TOGETHER, _APART)}
        self._compare(operator, output, sides)
        self.streams[name] = frame_of(self.session, sides[_TOGETHER])

    def _handled(self, operator: Handled) -> DataFrame:
        frames = self._frames(operator, _FIRST, _SECOND)
        rows = _computed(operator, ranked(frames, operator, operator.inputs[0]))
        output = _tried(
            operator, self.blueprint, rows, range(_FIRST, _SECOND + 1), lambda call: frames.guard(operator, call)
        )
        return frames.local(operator, output, operator.made)

    def _sees_many(self, operator: Operator) -> bool:
        return operator.name not in self.blueprint.forced_single

    def _apart(self, operator: Operator, output: str) -> DataFrame:
        first = self._apply(operator, output, _FIRST, _FIRST)
        if SEQUENCE_ID not in first.columns:  # a lookup, which has no ids
            return first
        return first.unionByName(self._apply(operator, output, _SECOND, _SECOND))

    def _apply(self, operator: Operator, output: str, first: int, last: int) -> DataFrame:
        frames = self._frames(operator, first, last)
        if isinstance(operator, Source):
            return operator.apply_output(frames, output)
        applied = frames.guard(operator, lambda: operator.step(frames).of(output))
        return frames.tagged(operator, seen(operator, applied))

    def _frames(self, operator: Operator, first: int, last: int) -> OperatorContext:
        def cut(frame: DataFrame) -> DataFrame:
            is_whole = first != last or SEQUENCE_ID not in frame.columns
            return frame if is_whole else frame.where(F.col(SEQUENCE_ID) == first)

        return OperatorContext(
            session=self.session,
            params=self.blueprint.params,
            first_id=first,
            last_id=last,
            scanned_frames={name: cut(frame) for name, frame in self.scanned.items()},
            read_state=lambda aggregate, partials: (partials, None),
            read_lookup=lambda lookup: newest_rows(self.session, lookup, self.outside),
            read_statement=self.outside.statement,
            collect=lambda called, frame: _first_of_each(in_order(_computed(called, frame)), SAMPLE_CALLS),
            is_run=isinstance(operator, ParallelMap),  # its function is called; all other operators are plans
            streams={name: cut(frame) for name, frame in self.streams.items()},
        )

    def _compare(self, operator: Operator, output: str, sides: Mapping[int, pa.Table]) -> None:
        together, apart = _multiset(sides[_TOGETHER]), _multiset(sides[_APART])
        if together == apart or apart != _multiset(_computed(operator, self._apart(operator, output))):
            return
        only_together, only_apart = together - apart, apart - together
        sample = next(iter(only_together or only_apart))
        side = "together" if only_together else "apart"
        raise NotRowWise(
            f"{operator.name!r} is not row-wise: over two files together it gives {only_together.total()} row(s) that "
            f"it does not give over each alone, and lacks {only_apart.total()}; only {side}: {sample}",
            operator=operator.name,
            location=operator.location,
            remedy="use @dm.per_trigger, which sees one file's rows at a time; or key the operation by _sequence_id",
            sample=sample,
            side=side,
        )


def _tried(
    operator: Handled,
    blueprint: Blueprint,
    rows: pa.Table,
    ids: range,
    guard: Callable[[Callable[[], pa.Table]], pa.Table],
) -> pa.Table:
    """Call a new handler of an operator on rows, restore it from its checkpoint, and throw it away.

    Args:
        rows: tagged.
        ids: of the triggers, in order.
        guard: runs the author's code, and blames the operator for its errors.

    Returns:
        the handler's output, tagged.

    Raises:
        OperatorFailed: from `guard`; or the handler asked for a reset, or a permit was kept.
        CheckpointUnreadable: `reset` cannot read the checkpoint that `checkpoint` wrote.
    """
    host = host_of(operator, blueprint, None)
    host.reset({})
    try:
        output = guard(lambda: host.step(ids, rows_by_id(rows), untagged(rows.slice(0, 0)))[0])
        host.reset(host.checkpointed())
    except (ResetWanted, DrainTimeout) as error:
        remedy = "the run that takes the file sees whether it passes"
        raise OperatorFailed(str(error), operator=operator.name, location=operator.location, remedy=remedy) from error
    finally:
        host.context.gate.close()
    return output


def _marked(frame: DataFrame, side: int) -> DataFrame:
    return frame.withColumn(_SIDE, F.lit(side))


def _computed(operator: Operator, frame: DataFrame) -> pa.Table:
    try:
        return arrow_of(frame)
    except Exception as error:
        raise failure_of(operator, error) from error


def _side(rows: pa.Table, side: int) -> pa.Table:
    import pyarrow.compute as pc

    return rows.filter(pc.equal(rows[_SIDE], side)).drop_columns([_SIDE])


def _multiset(rows: pa.Table) -> Counter[str]:
    names = sorted(rows.column_names)
    return Counter(repr({name: _comparable(row[name]) for name in names}) for row in python_rows(rows))


def _comparable(value: Any) -> Any:
    """Return a value with a text that does not depend on the last digits of floats."""
    if isinstance(value, float):
        return float(format(value, _FLOAT_DIGITS))
    if isinstance(value, dict):
        return {name: _comparable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_comparable(item) for item in value]
    return value
