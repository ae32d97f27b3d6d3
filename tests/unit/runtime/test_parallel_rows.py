"""The output of `parallel_map` for a group: places of rows for each id, and columns that change no value (E8)."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

import drainmark as dm
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.operators.row_wise.parallel_map import ParallelMap

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
PLACE = pa.struct([("block", pa.int64()), ("row", pa.int64())])


def mapped(function: Any, rows: pa.Table, **columns: Any) -> pa.Table:
    """Call the operator on rows of this process; `columns` are Spark's types of the output."""
    from pyspark.sql.types import LongType, StructType

    with dm.application("mapped"):
        operator = dm.parallel_map(function, output="declared below", threads=2, inputs=["rows"]).operator
    assert isinstance(operator, ParallelMap)
    made = StructType()
    for name, kind in columns.items():
        made.add(name, kind)
    made.add(POSITION, StructType().add("block", LongType()).add("row", LongType())).add(SEQUENCE_ID, LongType())
    vars(operator)["made"] = made  # only Spark can read DDL
    return operator.mapped(rows, None)


def rows_of(*numbers: tuple[int, int]) -> pa.Table:
    places = [{"block": 0, "row": row} for row, _ in enumerate(numbers)]
    ids, values = zip(*numbers, strict=True)
    columns = {"n": pa.array(values, pa.int64()), SEQUENCE_ID: pa.array(ids, pa.int64())}
    return pa.table({**columns, POSITION: pa.array(places, PLACE)})


def test_the_places_of_an_id_do_not_depend_on_what_else_is_in_the_group() -> None:
    from pyspark.sql.types import LongType

    def twice(row: Any) -> Any:
        return [{"n": row["n"]}, {"n": -row["n"]}]

    of_ids = {1: [(1, 5), (1, 6)], 2: [(2, 7)], 4: [(4, 8), (4, 9)]}
    together = mapped(twice, rows_of(*[row for rows in of_ids.values() for row in rows]), n=LongType())
    apart = [mapped(twice, rows_of(*rows), n=LongType()) for rows in of_ids.values()]
    assert together.to_pylist() == pa.concat_tables(apart).to_pylist()
    assert [row[POSITION]["row"] for row in together.to_pylist()] == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3]


@pytest.mark.parametrize(("kind", "value"), [("LongType", 1.5), ("DateType", NOON), ("TimestampType", 5),
                                             ("LongType", "1")])  # fmt: skip
def test_a_value_that_its_column_would_change_is_refused_by_operator_and_column(kind: str, value: Any) -> None:
    from pyspark.sql import types

    def odd(row: Any) -> Any:
        return {"x": value if row["n"] else None}

    with pytest.raises(ValueError, match="operator 'odd', column 'x'"):
        mapped(odd, rows_of((1, 0), (1, 1)), x=getattr(types, kind)())


def test_a_value_that_means_the_same_in_its_column_is_taken() -> None:
    from pyspark.sql import types

    given = {"x": 2.0, "at": NOON.replace(tzinfo=None), "few": 0.1, "some": {"a": 1}, "all": (1, 2)}
    kinds = {
        "x": types.LongType(), "at": types.TimestampType(), "few": types.FloatType(),
        "some": types.MapType(types.StringType(), types.DoubleType()), "all": types.ArrayType(types.LongType()),
    }  # fmt: skip
    (row,) = mapped(lambda row: given, rows_of((1, 0)), **kinds).to_pylist()
    assert (row["x"], row["at"], row["some"], row["all"]) == (2, NOON, [("a", 1.0)], [1, 2])
