"""Functions of authors, judged and run: what is said to keep triggers apart makes the rows of groups of one (H15).

Each function gets a stream with the columns of `STREAM`, and a table that others write.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import Window

import drainmark as dm
from drainmark import F
from drainmark.jobs.runtime.analysis.vectorisation import verdict_of
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark
register_pickle_by_value(sys.modules[__name__])  # workers cannot import it

Function = Callable[[Any, Any], Any]
ID = "_sequence_id"


def _sql(text: str) -> Function:
    return lambda d, names: d.sparkSession.sql(text, d=d, names=names)


def _by(*keys: Any) -> Any:
    return Window.partitionBy(*keys)


def _tables(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _twice_in_pandas(n: pd.Series) -> pd.Series:
    return 2 * n


def _mean(n: pd.Series) -> float:
    return float(n.mean())


class _Letters:
    def eval(self, text: str | None) -> Iterator[Any]:
        yield from ((letter,) for letter in text or "")


def _left_joined_back(d: Any) -> Any:
    """Join rows with the ids of some of them, so that the ids of the second stream are null in the others."""
    few = d.where("n > 6").select(ID, F.col("user").alias("whose")).alias("few")
    joined = d.alias("all").join(few, F.expr("all._sequence_id = few._sequence_id and user = whose"), "left")
    return joined.select("few._sequence_id", "n")


def _small(d: Any) -> Any:
    return d.sparkSession.createDataFrame([(1, "one"), (2, "two")], "n bigint, word string")


def _on_equal_ids(d: Any) -> Any:
    totals = d.groupBy(ID).agg(F.sum("n").alias("total")).alias("totals")
    joined = d.alias("d").join(totals, F.col("d._sequence_id") == F.col("totals._sequence_id"))
    return joined.select("d._sequence_id", "n", "total")


APART: dict[str, Function] = {
    "the rows as they are": lambda d, names: d,
    "computed columns": lambda d, names: dm.select(d, F.upper("user").alias("u"), (F.col("n") + 1).alias("m")),
    "other names": lambda d, names: d.withColumnRenamed("n", "number").withColumnsRenamed({"user": "u"}),
    "text expressions": lambda d, names: d.where("n > 2 and user is not null").selectExpr(ID, "n * 2 as m"),
    "filled nulls": lambda d, names: d.na.fill(0, ["n"]).na.drop(subset=["user"]).na.replace("a", "x", "user"),
    "higher order": lambda d, names: d.withColumn("t", F.transform("tags", F.upper)).where(F.exists("tags", F.isnull)),
    "exploded with places": lambda d, names: dm.select(d, "n", F.posexplode_outer("tags")),
    "stacked": lambda d, names: d.select(ID, F.stack(F.lit(2), F.col("n"), F.col("other"))),
    "unpivoted, by a statement": _sql("select _sequence_id, v from {d} lateral view explode(array(n, other)) as v"),
    "a union": lambda d, names: d.union(d),
    "a union by name": lambda d, names: d.select(ID, "n").unionByName(d.select("n", ID)),
    "a hint": lambda d, names: d.hint("broadcast").repartition(2).coalesce(1),
    "a plain function": lambda d, names: d.withColumn("m", F.udf(lambda n: n and 2 * n, "bigint")("n")),
    "a function over series": lambda d, names: d.withColumn("m", F.pandas_udf(_twice_in_pandas, "bigint")("n")),
    "summed by id and user": lambda d, names: d.groupBy("user", ID).agg(F.sum("n").alias("s"), F.max("other")),
    "in windows of time by id": lambda d, names: (
        d.groupBy(ID, F.window("at", "10 minutes").alias("w")).count().select(ID, "count", "w.start")
    ),
    "a mean by id, in Python": lambda d, names: d.groupBy(ID).agg(F.pandas_udf(_mean, "double")("n").alias("m")),
    "groups in pandas": lambda d, names: (
        d.select(ID, "n").groupBy(ID).applyInPandas(lambda rows: rows.nlargest(1, "n"), f"{ID} bigint, n bigint")
    ),
    "groups in Arrow": lambda d, names: (
        d.select(ID, "user", "n").groupBy(ID, "user")
        .applyInArrow(lambda rows: rows.sort_by("n").slice(0, 1).select([ID, "n"]), f"{ID} bigint, n bigint")
    ),
    "distinct rows of an id": lambda d, names: d.select(ID, "user").dropDuplicates(),
    "grouped by all": _sql("select _sequence_id, count(1) as c from {d} group by all having count(1) > 1"),
    "ranked within an id": lambda d, names: d.withColumn("r", F.row_number().over(_by(ID).orderBy("n", "other"))),
    "qualified": _sql("select * from {d} qualify row_number() over (partition by _sequence_id order by n, other) = 1"),
    "joined with totals": lambda d, names: d.join(d.groupBy(ID).agg(F.sum("n").alias("total")), ID),
    "joined on id and user": lambda d, names: (
        d.join(d.select(ID, "user", F.col("n").alias("m")), [ID, "user"], "left").select(ID, "user", "n", "m")
    ),
    "joined on equal ids": lambda d, names: _on_equal_ids(d),
    "a natural join": _sql(
        "select * from {d} a natural join (select _sequence_id, max(n) as most from {d} group by _sequence_id) b"
    ),
    "a table of others": lambda d, names: d.join(names, "user", "left"),
    "a table of others, sorted": lambda d, names: d.crossJoin(names.orderBy("named").limit(1).select("named")),
    "a table on the left": lambda d, names: names.join(d, "user", "right").select(ID, "named", "n"),
    "a table of its own": lambda d, names: d.join(_small(d), "n").select(ID, "n", "word"),
    "a subquery of others": _sql("select * from {d} where user not in (select user from {names} where named > 'A')"),
    "a subquery of one value of others": _sql("select * from {d} where user < (select max(user) from {names})"),
    "a named expression": _sql("with w as (select * from {d} where n > 1) select _sequence_id, n from w"),
    "a named expression of others": _sql(
        "with w as (select user, max(named) as m from {names} group by user) "
        "select _sequence_id, m from {d} left join w using (user)"
    ),
    "the id under another name for a while": lambda d, names: (
        d.withColumnRenamed(ID, "s").withColumn("m", F.lit(2)).withColumnRenamed("s", ID).dropDuplicates([ID, "n"])
        .select(ID, "n")
    ),
}  # fmt: skip


MIXES: dict[str, Function] = {
    "a limit": lambda d, names: d.limit(2),
    "a limit within a named expression": _sql("with l as (select * from {d} limit 1) select * from l"),
    "a sort": lambda d, names: d.orderBy("n"),
    "a sort by id": lambda d, names: d.orderBy(ID, F.desc("n")),
    "a sample": lambda d, names: d.sample(0.5, 7),
    "random numbers": lambda d, names: d.withColumn("r", F.rand(7)),
    "unique texts of Java": lambda d, names: d.selectExpr("*", "reflect('java.util.UUID', 'randomUUID') as r"),
    "the block of the file": lambda d, names: d.withColumn("r", F.input_file_block_start()),
    "the time": lambda d, names: d.withColumn("r", F.current_timestamp()),
    "the time in seconds": lambda d, names: d.withColumn("r", F.unix_timestamp()),
    "counted": lambda d, names: d.agg(F.max(ID).alias(ID), F.count("*")),
    "counted by a part of the id": lambda d, names: d.groupBy((F.col(ID) * 0).alias(ID)).count(),
    "counted by sets": _sql(
        "select _sequence_id, user, count(1) from {d} group by grouping sets ((_sequence_id, user), (user))"
    ),
    "distinct users": lambda d, names: d.dropDuplicates(["user"]),
    "numbered": lambda d, names: d.withColumn("r", F.row_number().over(_by("user").orderBy("n"))),
    "numbered over all": lambda d, names: d.withColumn("r", F.row_number().over(Window.orderBy(ID, "n"))),
    "one of two windows": lambda d, names: (
        d.withColumn("c", F.count("*").over(_by(ID))).withColumn("e", F.lag("n").over(_by("user").orderBy(ID)))
    ),
    "joined with itself": lambda d, names: (
        d.join(d.select("user", F.col("n").alias("m")), "user").select(ID, "user", "n", "m")
    ),
    "joined by an order of ids": lambda d, names: _joined(d, lambda a, b: a[ID] >= b["_id"]),
    "joined by ids or users": lambda d, names: _joined(d, lambda a, b: (a[ID] == b["_id"]) | (a.user == b.whose)),
    "not among its own": lambda d, names: d.join(d.where("n > 5").select("user"), "user", "left_anti"),
    "all of a table of others": lambda d, names: d.join(names, "user", "right"),
    "what is only in one": lambda d, names: d.exceptAll(d.where("n > 3")),
    "a subquery of one value": _sql("select * from {d} where n = (select max(n) from {d})"),
    "a subquery of a column": _sql("select * from {d} where user in (select user from {d} where n > 5)"),
    "a subquery that exists": _sql(
        "select * from {d} a where exists (select 1 from {d} b where a.user = b.user and b.n > 5)"
    ),
    "a subquery beside each row": _sql(
        "select a._sequence_id, most from {d} a, lateral (select max(n) as most from {d} b where b.user = a.user)"
    ),
    "a table function beside each row": lambda d, names: (
        d.lateralJoin(F.udtf(_Letters, returnType="part string")(F.col("user").outer())).select(ID, "part")
    ),
    "batches in pandas": lambda d, names: d.select(ID, "n").mapInPandas(_tables, f"{ID} bigint, n bigint"),
    "groups of users in pandas": lambda d, names: (
        d.select(ID, "user").groupBy("user").applyInPandas(lambda rows: rows[:1], f"{ID} bigint, user string")
    ),
    "no id": lambda d, names: d.select("user", "n"),
    "an id of its own": lambda d, names: d.withColumn(ID, F.lit(1).cast("bigint")).groupBy(ID).count(),
    "another column as the id, joined": lambda d, names: (
        d.drop(ID).withColumnRenamed("other", ID).join(d.select(ID, F.col("n").alias("m")), ID)
    ),
    "another column as the id, by position": lambda d, names: (
        d.select(ID, "n").union(d.select("other", "n")).groupBy(ID).count()
    ),
    "an id that may be null": lambda d, names: _left_joined_back(d).groupBy(ID).count(),
    "distinct users with any id": lambda d, names: (
        d.drop(ID).select("user").distinct().withColumn(ID, F.lit(1).cast("bigint"))
    ),
    "a literal that looks like a key": lambda d, names: (
        d.groupBy(F.concat(F.lit(", _sequence_id#1L, "), "user").alias("g")).agg(F.max(ID).alias(ID))
    ),
    "a literal of several lines": lambda d, names: d.where(F.col("user") != "\nProject [a]").limit(1),
}  # fmt: skip


def _joined(d: Any, condition: Callable[[Any, Any], Any]) -> Any:
    other = d.select(F.col(ID).alias("_id"), F.col("user").alias("whose"), F.col("n").alias("m"))
    return d.join(other, condition(d, other)).select(ID, "n", "m")


# --- rows, and the tests --------------------------------------------------------------------------------------------

IDS = (1, 2)
STREAM = (
    "_sequence_id bigint, _position struct<block: bigint, line: bigint>, user string, n bigint, other bigint, "
    "tags array<string>, at timestamp"
)


def rows_of(number: int) -> list[tuple[Any, ...]]:
    """Return the rows of an id: users and numbers that other ids have, too, nulls among them."""
    return [
        (
            number, (0, line), ("a", "b", None, "abc")[(line + number) % 4],
            None if line == 4 else (line * 3 + number) % 8, (line + number) % 3 + 1, ["x", "y", None][: line % 4],
            dt.datetime(2026, 1, 1, 0, line * 4, tzinfo=dt.UTC),
        )
        for line in range(7)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def frames(engine: SparkEngine) -> dict[Any, Any]:
    """Return the stream by id, the stream of all ids ("all") and without rows (None), and the table of others."""
    session = engine.session
    made: dict[Any, Any] = {each: session.createDataFrame(rows_of(each), STREAM) for each in IDS}
    made["all"] = session.createDataFrame([row for each in IDS for row in rows_of(each)], STREAM)
    made[None] = session.createDataFrame([], STREAM)
    named = [("a", "A"), ("b", "B"), ("b", "BB"), ("z", "Z")]
    made["names"] = session.createDataFrame(named, "user string, named string")
    return made


@pytest.fixture(scope="module")
def places(frames: dict[Any, Any]) -> set[tuple[Any, Any]]:
    """Return the (id, place) of all rows of the stream."""
    return {(row[ID], row["_position"]) for row in frames["all"].collect()}


@pytest.mark.seed("H15")
@pytest.mark.parametrize("name", APART)
def test_what_vectorises_makes_the_rows_of_groups_of_one(
    name: str, frames: dict[Any, Any], places: set[tuple[Any, Any]]
) -> None:
    """The verdict is kept by rows: also the one that the function is a choice of columns, or keeps places."""
    function = APART[name]
    verdict = verdict_of(function(frames[None], frames["names"]))
    assert verdict.vectorises, verdict.reason
    one, two, both = (function(frames[of], frames["names"]) for of in (*IDS, "all"))
    found = both.collect()
    assert sorted(map(repr, found)) == sorted(map(repr, one.union(two).collect())), "in one job, each by itself"
    if verdict.keeps_order:
        made = [(row[ID], row["_position"]) for row in found]
        assert places.issuperset(made)
        assert not verdict.keeps_places or len(made) == len(set(made))


@pytest.mark.parametrize("name", MIXES)
def test_what_may_mix_triggers_forces_groups_of_one(name: str, frames: dict[Any, Any]) -> None:
    verdict = verdict_of(MIXES[name](frames[None], frames["names"]))
    assert not verdict.vectorises
    assert verdict.reason
