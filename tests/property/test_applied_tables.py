"""`dm.apply_changes` into Delta tables and databases, SQLite and PostgreSQL, against a plain dictionary at every step.

A region gets a log of changes in disorder, with duplicates, files that come again, late changes behind deletes and
truncates. Between its runs it goes back to random ids, is compacted, and fails in between. After each step each table
is what plain Python makes of the files that count, now and at earlier ids.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from change_cases import Dictionary, intervals, is_bad, log, shown
from harness import run_once, settle
from sqlalchemy import create_engine, text

import drainmark as dm
from drainmark.jobs import failpoints
from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.failpoints import FailPoint, InjectedFailure
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.runtime.commit.publish import visible_tables
from drainmark.jobs.runtime.maintenance.compaction import maintain_region
from drainmark.jobs.runtime.maintenance.garbage_collection import clear
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.checkpoints.as_of import RegionReader

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1500)]

REGION, HORIZON = "applied/changes", 12
NEWEST, PAST = ["a", "b", "n", "x", "y"], ["a", "b", "x", "y"]
VERSION = [*PAST, "valid_from", "valid_to", "is_current"]
TABLES = {
    "newest": ("newest", "newest_marked", "database/lite/newest", "database/post/newest"),
    "past": ("past", "database/lite/past", "database/post/past"),
}
KEYS = {"newest": ["a", "b"], "past": ["a", "b", "valid_from"]}
SHORT = 2
"""The steps of a history that goes back, and is compacted, after each of them."""

POINTS = (
    FailPoint.PROCESS_STAGED, FailPoint.CHECKPOINT_BEFORE, FailPoint.CHECKPOINT_AFTER, FailPoint.PUBLISH_BEFORE,
    FailPoint.PUBLISH_AFTER, FailPoint.REWIND_AFTER, FailPoint.REWIND_TABLE_BEFORE, FailPoint.REWIND_TABLE_AFTER,
)  # fmt: skip


def declare(inbox: Path) -> Opened:
    schema = "a string, b bigint, n bigint, op string, x bigint, y double"
    with dm.application("applied") as declared:

        @dm.consistent(trigger="operator-driven", rewind_horizon=HORIZON)
        @dm.source(dm.DirectoryScan(path=str(inbox), format="json", schema=schema, settle=0))
        def changes(scanned: Any) -> Any:
            return scanned

        @dm.filter
        def kept(changes: Any) -> Any:
            return "op <> 't'"  # a history is not truncated

        given: dict[str, Any] = {"keys": ["a", "b"], "sequence_by": "n", "apply_as_deletes": "op = 'd'"}
        newest = dm.apply_changes(changes, **given, apply_as_truncates="op = 't'", columns=NEWEST, name="newest")
        past = dm.apply_changes(kept, **given, columns=PAST, stored_as_scd_type=2, name="past")
        dm.sink(newest, dm.DeltaUpsert("newest_marked", keys=KEYS["newest"], merge="on-read"))
        for stream, name in ((newest, "newest"), (past, "past")):
            dm.sink(stream, dm.DeltaUpsert(name, keys=KEYS[name]))
            for database in ("lite", "post"):
                dm.sink(stream, dm.DatabaseUpsert(database, name, keys=KEYS[name]))
    return open_application(dm.build_application(declared))


@dataclass
class History:
    """A region, the files that were written for it, and what its tables must have."""

    place: Workplace
    inbox: Path
    draw: random.Random
    coming: list[list[dict[str, Any]]]
    written: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    opened: Opened = field(init=False)

    def __post_init__(self) -> None:
        self.opened = declare(self.inbox)

    def write(self, count: int) -> None:
        for rows in self.coming[:count]:
            name = f"{len(self.written):03}.json"
            self.written[name] = rows
            told = ({key: value for key, value in row.items() if key != "at"} for row in rows)
            (self.inbox / name).write_text("".join(f"{json.dumps(row)}\n" for row in told))
        del self.coming[:count]
        settle(self.inbox)

    def run(self) -> None:
        """Run, at first perhaps until a failure; then drain all that is pending."""
        if self.draw.random() < 0.3:
            self.fail(lambda: run_once(self.place, self.opened, max_group=self.draw.choice([1, 3])))
        run_once(self.place, self.opened, max_group=self.draw.choice([1, 2, 5]))

    def rewind(self) -> None:
        """Go back to any id in reach, perhaps after a failure on the way."""
        history = self.place.history(REGION)
        low = max([0, history.committed_id - HORIZON, *history.dropped.values()])
        to = self.draw.choice([number for number in (0, *history.states) if number >= low] or [history.committed_id])

        def go_back() -> None:
            with owning(region_owner(self.place, REGION)) as owner:
                owner.rewind(to, HORIZON)

        if self.draw.random() < 0.3:
            self.fail(go_back)
        go_back()
        assert self.place.history(REGION).committed_id == to

    def fail(self, act: Any) -> None:
        """Do something that a fail point interrupts; whether it is passed depends on what is there to do."""
        failpoints.arm(f"{self.draw.choice(POINTS)}:raise:{self.draw.choice([1, 1, 2, 5])}")
        try:
            act()
        except InjectedFailure:
            pass
        except OperatorFailed as error:  # so a run calls what fails while it processes a group of one
            if not isinstance(error.__cause__, InjectedFailure):
                raise
        failpoints.arm("")

    def maintain(self) -> None:
        with owning(region_owner(self.place, REGION)) as owner:
            maintain_region(owner, horizon=HORIZON)
            clear(
                owner.outside.store, owner.history.tables, epoch=owner.epoch, horizon=HORIZON, now=owner.outside.clock()
            )

    # --- what must be there ---------------------------------------------------------------------------------------

    def counting(self) -> dict[int, list[dict[str, Any]]]:
        """Return the rows of the files in force by id."""
        states = self.place.history(REGION).states.items()
        return {number: self.written[Path(row.trigger_uri or "").name] for number, row in states
                if row.kind is RowKind.STATE}  # fmt: skip

    def check(self) -> None:
        counting, reader = self.counting(), RegionReader(self.place.settings, REGION)
        low = max([0, reader.history.committed_id - HORIZON, *reader.history.dropped.values()])
        states = [number for number in (0, *counting) if number >= low]
        earlier = set(self.draw.choices(states, k=2)) if states else set()
        for kind, tables in TABLES.items():
            now = expected(kind, counting.values())
            found = [rows_of(reader.now(table), kind) for table in tables]
            assert all(rows == now for rows in found), (kind, now, found)
            for table in tables:
                if table not in reader.history.lags and f"lake/{table}" not in reader.history.lags:
                    seen = self.seen(table) if "/" in table else rows_of(reader.visible(table), kind)
                    assert seen == now, (table, now, seen)
            for at in earlier:
                then = expected(kind, [rows for number, rows in counting.items() if number <= at])
                for table in tables:
                    assert rows_of(reader.as_of(table, at), kind) == then, (table, at)

    def seen(self, table: str) -> list[str]:
        """Return the rows of a database's table as its own clients see them."""
        _, database, name = table.split("/")
        engine = create_engine(self.place.settings.databases[database].replace("postgresql:", "postgresql+psycopg:"))
        with engine.connect() as connection:
            rows = [dict(row) for row in connection.execute(text(f"SELECT * FROM {name}")).mappings()]  # noqa: S608
        engine.dispose()
        for row in rows:
            if row.get("is_current") is not None:
                row["is_current"] = bool(row["is_current"])
        return plain(rows, name)


