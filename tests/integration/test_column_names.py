"""Columns keep their names in the source: names of window keys, names with points and spaces, names of types (V154)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa
import pytest

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import DeclarationError, OperatorFailed, UsageError
from drainmark.orchestration.testing.running import Result

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]


@dataclass
class Seen:
    rows: int = 0


def source(inbox_schema: str, form: str = "csv") -> Any:
    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.DirectoryScan(path="inbox", pattern=f"*.{form}", format=form, schema=inbox_schema))
    def events(scanned: Any) -> Any:
        return scanned

    return events


def windows_over_windows() -> None:
    events = source("k string, at timestamp")
    hours = dm.aggregate(
        events, name="hours", keys=["k"], values={"rows": dm.count()}, window=dm.tumbling("at", hours=1),
        emit="closed", lateness=0,
    )  # fmt: skip
    read = {"rows": dm.sum("rows"), "first": dm.min("window_start"), "last": dm.max("window_start")}
    day = dm.tumbling("window_start", hours=24)
    days = dm.aggregate(hours, name="days", keys=["k"], values=read, window=day)
    dm.sink(days, dm.DeltaUpsert("days", keys=["k", "window_start"]))
    closed = dm.aggregate(hours, name="closed", keys=["k"], values=read, window=day, emit="closed", lateness=6 * 3600)
    dm.sink(closed, dm.DeltaAppend("closed"))
    pairs = dm.aggregate(
        events, name="pairs", keys=["k"], values={"rows": dm.count()}, window=dm.tumbling(rows=2), emit="closed"
    )
    numbers = {"low": dm.min("window_number"), "high": dm.max("window_number")}
    for name, window in (("fours", dm.tumbling(rows=2)), ("tens", dm.tumbling("window_number", delta=5))):
        found = dm.aggregate(pairs, name=name, keys=["k"], values=numbers, window=window, emit="closed")
        dm.sink(found, dm.DeltaAppend(name))


def at(day: int, hour: int) -> dt.datetime:
    return dt.datetime(2026, 3, day, hour, tzinfo=dt.UTC)


@pytest.mark.slow
@pytest.mark.seed("H20")
def test_windows_over_windows_read_what_those_before_left(run_app: RunApp) -> None:
    """`window_start` and `window_number` of the input are ordinary columns; the event time may be one of them."""
    files = {
        f"{day}.csv": "".join(f"a,2026-03-0{day}T{hour:02d}:10:00Z\n" for hour in range(3, 9)) for day in (1, 2, 3)
    }
    result = run_app(windows_over_windows, files)
    assert [(row["first"], row["last"], row["rows"]) for row in result.sink("days")] == [
        (at(1, 3), at(1, 8), 6), (at(2, 3), at(2, 8), 6), (at(3, 3), at(3, 7), 5)
    ]  # fmt: skip
    # the next file closes the hours of a day; the hours until 7 o'clock put the watermark at 1 o'clock
    assert [(row["first"], row["last"], row["rows"]) for row in result.sink("closed")] == [
        (at(1, 3), at(1, 8), 6), (at(2, 3), at(2, 8), 6)
    ]  # fmt: skip
    assert [(row["low"], row["high"]) for row in result.sink("fours")] == [(1, 2), (3, 4), (5, 6), (7, 8)]
    assert [(row["low"], row["high"]) for row in result.sink("tens")] == [(1, 5)]


def chained() -> None:
    dm.sink(source("k string, n bigint"), dm.DeltaAppend("raw"))

    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.TableSource("raw"))
    def again(scanned: Any) -> Any:
        return scanned

    dm.sink(again, dm.DeltaAppend("again"))
    totals = dm.aggregate(again, keys=["k"], values={"n": dm.sum("n")})
    dm.sink(totals, dm.DeltaUpsert("totals", keys=["k"]))


@pytest.mark.seed("E6")
def test_a_region_reads_what_another_one_writes(run_app: RunApp) -> None:
    """The columns that a sink adds are those of its own region."""
    result = run_app(chained, {"1.csv": "a,1\n", "2.csv": "a,2\nb,3\n"}, max_group=1)
    assert result.sink("totals") == [{"k": "a", "n": 3}, {"k": "b", "n": 3}]
    assert [(row["_sequence_id"], row["n"]) for row in result.sink("again", ids=True)] == [(1, 1), (2, 2), (2, 3)]
    assert {row["source_file"] for row in result.sink("again")} == {"delta:raw#1", "delta:raw#2"}


@pytest.mark.parametrize("schema", ["a int, A int", "_Sequence_Id bigint, a int", "Source_File string"])
def test_columns_that_cannot_be_told_apart_are_refused_by_name(run_app: RunApp, schema: str) -> None:
    def refused() -> None:
        dm.sink(source(schema), dm.DeltaAppend("out"))

    with pytest.raises(UsageError) as raised:
        run_app(refused, {"1.csv": "1,2\n"})
    assert raised.value.operator == "events"


KEYED: list[Callable[[Any], Any]] = [
    lambda events: dm.sink(events, dm.DeltaUpsert("out", keys=["s"])),
    lambda events: dm.sink(dm.deduplicate(events, keys=["s"]), dm.DeltaAppend("out")),
    lambda events: dm.sink(dm.aggregate(events, keys=["s"], values={"n": dm.count()}), dm.DeltaAppend("out")),
]


@pytest.mark.parametrize("declare", KEYED, ids=["upsert", "state", "aggregate"])
def test_a_key_made_of_parts_is_refused_before_anything_is_committed(
    run_app: RunApp, declare: Callable[[Any], Any]
) -> None:
    """Formerly such a key was committed, and could not be published."""

    def nested() -> None:
        declare(source("s struct<charge: int>, n int", "json"))

    with pytest.raises(DeclarationError) as raised:
        run_app(nested, {"1.json": '{"s": {"charge": 1}, "n": 1}\n'})
    assert [violation.rule for violation in raised.value.violations] == ["KEY_TYPE"]


TWINS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda rows: dm.sink(rows, dm.DeltaAppend("out")), "'K', 'k': Spark does not tell upper from lower case"),
    (lambda rows: dm.sink(dm.deduplicate(rows, keys=["n"]), dm.DeltaAppend("out")), "'K', 'k'"),
]


@pytest.mark.parametrize(("declare", "told"), TWINS, ids=["sink", "state"])
def test_columns_that_a_function_makes_twins_are_refused_by_name(
    run_app: RunApp, declare: Callable[[Any], Any], told: str
) -> None:
    def twins() -> None:
        events = source("k string, n int")
        made = dm.functor(
            lambda events: dm.select(events, "k", F.col("k").alias("K"), "n"), name="made", inputs=[events]
        )
        declare(made)

    with pytest.raises(DeclarationError, match=told) as raised:
        run_app(twins, {"1.csv": "a,1\n"})
    assert {violation.rule for violation in raised.value.violations} == {"COLUMN_TWICE"}


def test_a_value_of_a_column_with_a_point_is_written_between_backticks(run_app: RunApp) -> None:
    def summed(argument: str) -> Callable[[], None]:
        def declare() -> None:
            events = source("k string, `a.b` int")
            sums = dm.aggregate(events, keys=["k"], values={"n": dm.sum(argument)}, window=dm.sliding(rows=2))
            dm.sink(sums, dm.DeltaAppend("sums"))

        return declare

    with pytest.raises(DeclarationError, match=r"'a\.b' means a field of a struct") as raised:
        run_app(summed("a.b"), {"1.csv": "a,1\n"})
    assert "'`a.b`'" in str(raised.value.violations[0].remedy)


def upserted_by_another_case(events: Any) -> None:
    dm.sink(events, dm.DeltaUpsert("out", keys=["K"]))


def controlled_by_another_case(events: Any) -> None:
    def above(events: Any, limits: Annotated[Any, dm.Control(keys=["K"])]) -> Any:
        return events

    limits = dm.functor(lambda events: events, name="limits", inputs=[events])
    dm.sink(dm.functor(above, inputs=[events, limits]), dm.DeltaAppend("out"))


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (upserted_by_another_case, "'events' has no column K"),
        (controlled_by_another_case, "above: K is a key and no column"),
    ],
)
def test_a_key_in_another_case_is_refused_before_anything_is_committed(
    run_app: RunApp, declare: Callable[[Any], None], told: str
) -> None:
    def cased() -> None:
        declare(source("k string, n int"))

    with pytest.raises((DeclarationError, OperatorFailed), match=told):
        run_app(cased, {"1.csv": "a,1\n"})


def test_a_second_punctor_is_told_that_its_column_is_there(run_app: RunApp) -> None:
    def twice() -> None:
        first = dm.punctor(source("n int"), "n > 1", name="first")
        dm.sink(dm.punctor(first, "n > 2", name="second"), dm.DeltaAppend("out"))

    with pytest.raises(OperatorFailed, match="_punctuation already") as raised:
        run_app(twice, {"1.csv": "1\n"})
    assert raised.value.operator == "second"


def test_a_text_that_is_no_utf8_is_quarantined_as_far_as_it_can_be_read(run_app: RunApp) -> None:
    def declare() -> None:
        texts = dm.functor(
            lambda events: dm.select(events, F.unhex("h").cast("string").alias("t")),
            name="texts", inputs=[source("h string, n int")],
        )  # fmt: skip
        dm.sink(dm.parse(texts, "t", format="json", schema="a int"), dm.DeltaAppend("out"))

    result = run_app(declare, {"1.csv": "7b2261223a20317d,1\n78ff,1\n"})
    assert [row["a"] for row in result.sink("out")] == [1]
    assert [row["raw"] for row in result.quarantine()] == ["x\ufffd"]


def with_points(ways: Sequence[str]) -> None:
    events = source("`user.id` string, `n n` bigint, at timestamp, s struct<`content-type`: string>", "json")
    rows = dm.functor(lambda events: events.drop("source_file"), name="rows", inputs=[events])

    def seen(state: Seen | None, rows: Any) -> Any:
        state = Seen(rows=(state.rows if state else 0) + rows.num_rows)
        return state, pa.table({"user.id": rows["user.id"][:1], "rows.n": pa.array([state.rows], pa.int64())})

    dm.sink(
        dm.custom(
            seen, keys=["user.id"], state=Seen, output="`user.id` string, `rows.n` bigint", batch="arrow",
            inputs=[rows],
        ),
        dm.DeltaUpsert("seen", keys=["user.id"]),
    )  # fmt: skip
    values = {"n.sum": dm.sum("n n"), "last": dm.last("s")}
    windows: dict[str, dict[str, Any]] = {
        "sessions": {"window": dm.session("at", gap=60), "lateness": 0},
        "deltas": {"window": dm.tumbling("n n", delta=5)},
        "closed": {"window": dm.tumbling("at", minutes=1), "lateness": 0},
    }
    for name in ways:
        found = dm.aggregate(rows, name=name, keys=["user.id"], values=values, emit="closed", **windows[name])
        dm.sink(found, dm.DeltaAppend(name))
    texts = dm.format(rows, "json", column="text")
    dm.sink(
        dm.parse(texts, "text", format="json", schema="`user.id` string, s struct<`content-type`: string>"),
        dm.DeltaAppend("parsed"),
    )


@pytest.mark.parametrize(
    "ways",
    [("closed",), pytest.param(("sessions", "deltas", "closed"), marks=pytest.mark.slow)],
    ids=["sample", "all"],
)
def test_points_in_names_and_any_name_inside_a_struct(run_app: RunApp, ways: Sequence[str]) -> None:
    line = '{{"user.id": "a", "n n": {0}, "at": "2026-03-01T00:0{0}:00Z", "s": {{"content-type": "t{0}"}}}}\n'
    files = {"1.json": line.format(1) + line.format(2), "2.json": line.format(8), "3.json": line.format(9)}

    def points() -> None:
        with_points(ways)

    result = run_app(points, files)
    assert result.sink("seen") == [{"user.id": "a", "rows.n": 4}]
    by_time = [(1, "t1"), (2, "t2"), (8, "t8")]
    for name in ways:
        sums = sorted((row["n.sum"], row["last"]["content-type"]) for row in result.sink(name))
        assert sums == ([(3, "t2")] if name == "deltas" else by_time), name
    assert [row["s"]["content-type"] for row in result.sink("parsed")] == ["t1", "t2", "t8", "t9"]


def test_a_function_that_puts_another_id_on_rows_is_told_so(run_app: RunApp) -> None:
    """A rewind would not find rows that carry the id of another trigger."""

    def declare() -> None:
        moved = dm.functor(
            lambda events: events.withColumn("_sequence_id", F.col("_sequence_id") + F.col("n")),
            name="moved", inputs=[source("n int")],
        )  # fmt: skip
        dm.sink(moved, dm.DeltaAppend("moved_rows"))

    result = run_app(declare, {"1.csv": "0\n"}, max_group=2)
    result.add({"2.csv": "0\n", "3.csv": "0\n1\n"})
    with pytest.raises(OperatorFailed, match=r"rows of ids \d to \d got") as caught:
        result.run()
    assert "_sequence_id" in (caught.value.remedy or "")
    assert [row["n"] for row in result.sink("moved_rows") if row["n"]] == []
