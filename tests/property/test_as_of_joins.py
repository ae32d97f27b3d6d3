"""As-of joins against plain Python: rows and versions in random orders of arrival, any grouping, and with rewinds."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from harness import rows, run_once, settle
from triggers import home

import drainmark as dm
from drainmark.jobs.state import keyed_state
from drainmark.orchestration.testing.processing import rewind
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.delta.lookup_tables import LookupTables
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

REGION = "asof/orders"
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
LATE = 5 * MINUTE
ITEMS = ("tea", "cup", "pot")
VERSIONS = pa.schema(
    [("item", pa.string()), ("valid_from", pa.timestamp("us", "UTC")), ("valid_to", pa.timestamp("us", "UTC")),
     ("cents", pa.int64())]
)  # fmt: skip
WAYS = {"left": {"how": "left"}, "inner": {"how": "inner"}, "ended": {"how": "left", "valid_to": "valid_to"}}

Order = tuple[int, str | None, int | None]
Version = tuple[str | None, int, float | None, int]


def drawn(chance: random.Random) -> tuple[list[Order], list[Version]]:
    """Return orders (number, item, minute), some without time or item; and versions (item, from, to, cents) by time.

    Some versions of an item begin at one time, and some of these end at one time, too."""
    orders = [
        (number, chance.choice([*ITEMS, "cake", None]), chance.choice([None, *(chance.randint(0, 60),) * 8]))
        for number in range(30)
    ]
    versions: list[Version] = []
    for item in ITEMS:
        begins = sorted(chance.choices(chance.sample(range(2, 58), 3), k=4))
        for begin, following in zip(begins, [*begins[1:], 61], strict=True):
            end = chance.choice([None, following, max(begin + 1, following - 6)])
            versions += [(item, begin, end, chance.randint(1, 1200)) for _ in range(chance.randint(1, 2))]
    return orders, versions


def priced(orders: list[Order], versions: list[Version], way: str) -> list[tuple[int, int | None]]:
    """Return each order's number with the cents of the version that was valid at its time."""
    found = []
    for number, item, minute in orders:
        begun = [v for v in versions if minute is not None and item is not None and v[0] == item and v[1] <= minute]
        last = max(begun, key=lambda version: (version[1], version[2] or 0, version[3]), default=None)
        if last is not None and way == "ended" and minute is not None and last[2] is not None and last[2] <= minute:
            last = None
        if last is not None or way != "inner":
            found.append((number, last[3] if last is not None else None))
    return sorted(found)


def application(inbox: Path, ways: Iterable[str]) -> Opened:
    with dm.application("asof") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(
            dm.DirectoryScan(
                path=str(inbox), format="json", schema="n bigint, item string, at timestamp, cents bigint", settle=0
            )
        )
        def orders(scanned: Any) -> Any:
            return scanned

        for way in ways:
            prices = dm.lookup("prices", name=f"prices_{way}")
            joined = dm.join_as_of(
                orders, prices, keys=["item"], as_of="at", late=LATE, name=f"joined_{way}", **WAYS[way]
            )
            dm.sink(joined, dm.DeltaAppend(way))
    return open_application(dm.build_application(declared))


def _at(minute: float | None) -> dt.datetime | None:
    return NOON + minute * MINUTE if minute is not None else None


class Scene:
    """A region of as-of joins, and the table that it looks up."""

    def __init__(self, place: Workplace, folder: Path, ways: Iterable[str] = ("left",)) -> None:
        self.place, self.inbox, self.files = place, folder / "inbox", 0
        self.inbox.mkdir()
        self.lake = str(place.home / "lake" / "prices")
        self.opened = application(self.inbox, ways)
        self.enter([])

    def arrive(self, orders: list[Order]) -> None:
        found = [{"n": n, "item": item, "at": _at(minute)} for n, item, minute in orders]
        lines = [json.dumps(row, default=dt.datetime.isoformat) for row in found]
        (self.inbox / f"{self.files:03}.json").write_text("\n".join(lines))
        self.files += 1
        settle(self.inbox)

    def enter(self, versions: list[Version]) -> None:
        found = [dict(zip(VERSIONS.names, (v[0], _at(v[1]), _at(v[2]), v[3]), strict=True)) for v in versions]
        write_deltalake(self.lake, pa.Table.from_pylist(found, VERSIONS), mode="append")

    def run(self, size: int) -> None:
        run_once(self.place, self.opened, max_group=size)

    def shown(self, way: str) -> list[tuple[int, int | None]]:
        return sorted((row["n"], row["cents_looked_up"]) for row in rows(self.place, REGION, way))


def late_by(versions: list[Version], chance: random.Random) -> list[Version]:
    """Return versions as they come: out of order, but none later than `LATE` after a newer one."""
    minutes = LATE // MINUTE
    return sorted(versions, key=lambda version: version[1] + chance.random() * minutes)


def cut(chance: random.Random, what: list[Any], parts: int) -> list[list[Any]]:
    """Return a list in consecutive parts, some of which may be empty."""
    places = sorted(chance.choices(range(len(what) + 1), k=parts - 1))
    return [what[start:end] for start, end in zip([0, *places], [*places, len(what)], strict=True)]