def expected(kind: str, files: Iterable[list[dict[str, Any]]]) -> list[str]:
    """Return what a table has after files, by plain Python."""
    rows = [row for file in files for row in file if not is_bad(row)]
    if kind == "newest":
        table = Dictionary()
        for row in rows:
            table.take(row)
        return plain([shown(row, NEWEST) for row in table.rows().values()], kind)
    changes: dict[Any, dict[int, Any]] = {}
    for row in rows:
        if row["op"] != "t":
            changes.setdefault((row["a"], row["b"]), {})[row["n"]] = row
    ordered = ([mine[n] for n in sorted(mine)] for mine in changes.values())
    return plain([version for mine in ordered for version in intervals(mine, PAST, ["x", "y"])], kind)


def rows_of(table: Any, kind: str) -> list[str]:
    return plain(table.to_pylist(), kind)


def plain(rows: Iterable[dict[str, Any]], kind: str) -> list[str]:
    columns = NEWEST if kind == "newest" else VERSION
    return sorted(repr([(name, row[name]) for name in columns]) for row in rows)


@pytest.fixture
def place(workplace: Workplace, tmp_path: Path, postgres_url: str) -> Workplace:
    """Return a home with an empty database of each kind."""
    workplace.settings.databases.update(lite=f"sqlite:///{tmp_path / 'lite.db'}", post=postgres_url)
    return workplace


@pytest.mark.seed("AC1", "AC2", "AC3", "DL1")
@pytest.mark.parametrize(
    ("seed", "steps"), [(1, SHORT), *(pytest.param(seed, 24, marks=pytest.mark.slow) for seed in range(2, 8))]
)
def test_tables_and_databases_agree_with_a_dictionary_at_every_step(
    place: Workplace, inbox: Path, monkeypatch: pytest.MonkeyPatch, seed: int, steps: int
) -> None:
    draw, often = random.Random(seed), 1.0 if steps == SHORT else 0.4
    if seed % 2:  # tables lag
        monkeypatch.setattr(visible_tables, "PROMPT_BYTES", 0)
        monkeypatch.setattr(visible_tables, "_QUICK_SECONDS", -1.0)
        monkeypatch.setattr(visible_tables, "_WORK_PER_SECOND", 1e9)
    history = History(place, inbox, draw, log(draw, 3 * steps, truncates=0.05))
    for _ in range(steps):
        history.write(draw.choice([1, 2, 3]))
        history.run()
        history.check()
        if draw.random() < often:
            history.rewind()
            history.check()
        if draw.random() < often - 0.1:
            history.maintain()
            history.check()
