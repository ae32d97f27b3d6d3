"""Checks of rows for tables that others made, before the commit: committed rows have to be published.

delta-spark, or a database, would refuse such rows at publishing (a constraint, NOT NULL). That is after the commit
point, so the region could neither continue nor return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from drainmark.jobs.errors import ConstraintViolated, DrainmarkError
from drainmark.jobs.frames.arrow import frame_of
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import GONE
from drainmark.jobs.graph.blame import failure_of
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.commit.replacement import replaced_ids
from drainmark.jobs.runtime.input.inbox import Group
from drainmark.jobs.runtime.outside import Outside
from drainmark.jobs.state.keyed_rows import kept_columns
from drainmark.jobs.tasks.executor import OnSpark
from drainmark.jobs.tasks.judged_rows import first_unfit
from drainmark.resources.delta.adopted.constraints import Breach

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.runtime.commit.staged_group import StagedTable


def require_accepted(
    region: RegionPlan, tables: Sequence[RegionTable], staged: Mapping[str, StagedTable], group: Group, outside: Outside
) -> None:
    """Refuse a group with rows that an adopted table or a sink outside would refuse; costs nothing without one.

    Every row to be merged is checked, even if a later row of its key replaces it within the group: in groups of one
    it would be visible.

    Raises:
        ConstraintViolated: names the constraint, the sink and the first file with such a row.
        OperatorFailed: a constraint or a generated column cannot be evaluated on the rows.
    """
    for table in (table for table in tables if not table.is_managed):
        operator = region.operator(table.operator)
        try:
            rows = staged[table.history or table.name]
            breach = _breach_outside(table, rows, group, outside) if table.external else _breach(table, rows, outside)
        except DrainmarkError:
            raise
        except Exception as error:
            raise failure_of(operator, error) from error
        if breach is not None:
            raise _violation(breach, table, operator, group)


def _breach(table: RegionTable, staged: StagedTable, outside: Outside) -> Breach | None:
    if not staged.files and not (staged.rows is not None and staged.rows.num_rows):
        return None
    frame = staged.frame if staged.rows is None else frame_of(outside.engine.session, staged.rows)
    if frame is None:
        return None
    frame = frame.where(f"not {GONE}") if table.deletes else frame
    visible = frame.select(*(quoted_name(name) for name in table.columns)) if table.columns else frame
    return outside.store.adopted(table.name).breach(visible)


def _breach_outside(table: RegionTable, staged: StagedTable, group: Group, outside: Outside) -> Breach | None:
    """Return the breach that a sink outside Delta finds in its rows; this needs no Spark, except when tasks check."""
    columns, target = kept_columns(table, table.columns), outside.store.external(table)
    replaced = replaced_ids(outside.store, group)
    if staged.rows is not None:
        return target.breach([staged.rows.select(columns)], replaced=replaced)
    if target.judges_by_itself and staged.frame is not None and not outside.engine.is_local:
        return _breach_of_frame(staged.frame.select(*(quoted_name(name) for name in columns)), table)
    files = sorted(staged.files, key=lambda file: (file.first_id or 0, file.path))
    history = outside.store.table(table.history or "")
    return target.breach(history.files.pieces(files, columns), replaced=replaced)


def _breach_of_frame(frame: DataFrame, table: RegionTable) -> Breach | None:
    """Have tasks check rows for a file sink, which takes all rows that its format can hold."""
    found = first_unfit(OnSpark(frame.sparkSession), frame, file_format=table.options["format"])
    return None if found is None else Breach(**found)


def _violation(breach: Breach, table: RegionTable, operator: Operator, group: Group) -> ConstraintViolated:
    trigger = group.member(breach.first_id).trigger
    msg = f"{breach.rows} row(s) for {table.name} break {breach.rule} ({breach.condition}), the first of {trigger.uri}"
    return ConstraintViolated(
        msg,
        operator=operator.name,
        location=operator.location,
        remedy="keep such rows from the sink (dm.filter), or fix the file",
        rule=breach.rule,
        triggers=(trigger,),
    )
