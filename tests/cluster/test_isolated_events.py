"""Joins, windows and a lookup on workers that share only a bucket with the run.

Tasks read the states from files in the bucket. Plain Python gives the expected rows of each id.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import oracles
import pyarrow as pa
import pytest
from clusters import why_not_isolated
from deltalake import write_deltalake
from property.join_oracle import MINUTE, NOON, Join, told_by
from property.window_oracles import by_rows, by_session, by_time, last_rows, sliding, trailing
from test_isolated import Bucketed, Isolated, in_a_bucket, isolated

from drainmark.resources.storage.bucket_folder import BucketFolder

__all__ = ["isolated"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated()),
    pytest.mark.timeout(900),  # it shares the machine with other tests
]

Row = dict[str, Any]
APPS = Path(__file__).parents[1] / "recovery" / "apps"
IN_FILES = """
from drainmark.jobs.state import keyed_state

keyed_state.MEMORY_STATE_BYTES = keyed_state._IMAGE_MINIMUM_ROWS = 0
"""
"""Lines after an application: no state is so small that the run keeps it in memory, and each group writes a run."""

FILES = 4
VISITS = ("user", "n", "at")
VALUES = ("rows", "total", "newest")
FIVE, TEN = 5 * MINUTE, 10 * MINUTE

NEXT_TO_EACH_OTHER = """
import datetime as dt

import drainmark as dm
from drainmark import F

VALUES = {"rows": dm.count(), "total": dm.sum("n"), "newest": dm.last("n")}
SCHEMA = "user string, n bigint, at timestamp"


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema=SCHEMA, settle=0))
def events(scanned):
    return scanned


cities = dm.lookup("s3://BUCKET/others/cities")


@dm.functor(vectorised=True)
def placed(events, cities):
    return dm.select(events.join(cities, "user", "left"), "user", "n", "city")


@dm.functor
def even(events):
    return dm.select(events.where("n % 2 = 0"), "user", "n")


@dm.functor
def odd(events):
    return dm.select(events.where("n % 2 = 1"), "user", F.col("n").alias("odd"))


def windows(name, window, **more):
    dm.sink(dm.aggregate(events, name=name, keys=["user"], values=VALUES, window=window, **more), dm.DeltaAppend(name))


dm.sink(placed, dm.DeltaAppend("placed"))
dm.sink(dm.join(even, odd, on=["user"], kind="latest", name="paired"), dm.DeltaAppend("paired"))
windows("last_two", dm.sliding(rows=2))
windows("trailing", dm.sliding("at", minutes=10), emit="row")
windows("hops", dm.sliding("at", minutes=10, every=dt.timedelta(minutes=5)), emit="closed", lateness=300)
"""
"""Each row with the city of its user from a table, with the odd number before it, and in three kinds of windows."""


def visits_of(number: int) -> list[Row]:
    """Return the rows of a file: event time moves by eight minutes for each file; some rows are half an hour behind."""
    chance = random.Random(f"visits {number}")
    now = NOON + number * dt.timedelta(minutes=8)
    near = [now + chance.randrange(-10, 10) * MINUTE for _ in range(7)]
    return [
        {
            "user": chance.choice(["ann", "bob", None]),
            "n": chance.choice([*range(6), None]),
            "at": chance.choice([None, *near, now - 30 * MINUTE]),
            "x": 0.0,  # the oracles of windows need it
        }
        for _ in range(9)
    ]


def orders_and_payments() -> list[list[Row]]:
    """Return files of the two sides in turn: event time moves by five minutes for each two files."""
    chance = random.Random(3)
    return [
        [
            {"side": side, "number": chance.randrange(6), "n": None, "at": chance.choice([None, *[moment] * 9])}
            for moment in (NOON + MINUTE * (5 * number + chance.randint(-6, 6)) for _ in range(6))
        ]
        for number in range(4)
        for side in "lr"
    ]


def put(found: Bucketed, name: str, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Put rows into the bucket as a CSV file."""
    lines = [",".join(_cell(row[column]) for column in columns) for row in rows]
    found.store.put(f"s3://{found.bucket}", f"in/{name}.csv", "".join(f"{line}\n" for line in lines).encode())


