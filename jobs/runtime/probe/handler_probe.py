"""The probe of operators in Python: a handler is tried on a few rows with state that is thrown away.

There is nothing to compare: a handler is called id by id in any grouping. But it has to take its rows, and to read in
`reset` what it wrote in `checkpoint`; and what follows it is judged on the rows that it gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from drainmark.jobs.errors import DrainTimeout, OperatorFailed
from drainmark.jobs.errors.operator_code import ResetWanted
from drainmark.jobs.frames.rows_by_id import in_order, rows_by_id, untagged
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.operators.handler import Handled
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.hosting.handler_host import host_of

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE_CALLS = 20
"""Rows of each trigger that a function of one row is called with: it may be slow, or cost money."""


def handled(
    operator: Handled,
    blueprint: Blueprint,
    rows: pa.Table,
    ids: range,
    guard: Callable[[Callable[[], pa.Table]], pa.Table],
) -> pa.Table:
    """Give rows to a new handler of an operator, restore it from its checkpoint, and throw it away.

    Args:
        rows: tagged.
        ids: of the triggers, in order.
        guard: runs what is the author's, and blames the operator for what it raises.

    Returns:
        the handler's output, tagged.

    Raises:
        OperatorFailed: as `guard` gives it; or the handler asked for a reset, or a permit was kept.
        CheckpointUnreadable: `reset` does not read what `checkpoint` wrote.
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


def few_rows(rows: pa.Table) -> pa.Table:
    """Return the first rows of each id."""
    import pyarrow as pa

    few = [of_id.slice(0, SAMPLE_CALLS) for of_id in by_id(in_order(rows))]
    return pa.concat_tables([rows.slice(0, 0), *few])


def by_id(rows: pa.Table) -> list[pa.Table]:
    """Return the rows of each id, tags included."""
    import pyarrow.compute as pc

    numbers = sorted(set(rows[SEQUENCE_ID].to_pylist()))
    return [rows.filter(pc.equal(rows[SEQUENCE_ID], number)) for number in numbers]
