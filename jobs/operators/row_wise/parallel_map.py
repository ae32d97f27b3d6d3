"""`parallel_map`: a slow function over rows, in threads of the driver process, in the order of the rows.

Streams uses a ThreadedSplit, copies of the function and a join by order for this. Use it for calls that wait, for
example calls of services, and not to compute: Spark does that on its workers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import Violation
from drainmark.jobs.frames.row_order import in_order, type_of_made
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID, arrow_schema
from drainmark.jobs.graph.annotations import Buffered
from drainmark.jobs.graph.declarations import StreamLike
from drainmark.jobs.graph.functions import FunctionOperator, declared_by
from drainmark.jobs.graph.operator import Positions
from drainmark.jobs.graph.ports import Input
from drainmark.jobs.state.columns import column_of, plain
from drainmark.jobs.state.placed_rows import ranked

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["parallel_map"]

_MOST_THREADS = 256

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ParallelMap(FunctionOperator):
    """A function of one row, called in threads; an output row depends on one input row, so groups may be large."""

    kind: ClassVar[str] = "parallel map"
    summary: ClassVar[str] = "a slow function over rows in threads of the driver process, order kept"
    keeps_tags: ClassVar[bool] = True
    positions: ClassVar[Positions] = Positions.OWN

    output: str
    threads: int

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "output": self.output}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if not 1 <= self.threads <= _MOST_THREADS:
            remedy = f"give a number from 1 to {_MOST_THREADS}"
            yield self.wrong("THREADS", f"threads={self.threads} are none, or too many", remedy)

    @functools.cached_property
    def made(self) -> StructType:
        """Return the types of the output, tags included."""
        return type_of_made(self.output)

    def apply(self, frames: OperatorContext) -> DataFrame:
        if not frames.is_run:
            return frames.local(self, None, self.made)
        rows = frames.collect(self, ranked(frames, self, self.inputs[0]))
        return frames.local(self, self.mapped(rows, frames.params), self.made)

    def mapped(self, rows: pa.Table, params: Any) -> pa.Table:
        """Call the function on each row, with a permit for each call, and combine its results in the rows' order.

        Returns:
            the output's columns and the tags; the rows of an id are numbered from 0. No call holds a permit any more,
            so a state may be cut.
        """
        import pyarrow as pa

        from drainmark.jobs.state.handlers.permits import PermitGate

        gate, name = PermitGate(), self.function.streams[0]
        arguments = dict.fromkeys(self.function.params, params)
        schema = arrow_schema(self.made)

        def call(row: dict[str, Any]) -> list[Row]:
            with gate.permit():
                tags = {SEQUENCE_ID: row.pop(SEQUENCE_ID)}
                row.pop(POSITION, None)
                return [{**made, **tags} for made in self._rows(self.function.function(**{name: row}, **arguments))]

        with ThreadPoolExecutor(self.threads, thread_name_prefix="parallel-map") as pool:
            made = [row for several in pool.map(call, in_order(rows).to_pylist()) for row in several]
        gate.stop(0.0)
        places = [place for _, of_id in groupby(made, itemgetter(SEQUENCE_ID)) for place, _ in enumerate(of_id)]
        block = pa.array([0] * len(made), pa.int64())
        position = pa.StructArray.from_arrays([block, pa.array(places, pa.int64())], ["block", "row"])
        columns = [position if column.name == POSITION else self._column(column, made) for column in schema]
        return pa.table(columns, schema=schema)

    def _column(self, column: pa.Field, rows: Sequence[Row]) -> pa.Array:
        """Return a column of the rows.

        Raises:
            ValueError: the column would change a value, for example cut off a part of a number.
        """
        try:
            return column_of([plain(row[column.name]) for row in rows], column.type, naive_is_utc=True)
        except ValueError as error:
            raise ValueError(f"operator {self.name!r}, column {column.name!r}: {error}") from error

    def _rows(self, made: Row | Iterable[Row] | None) -> Iterable[Row]:
        """Return the rows of the result of one call.

        Raises:
            ValueError: a row has other columns than declared.
        """
        if made is None:
            return ()
        rows = [made] if isinstance(made, Mapping) else list(made)
        wanted = {name for name in self.made.names if name not in (POSITION, SEQUENCE_ID)}
        for row in rows:
            if set(row) != wanted:
                raise ValueError(f"it declares the columns {sorted(wanted)}, and gave {sorted(row)}")
        return rows


def parallel_map(
    function: Callable[..., Any] | None = None,
    /,
    *,
    output: str,
    threads: int = 8,
    buffered: bool = False,
    name: str | None = None,
    inputs: Sequence[StreamLike] | None = None,
) -> Any:
    """Declare a function of one row that runs in threads; for slow calls.

    It runs in the driver process, and a group's rows must fit into its memory. Slow calls overlap; rows stay in the
    order of the file. The function must be thread-safe, and keep nothing from row to row: `dm.operator` is for state.

    Args:
        output: DDL of the rows that the function returns: one row as a dict, several as a list of dicts, or None. A
            value that its column would change (1.5 in a bigint) is refused; a time without a zone is in UTC.
        threads: number of threads that call the function at the same time.
        buffered: it reads through a channel, so that the operators before it work ahead; short for
            `dm.buffered(stream)`.
        name: the operator's name; the function's by default.
        inputs: the stream, instead of the parameter's name.

    Example:
        @dm.parallel_map(output="customer string, country string", threads=32)
        def located(orders):  # a dict: column -> value
            return {"customer": orders["customer"], "country": orders["customer"][-2:]}  # ask a slow service here
    """

    def made(*, inputs: tuple[Input, ...], **given: Any) -> ParallelMap:
        if buffered:
            inputs = tuple(dataclasses.replace(port, buffered=port.buffered or Buffered()) for port in inputs)
        return ParallelMap(inputs=inputs, output=output, threads=threads, **given)

    return declared_by(function, made, name, inputs)
