"""Columns of any name: with an underscore, as in exports of MongoDB, Splunk or ArangoDB, with points, quotes, brackets.

Operators use other names internally, and quote those of the author; a small group and a large one give the same.
"""

from __future__ import annotations

import datetime as dt
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
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


NUMBER = "n"
ROLES = ("id", "time", "then", NUMBER, *TEXTS)
ODD = (
    "a.b",
    "it's",
    'say "x"',
    "100%",
    "[0]",
    "select",
    "größe",
    "$",
    "a/b",
    "x.y.z",
    "#",
    "-",
    "1st",
    "#.id",
    "n:m",
    "?",
)
"""Beginnings of names; the rest is the role, so that no two are the same."""


def named(sign: str) -> dict[str, str]:
    """Return names that begin with a sign; a number has a plain one."""
    return {role: role if role == NUMBER else f"{sign}{role}" for role in ROLES}


def odd(shift: int) -> dict[str, str]:
    """Return an odd name for each role; each shift gives other kinds to the keys and times."""
    return {role: f"{ODD[(place + shift) % len(ODD)]}{role}" for place, role in enumerate(ROLES)}


def quoted(name: str) -> str:
    return f"`{name}`"


def lines(of: Mapping[str, str], file: int) -> str:
    """Return three rows; ids and times repeat in later files."""
    found = []
    for row in range(ROWS):
        number = file * ROWS + row
        texts = {of[name]: f"{name}-{number % 5}" for name in TEXTS}
        time = f"2026-03-01T00:{file:02d}:{row:02d}Z"
        found.append({of["id"]: f"id-{number % 4}", of["time"]: time, of["n"]: number, **texts})
    return "".join(f"{json.dumps(row)}\n" for row in found)


def declared(of: Mapping[str, str], tables: Sequence[str]) -> Callable[[], None]:
    """Return an application over columns with these names."""

    def packed(data):  # no type hints: Spark would infer from them how to call it
        return gzip.compress(data.encode(), mtime=0)

    def seen(state: Seen | None, rows: Any) -> Any:
        state = Seen(rows=(state.rows if state else 0) + rows.num_rows)
        first = {of["id"]: rows[of["id"]][:1], of["bucket"]: rows[of["to"]][:1]}
        return state, pa.table({**first, of["what"]: pa.array([str(state.rows)])})

    def declare() -> None:
        texts_ddl = ", ".join(f"{quoted(of[name])} string" for name in TEXTS)
        n = quoted(of["n"])
        schema = f"{quoted(of['id'])} string, {quoted(of['time'])} timestamp, {n} bigint, {texts_ddl}"

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="inbox", pattern="*.json", format="json", schema=schema))
        def events(scanned: Any) -> Any:
            return scanned

        rows = dm.functor(lambda events: events.drop("source_file"), name="all_rows", inputs=[events])

        def some(name: str, *columns: str) -> Any:
            wanted = ["_sequence_id", "_position", *map(quoted, (of["id"], *columns))]
            return dm.functor(lambda rows: rows.select(*wanted), name=name, inputs=[rows])

        left = some("lefts", of["time"], *(of[name] for name in TEXTS[::2]))
        right = some("rights", *(of[name] for name in TEXTS[1::2]), of["n"])
        timed = dm.functor(
            lambda rights: rights.withColumn(of["then"], F.timestamp_seconds(F.col(n) * 20 + 1772323200)),
            name="timed", inputs=[right],
        )  # fmt: skip
        split = cache(lambda: dm.split(rows, outputs={"odd": f"{n} % 2 = 1"}, otherwise="even", name="parts"))
        zipped = cache(lambda: dm.functor(
            lambda rows: rows.withColumn(of["text"], F.udf(packed, "binary")(F.col(quoted(of["text"])))),
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
                right_time=of["then"], name="met_in_time",
            ),
            "met_by_time": lambda: dm.join(
                left, timed, on=[of["id"]], within=(-MINUTE, MINUTE), left_time=of["time"], right_time=of["then"],
                lateness=600, how="left", name="met_by_time",
            ),
            "paired": lambda: dm.pair(left, right, key=of["id"], name="paired"),
            "odd": lambda: split()["odd"],
            "even": lambda: split()["even"],
            "marked": lambda: dm.functor(
                lambda marked: marked.withColumnRenamed("_punctuation", "mark"),
                inputs=[dm.punctor(rows, f"{n} % 3 = 1", keys=[of["id"]], name="to_mark")], name="marked",
            ),
            "watched": lambda: dm.dynamic_filter(rows, some("watch"), on=[of["id"]], name="watched"),
            "sorted": lambda: dm.sort(rows, by=[of["id"]], name="in_order"),
            "summed": lambda: dm.aggregate(
                rows, keys=[of["is_new"]], values={"n": dm.sum(of["n"]), "latest": dm.last(of["last"])}, name="summed"
            ),
            "slid": lambda: dm.aggregate(
                rows, keys=[of["id"]], values={"rows": dm.count(), "most": dm.max(of["what"])},
                window=dm.sliding(rows=2), name="slid",
            ),
            "counted": lambda: dm.custom(
                seen, keys=[of["id"]], state=Seen, batch="arrow", inputs=[rows], name="counted",
                output=", ".join(f"{quoted(of[name])} string" for name in ("id", "what", "bucket")),
            ),
            "unpacked": lambda: dm.decompress(zipped(), of["text"], codec="gzip", name="unpacked"),
            "parsed": lambda: dm.parse(texts(), of["text"], format="json", schema=texts_ddl, name="parsed"),
        }  # fmt: skip
        for table in tables:
            dm.sink(outputs[table.removeprefix("in_")](), dm.DeltaAppend(table))

    return declare


def found(
    run_app: Callable[..., Result], of: Mapping[str, str], tables: Sequence[str], size: int, **settings: Any
) -> dict[str, list[str]]:
    files, role_of = (
        {f"{number}.json": lines(of, number) for number in range(FILES)},
        {n: role for role, n in of.items()},
    )
    result = run_app(declared(of, tables), files, max_group=size, settings=settings)
    return {
        table: sorted(
            repr(sorted((role_of.get(name, name), value) for name, value in row.items() if name != "source_file"))
            for row in result.sink(table)
        )
        for table in tables
    }


@pytest.mark.seed("V140", "B09")
@pytest.mark.parametrize("tables", [SAMPLE, pytest.param(TABLES, marks=pytest.mark.slow)], ids=["sample", "all"])
def test_columns_with_an_underscore_are_the_users(run_app: Callable[..., Result], tables: Sequence[str]) -> None:
    usual = found(run_app, named("_"), tables, 2)
    assert found(run_app, odd(0), tables, FILES, small_group_bytes=0) == usual, "names with points, in a large group"
    assert [table for table, rows in usual.items() if not rows] == []


@pytest.mark.slow
@pytest.mark.parametrize("shift", [1, 6])
@pytest.mark.seed("B09")
def test_columns_of_any_name_are_the_users_in_any_group(run_app: Callable[..., Result], shift: int) -> None:
    assert found(run_app, odd(shift), TABLES, 2, small_group_bytes=0) == found(run_app, named("of_"), TABLES, FILES)


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