@pytest.mark.seed("AJ1", "AJ2")
@pytest.mark.parametrize(
    ("seed", "in_memory", "ways"),
    [
        (1, (2**25, 0), ("inner",)),
        (2, (0, 2**23), ("ended",)),
        *(pytest.param(n, (2**25 * (n % 2), 2**23 * (n % 3 > 0)), WAYS, marks=pytest.mark.slow) for n in range(3, 13)),
    ],
)
def test_each_row_meets_the_version_of_its_time_in_any_order_of_arrival(
    engine: SparkEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    seed: int,
    in_memory: tuple[int, int],
    ways: Collection[str],
) -> None:
    """Small groups are computed in this process, others by tasks; states are in memory, or looked up in files.

    Args:
        in_memory: the most bytes of a group, and of a state, that are in memory.
    """
    small, state = in_memory
    monkeypatch.setattr(keyed_state, "MEMORY_STATE_BYTES", state)
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 3)
    chance = random.Random(seed)
    orders, versions = drawn(chance)
    chance.shuffle(orders)
    with home(tmp_path / "home", engine, small_group_bytes=small) as place:
        scene = Scene(place, tmp_path, ways)
        parts = 3 if seed < 3 else 4
        coming = [("orders", part) for part in cut(chance, orders, parts + 1)]
        prices = [("versions", part) for part in cut(chance, late_by(versions, chance), parts)]
        places = sorted(chance.sample(range(2 * parts + 1), parts))
        for place_of, part in zip(places, prices, strict=True):
            coming.insert(place_of, part)
        for kind, part in coming:
            (scene.arrive if kind == "orders" else scene.enter)(part)
            if chance.random() < 0.5:
                scene.run(chance.choice([1, 2, 10]))
                states = list(place.history(REGION).states)
                if states and chance.random() < 0.4:
                    rewind(place, REGION, chance.choice([0, *states]), 10_000)
        scene.enter([(None, 200, None, 0)])
        scene.arrive([])
        scene.run(10)
        for way in ways:
            assert scene.shown(way) == priced(orders, versions, way), way


@pytest.mark.seed("AJ1")
def test_of_versions_that_begin_at_one_time_the_greatest_by_its_columns_counts(
    engine: SparkEngine, tmp_path: Path
) -> None:
    """Not by their text, in which 9 is above 10, a null is left out, and times are cut to milliseconds."""
    tick = 1 / 60_000_000
    tied: dict[str, list[Version]] = {
        "more digits": [("tea", 10, None, 450), ("tea", 10, None, 1000)],
        "one digit": [("cup", 10, 40, 9), ("cup", 10, 40, 10)],
        "below zero": [("pot", 10, 40, -2), ("pot", 10, 40, -1)],
        "no end is least": [("can", 10, None, 999), ("can", 10, 40, 1)],
        "microseconds": [("jug", 10, 40 + 9 * tick, 5), ("jug", 10, 40 + 10 * tick, 4)],
    }
    with home(tmp_path / "home", engine) as place:
        scene = Scene(place, tmp_path)
        for number in (0, 1, 0):
            scene.enter([versions[number] for versions in tied.values()])
        scene.enter([(None, 60, None, 0)])
        scene.arrive([(number, versions[0][0], 20) for number, versions in enumerate(tied.values())])
        scene.run(1)
        assert scene.shown("left") == [(number, versions[1][3]) for number, versions in enumerate(tied.values())]


@pytest.mark.seed("AJ1", "AJ2", "AJ3")
def test_a_row_waits_until_the_table_is_complete_and_a_replay_finds_the_same_version(
    engine: SparkEngine, tmp_path: Path
) -> None:
    with home(tmp_path / "home", engine) as place:
        scene = Scene(place, tmp_path)
        scene.enter([("tea", 0, None, 400)])
        scene.arrive([(1, "tea", 20), (2, "tea", None), (3, None, 20)])
        scene.run(1)
        assert scene.shown("left") == [(2, None), (3, None)], "no version can be theirs, so they do not wait"
        scene.enter([("tea", 10, None, 450), ("cup", 25, None, 1)])
        scene.arrive([])
        scene.run(1)
        assert scene.shown("left") == [(2, None), (3, None)], "25 less the lateness is not past 20"
        scene.enter([("cup", 26, None, 2)])
        scene.arrive([])
        scene.run(1)
        assert scene.shown("left") == [(1, 450), (2, None), (3, None)]
        assert [row["_sequence_id"] for row in rows(place, REGION, "left") if row["n"] == 1] == [3]
        scene.enter([("tea", 40, None, 999)])
        for to in (2, 0):
            rewind(place, REGION, to, 10_000)
            scene.run(3)
            assert scene.shown("left") == [(1, 450), (2, None), (3, None)]


@pytest.mark.seed("AJ3")
def test_a_correction_of_the_past_reaches_only_rows_that_have_not_left(engine: SparkEngine, tmp_path: Path) -> None:
    with home(tmp_path / "home", engine) as place:
        scene = Scene(place, tmp_path)
        scene.enter([("tea", 0, None, 400), (None, 60, None, 0)])
        scene.arrive([(1, "tea", 20)])
        scene.run(1)
        scene.enter([("tea", 10, None, 450)])
        scene.arrive([(2, "tea", 20)])
        scene.run(1)
        assert scene.shown("left") == [(1, 400), (2, 450)]


@pytest.mark.seed("AJ2")
def test_a_table_that_knows_less_than_before_loses_no_row_that_waits(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_state, "MEMORY_STATE_BYTES", 0)
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 1)
    with home(tmp_path / "home", engine, small_group_bytes=2**25) as place:
        scene = Scene(place, tmp_path)
        scene.enter([("tea", 0, None, 400), (None, 10, None, 0)])
        scene.enter([(None, 60, None, 0)])
        looks = iter((2, 1, 1, 2))
        monkeypatch.setattr(LookupTables, "version", lambda self, table: next(looks))
        for orders in ([(1, "tea", 50)], [(2, "tea", 20)], [(3, "tea", 21)], []):
            scene.arrive(orders)
        scene.run(1)
        assert scene.shown("left") == [(1, 400), (2, 400), (3, 400)]
