"""Lagging tables, through crashes, rewinds, repairs and code that drops the table: commits by hand, without Spark."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from by_hand import Counting
from deltalake import DeltaTable

from drainmark.jobs import failpoints
from drainmark.jobs.runtime.commit.publish import visible_tables
from drainmark.jobs.runtime.commit.publish.visible_tables import VisibleTables
from drainmark.jobs.runtime.commit.staged_group import StagedTable
from drainmark.jobs.runtime.maintenance.compaction import maintain_region
from drainmark.orchestration.verbs import table_repair
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.checkpoints.as_of import RegionReader
from drainmark.resources.settings import Settings

STATE = "state/by_hand/last"
TABLE = "lake/last"


class Crash(Exception):
    """The end of an owner that records nothing more."""


class WithoutTable(Counting):
    """The same region after its upsert sink has left the code."""

    @property
    def tables(self) -> Any:
        return tuple(table for table in super().tables if table.name != TABLE)

    def group(self, count: int) -> Any:
        return dataclasses.replace(super().group(count), upserts=())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workplace]:
    found = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    yield found
    failpoints.arm("")
    found.registry.close()


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat each table as large and slow."""
    monkeypatch.setattr(visible_tables, "SMALL_BYTES", 0)
    monkeypatch.setattr(visible_tables, "_QUICK_SECONDS", -1.0)
    monkeypatch.setattr(visible_tables, "_WORK_PER_SECOND", 1e9)


def feed(fed: Any, first: int, *files: Any) -> None:
    for number, values in enumerate(files, first):
        fed.write(str(number), values)
        fed.add(str(number))


def expected(fed: Any, upto: int | None = None) -> list[tuple[int, str]]:
    """Return the expected table, computed in plain Python: the last id of each value."""
    last: dict[str, int] = {}
    for number, row in fed.history().states.items():
        if (upto is None or number <= upto) and row.kind.value == "state":
            last |= dict.fromkeys(Path(row.trigger_uri).read_text().splitlines(), number)
    return sorted((number, value) for value, number in last.items())


@pytest.mark.seed("H29")
@pytest.mark.parametrize("to", [2, *(pytest.param(to, marks=pytest.mark.slow) for to in (0, 4, 5))])
def test_a_table_that_left_the_code_gets_no_rows_of_ids_after_it(place: Workplace, tmp_path: Path, to: int) -> None:
    fed = Counting(place, tmp_path / "inbox")
    feed(fed, 1, "kl", "km", "ln", "ko")
    fed.drain()
    assert fed.history().lags == {TABLE: 1}
    later: Any = WithoutTable(place, tmp_path / "inbox")
    feed(later, 5, "kp", "lq")
    later.drain()
    assert later.history().lags == {}
    wanted = expected(later, min(to, 4))
    with later.owning() as owner:
        owner.rewind(to, 100)
    assert later.values("last") == wanted


