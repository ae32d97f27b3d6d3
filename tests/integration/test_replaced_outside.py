"""`backfill --again` on a sink in a database: old rows leave when the new rows come, and a rewind brings them back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_hand import Shown
from damages import DAMAGES

from drainmark.jobs.errors import AccountingError, ReplaceRefused
from drainmark.jobs.runtime.commit import commit_point
from drainmark.jobs.runtime.commit.replacement import stage_replaced
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.jobs.runtime.maintenance.compaction import drop_changes
from drainmark.orchestration.verbs.inputs.backfill import Wanted, plan_queue
from drainmark.orchestration.verbs.interventions import reset
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.checkpoints.as_of import RegionReader
from drainmark.resources.settings import Settings
from drainmark.resources.sinks.database_tables import DatabaseReader

Rows = list[tuple[int, str]]


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Shown]:
    databases = {"shop": "sqlite:///{home}/shop.db"}
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, databases=databases))
    scene = Shown(place, tmp_path / "inbox", sinks=("rows",))
    yield scene
    place.registry.close()


def add(fed: Shown, **files: str) -> None:
    for name, values in files.items():
        fed.write(name, values.split())
        fed.add(name)


def again(fed: Shown, pattern: str = "*") -> dict[str, Any]:
    return plan_queue(fed.workplace, fed.region, Wanted(pattern=str(fed.inbox / pattern), again=True)).carry_out(
        fed.workplace
    )


def database(fed: Shown) -> Rows:
    """Return the rows in the view of all other users."""
    with sqlite3.connect(fed.workplace.home / "shop.db") as connection:
        return sorted(connection.execute("SELECT _sequence_id, value FROM rows").fetchall())


def as_of(fed: Shown, name: str, at: int) -> Rows:
    rows = RegionReader(fed.workplace.settings, fed.region).as_of(name, at).to_pylist()
    return sorted((row["_sequence_id"], row["value"]) for row in rows)


def check(fed: Shown) -> None:
    """Assert that the database equals the append table beside it, now and at every id in force."""
    assert database(fed) == fed.values()
    for at in (0, *fed.history().states):
        assert as_of(fed, "rows", at) == as_of(fed, "kept", at), at


def rewind(fed: Shown, to: int) -> None:
    reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=to)), accept_loss=True)


@pytest.mark.seed("V148")
def test_the_rows_of_a_file_are_replaced_and_a_rewind_brings_them_back(fed: Shown) -> None:
    add(fed, a="a1 a2", b="b1", c="c1")
    fed.drain(3)
    fed.write("a", ["a3"])
    assert again(fed, "a")["replaced"] == 1
    fed.drain()
    assert database(fed) == [(2, "b1"), (3, "c1"), (4, "a3")]
    check(fed)
    rewind(fed, 3)
    assert database(fed) == [(1, "a1"), (1, "a2"), (2, "b1"), (3, "c1")]
    check(fed)
    fed.drain()
    check(fed)


@pytest.mark.seed("DX1", "V148")
@pytest.mark.parametrize(
    "damage", [pytest.param(name, marks=() if name == "cut" else pytest.mark.slow) for name in DAMAGES]
)
def test_withdrawn_rows_that_were_not_staged_as_they_were_written_are_not_committed(
    fed: Shown, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """A rewind would restore the rows from those files: a row that is lost there is lost."""
    add(fed, a="a1 a2 a3 a4", b="b1")
    fed.drain()
    fed.write("a", ["a5"])
    again(fed, "a")

    def damaged(*of: Any) -> Any:
        replaced = stage_replaced(*of)
        assert replaced is not None
        for table, files in replaced.files.items():
            DAMAGES[damage](fed.workplace.home / table / files[0].path)
            break
        return replaced

    with monkeypatch.context() as patched:
        patched.setattr(commit_point, "stage_replaced", damaged)
        with pytest.raises(AccountingError):
            fed.drain()
    assert fed.history().committed_id == 2
    fed.drain()
    assert database(fed) == [(2, "b1"), *((fed.history().committed_id, "a5"),)]
    rewind(fed, 2)
    assert database(fed) == [(1, "a1"), (1, "a2"), (1, "a3"), (1, "a4"), (2, "b1")]
    check(fed)


@pytest.mark.seed("H29", "V148")
def test_rows_that_the_history_was_trimmed_of_are_taken_from_the_database(
    fed: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(fed, a="a1 a2", b="b1", c="c1", d="d1")
    fed.drain()
    with fed.owning() as owner:
        drop_changes(owner, 3)
    assert fed.history().trimmed == {"state/by_hand/rows": 3}
    fed.write("a", ["a3"])
    again(fed, "[ab]")
    with monkeypatch.context() as watched:
        watched.delattr(DatabaseReader, "read")  # `read` reads all rows
        fed.drain()
    assert database(fed) == [(3, "c1"), (4, "d1"), (5, "a3"), (6, "b1")]
    assert as_of(fed, "rows", 4) == [(1, "a1"), (1, "a2"), (2, "b1"), (3, "c1"), (4, "d1")]
    rewind(fed, 5)
    assert database(fed) == [(2, "b1"), (3, "c1"), (4, "d1"), (5, "a3")]
    rewind(fed, 4)
    assert database(fed) == [(1, "a1"), (1, "a2"), (2, "b1"), (3, "c1"), (4, "d1")]
    check(fed)


class Halved(Shown):
    """A region whose sink has each group in two files: the first has the rows up to the middle of the group."""

    def group(self, count: int) -> StagedGroup:
        staged = super().group(count)
        name = "state/by_hand/rows"
        rows = staged.tables[name].rows
        assert rows is not None
        area = self.workplace.store(self.region).staging(name, staged.group.epoch, staged.group.attempt)
        half = rows.num_rows // 2
        files = (*area.write(rows.slice(0, half), "first"), *area.write(rows.slice(half), "second"))
        return replace(staged, tables={**staged.tables, name: replace(staged.tables[name], files=files)})


@pytest.mark.seed("H29", "V148")
def test_rows_of_an_id_that_is_trimmed_in_part_are_all_taken_from_the_database(fed: Shown) -> None:
    """The history was cut in the middle of the id: what is left of its rows there is not all of them."""
    halved = Halved(fed.workplace, fed.inbox, sinks=("rows",))
    add(halved, a="a1", b="b1 b2", c="c1")
    halved.drain(3)
    with halved.owning() as owner:
        drop_changes(owner, 2)
    assert halved.history().trimmed == {"state/by_hand/rows": 2}
    again(halved, "b")
    halved.drain()
    assert database(halved) == [(1, "a1"), (3, "c1"), (4, "b1"), (4, "b2")]
    check(halved)
    rewind(halved, 3)
    assert database(halved) == [(1, "a1"), (2, "b1"), (2, "b2"), (3, "c1")]


def test_a_row_that_must_be_unique_may_come_again_with_its_file(fed: Shown) -> None:
    """The old rows are out of the way when the new rows are checked."""
    add(fed, a="a1")
    fed.drain()
    with sqlite3.connect(fed.workplace.home / "shop.db") as connection:
        connection.execute("CREATE UNIQUE INDEX only_once ON rows (value)")
    target = fed.workplace.store(fed.region).external(fed.of("rows")[1])
    rows = target.read().set_column(1, "_sequence_id", [[2]])
    assert target.breach([rows]) is not None
    assert target.breach([rows], replaced=[1]) is None
    again(fed)
    fed.drain()
    assert database(fed) == [(2, "a1")]


@pytest.mark.parametrize(("sink", "why"), [("files", "none comes back"), ("newest", "newest trigger")])
def test_sinks_that_cannot_bear_it_say_why(fed: Shown, sink: str, why: str) -> None:
    fed.sinks = ("rows", sink)
    add(fed, a="a1", b="b1")
    fed.drain()
    with pytest.raises(ReplaceRefused) as refused:
        again(fed, "b")
    assert why in refused.value.message
    assert refused.value.operator == sink
    assert f"drainmark reset {fed.region} --to 1" in (refused.value.remedy or "")
