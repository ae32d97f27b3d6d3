"""A sink that was removed from the code: a rewind reaches its rows, or is refused and names the sink (H4, V147)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from by_hand import Counting, HandFed, Imaged, Shown
from followed import follow
from left_sinks import fed, feed, left, place, rows_up_to

from drainmark.jobs import failpoints
from drainmark.jobs.errors import RewindRefused, StateIncompatible, UnknownName
from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.runtime.commit.publish import visible_tables
from drainmark.jobs.runtime.maintenance.compaction import maintain_region
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs.interventions import reset
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.checkpoints.as_of import RegionReader, reader_of
from drainmark.resources.settings import Settings

__all__ = ["fed", "left", "place"]

SINKS = ("rows", "files", "newest")


def rewind(fed: HandFed, to: int) -> dict[str, int]:
    plan = plan_reset(fed.workplace, fed.region, RewindTarget(to=to))
    reset(fed.workplace, plan)
    assert fed.steps_done() == plan.steps, "what was shown is what was done"
    return dict(plan.rows)


def assert_at(fed: Shown, to: int) -> None:
    """Assert that all sinks agree, those that are declared and those that were."""
    wanted = rows_up_to(to)
    last = min(to, 4)
    assert fed.values("kept") == wanted
    assert fed.values("copied") == fed.shown("rows") == fed.shown("files") == rows_up_to(last)
    assert fed.shown("newest") == [row for row in wanted if row[0] == last]


@pytest.mark.seed("H4", "V147")
@pytest.mark.parametrize("to", [2, *(pytest.param(to, marks=pytest.mark.slow) for to in (0, 3, 5))])
def test_a_rewind_takes_sinks_along_that_left_the_code(fed: Shown, to: int) -> None:
    left = 2 * (4 - min(to, 4))
    planned = rewind(fed, to)
    assert_at(fed, to)
    assert planned["lake/kept"] == 2 * (6 - to)
    assert {name: planned[name] for name in ("lake/copied", "database/shop/rows", "files/home/out")} == {
        "lake/copied": left, "database/shop/rows": left, "files/home/out": left
    }  # fmt: skip
    assert planned["lake/newest"] == (2 if to < 4 else 0)


def test_a_sink_that_left_the_code_is_read_up_to_there(fed: Shown) -> None:
    def read(name: str, at: int | None = None) -> list[tuple[int, str]]:
        found = reader_of(fed.workplace.settings, name).as_of(name, at)
        return sorted((row["_sequence_id"], row["value"]) for row in found.to_pylist())

    names = ("copied", "rows", "out")
    for name in names:
        assert (read(name), read(name, 2)) == (rows_up_to(4), rows_up_to(2))
        with pytest.raises(RewindRefused) as refused:
            read(name, 6)
        assert refused.value.facts["nearest"] == 4
    rewind(fed, 3)
    fed.drain()
    assert {name: read(name) for name in names} == dict.fromkeys(names, rows_up_to(3))


def test_a_table_that_was_deleted_after_it_left_the_code_is_unknown(fed: Shown) -> None:
    shutil.rmtree(fed.workplace.home / "lake" / "copied")
    with pytest.raises(UnknownName):
        RegionReader(fed.workplace.settings, fed.region).now("copied")


@pytest.mark.seed("H4")
def test_a_sink_that_comes_back_has_no_rows_of_ids_that_were_withdrawn(fed: Shown) -> None:
    rewind(fed, 2)
    fed.names, fed.sinks = ("kept", "copied"), SINKS
    fed.drain()
    assert fed.values("copied") == fed.values("kept") == fed.shown("rows") == fed.shown("files")
    assert [value for _, value in fed.values("copied")] == [value for _, value in rows_up_to(6)]


@pytest.mark.seed("H3", "H4")
@pytest.mark.parametrize(
    ("table", "when"),
    [
        pytest.param(table, when, marks=() if (table, when) in ((1, "before"), (4, "after")) else pytest.mark.slow)
        for table in range(1, 9) for when in ("before", "after")
    ],
)  # fmt: skip
def test_a_rewind_that_dies_between_tables_is_finished_by_the_next_owner(
    fed: Shown, monkeypatch: pytest.MonkeyPatch, table: int, when: str
) -> None:
    def crash(name: str, action: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_act", crash)
        failpoints.arm(f"rewind_table.{when}_commit:raise:{table}")
        with pytest.raises(KeyboardInterrupt):
            _owned_rewind(fed)
    failpoints.arm("")
    if table == 1:  # deleted between the commit point and its own turn
        shutil.rmtree(fed.workplace.home / "lake" / "copied")
    with fed.owning():
        pass
    assert not fed.history().rewinding
    if table > 1:
        assert_at(fed, 2)


def test_what_was_deleted_or_given_away_since_is_passed_over(fed: Shown, tmp_path: Path) -> None:
    lake = fed.workplace.home / "lake"
    shutil.rmtree(lake / "copied")
    shutil.rmtree(fed.workplace.home / "out")
    (fed.workplace.home / "shop.db").unlink()
    other = HandFed(fed.workplace, tmp_path / "others", region="other/files", names=("copied",))
    feed(other, "xyz")
    before = other.values()
    planned = rewind(fed, 1)
    assert not {"lake/copied", "files/home/out", "database/shop/rows"} & set(planned)
    assert other.values() == before
    assert fed.values("kept") == rows_up_to(1)
    assert fed.shown("newest") == rows_up_to(1)


@pytest.mark.seed("X6")
def test_a_database_that_cannot_be_opened_refuses_the_rewind_and_says_what_to_do(fed: Shown, tmp_path: Path) -> None:
    def elsewhere(databases: dict[str, str]) -> Workplace:
        return Workplace(Settings(home=fed.workplace.home, project_root=tmp_path, databases=databases))

    without = elsewhere({})
    for attempt in (
        lambda: plan_reset(without, fed.region, RewindTarget(to=2)),
        lambda: _owned_rewind(Shown(without, fed.inbox, names=("kept",), sinks=())),
    ):
        with pytest.raises(RewindRefused) as refused:
            attempt()
        assert "database/shop/rows" in refused.value.message
        assert "DRAINMARK_DATABASES__SHOP" in (refused.value.remedy or "")
    assert fed.history().rewinds == ()
    without.registry.close()
    empty = elsewhere({"shop": "sqlite:///{home}/empty.db"})
    reset(empty, plan_reset(empty, fed.region, RewindTarget(to=2)))
    empty.registry.close()
    assert fed.values("kept") == fed.shown("files") == rows_up_to(2)


def _owned_rewind(fed: HandFed) -> None:
    with fed.owning() as owner:
        owner.rewind(2, 10_000)


def test_a_visible_table_whose_history_is_gone_refuses_the_rewind(fed: Shown) -> None:
    shutil.rmtree(fed.workplace.home / "state" / "by_hand" / "newest")
    with pytest.raises(RewindRefused) as refused:
        plan_reset(fed.workplace, fed.region, RewindTarget(to=2))
    assert "lake/newest" in (refused.value.remedy or "")
    shutil.rmtree(fed.workplace.home / "lake" / "newest")
    rewind(fed, 2)
    assert fed.values("copied") == rows_up_to(2)


class _Uncounted(Counting):
    """A region that still has the state, but not its visible table: that has left the code."""

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        return tuple(table for table in super().tables if table.name != "lake/last")

    def group(self, count: int) -> Any:
        staged = super().group(count)
        return type(staged)(group=staged.group, rows_in=staged.rows_in, tables=staged.tables, lookups={},
                            process_seconds=0.0, drain_seconds=0.0)  # fmt: skip


@pytest.mark.parametrize("to", [2, *(pytest.param(to, marks=pytest.mark.slow) for to in (0, 1, 3))])
def test_the_table_of_a_state_that_goes_on_without_it(place: Workplace, tmp_path: Path, to: int) -> None:
    """After the rewind, keys that changed before or after the sink left have the rows of the target id."""
    changes = [["k", "l"], ["k", "m"], ["l", "n"], ["k", "l", "m", "o"]]
    fed = Counting(place, tmp_path / "inbox")
    for number, values in enumerate(changes):
        if number == 2:
            fed = _Uncounted(place, tmp_path / "inbox")
        fed.write(str(number), values)
        fed.add(str(number))
        fed.drain()
    last: dict[str, int] = {}
    for number, values in enumerate(changes[: min(to, 2)], 1):
        last |= dict.fromkeys(values, number)
    rewind(fed, to)
    assert fed.values("last") == sorted((number, value) for value, number in last.items())


# --- code that changed while something was to be published --------------------------------------------------------


def later_without(place: Workplace, root: Path, *, is_lagging: bool) -> tuple[HandFed, str]:
    """Return a region that lost a sink from its code while the sink's table was behind, and the name of that table."""
    fed: HandFed = (
        Counting(place, root / "inbox") if is_lagging else HandFed(place, root / "inbox", names=("kept", "copied"))
    )
    for number, values in enumerate(["kl", "km", "ln"]):
        fed.write(str(number), list(values))
        fed.add(str(number))
    fed.crash_after(3)
    later: HandFed = _Uncounted(place, root / "inbox") if is_lagging else HandFed(place, root / "inbox")
    later.write("later", ["p"])
    later.add("later")
    return later, "last" if is_lagging else "copied"


