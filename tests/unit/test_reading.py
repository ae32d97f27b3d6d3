"""`show --at` and `dm.read`: any table at any state in force, from any kind of file; without Spark."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from by_hand import Counting, HandFed

import drainmark as dm
from drainmark.jobs.errors import RewindRefused, UnknownName
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs import interventions
from drainmark.orchestration.verbs.inputs.backfill import Wanted, plan_queue
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

FILES = {"one": ["a", "b"], "two": ["b"], "three": ["c", "b"], "four": ["d"]}


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Counting]:
    """Yield a region that processed four files in groups of three and one."""
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    scene = Counting(place, tmp_path / "inbox")
    for name, values in FILES.items():
        scene.write(name, values)
    scene.add(*FILES)
    scene.drain(3)
    yield scene
    place.registry.close()


def read(fed: HandFed, table: str, at: int | None = None) -> list[tuple[int, str]]:
    found = dm.read("by_hand", table, at=at, home=str(fed.workplace.home)).to_pylist()
    return sorted((row["_sequence_id"], row["value"]) for row in found)


def rows_at(at: int) -> list[tuple[int, str]]:
    return sorted((n, v) for n, values in enumerate(FILES.values(), 1) if n <= at for v in values)


def last_at(at: int) -> list[tuple[int, str]]:
    newest = {value: number for number, value in rows_at(at)}
    return sorted((number, value) for value, number in newest.items())


@pytest.mark.seed("V72", "V89")
def test_every_table_answers_for_every_id_also_inside_a_group(fed: Counting) -> None:
    for at in range(5):
        assert read(fed, "kept", at) == rows_at(at)
        assert read(fed, "last", at) == last_at(at)
        assert read(fed, "state/by_hand/last", at) == sorted(set(rows_at(at)))
        assert read(fed, "lake/last", at) == last_at(at), "a path below home is a name, too"
    assert (read(fed, "kept"), read(fed, "last")) == (rows_at(4), last_at(4))


@pytest.mark.seed("X4")
def test_a_group_that_is_committed_and_not_published_is_part_of_the_answer(fed: Counting) -> None:
    fed.write("five", ["a", "e"])
    fed.add("five")
    fed.owner = region_owner(fed.workplace, fed.region)
    fed.owner.claim(fed.tables)
    fed.owner.groups.commit(fed.group(1))
    fed.owner.leave()
    assert read(fed, "kept") == [*rows_at(4), (5, "a"), (5, "e")]
    assert read(fed, "last") == sorted([*(row for row in last_at(4) if row[1] != "a"), (5, "a"), (5, "e")])
    assert (read(fed, "kept", 4), read(fed, "last", 4)) == (rows_at(4), last_at(4))
    assert fed.values() == rows_at(4), "what others see of the Delta table is what was published"


def test_after_a_rewind_only_the_ids_in_force_have_states(fed: Counting) -> None:
    plan = plan_reset(fed.workplace, fed.region, RewindTarget(to=2))
    interventions.reset(fed.workplace, plan)
    assert fed.steps_done() == plan.steps, "what was shown is what was done"
    assert (read(fed, "kept"), read(fed, "last")) == (rows_at(2), last_at(2))
    assert read(fed, "last", 1) == last_at(1)
    with pytest.raises(RewindRefused) as refused:
        read(fed, "kept", 3)
    assert refused.value.facts["nearest"] == 2
    fed.drain(2)
    assert fed.history().committed_id == 7, "5 is the rewind's, 3 and 4 are gone for good"
    assert [value for _, value in read(fed, "kept", 6)] == ["a", "b", "b", "b", "c"]


def test_a_compacted_table_answers_as_before(fed: Counting) -> None:
    for name in ("five", "six"):
        fed.write(name, [name])
        fed.add(name)
    fed.drain()
    store = fed.workplace.store(fed.region)
    with fed.owning() as owner:
        for name in ("lake/kept", "state/by_hand/last"):
            table = store.table(name)
            assert table.upkeep.compact(
                table.txn_version() or 0, store.staging(name, owner.epoch, "c"), files_at_least=2
            )
    for at in range(5):
        assert (read(fed, "kept", at), read(fed, "last", at)) == (rows_at(at), last_at(at))


def test_rows_that_were_replaced_and_collected_since_are_refused_not_left_out(tmp_path: Path) -> None:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    scene = HandFed(place, tmp_path / "inbox")
    scene.write("a", ["1"])
    scene.add("a")
    scene.drain()
    plan_queue(place, scene.region, Wanted(pattern=str(scene.inbox / "a"), again=True)).carry_out(place)
    scene.drain()
    assert read(scene, "kept", 1) == [(1, "1")]
    kept = place.store(scene.region).table("lake/kept")
    shown = {place.home / "lake" / "kept" / file.path for file in kept.files.live()}
    for path in {*(place.home / "lake" / "kept").rglob("*.parquet")} - shown:
        path.unlink()
    with pytest.raises(RewindRefused) as refused:
        read(scene, "kept", 1)
    assert refused.value.facts["nearest"] == 2
    assert read(scene, "kept", 2) == [(2, "1")]
    place.registry.close()


def test_unknown_names_and_ids_name_the_nearest(fed: Counting) -> None:
    for region, table in (("by_hnad", "kept"), ("by_hand", "kepd")):
        with pytest.raises(UnknownName) as unknown:
            dm.read(region, table, home=str(fed.workplace.home))
        assert "did you mean" in (unknown.value.remedy or "")
    with pytest.raises(RewindRefused) as refused:
        read(fed, "kept", 9)
    assert refused.value.facts["nearest"] == 4


def test_a_home_in_which_nothing_ran_is_said_to_be_empty(tmp_path: Path) -> None:
    for ask in (
        lambda: dm.read("app", "counts", home=str(tmp_path)),
        lambda: dm.changes("counts", after=0, home=str(tmp_path)),
    ):
        with pytest.raises(UnknownName, match=f"no region has run in {tmp_path} yet") as empty:
            ask()
        assert "--home" in (empty.value.remedy or "")


def test_show_takes_a_limit_and_says_what_it_left_out(fed: Counting, capsys: pytest.CaptureFixture[str]) -> None:
    def show(*arguments: str) -> Any:
        capsys.readouterr()
        assert invoke(["show", *arguments, "--home", str(fed.workplace.home)]) == 0
        return capsys.readouterr().out

    assert len(json.loads(show("kept", "--json"))) == 6
    assert len(json.loads(show("kept", "--at", "1", "--json"))) == 2
    assert len(json.loads(show("kept", "--limit", "2", "--json"))) == 2
    assert "2 of 6 rows: --limit 6 shows all" in show("kept", "--limit", "2")
    assert "_sequence_id" in show("kept", "--at", "0"), "no row still has columns"


def test_a_state_is_named_by_its_id_its_file_or_a_time(fed: Counting, capsys: pytest.CaptureFixture[str]) -> None:
    """As `reset --to`, `--to-file` and `--to-time` name it."""

    def read(*arguments: str) -> Any:
        capsys.readouterr()
        assert invoke([*arguments, "--json", "--home", str(fed.workplace.home)]) == 0
        return json.loads(capsys.readouterr().out)

    entry = next(each for each in read("history", fed.region) if each["sequence_id"] == 3)
    before = dt.datetime.fromisoformat(entry["committed_at"]) - dt.timedelta(seconds=1)
    uri = entry["trigger"]
    for name in ("3", uri, Path(uri).name, entry["committed_at"]):
        assert read("show", "kept", "--at", name) == read("show", "kept", "--at", "3"), name
        behind = read("changes", "kept", "--after", name)
        assert behind == read("changes", "kept", "--after", "3"), name
        assert behind, name
        assert read("changes", "kept", "--after", "0", "--through", name) != behind, name
    assert read("show", "kept", "--at", before.isoformat()) == []
    capsys.readouterr()
    assert invoke(["show", "kept", "--at", "no-such-file", "--home", str(fed.workplace.home)]) != 0
    assert "no state in force was made from 'no-such-file'" in capsys.readouterr().err


def test_the_tables_of_an_application_are_those_of_all_its_regions(tmp_path: Path) -> None:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    for name in ("left", "right"):
        fed = HandFed(place, tmp_path / name, region=f"pair/{name}", names=(f"{name}_rows",))
        fed.write("a.txt", ["1"])
        fed.add("a.txt")
        fed.drain()
    HandFed(place, tmp_path / "other", region="pairs/other", names=("others",)).drain()
    place.registry.close()
    home = str(place.home)
    tables = {(each["region"], each["table"]) for each in dm.tables("pair", home=home)}
    assert tables == {("pair/left", "lake/left_rows"), ("pair/right", "lake/right_rows")}
    assert [each["table"] for each in dm.tables("pair/right", home=home)] == ["lake/right_rows"]
    assert len(dm.tables(home=home)) == 3
    with pytest.raises(UnknownName):
        dm.tables("pai", home=home)
