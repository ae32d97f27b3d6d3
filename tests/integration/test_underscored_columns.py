"""Columns with an underscore, as in exports of MongoDB, Splunk or ArangoDB; operators use other names internally."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import OperatorFailed
from drainmark.orchestration.testing.running import Result

pytestmark = pytest.mark.spark

TEXTS = (
    *("to", "key", "raw", "parsed", "made", "event", "is_new", "leaves", "last", "kth", "rows", "row", "side", "size"),
    *("own", "other", "next", "nth", "latest", "pass", "now", "before", "begins_group", "step", "held", "is_last"),
    *("what", "bucket", "bad", "fault", "text", "until", "since", "gone_now", "newest", "micros", "start"),
)
TABLES = (
    *("in_once", "in_once_a_while", "in_once_a_minute", "in_later", "in_a_minute_later", "in_met", "in_met_in_time"),
    "in_met_by_time",
    *("in_paired", "in_odd", "in_even", "in_marked", "in_watched", "in_sorted", "in_summed", "in_slid", "in_counted"),
    *("in_unpacked", "in_parsed"),
)
SAMPLE = ("in_once", "in_counted")
MINUTE = dt.timedelta(minutes=1)
FILES = 4
ROWS = 3


@dataclass
class Seen:
    rows: int = 0


def lines(sign: str, file: int) -> str:
    """Return three rows; ids and times repeat in later files."""
    found = []
    for row in range(ROWS):
        number = file * ROWS + row
        texts = {f"{sign}{name}": f"{name}-{number % 5}" for name in TEXTS}
        time = f"2026-03-01T00:{file:02d}:{row:02d}Z"
        found.append({f"{sign}id": f"id-{number % 4}", f"{sign}time": time, "n": number, **texts})
    return "".join(f"{json.dumps(row)}\n" for row in found)


def declared(sign: str, tables: Sequence[str]) -> Callable[[], None]:
    """Return an application over columns that all begin with this sign."""
    of = {name: f"{sign}{name}" for name in ("id", "time", *TEXTS)}

    def packed(data):  # no type hints: Spark would infer from them how to call it
        return gzip.compress(data.encode(), mtime=0)

    def seen(state: Seen | None, rows: Any) -> Any:
        state = Seen(rows=(state.rows if state else 0) + rows.num_rows)
        first = {of["id"]: rows[of["id"]][:1], of["bucket"]: rows[of["to"]][:1]}
        return state, pa.table({**first, of["what"]: pa.array([str(state.rows)])})

    def declare() -> None:
        texts_ddl = ", ".join(f"{of[name]} string" for name in TEXTS)
        schema = f"{of['id']} string, {of['time']} timestamp, n bigint, {texts_ddl}"

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="inbox", pattern="*.json", format="json", schema=schema))
        def events(scanned: Any) -> Any:
            return scanned

        rows = dm.functor(lambda events: events.drop("source_file"), name="all_rows", inputs=[events])

        def some(name: str, *columns: str) -> Any:
            wanted = ["_sequence_id", "_position", of["id"], *columns]
            return dm.functor(lambda rows: rows.select(*wanted), name=name, inputs=[rows])

        left = some("lefts", of["time"], *(of[name] for name in TEXTS[::2]))
        right = some("rights", *(of[name] for name in TEXTS[1::2]), "n")
        timed = dm.functor(
            lambda rights: rights.withColumn(f"{sign}then", F.timestamp_seconds(F.col("n") * 20 + 1772323200)),
            name="timed", inputs=[right],
        )  # fmt: skip
        split = cache(lambda: dm.split(rows, outputs={"odd": "n % 2 = 1"}, otherwise="even", name="parts"))
        zipped = cache(lambda: dm.functor(
            lambda rows: rows.withColumn(of["text"], F.udf(packed, "binary")(F.col(of["text"]))),
            name="zipped", inputs=[rows],
        ))  # fmt: skip
        texts = cache(
            lambda: dm.format(
                some("to_format", *(of[name] for name in TEXTS)), "json", column=of["text"], name="as_text"
            )
        )
        outputs = {
            "once": lambda: dm.deduplicate(rows, keys=[of["id"]], name="once"),
            "once_a_while": lambda: dm.deduplicate(rows, keys=[of["id"]], within=1, name="once_a_while"),
            "once_a_minute": lambda: dm.deduplicate(
                rows, keys=[of["id"]], within=MINUTE, event_time=of["time"], name="once_a_minute"
            ),
            "later": lambda: dm.delay(rows, ids=1, name="later"),
            "a_minute_later": lambda: dm.delay(rows, duration=MINUTE, event_time=of["time"], name="a_minute_later"),
            "met": lambda: dm.join(left, right, on=[of["id"]], left_window=2, right_window=2, name="met"),
            "met_in_time": lambda: dm.join(
                left, timed, on=[of["id"]], left_window=MINUTE, right_window=MINUTE, left_time=of["time"],
                right_time=f"{sign}then", name="met_in_time",
            ),
            "met_by_time": lambda: dm.join(
                left, timed, on=[of["id"]], within=(-MINUTE, MINUTE), left_time=of["time"], right_time=f"{sign}then",
                lateness=600, how="left", name="met_by_time",
            ),
            "paired": lambda: dm.pair(left, right, key=of["id"], name="paired"),
            "odd": lambda: split()["odd"],
            "even": lambda: split()["even"],
            "marked": lambda: dm.functor(
                lambda marked: marked.withColumnRenamed("_punctuation", "mark"),
                inputs=[dm.punctor(rows, "n % 3 = 1", keys=[of["id"]], name="to_mark")], name="marked",
            ),
            "watched": lambda: dm.dynamic_filter(rows, some("watch"), on=[of["id"]], name="watched"),
            "sorted": lambda: dm.sort(rows, by=[of["id"]], name="in_order"),
            "summed": lambda: dm.aggregate(
                rows, keys=[of["is_new"]], values={"n": dm.sum("n"), "latest": dm.last(of["last"])}, name="summed"
            ),
            "slid": lambda: dm.aggregate(
                rows, keys=[of["id"]], values={"rows": dm.count(), "most": dm.max(of["what"])},
                window=dm.sliding(rows=2), name="slid",
            ),
            "counted": lambda: dm.custom(
                seen, keys=[of["id"]], state=Seen, batch="arrow", inputs=[rows], name="counted",
                output=f"{of['id']} string, {of['what']} string, {of['bucket']} string",
            ),
            "unpacked": lambda: dm.decompress(zipped(), of["text"], codec="gzip", name="unpacked"),
            "parsed": lambda: dm.parse(texts(), of["text"], format="json", schema=texts_ddl, name="parsed"),
        }  # fmt: skip
        for table in tables:
            dm.sink(outputs[table.removeprefix("in_")](), dm.DeltaAppend(table))

    return declare


def found(run_app: Callable[..., Result], sign: str, tables: Sequence[str], size: int) -> dict[str, list[str]]:
    files = {f"{number}.json": lines(sign, number) for number in range(FILES)}
    result = run_app(declared(sign, tables), files, max_group=size)
    return {
        table: sorted(
            repr(sorted((name.removeprefix(sign), value) for name, value in row.items() if name != "source_file"))
            for row in result.sink(table)
        )
        for table in tables
    }


@pytest.mark.seed("V140")
@pytest.mark.parametrize("tables", [SAMPLE, pytest.param(TABLES, marks=pytest.mark.slow)], ids=["sample", "all"])
def test_columns_with_an_underscore_are_the_users(run_app: Callable[..., Result], tables: Sequence[str]) -> None:
    usual, odd = found(run_app, "of_", tables, FILES), found(run_app, "_", tables, 2)
    assert odd == usual
    assert [table for table, rows in usual.items() if not rows] == []


def test_a_column_that_a_state_has_already_is_named_with_the_way_out(run_app: Callable[..., Result]) -> None:
    def declare() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv", format="csv", schema="_from string"))
        def edges(scanned: Any) -> Any:
            return scanned

        dm.sink(dm.delay(edges, ids=1), dm.DeltaAppend("late"))

    with pytest.raises(OperatorFailed) as caught:
        run_app(declare, {"1.csv": "a\n"})
    assert "rename _from" in (caught.value.remedy or "")
