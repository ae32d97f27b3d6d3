"""`dm.apply_changes` end to end: changes in files become the rows of tables, and bad changes go to the quarantine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import LONG_AGO, rows, run_once
from triggers import home

import drainmark as dm
from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.protocol.records.manifest import TableRole
from drainmark.jobs.state import keyed_state
from drainmark.orchestration.testing.processing import rewind
from drainmark.orchestration.workplace.workplace import Opened, open_application
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

REGION = "changed/changes"
SCHEMA = "id bigint, n bigint, op string, city string, note string"


@dataclass(frozen=True)
class Way:
    """Sizes: files in a group; bytes up to which groups and states are in memory."""

    size: int
    group_bytes: int
    state_bytes: int


WAYS = [
    pytest.param(Way(2, 2**23, 0), id="some, states looked up in files"),
    pytest.param(Way(20, 0, 2**25), id="all, by Spark's tasks"),
    pytest.param(Way(1, 2**23, 2**25), id="one by one", marks=pytest.mark.slow),
    pytest.param(Way(2, 0, 0), id="some, by Spark's tasks, states in files", marks=pytest.mark.slow),
]


def opened(inbox: Path, **options: Any) -> Opened:
    with dm.application("changed") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), pattern="*.csv", format="csv", schema=SCHEMA, settle=0))
        def changes(scanned: Any) -> Any:
            return scanned

        given = {"keys": ["id"], "sequence_by": "n", "apply_as_deletes": "op = 'd'", "except_columns": ["op"]}
        now = dm.apply_changes(changes, **{**given, "apply_as_truncates": "op = 't'", **options}, name="now")
        past = dm.apply_changes(
            changes, **given, stored_as_scd_type=2, track_history_columns=["city"], name="past"
        )  # fmt: skip
        given["except_columns"] = ["op", "n"]
        every = dm.apply_changes(changes, **given, stored_as_scd_type=2, name="every")
        dm.sink(now, dm.DeltaUpsert("towns", keys=["id"]))
        dm.sink(past, dm.DeltaUpsert("towns_then", keys=["id", "valid_from"]))
        dm.sink(every, dm.DeltaUpsert("towns_ever", keys=["id", "valid_from"]))
    return open_application(dm.build_application(declared))


def write(inbox: Path, number: int, *lines: str) -> None:
    inbox.mkdir(parents=True, exist_ok=True)
    hidden = inbox / f".{number}.part"
    hidden.write_text("".join(f"{line}\n" for line in lines))
    os.utime(hidden, (LONG_AGO, LONG_AGO))
    hidden.rename(inbox / f"{number:04d}.csv")


def towns(place: Any) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["n"], row["city"]) for row in rows(place, REGION, "towns"))


def then(place: Any, table: str = "towns_then") -> list[tuple[Any, ...]]:
    names = ("id", "city", "note", "valid_from", "valid_to", "is_current")
    return sorted((tuple(row[name] for name in names) for row in rows(place, REGION, table)), key=repr)


FILES = [
    ["1,10,u,Rome,a", "2,10,u,Oslo,a", "2,20,d,,"],
    ["9,12,d,,", "1,30,u,Bern,b", "2,15,u,Lima,late"],  # a delete of nothing; a change behind a delete
    ["1,40,u,Bern,c", ",41,u,Nowhere,", "3,,u,Nowhen,"],
    ["1,20,u,Paris,late", "3,5,u,Kyiv,a"],  # into the past
    [",6,t,,", "3,7,u,Wien,b"],  # a truncate in the middle
    ["3,5,u,Kyiv,a"],  # again
]
TOWNS = [
    [(1, 10, "Rome")],
    [(1, 30, "Bern")],
    [(1, 40, "Bern")],
    [(1, 40, "Bern"), (3, 5, "Kyiv")],
    [(1, 40, "Bern"), (3, 7, "Wien")],
    [(1, 40, "Bern"), (3, 7, "Wien")],
]
THEN = [
    (1, "Bern", "c", 30, None, True),
    (1, "Paris", "late", 20, 30, False),
    (1, "Rome", "a", 10, 20, False),
    (2, "Lima", "late", 15, 20, False),
    (2, "Oslo", "a", 10, 15, False),
    (3, "Kyiv", "a", 5, 7, False),
    (3, "Wien", "b", 7, None, True),
]
EVER = [*THEN[1:], (1, "Bern", "b", 30, 40, False), (1, "Bern", "c", 40, None, True)]


@pytest.mark.seed("AC1", "AC2", "AC3")
@pytest.mark.parametrize("way", WAYS)
def test_tables_follow_changes_in_any_order(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    monkeypatch.setattr(keyed_state, "MEMORY_STATE_BYTES", way.state_bytes)
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 3)
    for number, lines in enumerate(FILES):
        write(tmp_path / "inbox", number, *lines)
    application = opened(tmp_path / "inbox")
    with home(tmp_path / "home", engine, small_group_bytes=way.group_bytes) as place:
        run_once(place, application, max_group=way.size)
        assert towns(place) == TOWNS[-1]
        assert then(place) == sorted(THEN, key=repr)
        assert then(place, "towns_ever") == sorted(EVER, key=repr)
        history = place.history(REGION)
        ids = [number for _, number in sorted(history.newest_by_uri().items())]
        bad = rows(place, REGION, "changed_quarantine")
        assert {(row["_sequence_id"], row["position"]) for row in bad} == {(ids[2], 2), (ids[2], 3), (ids[4], 1)}
        why = {row["reason"].partition(": ")[::2] for row in bad}
        assert why == {
            (name, f"the {what} is null") for name in ("now", "past", "every") for what in ("key id", "sequence, n,")
        }
        for at in (3, 1):
            rewind(place, REGION, ids[at], 10_000)
            assert towns(place) == TOWNS[at]
        run_once(place, application, max_group=2)
        assert towns(place) == TOWNS[-1]
        assert then(place) == sorted(THEN, key=repr)
        assert then(place, "towns_ever") == sorted(EVER, key=repr)
        assert {table.name for table in place.history(REGION).tables if table.role is TableRole.CHANGES} == {
            "state/changed/now", "state/changed/now-truncates", "state/changed/past", "state/changed/every",
            "state/changed/towns_then_sink",
        }, "a state is the history of the table behind it"  # fmt: skip


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"keys": ["nr"]}, "nr"),
        ({"sequence_by": "array(n)"}, "array<bigint>"),
        ({"columns": ["city", "towns"], "except_columns": None}, "towns"),
    ],
)
def test_what_the_columns_do_not_have_is_said_before_a_run(
    engine: SparkEngine, tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    write(tmp_path / "inbox", 0, *FILES[0])
    with home(tmp_path / "home", engine) as place, pytest.raises(OperatorFailed) as caught:
        run_once(place, opened(tmp_path / "inbox", **options))
    assert caught.value.operator == "now"
    assert says in str(caught.value)
