"""A region for each kind of source, and a periodic region with several starts; each keeps rows and a state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import drainmark as dm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROW = "k string, n bigint"
QUERY = "select id, k, n from events where id > :after and id <= :upto order by id"


@dm.consistent(trigger="operator-driven")
@dm.source(dm.Beacon(rows=7, batches=4))
def beacon(scanned: DataFrame) -> DataFrame:
    """Return generated rows."""
    return scanned.selectExpr("_sequence_id", "_position", "cast(n % 3 as string) as k", "n")


@dm.consistent(trigger="operator-driven")
@dm.source(
    dm.FileSource(
        path="events.csv",
        rotated="events.csv.*",
        rotate_wait=0,
        format="csv",
        schema=ROW,
        options={"header": "true"},
        slice_bytes=12,
    )
)
def lines(scanned: DataFrame) -> DataFrame:
    """Return the lines of a file that grows, and of the rotated files that had its name before."""
    return scanned


@dm.consistent(trigger="operator-driven")
@dm.source(dm.TableSource("events"))
def versions(scanned: DataFrame) -> DataFrame:
    """Return the rows of the versions of a table."""
    return scanned


@dm.consistent(trigger="operator-driven")
@dm.source(dm.TableSource("changed", changes=True, starting_version=1))
def changed(scanned: DataFrame) -> DataFrame:
    """Return the changes of the versions of a table; what leaves counts negative."""
    return scanned.selectExpr(
        "_sequence_id", "_position", "k", "if(_change_type in ('delete', 'update_preimage'), -n, n) as n"
    )


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DatabaseSource("events", QUERY, cursor="id", schema=f"id bigint, {ROW}", rows=3))
def query(scanned: DataFrame) -> DataFrame:
    """Return the rows of a query."""
    return scanned.drop("id")


@dm.consistent(trigger="operator-driven")
@dm.source(dm.ReplayableStart(schema=ROW, rows=2, seconds=0.0))
def pushed(scanned: DataFrame) -> DataFrame:
    """Return the pushed rows."""
    return scanned


@dm.consistent(trigger="periodic", period=0.001)
@dm.source(dm.DirectoryScan(path="left", pattern="*.csv", format="csv", schema=ROW))
def left(scanned: DataFrame) -> DataFrame:
    """Return the rows of the files of one folder."""
    return scanned


@dm.consistent(trigger="periodic", period=0.001)
@dm.source(dm.DirectoryScan(path="right", pattern="*.json", format="json", schema=ROW))
def right(scanned: DataFrame) -> DataFrame:
    """Return the rows of the files of the other folder."""
    return scanned


@dm.consistent(trigger="periodic", period=0.001)
@dm.source(dm.Beacon(rows=2))
def clock(scanned: DataFrame) -> DataFrame:
    """Return one batch for each period."""
    return scanned.selectExpr("_sequence_id", "_position", "'tick' as k", "n")


@dm.functor
def both(left: DataFrame, right: DataFrame, clock: DataFrame) -> DataFrame:
    """Return the rows of all starts of the periodic region in one stream."""
    rows = [dm.select(frame, "k", "n") for frame in (left, right, clock)]
    return rows[0].unionByName(rows[1]).unionByName(rows[2])


def pairs(rows: DataFrame) -> DataFrame:
    """Return the columns that all sources have."""
    return dm.select(rows, "k", "n")


for stream in (beacon, lines, versions, changed, query, pushed, both):
    chosen = dm.functor(pairs, name=f"{stream.name}_rows", inputs=[stream])
    dm.sink(chosen, dm.DeltaAppend(f"{stream.name}_all"))
    totals = dm.aggregate(
        stream, keys=["k"], values={"rows": dm.count(), "total": dm.sum("n")}, name=f"{stream.name}_by_k"
    )
    dm.sink(totals, dm.DeltaUpsert(f"{stream.name}_totals", keys=["k"]))