def _cell(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return f"{value:%Y-%m-%dT%H:%M:%SZ}"
    return "" if value is None else str(value)


def go(found: Bucketed) -> None:
    """Run the new files in groups of two, so that each group has states of an earlier one."""
    found.run("run", "app.py", "--input", f"s3://{found.bucket}/in", "--max-group", "2")


def require(found: Bucketed, table: str, by_file: Mapping[int, Sequence[Row]], names: Mapping[str, str]) -> None:
    """Compare a table with the rows of plain Python for each file; file n, from 0 on, has the id n + 1.

    Args:
        names: for each column of the table, its name in the rows of plain Python.
    """
    expected = [
        {"_sequence_id": number + 1, **{name: row[own] for own, name in names.items()}}
        for number, rows in by_file.items()
        for row in rows
    ]
    assert expected, f"nothing is to be found in {table}: the test shows nothing"
    rows = [{name: row[name] for name in expected[0]} for row in found.rows(table)]
    assert not oracles.differences(expected, rows, ids=True), table


def same(*names: str) -> dict[str, str]:
    return dict(zip(names, names, strict=True))


@pytest.mark.seed("DX1", "NU1")
def test_rows_meet_by_event_time(isolated: Isolated, s3_server: str, s3_credentials: None) -> None:
    """There are pairs, rows without a match, and late rows, of both sides."""
    files = orders_and_payments()
    found = in_a_bucket(isolated, s3_server, (APPS / "matched.py").read_text() + IN_FILES)
    for number, rows in enumerate(files):
        put(found, f"{number}-{'payments' if number % 2 else 'orders'}", rows, ("number", "at"))
    go(found)
    told = told_by(Join(how="full", high=TEN, lateness=2 * MINUTE, keys=("number",)), files)
    alone = [(row["lat"] is None, row["rat"] is None) for rows in told.emitted.values() for row in rows]
    assert set(alone) == {(False, False), (True, False), (False, True)}
    require(found, "paid_orders", told.emitted, {"number": "number", "lat": "at", "rat": "at_right"})
    require(found, "late_orders", told.late["l"], {"number": "number", "lat": "at"})
    require(found, "late_payments", told.late["r"], {"number": "number", "rat": "at"})


@pytest.mark.seed("DX1", "V5")
def test_windows_close_by_a_watermark_by_their_rows_and_by_a_gap(
    isolated: Isolated, s3_server: str, s3_credentials: None
) -> None:
    found = in_a_bucket(isolated, s3_server, (APPS / "windowed.py").read_text() + IN_FILES)
    files = [visits_of(number) for number in range(FILES)]
    for number, rows in enumerate(files):
        put(found, str(number), rows, VISITS)
    go(found)
    tens = by_time(files, ["user"], "closed", size=TEN, every=TEN, lateness=FIVE)
    require(found, "tens", dict(enumerate(tens.emitted)), same("user", "window_start", *VALUES))
    assert found.made_by_tasks("tens")
    require(found, "too_late", dict(enumerate(tens.late)), same(*VISITS))
    threes = by_rows(files, ["user"], "closed", 3)
    require(found, "threes", dict(enumerate(threes.emitted)), same("user", "window_number", *VALUES))
    visits = by_session(files, ["user"], gap=4 * MINUTE, lateness=FIVE)
    require(found, "visits", dict(enumerate(visits.emitted)), same("user", "window_start", "window_end", *VALUES))


@pytest.mark.seed("DX1", "V5")
def test_a_table_in_the_bucket_is_looked_up_at_one_version_a_run_and_windows_slide_from_run_to_run(
    isolated: Isolated, s3_server: str, s3_credentials: None
) -> None:
    """The second run begins with the states of the first run."""
    found = in_a_bucket(isolated, s3_server, NEXT_TO_EACH_OTHER + IN_FILES)
    files = [visits_of(number) for number in range(FILES)]
    cities = BucketFolder(found.store, f"s3://{found.bucket}", "others/cities")
    placed: list[list[Row]] = []
    for known, those in (({"ann": "Ulm"}, range(2)), ({"ann": "Bonn", "bob": "Jena"}, range(2, FILES))):
        table = pa.table({"user": list(known), "city": list(known.values())})
        write_deltalake(cities.uri, table, mode="overwrite", storage_options=cities.storage_options())
        for number in those:
            put(found, str(number), files[number], VISITS)
            placed.append([{**row, "city": known.get(row["user"])} for row in files[number]])
        go(found)
    require(found, "placed", dict(enumerate(placed)), same("user", "n", "city"))
    require(found, "paired", dict(enumerate(pairs_of(files))), same("user", "n", "odd"))
    for name, told, more in (
        ("last_two", sliding(files, ["user"], "change", last_rows(2)), ()),
        ("trailing", sliding(files, ["user"], "row", trailing("at", TEN)), ()),
        ("hops", by_time(files, ["user"], "closed", size=TEN, every=FIVE, lateness=FIVE), ("window_start",)),
    ):
        require(found, name, dict(enumerate(told.emitted)), same("user", *more, *VALUES))


def pairs_of(files: Sequence[Sequence[Row]]) -> list[list[Row]]:
    """Return each row with an even number, together with the last odd number of its user before it."""
    last: dict[Any, int] = {}
    pairs: list[list[Row]] = []
    for rows in files:
        pairs.append([])
        for row in rows:
            if row["n"] is not None and row["n"] % 2:
                last[row["user"]] = row["n"]
            elif row["n"] is not None:
                pairs[-1].append({**row, "odd": last.get(row["user"])})
    return pairs
