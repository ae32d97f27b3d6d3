"""Every operator of the catalogue: a trigger is acknowledged when its state is committed, with all triggers before it.

Acknowledged files are moved away, for good. The attempt fails when all operators have processed a group and nothing is
committed: no file may have moved, and no row may be visible. The next attempt gives the result of a region that never
failed (X8, X12, C2, C17, C26, T1, T5).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from operator_cases import CASES, Streams, streams
from triggers import SCHEMA, content

import drainmark as dm
from drainmark import F
from drainmark.jobs.failpoints import FailPoint, InjectedFailure, arm
from drainmark.jobs.operators.catalogue import entries
from drainmark.orchestration.testing.comparing import Tables
from drainmark.orchestration.testing.crash.invariants import misplaced_files, reused_ids, unfinished, visible_too_early
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.workplace.workplace import Workplace

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

RunApp = Callable[..., Result]
Declare = Callable[[Streams], Any]
FILES = {f"{number:04d}.csv": content(number) for number in range(4)}
LEVELS = [
    {"user": "ann", "level": 1, "since": dt.datetime(2000, 1, 1, tzinfo=dt.UTC)},
    {"user": "bob", "level": 2, "since": dt.datetime(2100, 1, 1, tzinfo=dt.UTC)},  # it is complete up to then
]
STATEMENT = "select _sequence_id, _position, user, n + 1 as n from {rows}"
ALL_OF_A_GROUP_AND_THE_FIRST_ALONE = ",".join(f"{FailPoint.PROCESS_STAGED.value}:raise:{nth}" for nth in (1, 2))
"""A group of several files that fails is retried file by file; then the run ends, and the attempt counts."""


@dataclasses.dataclass(frozen=True)
class Seen:
    rows: int


@dataclasses.dataclass
class Counted(dm.StateHandler):
    """An operator that numbers all rows."""

    n: int = 0

    def process(self, rows: pa.Table, context: Any) -> pa.Table:
        self.n += rows.num_rows
        return pa.table({"user": rows["user"], "number": pa.array(range(self.n - rows.num_rows, self.n), pa.int64())})


def seen(state: Seen | None, rows: Any) -> Any:
    made = Seen(rows=(state.rows if state else 0) + len(rows))
    return made, rows[["user"]].assign(rows=made.rows)[:1]


def append(stream: Any, table: str) -> None:
    dm.sink(stream, dm.DeltaAppend(table))


def windowed(table: str, window: Callable[[], Any], **more: Any) -> Declare:
    def declare(s: Streams) -> None:
        made = dm.aggregate(s.events, keys=["user"], values={"n": dm.sum("n")}, window=window(), name=table, **more)
        append(made, f"{table}_rows")

    return declare


def per_user(s: Streams, name: str) -> Any:
    return dm.aggregate(s.events, keys=["user"], values={"n": dm.sum("n"), "rows": dm.count()}, name=name)


def functor(s: Streams) -> None:
    append(dm.functor(lambda events: events.withColumn("twice", F.col("n") * 2), name="twice", inputs=[s.events]),
           "twice_rows")  # fmt: skip


def lookup(s: Streams) -> None:
    levels = dm.lookup("levels")
    append(dm.functor(lambda events, levels: events.join(levels, "user", "left"), name="levelled",
                      inputs=[s.events, levels], vectorised=True), "levelled_rows")  # fmt: skip


def quarantined(s: Streams) -> None:
    dm.quarantine(dm.filter(lambda events: F.col("n").isNull(), name="without", inputs=[s.events]), reason="no number")


def newest(s: Streams, name: str) -> Any:
    return dm.apply_changes(s.events, keys=["user"], sequence_by="x", columns=["user", "n"], name=name)


def as_of(s: Streams) -> None:
    levels = dm.lookup("levels", name="levels_as_of")
    found = dm.join_as_of(s.events, levels, keys=["user"], as_of="at", valid_from="since", name="levelled_as_of")
    append(found, "levelled_as_of_rows")


def over_changes(s: Streams) -> None:
    users = dm.aggregate(newest(s, "users_newest"), keys=["n"], values={"users": dm.count()}, name="users")
    dm.sink(users, dm.DeltaUpsert("users", keys=["n"]))


REST: dict[str, Declare] = {
    "aggregate": lambda s: append(per_user(s, "counts"), "count_rows"),
    "aggregate over changes": over_changes,
    "apply-changes": lambda s: dm.sink(newest(s, "newest"), dm.DeltaUpsert("applied", keys=["user"])),
    "as-of join": as_of,
    "custom": lambda s: append(
        dm.custom(seen, keys=["user"], state=Seen, output="user string, rows bigint", inputs=[s.events]), "seen_rows"
    ),
    "database-append": lambda s: dm.sink(s.events, dm.DatabaseAppend("shop", "events")),
    "database-upsert": lambda s: dm.sink(per_user(s, "totals"), dm.DatabaseUpsert("shop", "totals", keys=["user"])),
    "delta-append": lambda s: append(s.events, "events"),
    "delta-overwrite": lambda s: dm.sink(s.events, dm.DeltaOverwrite("newest_file")),
    "delta-upsert": lambda s: dm.sink(s.events, dm.DeltaUpsert("newest_rows", keys=["user"])),
    "event-time windows": windowed("tens", lambda: dm.tumbling("at", minutes=10), lateness=60),
    "file-sink": lambda s: dm.sink(s.events, dm.FileSink("{home}/out")),
    "filter": lambda s: append(dm.filter(lambda events: F.col("n") > 2, name="high", inputs=[s.events]), "high_rows"),
    "functor": functor,
    "handler": lambda s: append(
        dm.operator(Counted, output="user string, number bigint", inputs=[s.events]), "counted_rows"
    ),
    "lookup": lookup,
    "numbered windows": windowed("threes", lambda: dm.tumbling(rows=3)),
    "parallel map": lambda s: append(
        dm.parallel_map(lambda events: {"n": events["n"]}, name="mapped", output="n bigint", threads=2,
                        inputs=[s.events]), "mapped_rows"
    ),
    "quarantine": quarantined,
    "session windows": windowed("sittings", lambda: dm.session("at", gap=300), emit="closed", lateness=60),
    "sliding aggregate": windowed("last_three", lambda: dm.sliding(rows=3)),
    "sliding aggregate of every row": windowed("every_row", lambda: dm.sliding(rows=3), emit="row"),
    "sql": lambda s: append(dm.sql("one_more", inputs=[s.events], vectorised=True), "one_more_rows"),
    "trailing windows": windowed("trailing", lambda: dm.sliding("at", minutes=10), emit="row"),
}  # fmt: skip
"""One declaration for each kind that has no case in `operator_cases`."""

ALONE: dict[str, Declare] = {
    "per-trigger": lambda s: append(
        dm.per_trigger(lambda rows: rows.orderBy("n", "x").limit(1), name="smallest", inputs=[s.events]),
        "smallest_rows",
    ),
}
"""Kinds that allow only groups of one."""

STARTS = {"source": "every application here has one", "slices": "test_stream_starts_in_regions.py"}
SAMPLE = ("handler", "aggregate")


def declare_all(events: Any) -> None:
    read = streams(events)
    for case in CASES:
        append(case.declare(read, case.name), case.name)


def declare_some(chosen: dict[str, Declare]) -> Callable[[Any], None]:
    def declare(events: Any) -> None:
        rows = dm.functor(lambda events: events.drop("source_file"), name="rows", inputs=[events])
        for one in chosen.values():
            one(Streams(events=rows, left=None, right=None))

    return declare


APPLICATIONS = [
    pytest.param(declare_some({kind: REST[kind] for kind in SAMPLE}), id="sample"),
    pytest.param(declare_some(ALONE), id="alone", marks=pytest.mark.slow),
    pytest.param(declare_all, id="library", marks=pytest.mark.slow),
    pytest.param(declare_some(REST), id="rest", marks=pytest.mark.slow),
]


def acknowledging(declare: Callable[[Any], None], done: Path) -> Callable[[], None]:
    def acknowledged() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(
            path="in", pattern="*.csv", format="csv", schema=SCHEMA, after="move", move_to=str(done),
            after_when="checkpointed",
        ))  # fmt: skip
        def events(scanned: Any) -> Any:
            return scanned

        declare(events)

    return acknowledged


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.csv")) if folder.exists() else []


@pytest.mark.seed("X8", "C2", "V169")
@pytest.mark.parametrize("declare", APPLICATIONS)
def test_nothing_is_acknowledged_before_it_is_committed(run_app: RunApp, tmp_path: Path, declare: Any) -> None:
    def begun(name: str) -> tuple[Result, Path]:
        place, done = tmp_path / name, tmp_path / f"{name}-done"
        statement = place / "sql" / "acknowledged" / "one_more.sql"
        statement.parent.mkdir(parents=True)
        statement.write_text(STATEMENT)
        app = acknowledging(declare, done)
        return run_app(app, home=place / "home", tables={"levels": LEVELS}).add(FILES), done

    golden, golden_done = begun("golden")
    golden.run()
    assert names_in(golden_done) == sorted(FILES)

    result, done = begun("failed")
    place, region = result.workplace, result.region.name
    arm(ALL_OF_A_GROUP_AND_THE_FIRST_ALONE)
    with pytest.raises(Exception) as caught:
        result.run()
    arm("")
    assert injected(caught.value), caught.value
    assert place.history(region).epoch == 1, "the attempt had begun"
    assert names_in(done) == []
    assert (result.status["committed_sequence_id"], result.status["pending_triggers"]) == (0, len(FILES))
    assert list(visible_too_early(place, region)) == []

    uris = [trigger.uri for trigger in place.registry.triggers.pending(region, len(FILES))]
    result.run()
    assert names_in(done) == sorted(FILES)
    assert [
        *reused_ids(place.store(region).checkpoint.rows()),
        *misplaced_files(place.history(region), uris),
        *unfinished(place, region),
        *comparable(place, region).unequal_to(comparable(golden.workplace, region), uris),
    ] == []


def comparable(place: Workplace, region: str) -> Tables:
    """Return all tables except those of handlers' states, which hold ids: they differ if some ids were burnt.

    Files are named by their path below the folder of the run, because quarantined rows have the full path.
    """
    found = Tables.of(place, region).rows
    handled = f"state/{region.partition('/')[0]}/counted"
    folder = str(place.settings.home.parent)
    return Tables(
        {
            key: Counter({text.replace(folder, ""): count for text, count in rows.items()})
            for key, rows in found.items()
            if key[0] != handled
        }
    )


def injected(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, InjectedFailure):
        error = error.__cause__ or error.__context__
    return error is not None


@pytest.mark.seed("T1", "T5", "C26")
def test_every_kind_of_the_catalogue_is_in_one_of_them() -> None:
    """A new operator costs a line here, if it has no case in `operator_cases`."""
    covered = {case.kind for case in CASES} | REST.keys() | ALONE.keys() | STARTS.keys()
    assert covered == {entry.kind for entry in entries()}
