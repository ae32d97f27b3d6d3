"""A rewind of a region takes the regions along that read what leaves: the plan of a chain, and how it is carried out.

The regions are fed by hand, as in `test_slices_of_rewound_tables`: no Spark.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest
from by_hand import HandFed
from chained_by_hand import Reader, one, place, source_of, take
from followed import follow

from drainmark.jobs import failpoints
from drainmark.jobs.errors import DrainmarkError, Owned, ReplaceRefused, RetractRefused, RewindRefused, SourceRewound
from drainmark.jobs.failpoints import FailPoint, InjectedFailure
from drainmark.jobs.protocol.records.manifest import TableRole
from drainmark.jobs.runtime.commit.replacement import require_replaceable
from drainmark.jobs.runtime.commit.staged_group import StagedGroup, StagedTable
from drainmark.orchestration.dagster_assets.verb_events import told_of
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs import orders
from drainmark.orchestration.verbs.rewinds.readers import cascade_flag, followers_of
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget
from drainmark.orchestration.verbs.rewinds.retract import naming_rewind
from drainmark.orchestration.workplace.declaration import Declared
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

__all__ = ["one", "place"]


def reader(place: Workplace, name: str, *tables: str) -> Reader:
    sources = tuple(source_of(f"{name}_{table}", table) for table in tables)
    return Reader(place, place.home / "none", region=f"{name}/rows", names=(name,), sources=sources)


def reset(place: Workplace, region: str, to: int, *, cascade: bool) -> orders.Done:
    return orders.reset(place, region, RewindTarget(to=to), cascade=cascade).act()


def chain_of(place: Workplace, region: str, to: int) -> list[tuple[str, int]]:
    facts = orders.reset(place, region, RewindTarget(to=to)).facts
    return [(plan["region"], plan["to"]) for plan in facts["chain"]]


def test_a_rewind_takes_a_chain_along_readers_first(place: Workplace, one: HandFed) -> None:
    two, three = reader(place, "second", "first"), reader(place, "third", "second")
    for name in "abc":
        take(one, name)
        two.run()
        three.run()
    assert chain_of(place, "one/files", 1) == [("third/rows", 1), ("second/rows", 1)]
    assert chain_of(place, "one/files", 3) == [], "nothing leaves"
    assert chain_of(place, "second/rows", 2) == [("third/rows", 2)], "only those below"

    with pytest.raises(RewindRefused) as refused:
        reset(place, "one/files", 1, cascade=False)
    assert refused.value.facts["readers"] == ("third/rows", "second/rows")
    assert "drainmark reset one/files --to 1 --cascade" in (refused.value.remedy or "")
    assert (one.history().committed_id, two.rows(), three.rows()) == (3, list("abc"), list("abc"))

    done = reset(place, "one/files", 1, cascade=True)
    assert [line.partition(":")[0] for line in done.lines] == ["one/files", "third/rows", "second/rows"]
    told = told_of("one/files", "reset", done.facts, done.lines)
    assert [(region, line.partition(":")[0]) for region, (_, _, line) in told] == [
        (name, name) for name in ("one/files", "third/rows", "second/rows")
    ], "Dagster shows the event of each region on its own pages"
    assert (two.rows(), three.rows()) == (["a"], ["a"])
    one.drain()
    for each in (two, three):
        each.run()
        assert each.rows() == list("abc"), "nobody halts, and each row is there once"


@pytest.mark.parametrize("error", [RetractRefused, ReplaceRefused])
def test_the_rewind_that_a_refusal_names_can_be_typed_in_a_chain(
    place: Workplace, one: HandFed, error: type[DrainmarkError]
) -> None:
    def refuse(number: int) -> None:
        if error is RetractRefused:
            with naming_rewind(place, "one/files"):
                raise RetractRefused("it keeps state", ids=(number,))
        kept = replace(one.history().tables[0], role=TableRole.CHANGES)
        history = replace(one.history(), tables=(kept,))
        require_replaceable("one/files", history, [number], flags=cascade_flag(place, "one/files"))

    def remedy(number: int) -> str:
        with pytest.raises(error) as refused:
            refuse(number)
        return refused.value.remedy or ""

    take(one, "a")
    assert "reset one/files --to 0" in remedy(1)
    assert "--cascade" not in remedy(1), "nobody reads it yet"
    two = reader(place, "second", "first")
    two.run()
    take(one, "b")
    two.run()
    assert "reset one/files --to 1 --cascade" in remedy(2)
    follow(remedy(2), "reset", place.home)
    assert two.rows() == ["a"]


class Sorted(HandFed):
    """A region of two tables: rows that begin with `-` are for the second one alone."""

    def group(self, count: int) -> StagedGroup:
        staged = HandFed.group(self, count)
        name = self.tables[0].name
        whole = staged.tables[name].rows
        rows = whole.filter(pc.invert(pc.starts_with(whole["value"], "-")))
        area = self.workplace.store(self.region).staging(self.tables[0], staged.group.epoch, staged.group.attempt + "s")
        files = area.write(rows, "rows") if rows.num_rows else ()
        return replace(staged, tables={**staged.tables, name: StagedTable(files=files, rows=rows, frame=None)})


def test_a_file_that_brought_no_rows_to_a_table_is_retracted_although_others_read_that_table(
    place: Workplace, tmp_path: Path
) -> None:
    """Its rows leave the other tables alone, so no reader has to give anything back."""
    one = Sorted(place, tmp_path / "inbox", region="one/files", names=("first", "beside"))
    two = reader(place, "second", "first")
    for name in ("a", "-b", "c"):
        take(one, name)
        two.run()
    with pytest.raises(RetractRefused) as refused:
        orders.retract(place, "one/files", [str(one.inbox / "c")])
    assert refused.value.facts["readers"] == ("second/rows",)
    orders.retract(place, "one/files", [str(one.inbox / "-b")]).act()
    take(one, "d")
    two.run()
    assert two.rows() == ["a", "c", "d"]
    assert sorted(value for _, value in one.values("beside")) == ["a", "c", "d"]
    with pytest.raises(RetractRefused):
        orders.retract(place, "one/files", [str(one.inbox / "d")])


def test_a_plan_names_no_reader_of_a_table_that_got_no_rows(place: Workplace, tmp_path: Path) -> None:
    """A slice of a reader spans ids, and some of them brought rows to other tables alone."""
    one = Sorted(place, tmp_path / "inbox", region="one/files", names=("first", "beside"))
    two = reader(place, "second", "first")
    for name in ("a", "-b", "c"):
        take(one, name)
    two.run()
    order = orders.retract(place, "one/files", [str(one.inbox / "-b")])
    assert not [line for line in order.plan if "second/rows" in line]
    assert order.facts["readers"] == []


def test_a_diamond_and_a_region_that_reads_two_others_go_to_the_lowest_id(place: Workplace, one: HandFed) -> None:
    other = HandFed(place, place.home / "others", region="other/files", names=("beside",))
    left, right = reader(place, "left", "first"), reader(place, "right", "first", "beside")
    bottom = reader(place, "bottom", "left", "right")
    for number, name in enumerate("abcd"):
        take(one, name)
        take(other, name.upper())
        left.run()
        if number % 2 == 0:
            right.run()  # its second state has b and c
        bottom.run()
    wanted = sorted("aAabBbcCcdDd")
    assert bottom.rows() == sorted("aAabBbcCcd")
    assert chain_of(place, "one/files", 3) == [("bottom/rows", 3), ("left/rows", 3)]
    assert chain_of(place, "one/files", 2) == [("bottom/rows", 2), ("left/rows", 2), ("right/rows", 1)]
    assert chain_of(place, "other/files", 2) == [("bottom/rows", 2), ("right/rows", 1)], "b and c are one state there"
    for region, to in (("one/files", 3), ("other/files", 1), ("one/files", 0)):
        reset(place, region, to, cascade=True)
        one.drain()
        other.drain()
        for each in (left, right, bottom):
            each.run()
        assert bottom.rows() == wanted, (region, to)


CRASHES = (FailPoint.REWIND_BEFORE, FailPoint.NOTE_BEFORE, FailPoint.REWIND_TABLE_BEFORE)


@pytest.mark.parametrize(
    "points",
    [
        pytest.param([*zip(CRASHES, (1, 2, 3), strict=True)], id="each once, at another region"),
        pytest.param([*itertools.product(CRASHES, (1, 2, 3))], id="all", marks=pytest.mark.slow),
    ],
)
def test_after_a_crash_at_any_rewind_all_is_right_and_the_same_command_goes_on(
    place: Workplace, one: HandFed, points: list[tuple[FailPoint, int]]
) -> None:
    two, three = reader(place, "second", "first"), reader(place, "third", "second")
    for name in "ab":
        take(one, name)
        two.run()
        three.run()
    for point, number in points:
        failpoints.arm(f"{point}:raise:{number}")
        with pytest.raises(InjectedFailure):
            reset(place, "one/files", 1, cascade=True)
        failpoints.arm("")
        for each in (two, three):  # a run comes in between
            each.run()
            assert each.rows() in (["a"], ["a", "b"]), (point, "no row twice, none that left")
        reset(place, "one/files", 1, cascade=True)
        one.drain()
        for each in (two, three):
            each.run()
            assert each.rows() == ["a", "b"], point


def test_nothing_goes_back_while_a_run_has_a_region_of_the_chain(place: Workplace, one: HandFed) -> None:
    two = reader(place, "second", "first")
    take(one, "a")
    two.run()
    owner = region_owner(place, two.region)
    owner.claim()
    with pytest.raises(Owned):
        reset(place, "one/files", 0, cascade=True)
    owner.leave()
    assert (one.history().committed_id, two.rows()) == (1, ["a"])


def test_a_reader_that_comes_after_the_plan_is_noticed_and_one_that_was_not_there_finds_out(
    place: Workplace, one: HandFed
) -> None:
    two = reader(place, "second", "first")
    take(one, "a")
    order = orders.reset(place, "one/files", RewindTarget(to=0))
    two.run()
    order.act()  # planned without readers
    with pytest.raises(SourceRewound) as halted:
        two.run()
    two.rewind(int(halted.value.facts["to"]))
    one.drain()
    two.run()
    assert two.rows() == ["a"]


def test_a_reader_that_keeps_what_leaves_is_not_asked(place: Workplace, one: HandFed) -> None:
    two = reader(place, "second")
    two.sources = (source_of("keeping", "first", on_change="ignore"),)
    take(one, "a")
    two.run()
    assert chain_of(place, "one/files", 0) == []


def test_a_last_right_state_beyond_the_horizon_is_said_and_the_region_begins_anew(
    place: Workplace, one: HandFed, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = reader(place, "second", "first")
    for name in "abcde":
        take(one, name)
        two.run()
    assert not orders.reset(place, "one/files", RewindTarget(to=1)).facts["chain"][0]["is_anew"]
    monkeypatch.setattr(f"{followers_of.__module__}.declared", lambda *_: Declared(rewind_horizon=2))
    order = orders.reset(place, "one/files", RewindTarget(to=1), cascade=True)
    assert [(plan["to"], plan["is_anew"]) for plan in order.facts["chain"]] == [(0, True)]
    assert "beyond its rewind horizon: it begins anew" in " ".join(order.plan)
    order.act()
    one.drain()
    two.run()
    assert two.rows() == list("abcde")


def test_a_region_is_found_by_rows_that_it_read_not_by_its_name(place: Workplace, one: HandFed, tmp_path: Path) -> None:
    """A region of another home that has the name of ours is no reader, and its table no table of ours."""
    elsewhere = Workplace(Settings(home=tmp_path / "elsewhere", project_root=tmp_path))
    take(one, "a")
    far = Reader(elsewhere, tmp_path / "none", region="far/rows", names=("read",),
                 sources=(source_of("far", str(place.home / "lake" / "first")),))  # fmt: skip
    far.run()
    near = Reader(place, tmp_path / "none", region="near/rows", names=("near",),
                  sources=(source_of("near", str(elsewhere.home / "lake" / "read")),))  # fmt: skip
    near.run()
    assert (far.rows(), near.rows()) == (["a"], ["a"])
    assert chain_of(place, "one/files", 0) == []
    reset(place, "one/files", 0, cascade=False)
    with pytest.raises(SourceRewound) as halted:
        far.run()
    reset(elsewhere, "far/rows", int(halted.value.facts["to"]), cascade=False)
    with pytest.raises(SourceRewound) as halted:
        near.run()
    one.drain()
    far.run()
    near.rewind(int(halted.value.facts["to"]))
    near.run()
    assert (far.rows(), near.rows()) == (["a"], ["a"])
    elsewhere.registry.close()


def test_a_reader_that_names_its_own_home_in_another_way_goes_back_with_the_chain(
    place: Workplace, one: HandFed, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(place.home)
    two = Reader(place, tmp_path / "none", region="two/rows", names=("read",),
                 sources=(source_of("linked", str(tmp_path / "link" / "lake" / "first")),))  # fmt: skip
    for name in "ab":
        take(one, name)
        two.run()
    assert chain_of(place, "one/files", 1) == [("two/rows", 1)]
    reset(place, "one/files", 1, cascade=True)
    assert two.rows() == ["a"]


def test_a_region_that_reads_its_own_rows_by_way_of_another_one_goes_back_with_it(
    place: Workplace, one: HandFed
) -> None:
    circle = reader(place, "circle", "first")
    take(one, "a")
    circle.run()
    again = reader(place, "again", "circle")
    again.run()
    circle.sources = (*circle.sources, source_of("circle_again", "again"))
    for name in "bc":
        take(one, name)
        circle.run()
        again.run()
    assert chain_of(place, "circle/rows", 1) == [("again/rows", 1)]
    assert chain_of(place, "again/rows", 1) == [("circle/rows", 2)]
    reset(place, "circle/rows", 1, cascade=True)
    assert (circle.rows(), again.rows()) == (["a"], ["a"])
    for _ in range(3):
        circle.run()
        again.run()
    assert set(circle.rows()) == set("abc")
