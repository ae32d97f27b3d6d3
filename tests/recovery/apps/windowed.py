"""Windows that a watermark, their rows, or a gap closes; late rows, and an upsert sink after a window."""

from __future__ import annotations

from typing import Any

import drainmark as dm

SCHEMA = "user string, n bigint, at timestamp"
VALUES = {"rows": dm.count(), "total": dm.sum("n"), "newest": dm.last("n")}


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema=SCHEMA, settle=0))
def events(scanned: Any) -> Any:
    return scanned


tens = dm.aggregate(
    events, name="tens", keys=["user"], values=VALUES, window=dm.tumbling("at", minutes=10), emit="closed", lateness=300
)
dm.sink(tens, dm.DeltaUpsert("tens", keys=["user", "window_start"]))
dm.sink(tens["late"], dm.DeltaAppend("too_late"))

threes = dm.aggregate(events, name="threes", keys=["user"], values=VALUES, window=dm.tumbling(rows=3), emit="closed")
dm.sink(threes, dm.DeltaAppend("threes"))

visits = dm.aggregate(
    events, name="visits", keys=["user"], values=VALUES, window=dm.session("at", gap=240), emit="closed", lateness=300
)
dm.sink(visits, dm.DeltaAppend("visits"))
