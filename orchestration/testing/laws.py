"""The law of a custom aggregation, checked on rows: its value must not depend on how the input is split."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import Location, UsageError
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.graph.context import OperatorContext
from drainmark.jobs.graph.params import Params
from drainmark.jobs.graph.ports import Input
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.windows.running_aggregate import Aggregate
from drainmark.jobs.state.aggregations.aggregation import Aggregation, state_columns
from drainmark.orchestration.testing.comparing import multiset

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from drainmark.resources.spark.session import SparkEngine

Split = tuple[int, ...]
"""Sizes of consecutive triggers."""

_SPLIT = "_split"
_VALUE = "value"
_RANDOM_SPLITS = 24


def assert_aggregation_laws(
    aggregation: Aggregation,
    rows: Sequence[Mapping[str, Any]],
    *,
    schema: str | None = None,
    seed: int = 0,
    engine: SparkEngine | None = None,
) -> None:
    """Check that merging the partials of any split of the rows, in order, gives the value of one partial of all rows.

    It tries the split in which every row is a trigger of its own, and up to 24 random splits; each in one group, and
    in two groups with the state saved in between. The operator itself computes the values, in a few Spark jobs.

    Args:
        rows: by column, in the order of the input; two at least.
        schema: DDL of the rows; inferred from the values by default.
        seed: of the random splits.

    Raises:
        AssertionError: a split gives another value; the message has the split, its value and the right one.
        UsageError: there are fewer than two rows.
    """
    from drainmark.orchestration.testing.session import shared_engine

    if len(rows) < 2:
        raise UsageError("one row cannot be split", remedy="give two rows at least, better ten")
    session = (engine or shared_engine()).session
    splits = _splits(len(rows), random.Random(seed))  # noqa: S311 - repeatable, not secret
    bench = _Bench(session, aggregation, _tagged(_table(session, rows, schema), splits))
    at_once = bench.in_one_group()
    wanted = at_once[0]
    for how, found in (("in one group", at_once), ("in two groups", bench.in_two_groups(splits))):
        for number, split in enumerate(splits):
            if multiset([{_VALUE: found[number]}]) != multiset([{_VALUE: wanted}]):
                msg = (
                    f"{aggregation.label} breaks its law: triggers of {list(split)} rows, {how}, give "
                    f"{found[number]!r}; all rows at once give {wanted!r}"
                )
                raise AssertionError(msg)


def _splits(rows: int, chance: random.Random) -> list[Split]:
    """Return the split with all rows together, the one with each row alone, and some random ones, without repeats."""
    found = [(rows,), (1,) * rows]
    for _ in range(_RANDOM_SPLITS):
        cuts = sorted(chance.sample(range(1, rows), chance.randint(1, rows - 1)))
        found.append(tuple(after - before for before, after in zip([0, *cuts], [*cuts, rows], strict=True)))
    return list(dict.fromkeys(found))


def _table(session: SparkSession, rows: Sequence[Mapping[str, Any]], schema: str | None) -> pa.Table:
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    known = to_arrow_schema(StructType.fromDDL(schema)) if schema else None
    return pa.Table.from_pylist([dict(row) for row in rows], schema=known)


def _tagged(rows: pa.Table, splits: Sequence[Split]) -> pa.Table:
    """Return a copy of the rows for each split, with the sequence id and position of each row in that split."""
    import pyarrow as pa

    copies = []
    for number, split in enumerate(splits):
        ids = [id_ for id_, size in enumerate(split, 1) for _ in range(size)]
        places = [{"block": 0, "row": row} for row in range(rows.num_rows)]
        copies.append(
            rows.append_column(_SPLIT, pa.array([number] * rows.num_rows, pa.int64()))
            .append_column(SEQUENCE_ID, pa.array(ids, pa.int64()))
            .append_column(POSITION, pa.array(places, pa.struct({"block": pa.int64(), "row": pa.int64()})))
        )
    return pa.concat_tables(copies)


class _Bench:
    """The aggregation as an operator with the number of the split as its key."""

    def __init__(self, session: SparkSession, aggregation: Aggregation, rows: pa.Table) -> None:
        self.session = session
        self.rows = session.createDataFrame(rows)
        self.operator = Aggregate(
            name="law",
            inputs=(Input(upstream="rows", output="", parameter="rows"),),
            location=Location(str(Path(__file__)), 1),
            keys=(_SPLIT,),
            values={_VALUE: aggregation},
        )

    def in_one_group(self) -> dict[int, Any]:
        """Return the last value of each split."""
        return _values(self._applied(self.rows, None))

    def in_two_groups(self, splits: Sequence[Split]) -> dict[int, Any]:
        """Return the last value of each split if the state is saved after half of its triggers."""
        from drainmark.jobs.state.keyed_rows import last_per_key

        halves = F.element_at(F.array(*(F.lit(-(-len(split) // 2)) for split in splits)), F.col(_SPLIT).cast("int") + 1)
        first = self._applied(self.rows.where(F.col(SEQUENCE_ID) <= halves), None)
        kept = last_per_key(first, [_SPLIT]).select([_SPLIT, SEQUENCE_ID, *state_columns(self.operator.values)])
        second = self._applied(self.rows.where(F.col(SEQUENCE_ID) > halves), self.session.createDataFrame(kept))
        return {**_values(first), **_values(second)}

    def _applied(self, rows: Any, before: Any) -> pa.Table:
        frames = OperatorContext(
            session=self.session,
            params=Params(),
            first_id=1,
            last_id=2,
            scanned_frames={},
            read_state=lambda operator, partials: (partials, before),
            read_lookup=lambda lookup: rows,
            read_statement=str,
            streams={"rows": rows},
        )
        return self.operator.apply(frames).toArrow()


def _values(changes: pa.Table) -> dict[int, Any]:
    from drainmark.jobs.state.keyed_rows import last_per_key

    last = last_per_key(changes, [_SPLIT])
    return dict(zip(last[_SPLIT].to_pylist(), last[_VALUE].to_pylist(), strict=True))
