"""What left the code is listed, read, and dropped: a table with its history, a state, a whole region."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_hand import Counting, HandFed, Shown
from followed import follow
from left_sinks import fed, feed, left, place, rows_up_to
from test_former_sinks import _Uncounted, rewind

from drainmark.jobs import failpoints
from drainmark.jobs.errors import Fenced, ForeignTable, StateIncompatible, UnknownName, UsageError
from drainmark.jobs.protocol.claimed_code import Code
from drainmark.jobs.protocol.digest import digest_of, history_from
from drainmark.jobs.runtime.commit.removal.table_drops import table_id_of
from drainmark.jobs.runtime.commit.staged_group import StagedGroup
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.inspection.status import history_entries, statuses
from drainmark.orchestration.inspection.tables import tables_of_home
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs import orders
from drainmark.orchestration.verbs.removals.table_drops import drop_region, drop_table
from drainmark.orchestration.workplace.declaration import LEFT
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.checkpoints.as_of import reader_of
from drainmark.resources.checkpoints.region_store import examine
from drainmark.resources.delta import delta_tables

__all__ = ["fed", "left", "place"]


def dropped(fed: HandFed, table: str) -> dict[str, Any]:
    return dict(drop_table(fed.workplace, None, table, "no one reads it").act().facts)


def entries(fed: HandFed) -> dict[str, dict[str, Any]]:
    return {entry["table"]: entry for entry in tables_of_home(fed.workplace)}


@pytest.mark.seed("LC1")
def test_all_tables_are_listed_with_the_id_after_which_they_left(fed: Shown) -> None:
    found = entries(fed)
    assert (found["lake/kept"]["is_of_code"], found["lake/kept"]["rows"]) == (True, 12)
    assert found["lake/kept"]["last_sequence_id"] == 6
    copied = found["lake/copied"]
    assert (copied["is_of_code"], copied["left_after"], copied["rows"], copied["role"]) == (False, 4, 8, "sink")
    assert copied["bytes"] > 0
    assert copied["files"] > 0
    assert (found["state/by_hand/newest"]["role"], found["database/shop/rows"]["rows"]) == ("history", None)


@pytest.mark.seed("LC2")
@pytest.mark.parametrize("to", [2, 5])
def test_a_dropped_table_is_forgotten_by_rewinds_and_checks(fed: Shown, to: int) -> None:
    for name in ("copied", "newest"):
        assert all(each["is_deleted"] for each in dropped(fed, name)["tables"])
    lake = fed.workplace.home / "lake"
    assert not (lake / "copied").exists()
    assert not (fed.workplace.home / "state/by_hand/newest").exists(), "its history went with it"
    history = fed.history()
    assert {table.name for table in history.former} == {
        "database/shop/rows", "files/home/out", "state/by_hand/rows", "state/by_hand/files"
    }  # fmt: skip
    assert history.dropping == {}
    with pytest.raises(UnknownName):
        reader_of(fed.workplace.settings, "copied")
    planned = rewind(fed, to)
    assert not {"lake/copied", "lake/newest"} & set(planned)
    assert fed.values("kept") == rows_up_to(to)
    fed.drain()
    assert [value for _, value in fed.values("kept")] == [value for _, value in rows_up_to(6)]


@pytest.mark.seed("LC4")
def test_a_sink_outside_delta_is_only_released(fed: Shown) -> None:
    (shown, history) = dropped(fed, "rows")["tables"]
    assert (shown["is_deleted"], history["is_deleted"]) == (False, True)
    rewind(fed, 2)
    assert fed.shown("rows") == rows_up_to(4), "nobody takes its rows back any more"
    assert fed.shown("files") == rows_up_to(2)


@pytest.mark.seed("LC2")
def test_a_sink_that_comes_back_after_its_table_was_dropped_begins_anew(fed: Shown) -> None:
    dropped(fed, "copied")
    fed.names, fed.sinks = ("kept", "copied"), ()
    fed.write("g", ["g1"])
    fed.add("g")
    fed.drain()
    assert fed.values("copied") == [(7, "g1")]
    rewind(fed, 6)
    assert fed.values("copied") == []


@pytest.mark.seed("LC3")
@pytest.mark.parametrize("point", ["drop.noted", "drop.log_gone", "drop.deleted", "note.before_commit"])
def test_who_dies_while_a_table_is_dropped_leaves_it_to_the_next_owner(
    fed: Shown, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def crash(name: str, action: str) -> None:
        raise KeyboardInterrupt

    order = drop_table(fed.workplace, None, "newest", "no one reads it")
    second = ":2" if point == "note.before_commit" else ""  # the first note is the commit point itself
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_act", crash)
        failpoints.arm(f"{point}:raise{second}")
        with pytest.raises(KeyboardInterrupt):
            order.act()
    failpoints.arm("")
    history = fed.history()
    kept = history_from(digest_of(history), lambda *_: ())
    assert kept is not None
    assert kept.dropping == history.dropping
    if history.dropping:
        back = Shown(fed.workplace, fed.inbox, sinks=("newest",))
        with pytest.raises(StateIncompatible) as refused, back.owning():
            pass
        follow(str(refused.value), "tables", fed.workplace.home)
    with fed.owning():
        pass
    assert fed.history().dropping == {}
    assert "lake/newest" not in {table.name for table in fed.history().former}
    assert not (fed.workplace.home / "lake/newest").exists()
    rewind(fed, 2)
    assert fed.values("kept") == rows_up_to(2)


@pytest.mark.seed("LC3")
def test_who_was_stopped_in_between_deletes_nothing_that_came_since(
    fed: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = region_owner(fed.workplace, fed.region)
    stopped.claim()

    def meanwhile(name: str, action: str) -> None:
        failpoints.arm("")
        stopped.outside.lease.release(clean=False)
        fed.names = ("kept", "copied")
        with pytest.raises(StateIncompatible), fed.owning():
            pass
        fed.names = ("kept",)
        with fed.owning():
            pass
        fed.names = ("kept", "copied")
        fed.write("g", ["g1"])
        fed.add("g")
        fed.drain()

    monkeypatch.setattr(failpoints, "_act", meanwhile)
    failpoints.arm("drop.noted:raise")
    table_id = table_id_of(fed.workplace.tables / "lake/copied")
    with pytest.raises(Fenced):
        stopped.drops.drop({"lake/copied": table_id}, "stopped")
    assert fed.values("copied") == [(7, "g1")]


@pytest.mark.seed("LC4")
def test_what_is_still_needed_is_not_dropped(fed: Shown) -> None:
    for name, said in (("kept", "is of the code"), ("state/by_hand/newest", "is the history of lake/newest")):
        with pytest.raises(UsageError) as refused:
            drop_table(fed.workplace, None, name, "why not")
        assert said in refused.value.message
    follow(refused.value.remedy, "tables", fed.workplace.home)
    assert not (fed.workplace.home / "lake/newest").exists()
    with pytest.raises(UnknownName) as unknown:
        drop_table(fed.workplace, None, "copyed", "why not")
    assert "copied" in (unknown.value.remedy or "")


@pytest.mark.seed("LC4")
def test_a_table_that_came_in_place_of_a_deleted_one_is_left_alone(fed: Shown, tmp_path: Path) -> None:
    shutil.rmtree(fed.workplace.home / "lake" / "copied")
    other = HandFed(fed.workplace, tmp_path / "others", region="other/files", names=("copied",))
    feed(other, "xyz")
    before = other.values()
    (entry,) = drop_table(fed.workplace, fed.region, "copied", "").act().facts["tables"]
    assert not entry["is_deleted"]
    assert other.values() == before
    assert "lake/copied" not in {table.name for table in fed.history().former}


class Looking(Shown):
    """A region that looks up a table with every group."""

    def group(self, count: int) -> StagedGroup:
        return replace(super().group(count), lookups={"copied": 1})


@pytest.fixture
def looking(fed: Shown, tmp_path: Path) -> Looking:
    found = Looking(fed.workplace, tmp_path / "others", region="other/files", names=("read",), sinks=())
    for name in "xyz":
        found.write(name, [name])
    found.add("x", "y", "z")
    return found


@pytest.mark.seed("LC4")
@pytest.mark.parametrize("last", ["a skip", "a retraction", "a part of a group", "a skip behind a retraction"])
def test_a_table_that_is_looked_up_is_kept_whatever_came_last(fed: Shown, looking: Looking, last: str) -> None:
    if last == "a part of a group":
        looking.drain(3)
        rewind(looking, 2)
    else:
        looking.drain()
        looking.write("last", ["last"])
        looking.add("last")
    if "retraction" in last:
        orders.retract(fed.workplace, looking.region, [str(looking.inbox / "z")]).act()
    if "skip" in last:
        with looking.owning() as owner:
            owner.groups.skip(looking.next(1)[0], "unwanted")
    with pytest.raises(UsageError, match="other/files reads lake/copied"):
        drop_table(fed.workplace, None, "copied", "why not")


_ROWS = """
import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source({source})
def rows(scanned):
    return scanned