@pytest.mark.seed("H4", "H29")
@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("is_lagging", [False, True])
def test_a_table_that_left_the_code_and_is_gone_holds_nothing_up(
    place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_lagging: bool, is_taken: bool
) -> None:
    """The owner was killed before it published to the table. Then somebody deleted it, or made another of its name."""
    monkeypatch.setattr(visible_tables, "PROMPT_BYTES", 0)
    monkeypatch.setattr(visible_tables, "_QUICK_SECONDS", -1.0)
    monkeypatch.setattr(visible_tables, "_WORK_PER_SECOND", 1e9)
    later, name = later_without(place, tmp_path, is_lagging=is_lagging)
    assert later.history().lags if is_lagging else later.history().unpublished
    shutil.rmtree(place.home / "lake" / name)
    other = HandFed(place, tmp_path / "others", region="other/files", names=(name,))
    if is_taken:
        with other.owning():
            pass
    later.drain()
    assert later.values("kept")[-1] == (4, "p")
    assert later.history().lags == {}
    rewind(later, 1)
    assert later.values("kept") == [(1, "k"), (1, "l")]
    if is_taken:
        feed(other, "x")
        assert other.values() == [(1, "x1"), (1, "x2")]


def place_of(fed: HandFed) -> Any:
    return fed.workplace.store(fed.region)


