"""Lagging tables, through repairs, cut logs, full disks and code that drops the table, without Spark."""

from __future__ import annotations

import dataclasses
import datetime as dt
import errno
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from by_hand import Counting
from deltalake import DeltaTable
from harness import At
from simulation.scene import Scene
from simulation.setup import Setup
from simulation.verbs import Act, run

from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.runtime.commit.publish import visible_tables
from drainmark.jobs.runtime.commit.staged_group import StagedTable
from drainmark.jobs.world import Seam, World, entered
from drainmark.orchestration.dagster_jobs.sensors import needs_recovery
from drainmark.orchestration.verbs import table_repair
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

T = TypeVar("T")
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
    found.registry.close()


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat each table as large and slow."""
    monkeypatch.setattr(visible_tables, "PROMPT_BYTES", 0)
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
def test_a_repair_goes_by_what_is_committed(place: Workplace, tmp_path: Path) -> None:
    """The owner died before it recorded that the table was brought up to date."""
    fed: Any = Counting(place, tmp_path / "inbox")
    feed(fed, 1, "kl", "km", "ln", "ko")
    with suppress(Crash), fed.owning():
        for _ in range(3):
            fed.process(1)
        fed.owner.visible.work_per_second = 0.0
        fed.process(1)
        raise Crash
    assert (fed.history().lags, fed.values("last")) == ({TABLE: 1}, expected(fed))
    damage(place)
    table_repair.mend(place, fed.region)
    with fed.owning() as owner:
        owner.visible.bring_up_all()
    assert fed.values("last") == expected(fed)


def damage(place: Workplace) -> None:
    """Let another program delete rows of the table, and the files that had them."""
    target = DeltaTable(place.home / TABLE)
    files = target.file_uris()
    target.delete("value = 'k'")
    for path in files:
        Path(path.removeprefix("file://")).unlink(missing_ok=True)


@pytest.mark.seed("H29", "H7")
@pytest.mark.parametrize("to", [1, 2])
def test_a_rewind_to_the_id_that_a_repaired_table_showed_takes_later_rows_out(
    place: Workplace, tmp_path: Path, to: int
) -> None:
    """The repair of a table that lags shows the committed id: its version is not the one to put back."""
    fed: Any = Counting(place, tmp_path / "inbox")
    feed(fed, 1, "kl", "km", "ln", "ko")
    with suppress(Crash), fed.owning() as owner:
        for _ in range(4):
            fed.process(1)
        owner.ledger.note_published()
        raise Crash
    assert fed.history().lags == {TABLE: 1}
    damage(place)
    table_repair.mend(place, fed.region)
    assert fed.values("last") == expected(fed)
    wanted = expected(fed, to)
    with fed.owning() as owner:
        owner.rewind(to, 100)
    assert fed.values("last") == wanted


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


class FullDisk(World):
    """A world in which a table cannot be written."""

    def across(self, seam: Seam, deed: Callable[[], T], on: object = None) -> T:
        if seam is Seam.DELTA_COMMIT and str(getattr(on, "uri", on)).endswith("lake/last0"):
            raise OSError(errno.ENOSPC, "no space left")
        return deed()


def runs_started_in_a_day(behind: RegionHistory) -> int:
    """Return how many runs a sensor with a tick each half minute starts, if none can bring up the table."""
    claim, started = behind.last_claim, 0
    assert claim is not None
    for seconds in range(0, 86_400, 30):
        tick = claim.recorded_at + dt.timedelta(seconds=seconds)
        with entered(At(tick.timestamp())):
            if needs_recovery(behind):
                started += 1
                behind = dataclasses.replace(behind, last_claim=dataclasses.replace(claim, recorded_at=tick))
    return started


def test_a_table_that_a_run_could_not_bring_up_does_not_wait_for_more_input(tmp_path: Path) -> None:
    scene = Scene(tmp_path, Setup(sinks=("upsert",), lag=1e9), seed=1)
    act = Act(scene=scene, fed=scene.fresh("sim/r0"), draw=random.Random(1))
    scene.put("sim/r0", ["k"])
    run(act)
    scene.put("sim/r0", ["l"])
    with entered(FullDisk()):
        run(act)
    behind = act.fed.history()
    run(act)
    assert (behind.lags, act.fed.history().lags) == ({"lake/last0": 1}, {})
    assert not needs_recovery(behind), "a sensor does not start one run after the other"
    assert runs_started_in_a_day(behind) in range(25, 35), "a minute later, two, four, and then once an hour"
    scene.close()


def test_a_run_whose_regions_take_turns_does_not_claim_one_each_turn_for_such_a_table(tmp_path: Path) -> None:
    scene = Scene(tmp_path, Setup(sinks=("upsert",), lag=1e9), seed=1)
    fed = scene.fresh("sim/r0")
    turn = fed.loop(1)
    scene.put("sim/r0", ["k"])
    turn.run()
    scene.put("sim/r0", ["l"])
    with entered(FullDisk()):
        turn.run()
        lagging = fed.history()
        turn.run()
    assert (lagging.lags, fed.history().epoch) == ({"lake/last0": 1}, lagging.epoch)
    scene.close()