"""
_BEACON = _ROWS.format(source="dm.Beacon(rows=1, batches=1)")
_READ_BY = {
    "a source": _ROWS.format(source='dm.TableSource(table="copied")'),
    "a lookup": f"""{_BEACON}
copied = dm.lookup("copied", schema="value string")


@dm.functor
def both(rows, copied):
    return rows


dm.sink(both, dm.DeltaAppend("out"))
""",
}


@pytest.mark.seed("LC4")
@pytest.mark.parametrize("how", list(_READ_BY))
def test_a_table_that_code_reads_is_kept_although_it_never_ran(fed: Shown, tmp_path: Path, how: str) -> None:
    """The remedy, to take that out of the code, is enough."""
    code = tmp_path / "others.py"
    code.write_text(_READ_BY[how])
    fed.workplace = Workplace(fed.workplace.settings.model_copy(update={"applications": (str(code),)}))
    with pytest.raises(UsageError, match="others/rows reads lake/copied"):
        drop_table(fed.workplace, None, "copied", "why not")
    with pytest.raises(UsageError, match="others/rows reads tables of"):
        drop_region(fed.workplace, fed.region, "why not")
    code.write_text(_BEACON)
    assert all(each["is_deleted"] for each in dropped(fed, "copied")["tables"])


@pytest.mark.seed("LC4")
@pytest.mark.parametrize("whole", [False, True])
def test_a_table_in_a_folder_below_stays(
    fed: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, whole: bool
) -> None:
    lake = fed.workplace.home / "lake"
    others = HandFed(fed.workplace, tmp_path / "others", region="other/files", names=("copied/by/eu",))
    with monkeypatch.context() as patch:  # earlier releases made it
        patch.setattr(delta_tables, "around", lambda _: iter(()))
        feed(others, "xy")
    before = others.values()
    (drop_region(fed.workplace, fed.region, "old").act() if whole else dropped(fed, "copied"))
    assert others.values() == before
    assert [path.name for path in (lake / "copied").iterdir()] == ["by"], "all that was the table's is gone"
    feed(others, "z")
    assert [value for _, value in others.values()] == ["x1", "x2", "y1", "y2", "z1", "z2"]


@pytest.mark.seed("LC4")
@pytest.mark.parametrize("name", ["copied/eu", "kept/by/day"])
def test_no_table_is_made_inside_a_table(fed: Shown, tmp_path: Path, name: str) -> None:
    others = HandFed(fed.workplace, tmp_path / "others", region="other/files", names=(name,))
    store = fed.workplace.store(others.region)
    with pytest.raises(ForeignTable) as planned:
        examine(store, others.tables[0])
    with pytest.raises(ForeignTable) as refused:
        feed(others, "x")
    assert (planned.value.operator, refused.value.operator) == (others.tables[0].operator,) * 2
    assert not (fed.workplace.home / "lake" / name).exists()
    others.names = (name.replace("/", "_"),)
    feed(others, "x")
    assert others.values() == [(1, "x1"), (1, "x2")]


@pytest.mark.seed("LC2")
def test_the_state_goes_on_when_its_visible_table_is_dropped(place: Workplace, tmp_path: Path) -> None:
    fed: HandFed = Counting(place, tmp_path / "inbox")
    feed(fed, "ab")
    fed = _Uncounted(place, tmp_path / "inbox")
    feed(fed, "c")
    (entry,) = dropped(fed, "last")["tables"]
    assert entry == {"table": "lake/last", "is_deleted": True, "why": None}
    again = Counting(place, tmp_path / "inbox", code=Code(operators={"last": "1"}))
    feed(again, "d")
    assert again.values("last") == sorted((n, f"{name}{part}") for n, name in enumerate("abcd", 1) for part in (1, 2))


@pytest.mark.seed("LC2")
def test_the_verb_shows_its_plan_and_asks(fed: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    home = str(fed.workplace.home)
    assert invoke(["tables", "drop", "copied", "--home", home]) == 2
    assert "is deleted with all its rows" in capsys.readouterr().out
    assert fed.values("copied")
    assert invoke(["--home", home, "tables", "drop", "copied", "--yes", "--reason", "old"]) == 0
    assert not (fed.workplace.home / "lake/copied").exists()
    capsys.readouterr()
    assert invoke(["tables", "--left", "--json", "--home", home]) == 0
    assert "lake/copied" not in capsys.readouterr().out
    reasons = [entry["reason"] for entry in history_entries(fed.workplace, fed.region, everything=True)]
    assert "old" in reasons


# --- regions ----------------------------------------------------------------------------------------------------------


@pytest.mark.seed("LC5")
def test_a_region_that_left_the_code_is_told_and_dropped(fed: Shown, tmp_path: Path) -> None:
    place = fed.workplace
    other = HandFed(place, tmp_path / "others", region="by_hand/others", names=("others",))
    feed(other, "x")
    place.registry.save_cursor(fed.region, LEFT, "left")
    told = {entry["region"]: entry for entry in statuses(place)}
    assert (told[fed.region]["has_left"], told[other.region]["has_left"]) == (True, False)
    (remedy,) = told[fed.region]["remedies"]
    assert not entries(fed)["lake/kept"]["is_of_code"]
    follow(remedy, "tables", place.home)
    assert [entry["region"] for entry in statuses(place)] == [other.region]
    assert not (place.home / "lake/kept").exists()
    assert not (place.home / "checkpoints" / fed.region).exists()
    assert fed.shown("rows") == rows_up_to(4), "what is outside of Delta stays"
    assert other.values() == [(1, "x1"), (1, "x2")]


@pytest.mark.seed("LC3")
@pytest.mark.parametrize("point", ["drop.noted:raise", "drop.log_gone:raise:2", "drop.deleted:raise:7"])
def test_a_drop_of_a_region_that_died_goes_on(fed: Shown, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    def crash(name: str, action: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_act", crash)
        failpoints.arm(point)
        with pytest.raises(KeyboardInterrupt):
            drop_region(fed.workplace, fed.region, "old").act()
    failpoints.arm("")
    if (fed.workplace.home / "checkpoints" / fed.region / "_delta_log").exists():
        halt = fed.history().halt
        assert halt is not None, "no code goes on with what is left"
        follow(halt.detail["reason"], "tables", fed.workplace.home)
    else:
        drop_region(fed.workplace, fed.region, "old").act()
    assert statuses(fed.workplace) == []
    assert list((fed.workplace.home / "lake").iterdir()) == []


@pytest.mark.seed("LC5")
def test_a_dropped_region_can_begin_again(fed: Shown) -> None:
    drop_region(fed.workplace, fed.region, "old").act()
    again = HandFed(fed.workplace, fed.inbox)
    feed(again, "ab")
    assert again.values() == rows_up_to(2)