@pytest.mark.seed("H29", "H7")
def test_a_repair_goes_by_what_is_committed(place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner died before it recorded that the table was brought up to date."""
    fed: Any = Counting(place, tmp_path / "inbox")
    feed(fed, 1, "kl", "km", "ln", "ko")
    with suppress(Crash), fed.owning():
        for _ in range(3):
            fed.process(1)
        monkeypatch.setattr(visible_tables, "_WORK_PER_SECOND", 0.0)
        fed.process(1)
        raise Crash
    assert (fed.history().lags, fed.values("last")) == ({TABLE: 1}, expected(fed))
    target = DeltaTable(place.home / TABLE)
    files = target.file_uris()
    target.delete("value = 'k'")
    for path in files:
        Path(path.removeprefix("file://")).unlink(missing_ok=True)
    table_repair.mend(place, fed.region)
    with fed.owning() as owner:
        owner.visible.bring_up_all()
    assert fed.values("last") == expected(fed)


@pytest.mark.seed("H29", "RT1")
def test_a_table_that_lags_behind_a_log_that_was_cut_is_no_damage(
    place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has the rows of its own last id, not those of the committed id."""
    fed: Any = Counting(place, tmp_path / "inbox")
    feed(fed, 1, "kl", "km")
    with monkeypatch.context() as quick:
        quick.setattr(visible_tables, "_WORK_PER_SECOND", 0.0)
        fed.drain()
    target = DeltaTable(place.home / TABLE)
    target.alter.set_table_properties({"custom.owner": "another"}, raise_if_not_exists=False)
    target.create_checkpoint()
    for entry in sorted((place.home / TABLE / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()
    feed(fed, 3, "ln", "ko", "kp")
    with suppress(Crash), fed.owning() as owner:
        for _ in range(3):
            fed.process(1)
        owner.ledger.note_published()
        raise Crash
    assert fed.history().lags[TABLE] == 2
    with fed.owning() as owner:
        owner.visible.bring_up_all()
    assert fed.values("last") == expected(fed)


@pytest.mark.seed("H29", "F6")
def test_where_stages_bring_rows_late_no_table_lags(place: Workplace, tmp_path: Path) -> None:
    """At id 4 the sink's stage is still at 3; the commit of id 5 brings the rows of both, and nothing is in flight."""
    fed: Any = Counting(place, tmp_path / "inbox")
    feed(fed, 1, "kl", "km", "ln", "xy", "kz")
    with fed.owning():
        for _ in range(3):
            fed.process(1)
        fed.owner.visible.bring_up_all()
        late = fed.group(1)
        tables = {"lake/kept": late.tables["lake/kept"], STATE: StagedTable(files=())}
        behind = dataclasses.replace(late, tables=tables, stages={"start": 4, "sink": 3})
        fed.owner.groups.publish(fed.owner.groups.commit(behind))
        last = fed.group(1)
        files = (*late.tables[STATE].files, *last.tables[STATE].files)
        tables = {"lake/kept": last.tables["lake/kept"], STATE: StagedTable(files=files)}
        fed.owner.groups.publish(fed.owner.groups.commit(dataclasses.replace(last, tables=tables)))
        assert fed.owner.ledger.lags == {}
    assert fed.values("last") == expected(fed)


@pytest.mark.seed("H29", "H7")
@pytest.mark.parametrize(
    ("seed", "rounds"), [(7, 5), *(pytest.param(seed, 12, marks=pytest.mark.slow) for seed in range(8))]
)
def test_any_history_of_lags_comes_to_the_plain_table(
    place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, rounds: int
) -> None:
    """Runs, crashes, rewinds and maintenance come in any order; a table lags or not, at random."""
    chance, original = random.Random(seed), VisibleTables.may_wait

    def may_wait(self: VisibleTables, table: Any, row: Any, manifest: Any) -> bool:
        monkeypatch.setattr(visible_tables, "_WORK_PER_SECOND", 1e9 if chance.random() < 0.7 else 0.0)
        return original(self, table, row, manifest)

    monkeypatch.setattr(VisibleTables, "may_wait", may_wait)
    fed: Any = Counting(place, tmp_path / "inbox")
    number, done = 0, []
    for _ in range(rounds):
        for _ in range(chance.randrange(4)):
            number += 1
            feed(fed, number, [chance.choice("abcdefgh") for _ in range(chance.randrange(4))])
        done.append(chance.choice(["run", "run", "crash", "rewind", "publish", "maintain", "fail"]))
        act(fed, done[-1], chance)
        rows = RegionReader(place.settings, fed.region).as_of("last").to_pylist()
        assert sorted((row["_sequence_id"], row["value"]) for row in rows) == expected(fed), done
    with fed.owning() as owner:
        owner.visible.bring_up_all()
    assert fed.values("last") == expected(fed), done


def act(fed: Any, what: str, chance: random.Random) -> None:
    """Own the region once, and do one action."""
    try:
        with fed.owning() as owner:
            if what == "rewind":
                oldest = owner.history.oldest_target(99)
                owner.rewind(chance.choice([0, *(each for each in owner.history.states if each >= oldest)]), 99)
            elif what == "publish":
                owner.visible.bring_up_all()
            elif what == "maintain":
                maintain_region(owner, horizon=chance.randrange(5))
            elif what == "fail":
                point = chance.choice(["publish.before_commit", "publish.after_commit"])
                failpoints.arm(f"{point}:raise:{chance.randrange(1, 5)}")
            registry, drains = fed.workplace.registry, what in ("run", "fail")
            while registry.pending_count(fed.region) and (drains or chance.random() < 0.6):
                fed.process(chance.randrange(1, 3))
            if what == "crash":
                raise Crash
    except (Crash, failpoints.InjectedFailure):
        pass
    failpoints.arm("")
    if what == "fail":
        with fed.owning():
            pass  # the next owner rolls forward
