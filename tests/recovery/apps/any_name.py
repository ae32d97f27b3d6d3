"""An application that reads every file of a folder, with any name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import drainmark as dm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="in", pattern="*", format="text"))
def lines(scanned: DataFrame) -> DataFrame:
    """Return one row for each line."""
    return scanned


dm.sink(lines, dm.DeltaAppend("any_name"))
