"""A region with adopted tables as sinks: one with all rows, one with the newest row of each key."""

from typing import Any

import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="in", pattern="*.csv", format="csv", schema="k string, n bigint", settle=0))
def lines(scanned: Any) -> Any:
    return scanned


@dm.functor
def pairs(lines: Any) -> Any:
    return dm.select(lines, "k", "n")


dm.sink(pairs, dm.DeltaAppend("theirs", adopt=True))
dm.sink(pairs, dm.DeltaUpsert("theirs_newest", ["k"], adopt=True))
