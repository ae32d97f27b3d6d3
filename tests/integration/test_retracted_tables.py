"""A region with aggregates over changes: their tables are those of the rows left, in each group size (RA1–RA3, RA5)."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from change_stream import marked
from harness import run_once, settle, without_ids

import drainmark as dm
from drainmark.jobs.errors import DrainmarkError, StateIncompatible
from drainmark.jobs.state import keyed_state
from drainmark.orchestration.testing.processing import rewind
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.seed("RA1", "RA2")]

REGION = "orders/changes"
FILES = 8
BACK_TO = 3
Order = tuple[str, int, float]
"""Customer, number, amount."""


def declare(inbox: Path, *, over_changes: bool = True) -> Opened:
    """Totals of customers, those above ten, and how many customers have how many orders."""
    with dm.application("orders") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(
            dm.DirectoryScan(
                path=str(inbox),
                format="csv",
                schema="gone boolean, customer string, id bigint, amount double",
                settle=0,
            )
        )
        def changes(scanned: Any) -> Any:
            return scanned.drop("source_file")

        orders = marked(changes, "gone", name="orders", hidden=("gone",)) if over_changes else changes
        values = {"orders": dm.count(), "paid": dm.sum("amount"), "dearest": dm.max("amount")}
        totals = dm.aggregate(orders, keys=["customer"], values=values, name="totals")
        large = dm.filter(lambda rows: rows.paid > 10, name="large", inputs=[totals])
        sizes = dm.aggregate(totals, keys=["orders"], values={"customers": dm.count()}, name="sizes")
        for stream, keys in ((totals, "customer"), (large, "customer"), (sizes, "orders")):
            dm.sink(stream, dm.DeltaUpsert(f"{stream.name}_table", keys=[keys]))
    return open_application(dm.build_application(declared))


def logs(seed: int) -> tuple[list[list[str]], list[list[Order]]]:
    """Return the lines of each file, and the orders that are left after it."""
    chance, there, number = random.Random(seed), dict[int, Order](), 0
    files, left = [], []
    for _ in range(FILES):
        lines = []
        for each in [each for each in there if chance.random() < 0.5]:
            old = there.pop(each)
            lines.append(line(True, old))
            if chance.random() < 0.4:
                there[each] = (chance.choice("abcd"), each, chance.choice([0.1, 2.5, 7.0, 1e9]))
                lines.append(line(False, there[each]))
        for _ in range(chance.randrange(4)):
            number += 1
            there[number] = (chance.choice("abcd"), number, chance.choice([0.1, 2.5, 7.0, 1e9]))
            lines.append(line(False, there[number]))
        files.append(lines)
        left.append(list(there.values()))
    return files, left


def line(gone: bool, order: Order) -> str:
    return f"{str(gone).lower()},{order[0]},{order[1]},{order[2]!r}\n"


def told(orders: Sequence[Order]) -> dict[str, list[Any]]:
    """Return the three tables in plain Python."""
    amounts = defaultdict(list)
    for customer, _, amount in orders:
        amounts[customer].append(amount)
    totals = {each: (len(found), sum(sorted(found)), max(found)) for each, found in amounts.items()}
    sizes = Counter(count for count, _, _ in totals.values())
    return {
        "totals_table": sorted((each, count, round(paid, 6), most) for each, (count, paid, most) in totals.items()),
        "large_table": sorted((each, round(paid, 6)) for each, (_, paid, _) in totals.items() if paid > 10),
        "sizes_table": sorted(sizes.items()),
    }


def shown(place: Workplace) -> dict[str, list[Any]]:
    def read(table: str) -> list[dict[str, Any]]:
        return without_ids(place.store(REGION).table(f"lake/{table}").read().to_pylist())

    totals, large, sizes = read("totals_table"), read("large_table"), read("sizes_table")
    return {
        "totals_table": sorted((r["customer"], r["orders"], round(r["paid"], 6), r["dearest"]) for r in totals),
        "large_table": sorted((r["customer"], round(r["paid"], 6)) for r in large),
        "sizes_table": sorted((r["orders"], r["customers"]) for r in sizes),
    }


def write(inbox: Path, number: int, lines: Sequence[str]) -> None:
    inbox.mkdir(exist_ok=True)
    (inbox / f"{number:04d}.csv").write_text("".join(lines))
    settle(inbox)


@pytest.fixture
def place(tmp_path: Path, engine: SparkEngine) -> Iterator[Workplace]:
    workplace = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    workplace.use_engine(engine)
    yield workplace
    workplace.registry.close()


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((3, FILES, True), id="some, in memory"),
        pytest.param((FILES, 2, False), id="all, in files, written by Spark", marks=pytest.mark.slow),
    ],
)
def test_tables_are_those_of_the_rows_that_are_left(
    tmp_path: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, bool]
) -> None:
    size, again, in_memory = sizes
    files, left = logs(11)
    assert told(left[-1])["large_table"]
    assert any(len(told(before)["totals_table"]) > len(told(after)["totals_table"]) for before, after in pairwise(left))
    for number, lines in enumerate(files):
        write(tmp_path / "inbox", number, lines)
    if not in_memory:
        monkeypatch.setattr(keyed_state, "MEMORY_STATE_BYTES", 0)
        monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 3)
    settings = {} if in_memory else {"small_group_bytes": 0}
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, **settings))
    place.use_engine(engine)
    application = declare(tmp_path / "inbox")
    run_once(place, application, max_group=size)
    assert shown(place) == told(left[-1])
    rewind(place, REGION, BACK_TO, 10_000)
    assert shown(place) == told(left[BACK_TO - 1])
    run_once(place, application, max_group=again)
    assert shown(place) == told(left[-1])
    place.registry.close()


@pytest.mark.seed("RA3")
def test_rows_taken_back_that_had_not_come_halt_the_region_and_change_nothing(place: Workplace, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    write(inbox, 0, [line(False, ("a", 1, 2.5))])
    write(inbox, 1, [line(True, ("a", 1, 2.5)), line(True, ("b", 2, 7.0))])
    with pytest.raises(
        DrainmarkError, match=r"'totals': rows were taken back that had not come.*\"customer\":\"b\".*'orders'"
    ):
        run_once(place, declare(inbox), max_group=1)
    assert shown(place) == told([("a", 1, 2.5)])
    (inbox / "0001.csv").unlink()
    write(inbox, 2, [line(True, ("a", 1, 2.5))])


@pytest.mark.seed("RA5", "RT3")
def test_a_state_of_plain_rows_is_not_continued_over_changes(place: Workplace, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    write(inbox, 0, [line(False, ("a", 1, 2.5))])
    run_once(place, declare(inbox, over_changes=False))
    write(inbox, 1, [line(True, ("a", 1, 2.5))])
    with pytest.raises(StateIncompatible) as caught:
        run_once(place, declare(inbox))
    assert caught.value.operator == "totals"
