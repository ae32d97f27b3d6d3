"""The probe of operators in Python: a handler is tried on a few rows with state that is thrown away.

There is nothing to compare: a handler is called id by id in any grouping. But it must accept its rows, and `reset` must
read the checkpoint that `checkpoint` wrote. Operators downstream are probed on its output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from drainmark.jobs.errors import DrainTimeout, OperatorFailed
from drainmark.jobs.errors.operator_code import ResetWanted
from drainmark.jobs.frames.row_order import in_order, rows_by_id, untagged
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.operators.handler import Handled
from drainmark.jobs.runtime.analysis.blueprint import Blueprint
from drainmark.jobs.runtime.hosting.handler_host import host_of

if TYPE_CHECKING:
    import pyarrow as pa

SAMPLE_CALLS = 20
"""Number of rows of each trigger on which a function of one row is called: a call may be slow, or cost money."""


def handled(
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


def few_rows(rows: pa.Table) -> pa.Table:
    """Return the first `SAMPLE_CALLS` rows of each id."""
    import pyarrow as pa

    few = [of_id.slice(0, SAMPLE_CALLS) for of_id in by_id(in_order(rows))]
    return pa.concat_tables([rows.slice(0, 0), *few])


def by_id(rows: pa.Table) -> list[pa.Table]:
    """Return a table for each id, with the tags."""
    import pyarrow.compute as pc

    numbers = sorted(set(rows[SEQUENCE_ID].to_pylist()))
    return [rows.filter(pc.equal(rows[SEQUENCE_ID], number)) for number in numbers]
