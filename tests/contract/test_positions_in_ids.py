"""A position in a region's table is an id of that region: rows are found when their versions and files are gone.

The regions are fed by hand, as in `test_chains_go_back`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from by_hand import HandFed
from chained_by_hand import Reader, one, place, rewound, source_of, take
from deltalake import DeltaTable
from followed import follow

from drainmark.jobs.errors import InputChanged, InputMissing, SourceRewound, UsageError
from drainmark.jobs.protocol.chains import IDS, readings_of
from drainmark.jobs.protocol.records.schema_compatibility import TableChange
from drainmark.jobs.protocol.records.triggers import slices_of
from drainmark.jobs.protocol.row_conditions import conditions
from drainmark.jobs.regions.plan_diff import TableDifference
from drainmark.orchestration import doctor
from drainmark.orchestration.html_report.page_file import page_path
from drainmark.orchestration.inspection.reads import told_of, told_of_reader
from drainmark.orchestration.inspection.status import status_of, statuses
from drainmark.orchestration.tracing.trace import Tracer
from drainmark.orchestration.verbs import orders
from drainmark.orchestration.verbs.plan import naming_readers
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget
from drainmark.orchestration.workplace.workplace import Workplace

__all__ = ["one", "place"]


@pytest.fixture
def two(place: Workplace) -> Reader:
    return Reader(place, place.home / "none", region="two/rows", names=("second",), sources=(source_of("s", "first"),))


def compacted(one: HandFed) -> None:
    """Write the rows of all files of the table into one, and delete what left it and all of its log before."""
    store = one.workplace.store(one.region)
    folder = store.tables / "lake/first"
    table = DeltaTable(folder.uri)
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    log_is_gone(one)


@contextmanager
def by_an_earlier_version(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let runs write positions that are versions alone."""
    with monkeypatch.context() as before:
        before.setattr("drainmark.resources.inputs.source_access.RegionAccess.upstream", lambda *_: None)
        yield


def log_is_gone(one: HandFed) -> None:
    log = Path((one.workplace.store(one.region).tables / "lake/first").uri)
    table = DeltaTable(str(log))
    table.create_checkpoint()
    for version in range(table.version()):
        Path(log, "_delta_log", f"{version:020d}.json").unlink(missing_ok=True)


def test_a_reader_that_was_away_longer_than_the_log_reads_on_by_ids(one: HandFed, two: Reader) -> None:
    take(one, "a")
    two.run()
    take(one, "b", "c")
    compacted(one)
    two.run()
    assert two.rows() == ["a", "b", "c"]
    take(one, "d")
    two.run()
    assert two.rows() == ["a", "b", "c", "d"]
    assert [(each.region, each.through) for each in readings_of(two.history())] == [("one/files", 4)]


