"""The quarantine of one attempt at a group: rows that cannot be read, rows that operators refuse, and the number of
rows that do not meet an expectation.

Rows that authors refuse are counted and, for the quarantine, numbered as in their file. They are staged beside the rows
that cannot be read. Rows that an operator itself cannot interpret (`StepResult.bad`) go another way, since they may
halt the region: see `jobs.operators.sinks.quarantine.QuarantineSink`, and `quarantine_rows.put_aside`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from drainmark.jobs.errors import AccountingError, ExpectationUnmet
from drainmark.jobs.formats.bad_records import CAPS
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID, SOURCE_FILE
from drainmark.jobs.graph.context import with_source_file
from drainmark.jobs.graph.operator import Operator, StepResult
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.joins.lookup import Lookup
from drainmark.jobs.operators.row_wise.expect import Expect, OnFail
from drainmark.jobs.operators.row_wise.filter import Filter
from drainmark.jobs.operators.row_wise.functor import Functor
from drainmark.jobs.operators.sinks.quarantine import RAW, REASON
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.commit.staged_group import StagedTable
from drainmark.jobs.runtime.input.attempt import Attempt
from drainmark.jobs.runtime.input.executors import OperatorExecutors
from drainmark.jobs.runtime.input.group_input import GroupInput
from drainmark.jobs.runtime.input.inbox import Group, paths_by_id
from drainmark.jobs.runtime.input.quarantine_rows import put_aside, quarantine_table
from drainmark.jobs.runtime.spark_failures import blaming

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.resources.delta.staging import Staging


_PLACE = "position"


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRows:
    """The rows of a group that one operator refuses: the staged files, and the number of rows by id."""

    files: tuple[StagedFile, ...] = ()
    counts: Mapping[int, int]


@dataclass(slots=True, kw_only=True)
class GroupQuarantine:
    """The staging of the quarantine of a group; used once.

    Attributes:
        taking: takes in the group's input; it has the rows that cannot be read.
        pool: of the threads that stage refused rows.
    """

    attempt: Attempt
    executors: OperatorExecutors
    region: RegionPlan
    taking: GroupInput
    pool: ThreadPoolExecutor
    _refused: list[Future[RejectedRows]] = field(default_factory=list)
    _unmet: dict[str, Future[RejectedRows]] = field(default_factory=dict)

    def put_aside(self, operator: Operator, result: StepResult) -> None:
        """Quarantine the rows that an operator could not interpret."""
        if result.bad is None:
            return
        found = result.bad.limit(CAPS.bad_rows + 1)
        rows = blaming(self.region, operator, lambda: found.toArrow()).to_pylist()  # noqa: PLW0108 - looked up when called
        put_aside(self.taking.aside, operator, rows, self.attempt.group, halts=result.bad_halts)

    def expect(self, operator: Operator, result: StepResult, scanned: Mapping[str, DataFrame]) -> None:
        """Begin to count the rows that do not meet an expectation; stage them if it quarantines them."""
        if not isinstance(operator, Expect) or result.unmet is None:
            return
        if operator.on_fail == OnFail.QUARANTINE:
            self.refuse(operator, result.unmet, scanned)
            self._unmet[operator.name] = self._refused[-1]
        else:
            self._unmet[operator.name] = self._begun(
                operator, partial(_counted, operator, result.unmet, self.attempt.group)
            )

    def refuse(self, operator: Operator, frame: DataFrame, scanned: Mapping[str, DataFrame]) -> None:
        """Begin to stage the rows that an operator puts into quarantine.

        Args:
            scanned: the rows as read, by stream.
        """
        read = _read_by(operator, self.region, scanned)
        self._refused.append(self._begun(operator, partial(self._stage, operator, frame, read)))

    def await_rows(self) -> None:
        """Wait until the refused rows are staged and counted.

        Raises:
            ExpectationUnmet: rows do not meet an expectation that halts the region.
        """
        for refused in (*self._refused, *self._unmet.values()):
            refused.result()

    def staged(self) -> dict[str, StagedTable]:
        """Stage the rows that could not be read beside the refused rows; no file if there are none."""
        refused = [future.result() for future in self._refused]
        if not self.taking.sources and not refused and not self.taking.aside.records:
            return {}
        name = quarantine_table(self.region).name
        files = tuple(file for refusals in refused for file in refusals.files)
        rows = self.taking.quarantine_rows()
        if rows is not None:
            files += self._staging().write(rows, "rows")
        staged, counted = sum(file.rows for file in files), sum(self.by_id().values())
        if staged != counted:
            raise AccountingError(f"{counted} rows are to be quarantined, and {staged} are staged in {name}")
        return {name: StagedTable(files=files)}

    def by_id(self) -> dict[int, int]:
        """Return the number of quarantined rows by id."""
        counts = Counter(self.taking.quarantined) + Counter(self.taking.aside.counts())
        for refused in self._refused:
            counts.update(refused.result().counts)
        return dict(counts)

    def unmet(self) -> dict[int, dict[str, int]]:
        """Return the number of rows by expectation that they do not meet, by id; only ids that have some."""
        found: dict[int, dict[str, int]] = {}
        for name, counting in self._unmet.items():
            for number, rows in counting.result().counts.items():
                found.setdefault(number, {})[name] = rows
        return found

    def _begun(self, operator: Operator, work: Callable[[], RejectedRows]) -> Future[RejectedRows]:
        """Begin work on rows of one operator, in a thread of its own, beside the outputs."""

        def blamed() -> RejectedRows:
            with self.attempt.engine.tagged(self.attempt.group.tag):
                return blaming(self.region, operator, work)

        return self.pool.submit(blamed)

    def _stage(self, operator: Operator, frame: DataFrame, read: DataFrame | None) -> RejectedRows:
        """Compute the refused rows once, and stage them with the columns of the quarantine table.

        Args:
            frame: the rows that the operator refused: `_sequence_id`, perhaps `_position`, `raw`, `reason`.
            read: the rows as read, with the same `_position`; None if the positions are no longer those of the file.
        """
        group, executor = self.attempt.group, self.executors.of(operator)
        frame, counts = executor.counted(frame)
        if not counts:
            return RejectedRows(counts={})
        placed = _placed(frame, read, counts)
        rows = with_source_file(placed, group.first_id, paths_by_id(group.members)).select(
            SEQUENCE_ID, SOURCE_FILE, _PLACE, RAW, REASON
        )
        if executor.are_few:
            table = rows.toArrow().sort_by([(SEQUENCE_ID, "ascending"), (_PLACE, "ascending")])
            return RejectedRows(files=self._staging().write(table, operator.name), counts=counts)
        return RejectedRows(files=self._staging().write_frame(rows, operator.name), counts=counts)

    def _staging(self) -> Staging:
        group = self.attempt.group
        return self.attempt.outside.store.staging(quarantine_table(self.region), group.epoch, group.attempt)


def _counted(operator: Expect, unmet: DataFrame, group: Group) -> RejectedRows:
    """Count the rows that do not meet an expectation.

    Raises:
        ExpectationUnmet: the expectation halts the region; the error names the first file with such rows.
    """
    example = F.min_by(RAW, POSITION) if POSITION in unmet.columns else F.min(RAW)
    found = unmet.groupBy(SEQUENCE_ID).agg(F.count(F.lit(1)).alias("rows"), example.alias(RAW)).collect()
    counts = {row[SEQUENCE_ID]: row["rows"] for row in found}
    if found and operator.on_fail == OnFail.HALT:
        number = min(counts)
        trigger = group.member(number).trigger
        (raw,) = (row[RAW] for row in found if row[SEQUENCE_ID] == number)
        raise ExpectationUnmet(
            f"{trigger.uri}: {operator.name!r} expects {operator.expected!r}, which does not hold of {counts[number]} "
            f"rows, such as {(raw or '')[:200]}",
            operator=operator.name,
            location=operator.location,
            remedy=f'fix the file, or on_fail="quarantine" at {operator.name!r}',
            triggers=(trigger,),
            rows=counts[number],
        )
    return RejectedRows(counts=counts)


def _read_by(operator: Operator, region: RegionPlan, scanned: Mapping[str, DataFrame]) -> DataFrame | None:
    """Return the rows as read if each row of an operator was made of one of them, else None."""
    outputs: set[str | None] = set()
    for port in operator.inputs:
        upstream = region.operator(port.upstream)
        if isinstance(upstream, Source):
            outputs.add(port.stream)
        elif isinstance(upstream, Functor | Filter | Expect):
            found = _read_by(upstream, region, scanned)
            outputs |= {output for output, frame in scanned.items() if frame is found} or {None}
        elif not isinstance(upstream, Lookup):
            outputs.add(None)
    (output,) = outputs if len(outputs) == 1 else (None,)
    return scanned.get(output) if output is not None else None


def _placed(frame: DataFrame, read: DataFrame | None, ids: Mapping[int, int]) -> DataFrame:
    """Add the number of each row's record in its file; only ids with refused rows are numbered."""
    if read is None or POSITION not in frame.columns:
        return frame.withColumn(_PLACE, F.lit(None).cast("bigint"))
    numbered = read.where(F.col(SEQUENCE_ID).isin(list(ids))).selectExpr(
        SEQUENCE_ID,
        POSITION,
        f"cast(row_number() over (partition by {SEQUENCE_ID} order by {POSITION}) as bigint) as {_PLACE}",
    )
    return frame.join(numbered, [SEQUENCE_ID, POSITION], "left")