@pytest.mark.seed("H4")
def test_a_state_that_left_the_code_and_is_gone_keeps_no_rewind_from_going(place: Workplace, tmp_path: Path) -> None:
    fed = Imaged(place, tmp_path / "inbox")
    for number, values in enumerate(["kl", "km", "ln", "ko"]):
        fed.write(str(number), list(values))
        fed.add(str(number))
    fed.drain()
    with fed.owning() as owner:
        maintain_region(owner, horizon=1)
    assert fed.history().dropped
    later = HandFed(place, tmp_path / "inbox")
    feed(later, "pq")
    shutil.rmtree(place.home / "lake" / "last")
    shutil.rmtree(place.home / "state" / "by_hand" / "last")
    rewind(later, 5)
    assert later.values("kept")[-1] == (5, "p2")


class _OtherHistory(Counting):
    """A region with a sink that reads a history of another name: for example, the operator before it was renamed."""

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        rows, state, shown = super().tables
        other = replace(state, name="state/by_hand/renamed", operator="renamed")
        return (rows, other, replace(shown, history=other.name))


@pytest.mark.seed("H4", "V147")
def test_rows_do_not_change_their_history(place: Workplace, tmp_path: Path) -> None:
    """A rewind would replace the sink's rows by those of the new history, which has none."""
    fed = Counting(place, tmp_path / "inbox")
    feed(fed, "ab")
    other = _OtherHistory(place, tmp_path / "inbox")
    with pytest.raises(StateIncompatible) as refused, other.owning():
        pass
    assert "state/by_hand/renamed" in refused.value.message
    assert f'keep its state by name="{fed.tables[1].operator}"' in (refused.value.remedy or "")
    assert fed.history().epoch == 1, "nothing was claimed"
    follow(str(refused.value), "reset", place.home)
    with other.owning():
        pass
    assert (other.values(), place.registry.pending_count(fed.region)) == ([], 2), "both files are processed again"


def claim(fed: HandFed, tables: Sequence[RegionTable]) -> None:
    owner = region_owner(fed.workplace, fed.region)
    owner.claim(tables)
    owner.release(Outcome.CLEAN)


@pytest.mark.seed("H4", "V147")
def test_rows_do_not_change_their_role(place: Workplace, tmp_path: Path) -> None:
    """A rewind would only remove later rows, and bring back none of those that were overwritten."""
    fed = Shown(place, tmp_path / "inbox", sinks=("newest",))
    feed(fed, "ab")
    kept, history, newest = fed.tables
    other = (kept, history, replace(newest, role=TableRole.APPEND, history=None, columns=()))
    with pytest.raises(StateIncompatible, match="came by overwrite, and would go on by append"):
        claim(fed, other)
    rewind(fed, 0)
    claim(fed, other)


@pytest.mark.seed("H4", "V147")
def test_a_folder_with_files_keeps_their_format_layout_and_names(place: Workplace, tmp_path: Path) -> None:
    """A rewind would not find the earlier files, and they would stay beside those of the new ids."""
    fed = Shown(place, tmp_path / "inbox", sinks=("files",))
    feed(fed, "ab")
    kept, history, files = fed.tables
    claim(fed, (kept, history, replace(files, options={**files.options, "path": "{home}//out/", "every_id": True})))
    changes = ({"format": "csv"}, {"layout": "folder"}, {"name": "{sequence_id}"}, {"path": "home/out"})
    others = [(kept, history, replace(files, options={**files.options, **change})) for change in changes]
    for other in others:
        with pytest.raises(StateIncompatible, match="has files with") as refused:
            claim(fed, other)
        assert "another table or path" in (refused.value.remedy or "")
    rewind(fed, 0)
    for other in others:
        claim(fed, other)
