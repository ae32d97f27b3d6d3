"""The first use of a new server, so that no run waits for the code that the first query, read and write load.

The keeper runs `python -m drainmark.resources.spark.resident.warming FOLDER`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drainmark.resources.spark.resident.access import connect
from drainmark.resources.spark.resident.files import ServerFiles


def warm(session: Any, folder: Path) -> None:
    """Read a file as text, csv and json, aggregate it, bring rows back by Arrow, and write Parquet."""
    from pyspark.sql import functions as F

    path = folder / f"{1:019d}.csv"
    path.write_text("a,1\nb,2\n", encoding="utf-8")
    for form in ("text", "json"):
        schema = "value string" if form == "text" else "k string"
        session.read.format(form).schema(schema).load(str(path)).toArrow()
    rows = session.read.schema("k string, v bigint").csv([str(path)])
    rows = rows.withColumn("id", F.regexp_extract(F.input_file_name(), r"(\d+)\.csv", 1).cast("bigint")).persist()
    sums = rows.groupBy("k", "id").agg(F.sum("v").alias("v"), F.count("*").alias("n"))
    sums.join(rows, ["k"], "left").toArrow()
    rows.write.mode("overwrite").parquet(str(folder / "rows"))
    session.read.parquet(str(folder / "rows")).toArrow()
    rows.unpersist()


def main(arguments: Sequence[str]) -> int:
    """Warm the server of a folder."""
    access = ServerFiles(Path(arguments[0])).access()
    if access is None:
        return 1
    session = connect(access)
    folder = Path(tempfile.mkdtemp(prefix="warming-", dir=arguments[0]))
    try:
        warm(session, folder)
    finally:
        session.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
