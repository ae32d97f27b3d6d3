"""Run as a program by `test_zones.py`, in the zone of a host: times through every way that has Python in it.

Prints a JSON object: by grouping and place, the times of the rows by their key, as UTC.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import sqlalchemy as sa
from pyspark.sql import DataFrame
from pyspark.sql.functions import pandas_udf, udf
from pyspark.sql.types import TimestampType

import drainmark as dm


@dataclass
class Seen:
    n: int = 1


def app() -> None:
    plain = udf(lambda at: at, TimestampType())
    by_arrow = udf(lambda at: at, TimestampType(), useArrow=True)
    by_pandas = pandas_udf(lambda at: at, TimestampType())

    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="inbox", format="csv", schema="k int, at timestamp"))
    def rows(scanned: DataFrame) -> DataFrame:
        return scanned

    @dm.functor
    def through(rows: DataFrame) -> DataFrame:
        return dm.select(
            rows, "k", "at", plain("at").alias("plain"), by_arrow("at").alias("arrow"), by_pandas("at").alias("pandas")
        )

    @dm.custom(keys=["k"], state=Seen, output="k int, at timestamp")
    def grouped(state: Seen | None, rows: pd.DataFrame) -> tuple[Seen, pd.DataFrame]:
        return Seen(), rows[["k", "at"]]

    @dm.operator(output="k int, at timestamp", inputs=[rows])
    class Hosted(dm.StateHandler):
        def process(self, rows: pa.Table, context: Any) -> Iterator[pa.Table]:
            yield pa.Table.from_pylist([{"k": row["k"], "at": row["at"]} for row in rows.to_pylist()])

        def checkpoint(self, checkpoint: dm.Checkpoint) -> None:
            checkpoint.write(0)

        def reset(self, checkpoint: dm.Checkpoint) -> None:
            pass

        def reset_to_initial_state(self) -> None:
            pass

    dm.sink(through, dm.DeltaAppend("kept"))
    dm.sink(grouped, dm.DeltaAppend("grouped"))
    dm.sink(Hosted, dm.DeltaAppend("hosted"))
    for database in DATABASES:
        dm.sink(rows, dm.DatabaseAppend(database, "kept"))


def as_utc(value: Any) -> str:
    """Return a time as text; one without a zone is UTC."""
    found = dt.datetime.fromisoformat(value) if isinstance(value, str) else value
    return (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).astimezone(dt.UTC).isoformat()


def places(result: Any) -> Iterator[tuple[str, dict[int, str]]]:
    for column in ("at", "plain", "arrow", "pandas"):
        yield column, {row["k"]: as_utc(row[column]) for row in result.sink("kept")}
    for table in ("grouped", "hosted"):
        yield table, {row["k"]: as_utc(row["at"]) for row in result.sink(table)}
    home = result.workplace.settings.home
    show = [sys.executable, "-m", "drainmark.orchestration.cli.main", "show", "kept", "--home", home, "--json"]
    shown = json.loads(subprocess.run(show, capture_output=True, check=True).stdout)
    yield "show", {row["k"]: as_utc(row["at"]) for row in shown}
    kept = dm.read(result.region.name, "kept", home=str(home))
    yield "read", {row["k"]: as_utc(row["at"]) for row in kept.to_pylist()}
    for name, url in DATABASES.items():
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            yield name, {k: as_utc(at) for k, at in connection.execute(sa.text("select k, at from kept"))}
        engine.dispose()


if __name__ == "__main__":
    folder, files, urls = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
    assert "UTC" not in time.tzname, os.environ["TZ"]
    found = {}
    for grouping, most in (("one by one", 1), ("one group", None)):
        home = folder / grouping.replace(" ", "-")
        home.mkdir(parents=True)
        DATABASES = {"lite": f"sqlite:///{home / 'kept.db'}", **({"pg": urls[grouping]} if urls[grouping] else {})}
        result = dm.testing.run_app(app, files, home=home / "home", max_group=most, settings={"databases": DATABASES})
        found[grouping] = dict(places(result))
        result.close()
    print(json.dumps(found))
