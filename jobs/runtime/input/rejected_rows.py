"""Rows that authors refuse: counted and, for the quarantine, numbered as in their file.

They are staged beside the rows that cannot be read. Rows that an operator itself cannot interpret (`StepResult.bad`) go
another way, since they may halt the region: see `jobs.operators.sinks.quarantine.QuarantineSink`, and
`quarantine_rows.put_aside`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.errors import ExpectationUnmet
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID, SOURCE_FILE
from drainmark.jobs.graph.context import with_source_file
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.joins.lookup import Lookup
from drainmark.jobs.operators.row_wise.expect import Expect, OnFail
from drainmark.jobs.operators.row_wise.filter import Filter
from drainmark.jobs.operators.row_wise.functor import Functor
from drainmark.jobs.operators.sinks.quarantine import RAW, REASON
from drainmark.jobs.operators.sources.source import Source
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.input.executors import GroupExecutor
from drainmark.jobs.runtime.input.inbox import Group, paths_by_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.resources.delta.staging import Staging

_PLACE = "position"


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRows:
    """The rows of a group that one operator refuses: the staged files, and the number of rows by id."""

    files: tuple[StagedFile, ...] = ()
    counts: Mapping[int, int]


def stage_refused(
    operator: Operator,
    frame: DataFrame,
    *,
    read: DataFrame | None,
    group: Group,
    executor: GroupExecutor,
    staging: Staging,
) -> RejectedRows:
    """Compute the refused rows once, and stage them with the columns of the quarantine table.

    Args:
        frame: the rows that the operator refused: `_sequence_id`, perhaps `_position`, `raw`, `reason`.
        read: the rows as read, with the same `_position`; None if the positions are no longer those of the file.
        staging: the folder of the quarantine table for this attempt.
    """
    frame, counts = executor.counted(frame)
    if not counts:
        return RejectedRows(counts={})
    placed = _placed(frame, read, counts)
    rows = with_source_file(placed, group.first_id, paths_by_id(group.members)).select(
        SEQUENCE_ID, SOURCE_FILE, _PLACE, RAW, REASON
    )
    if executor.are_few:
        table = rows.toArrow().sort_by([(SEQUENCE_ID, "ascending"), (_PLACE, "ascending")])
        return RejectedRows(files=staging.write(table, operator.name), counts=counts)
    return RejectedRows(files=staging.write_frame(rows, operator.name), counts=counts)


def counted(operator: Expect, unmet: DataFrame, group: Group) -> RejectedRows:
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


def read_by(operator: Operator, region: RegionPlan, scanned: Mapping[str, DataFrame]) -> DataFrame | None:
    """Return the rows as read if each row of an operator was made of one of them, else None."""
    outputs: set[str | None] = set()
    for port in operator.inputs:
        upstream = region.operator(port.upstream)
        if isinstance(upstream, Source):
            outputs.add(port.stream)
        elif isinstance(upstream, Functor | Filter | Expect):
            found = read_by(upstream, region, scanned)
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
