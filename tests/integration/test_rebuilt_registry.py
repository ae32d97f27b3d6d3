"""A registry that does not fit the checkpoint table is refused; a rebuilt one knows each input as the lost one did."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from by_hand import HandFed
from simulation.scene import Scene
from simulation.setup import Setup
from sliced_by_hand import sliced
from sqlalchemy.exc import DatabaseError

from drainmark.jobs.errors import Fenced, RegistryLost
from drainmark.jobs.protocol.records.triggers import TriggerStatus
from drainmark.jobs.runtime.commit.rewind import RewindCommits
from drainmark.orchestration.doctor import registry_repair
from drainmark.orchestration.doctor.registry_repair import repair
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs import orders
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

CURSORS = """
import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("SELECT cursor FROM drainmark_cursor").fetchall())
"""


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[HandFed]:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    yield HandFed(place, tmp_path / "inbox")
    place.registry.close()


def drain(fed: HandFed, *names: str) -> None:
    for name in names:
        fed.write(name, [f"{name}1"])
    fed.add(*names)
    fed.drain()


def claim(fed: HandFed) -> None:
    with fed.owning():
        pass


def test_a_registry_without_the_end_of_the_last_group_gives_no_file_out_again(fed: HandFed) -> None:
    """A standby that took over lacks the last transaction: the file is pending there, and no later id is taken."""
    drain(fed, "a", "b")
    forget = "UPDATE drainmark_trigger SET status = 'pending', sequence_id = NULL WHERE sequence_id = 2"
    with sqlite3.connect(fed.workplace.home / "registry.db") as connection:
        assert connection.execute(forget).rowcount == 1
    with pytest.raises(RegistryLost, match="committed as 2"):
        claim(fed)
    assert fed.values() == [(1, "a1"), (2, "b1")]
    repair(fed.workplace)
    fed.drain()
    assert fed.values() == [(1, "a1"), (2, "b1")]


def test_a_service_may_open_the_new_registry_while_the_damaged_one_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is another file, which belongs to the new one: what the service writes stays."""
    file, rename = tmp_path / "home" / "registry.db", registry_repair._rename
    settings = Settings(home=file.parent, project_root=tmp_path, registry_url=f"sqlite:///{file}")
    service = Workplace(settings, is_service=True)
    service.registry.save_cursor("a/b", "one", "1")
    with closing(sqlite3.connect(file)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    file.write_bytes(b"no registry" * 1000)

    def then_write(path: Path, target: Path) -> None:
        rename(path, target)
        with suppress(DatabaseError):
            service.registry.save_cursor("a/b", "one", "7")

    monkeypatch.setattr(registry_repair, "_rename", then_write)
    place = Workplace(settings)
    assert repair(place) == []
    assert subprocess.check_output([sys.executable, "-c", CURSORS, str(file)], text=True) == "[('7',)]\n"
    for each in (place, service):
        each.registry.close()


def test_tables_of_an_older_backup_are_not_taken_for_the_newest(fed: HandFed, tmp_path: Path) -> None:
    """The registry has files as committed that the restored tables lack: no run would read them."""
    home, backup = fed.workplace.home, tmp_path / "backup"
    drain(fed, "a")
    for folder in ("checkpoints", "lake"):
        shutil.copytree(home / folder, backup / folder)
    drain(fed, "b")
    for folder in ("checkpoints", "lake"):
        shutil.rmtree(home / folder)
        shutil.copytree(backup / folder, home / folder)
    with pytest.raises(RegistryLost, match="older than the registry"):
        claim(fed)
    repair(fed.workplace)
    fed.add("b")
    fed.drain()
    assert [value for _, value in fed.values()] == ["a1", "b1"]


@pytest.mark.seed("FM-C2")
def test_two_registries_on_the_same_tables_do_not_let_two_owners_commit(fed: HandFed, tmp_path: Path) -> None:
    """Neither knows the lease of the other: the table alone decides."""
    drain(fed, "a")
    elsewhere = fed.workplace.settings.model_copy(update={"registry_url": f"sqlite:///{tmp_path / 'other.db'}"})
    other = HandFed(Workplace(elsewhere), fed.inbox)
    with pytest.raises(RegistryLost):
        claim(other)
    repair(other.workplace)
    fed.write("b", ["b1"])
    for each in (fed, other):
        each.add("b")

    def overtaken() -> None:
        with owning(region_owner(fed.workplace, fed.region)) as fed.owner:
            other.drain()
            fed.process(1)

    with pytest.raises(Fenced):
        overtaken()
    assert fed.values() == [(1, "a1"), (2, "b1")]
    other.workplace.registry.close()


def test_a_run_without_new_input_says_that_older_tables_were_restored(tmp_path: Path) -> None:
    scene = Scene(tmp_path, Setup(sinks=()), seed=0)
    [region] = scene.regions
    scene.put(region, ["a1"])
    scene.fresh(region).loop(1).run()
    shutil.copytree(scene.home / "checkpoints", tmp_path / "backup")
    scene.put(region, ["b1"])
    scene.fresh(region).loop(1).run()
    shutil.rmtree(scene.home / "checkpoints")
    shutil.copytree(tmp_path / "backup", scene.home / "checkpoints")
    with pytest.raises(RegistryLost, match="older than the registry"):
        scene.fresh(region).loop(1).run()
    scene.close()


def test_a_lost_input_gives_way_to_the_file_that_came_in_its_place(fed: HandFed) -> None:
    place = fed.workplace
    fed.write("a", ["a1"])
    fed.add("a")
    with fed.owning() as owner:
        (lost,) = fed.next(1)
        owner.halts.refuse([lost], "it is gone")
        place.registry.triggers.mark(fed.region, owner.epoch, [lost.id], TriggerStatus.MISSING, "it is gone")
    fed.write("a", ["a2", "a3"])
    fed.add("a")
    fed.drain()
    before = knowledge(fed)
    assert {status for _, status in before[1]} == {TriggerStatus.COMMITTED, TriggerStatus.MISSING}
    for file in place.home.glob("registry.db*"):
        file.unlink()
    place.registry.close()
    place._registry = None
    repair(place)
    assert knowledge(fed) == before


def knowledge(fed: HandFed) -> tuple[dict[str, str], list[tuple[str, TriggerStatus]]]:
    """Return the facts that a scan asks for, and each input with its status."""
    triggers = fed.workplace.registry.triggers
    inputs = triggers.by_uri(fed.region, str(fed.inbox / "a"))
    return triggers.known(fed.region), sorted((each.identity_key, each.status) for each in inputs)


# --- lost slices ------------------------------------------------------------------------------------------------------


def of_earlier_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rows of refused triggers have no place, as before 0.4."""
    refused = RewindCommits._refused
    monkeypatch.setattr(RewindCommits, "_refused", lambda *given: replace(refused(*given), trigger_order=None))


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize(("to", "first"), [(1, 5), (0, 3), (2, 7)])
def test_a_lost_slice_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: int, first: int, *, is_old: bool
) -> None:
    """The next slice begins at the end of the last one: no record comes twice, and none is left out."""
    fed = sliced(tmp_path, monkeypatch, 3)
    if is_old:
        of_earlier_releases(monkeypatch)
    for records in (0, 2, 2, 2):
        fed.came(records)
    fed.log.first = first
    fed.reset(to, accept_loss=True)
    fed.came(1)
    before = fed.known()
    assert "missing" in {status for _, _, status, _ in before}
    fed.repaired()
    assert fed.known() == before
    fed.came(3)
    kept = {0: 0, 1: 3, 2: 5}[to]
    assert sorted(map(int, fed.only_values())) == [*range(kept), *range(first, 13)]
    fed.workplace.registry.close()


@pytest.mark.parametrize("is_old", [False, True])
def test_new_files_are_read_behind_a_period_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_old: bool
) -> None:
    fed = sliced(tmp_path, monkeypatch)
    if is_old:
        of_earlier_releases(monkeypatch)
    fed.came(a="a\n", b="b\n")
    fed.came(c="c\n", d="d\n")
    for name in "cd":
        (fed.inbox / f"{name}.csv").unlink()
    fed.reset(1, accept_loss=True)
    before = fed.known()
    fed.repaired()
    assert fed.known() == before
    for name in "efg":
        fed.came(**{name: f"{name}\n"})
    assert fed.only_values() == ["a", "b", "e", "f", "g"]
    fed.workplace.registry.close()


@pytest.mark.parametrize(("to", "first"), [(1, 4), (1, 6), (0, 1), (2, 6)])
@pytest.mark.parametrize("is_committed", [False, True])
def test_slices_that_were_cut_anew_do_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: int, first: int, *, is_committed: bool
) -> None:
    """Retention takes records while withdrawn slices wait; `resume --accept-loss` cuts these anew."""
    fed = sliced(tmp_path, monkeypatch, 3)
    for records in (0, 2, 2):
        fed.came(records)
    fed.reset(to)
    fed.log.first = first
    orders.resume(fed.workplace, fed.region, "they are gone", accept_loss=True).act()
    if is_committed:
        fed.came(1)
    before = {each for each in fed.known() if each[2] == "committed"}
    assert set(fed.repaired()) <= {"committed"}, "nothing is pending"
    assert set(fed.known()) == before
    if to and not is_committed:  # the loss itself is no state yet: it is accepted once more
        orders.resume(fed.workplace, fed.region, "they are gone", accept_loss=True).act()
    fed.came(2)
    kept = {0: 0, 1: 3, 2: 5}[to]
    assert sorted(map(int, fed.only_values())) == [*range(kept), *range(first, 10 if is_committed else 9)]
    fed.workplace.registry.close()


def test_files_of_periods_that_were_cut_anew_are_queued_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = sliced(tmp_path, monkeypatch)
    fed.came(a="a\n")
    fed.came(b="b\n")
    fed.reset(1)
    with fed.owning() as owner:
        owner.halts.refuse(fed.next(1), "cut anew", anew=True)
    assert fed.repaired() == {"committed": 1}
    fed.came(c="c\n")
    assert fed.only_values() == ["a", "b", "c"]
    fed.workplace.registry.close()