def test_rows_that_come_while_a_slice_is_cut_by_ids_are_in_the_next_one(
    one: HandFed, two: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(one, "a")
    two.run()
    take(one, "b")
    compacted(one)
    before = two.access.newest_version("first")
    take(one, "c")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("drainmark.resources.inputs.source_access.RegionAccess.newest_version", lambda *_: before)
        two.tick()
    two.run()
    assert two.rows() == ["a", "b", "c"]


def test_a_reader_that_may_not_see_the_other_regions_checkpoints_goes_by_versions(
    one: HandFed, two: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    for name in "ab":
        take(one, name)
        two.run()
    monkeypatch.setattr("drainmark.resources.checkpoints.checkpoint_table.CheckpointTable.exists", refused)
    access = two.access
    upstream = access.upstream("first")
    assert upstream is not None
    assert upstream.facts() is None


def test_a_replay_reads_rows_whose_versions_and_files_are_gone(one: HandFed, two: Reader) -> None:
    for name in "abc":
        take(one, name)
        two.run()
    compacted(one)
    two.rewind(1)
    assert orders.reset(two.workplace, two.region, RewindTarget(to=1)).facts["gone"] == ()
    two.run()
    assert two.rows() == ["a", "b", "c"]
    assert [two.history().states[number].rows_in for number in two.history().states] == [1, 1, 1], "each its own rows"


def test_a_rewind_whose_version_left_the_log_is_noticed(one: HandFed, two: Reader) -> None:
    for name in "abc":
        take(one, name)
        two.run()
    rewound(one, 1)
    one.drain()
    rewound(one, 1)
    take(one, "d")
    log_is_gone(one)
    assert two.halted() == 1
    two.rewind(1)
    two.run()
    assert two.rows() == ["a", "b", "c", "d"]


def test_slices_cut_before_a_rewind_are_not_read_by_a_region_that_is_wrong(one: HandFed, two: Reader) -> None:
    for name in "ab":
        take(one, name)
        two.run()
    take(one, "c")
    two.tick()
    rewound(one, 1)
    with two.owning() as owner, pytest.raises(SourceRewound):
        owner.groups.commit(two.group(1))
    assert two.rows() == ["a", "b"]


def test_a_table_of_nobody_is_read_by_its_versions_alone(place: Workplace, one: HandFed, two: Reader) -> None:
    take(one, "a")
    copy = place.home / "lake/first_copied"
    shutil.copytree(place.home / "lake/first", copy)
    DeltaTable(str(copy)).alter.set_table_description("somebody's")
    two.sources = (source_of("s", "first_copied"),)
    two.run()
    assert two.rows() == ["a"]
    (piece,) = slices_of(two.history().states[1].trigger_identity or {}).values()
    assert IDS not in piece
    assert set(piece["to"]) == {"version", "table"}


def test_a_position_of_an_earlier_version_is_translated_by_the_next_rows(
    one: HandFed, two: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    with by_an_earlier_version(monkeypatch):
        take(one, "a")
        two.run()
    assert [each.through for each in readings_of(two.history())] == [None]
    take(one, "b")
    two.run()
    assert [(each.region, each.through) for each in readings_of(two.history())] == [("one/files", 2)]
    compacted(one)
    take(one, "c")
    two.run()
    assert two.rows() == ["a", "b", "c"]


def test_without_an_id_in_its_position_a_reader_that_was_away_says_so(
    one: HandFed, two: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    with by_an_earlier_version(monkeypatch):
        take(one, "a")
        two.run()
    take(one, "b")
    compacted(one)
    with pytest.raises(InputMissing):
        two.run()


@pytest.mark.parametrize(("on_change", "error"), [("halt", InputChanged), ("ignore", InputMissing)])
def test_rows_that_were_replaced_while_the_reader_was_away_are_not_read_twice(
    one: HandFed, two: Reader, monkeypatch: pytest.MonkeyPatch, on_change: str, error: type[Exception]
) -> None:
    from drainmark.jobs.protocol.history import RegionHistory

    two.sources = (source_of("s", "first", on_change=on_change),)
    take(one, "a")
    two.run()
    take(one, "b")
    compacted(one)
    replaced = type("By", (), {"by": 2})()
    real = one.workplace.history(one.region)
    monkeypatch.setattr("drainmark.resources.inputs.source_access._facts_of",
                        lambda *_: RegionHistory(states=real.states, replaced={1: replaced}))  # fmt: skip
    with pytest.raises(error):
        two.run()


@pytest.mark.seed("LC8")
def test_status_and_trace_follow_rows_across_regions(place: Workplace, one: HandFed, two: Reader) -> None:
    three = Reader(place, place.home / "none", region="three/rows", names=("third",),
                   sources=(source_of("t", "second"),))  # fmt: skip
    for name in "ab":
        take(one, name)
        two.run()
        three.run()
    (reads,) = status_of(place, three.region)["reads"]
    assert {name: reads[name] for name in ("source", "region", "through", "stays")} == {
        "source": "t", "region": "two/rows", "through": 2, "stays": None}  # fmt: skip
    assert told_of(reads) == "reads two/rows through id 2 at 't'"
    (read_by,) = statuses(place, two.region)[0]["read_by"]
    assert told_of_reader(read_by) == "is read by three/rows at 't' through id 2"

    assert "three/rows reads two/rows through id 2 at" in page_path(place.home, three.region).read_text()

    found: Any = Tracer.of(place, three.region).row("third", conditions(["value = b"]))
    assert [(each["region"], each["sequence_id"]) for each in found["origins"]] == [("two/rows", 2), ("one/files", 2)]
    assert found["origins"][-1]["trigger"].endswith("/b")
    assert Tracer.of(place, two.region).sequence(1)["origins"][0]["trigger"].endswith("/a")
    forward = Tracer.of(place, one.region).file("b")["readers"]
    assert [(each["region"], each["sequence_id"]) for each in forward] == [("two/rows", 2), ("three/rows", 2)]

    rewound(one, 1)
    status = status_of(place, two.region)
    assert (status["reads"][0]["stays"], status["remedies"]) == (1, ["drainmark reset two/rows --to 1 --cascade --yes"])
    assert "what it read above 1 has left there" in told_of(status["reads"][0])


def test_what_status_says_of_a_reader_that_is_wrong_leads_to_right_tables(one: HandFed, two: Reader) -> None:
    for name in "ab":
        take(one, name)
        two.run()
    rewound(one, 1)
    one.drain()
    (command,) = status_of(two.workplace, two.region)["remedies"]
    follow(command, "reset", two.workplace.home)
    two.run()
    assert two.rows() == ["a", "b"]
    assert status_of(two.workplace, two.region)["remedies"] == []
    shutil.rmtree(two.workplace.home / "checkpoints" / "one")
    assert status_of(two.workplace, two.region)["reads"][0]["stays"] is None, "nobody can say"


def test_a_table_that_is_gone_names_its_reader_its_maker_and_the_way_back(one: HandFed, two: Reader) -> None:
    take(one, "a")
    two.run()
    folder, aside = two.workplace.home / "lake/first", two.workplace.home / "aside"
    folder.rename(aside)
    two.workplace = Workplace(two.workplace.settings)
    with pytest.raises(UsageError, match="one/files") as refused:
        two.run()
    assert (refused.value.operator, refused.value.facts["table"]) == ("s", str(folder))
    assert "drainmark doctor" in (refused.value.remedy or "")
    aside.rename(folder)
    take(one, "b")
    two.run()
    assert two.rows() == ["a", "b"]


def test_a_table_that_its_code_writes_no_more_is_said_to_its_readers(one: HandFed, two: Reader) -> None:
    take(one, "a")
    two.run()
    assert status_of(two.workplace, two.region)["reads"][0]["is_former"] is False
    one.names = ("renamed",)
    take(one, "b")
    (reads,) = status_of(two.workplace, two.region)["reads"]
    assert reads["is_former"]
    assert "one/files writes that table no more" in told_of(reads)
    gone = TableDifference(table="lake/first", operator="first", change=TableChange.DROPPED)
    told = naming_readers(two.workplace, gone, one.history(), one.region)
    assert two.region in told.why


@pytest.mark.parametrize("changes", [False, True])
def test_an_older_copy_of_the_region_that_comes_back_is_a_rewind_for_its_readers(
    place: Workplace, one: HandFed, changes: bool
) -> None:
    two = Reader(place, place.home / "none", region="two/rows", names=("second",),
                 sources=(source_of("s", "first", **({"changes": True} if changes else {})),))  # fmt: skip
    home, folders = place.home, ("lake/first", "checkpoints/one")
    take(one, "a")
    two.run()
    for folder in folders:
        shutil.copytree(home / folder, home / "aside" / folder)
    take(one, "b")
    two.run()
    assert two.rows() == ["a", "b"]
    for folder in folders:
        shutil.rmtree(home / folder)
        (home / "aside" / folder).rename(home / folder)
    doctor.repair(place, regions=[one.region])
    with pytest.raises(SourceRewound if changes else InputChanged) as caught:
        two.run()
    assert "drainmark" in (caught.value.remedy or "")
    (command,) = status_of(place, two.region)["remedies"]
    follow(command, "reset", home)
    one.add("b")  # as the next scan does
    one.drain()
    two.run()
    assert two.rows() == ["a", "b"]
    take(one, "c")
    two.run()
    assert two.rows() == ["a", "b", "c"]
