"""Changes of keys, some of which are deleted: a mirror in the lake, and the rows of the newest file, if it has any."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import drainmark as dm

sys.path.append(str(Path(__file__).parents[2]))

from change_stream import marked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="orders", pattern="*.csv", format="csv", schema="customer string, n int, gone string"))
def lines(scanned: DataFrame) -> DataFrame:
    """Return one row for each change."""
    return scanned.drop("source_file")


changed = marked(lines, "gone = 'x'", name="changed", hidden=("gone",))
dm.sink(changed, dm.DeltaUpsert("mirror", keys=["customer"]))
dm.sink(lines, dm.DeltaOverwrite("newest_lines", empty=True))
