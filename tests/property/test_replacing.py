"""Reprocessed files: their rows are only at the new id, in all append tables, whatever the grouping or rewind.

The oracle is a list of committed files in force, (id, file, its values then), and of the ids that withdrew others.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from by_hand import HandFed
from followed import follow

from drainmark.jobs import world
from drainmark.jobs.errors import ReplaceRefused, RewindRefused, UsageError
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.protocol.records.manifest import RegionTable, TableRole
from drainmark.jobs.protocol.records.triggers import TriggerStatus
from drainmark.orchestration import doctor
from drainmark.orchestration.discovery.scan_recording import record_scan
from drainmark.orchestration.inspection.status import history_entries
from drainmark.orchestration.verbs import interventions, orders
from drainmark.orchestration.verbs.inputs.backfill import Queueing, Wanted, plan_queue
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.declaration import NOTE
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.checkpoints.as_of import RegionReader
from drainmark.resources.settings import Settings

Rows = list[tuple[int, str]]


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[HandFed]:
    """Yield a region with two append tables, and files of values that name their file."""
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    scene = HandFed(place, tmp_path / "inbox", names=("kept", "copied"))
    yield scene
    place.registry.close()


def again(fed: HandFed, pattern: str = "*") -> dict[str, Any]:
    return planned(fed, pattern).carry_out(fed.workplace)


def planned(fed: HandFed, pattern: str) -> Queueing:
    return plan_queue(fed.workplace, fed.region, Wanted(pattern=str(fed.inbox / pattern), again=True))


def oracle(history: RegionHistory, contents: dict[int, list[str]], at: int) -> Rows:
    """Return the rows of every append table at an id, from the ids in force and the contents of their files."""
    newest: dict[str, int] = {}
    gone: set[int] = set()
    for number, row in history.states.items():
        if number > at or row.kind is not RowKind.STATE:
            continue
        uri = row.trigger_uri or ""
        if "again" in (row.trigger_identity or {}) and uri in newest:
            gone.add(newest[uri])
        newest[uri] = number
    return sorted((n, value) for n in history.states if n <= at and n not in gone for value in contents[n])


def shown(fed: HandFed, table: str, at: int) -> Rows:
    return pairs(RegionReader(fed.workplace.settings, fed.region).as_of(table, at))


def pairs(rows: pa.Table) -> Rows:
    return sorted((row["_sequence_id"], row["value"]) for row in rows.to_pylist())


def seen(fed: HandFed, contents: dict[int, list[str]]) -> None:
    """Remember the contents of the files of new ids; skipped ids have no rows."""
    for number, row in fed.history().states.items():
        is_taken = row.kind is RowKind.STATE
        contents.setdefault(number, Path(row.trigger_uri or "").read_text().splitlines() if is_taken else [])


def check(fed: HandFed, contents: dict[int, list[str]]) -> None:
    """Compare the tables with the oracle now, and one of them at every state, in turn; the first one varies."""
    history = fed.history()
    reader = RegionReader(fed.workplace.settings, fed.region)
    for table in fed.names:
        assert fed.values(table) == oracle(history, contents, history.committed_id)
    names = itertools.islice(itertools.cycle(fed.names), len(history.states) % 2, None)
    for at, table in zip((0, *history.states), names, strict=False):
        assert pairs(reader.as_of(table, at)) == oracle(history, contents, at), f"{table} at {at}"


# --- the verb -----------------------------------------------------------------------------------------------------


def test_the_new_state_withdraws_the_rows_of_the_old_and_history_says_so(fed: HandFed) -> None:
    for name in "ab":
        fed.write(name, [f"{name}1", f"{name}2"])
    fed.add("a", "b")
    fed.drain(2)

    rehearsed = planned(fed, "a").facts
    assert (rehearsed["replaced"], rehearsed["queued"], rehearsed["pending_triggers"]) == (1, 1, 0)
    queued = again(fed, "a")
    assert queued["replaces"] == [{"file": str(fed.inbox / "a"), "sequence_id": 1}]
    waiting = again(fed, "a")
    assert (waiting["replaced"], waiting["pending"], waiting["pending_triggers"]) == (0, 1, 1)
    fed.drain()

    assert fed.values() == fed.values("copied") == [(2, "b1"), (2, "b2"), (3, "a1"), (3, "a2")]
    assert shown(fed, "kept", 2) == [(1, "a1"), (1, "a2"), (2, "b1"), (2, "b2")]
    entries = history_entries(fed.workplace, fed.region)
    assert [(entry["sequence_id"], entry["replaced_by"]) for entry in entries] == [(1, 3), (2, None), (3, None)]
    kept = fed.workplace.store(fed.region).table("lake/kept")
    assert kept.delta_version() == 2, "one commit to create, one a group"


SOURCE = """
import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", format="text", on_change="{policy}", settle=0))
def files(scanned):
    return scanned

dm.sink(files, dm.DeltaAppend("kept"))
"""


def declare(fed: HandFed, policy: str) -> None:
    """Give the region code, as a run does, that says what becomes of files that change."""
    code = fed.workplace.settings.project_root / "by_hand.py"
    code.write_text(SOURCE.format(policy=policy))
    fed.workplace.registry.save_cursor(fed.region, NOTE, json.dumps({"reference": str(code), "rewind_horizon": 99}))


def changed(fed: HandFed) -> Wanted:
    """Commit two files, then change one of them in its place; return all files of the folder, and a new one."""
    for name in "ab":
        fed.write(name, [f"{name}1"])
    fed.add("a", "b")
    fed.drain(2)
    fed.write("a", ["a1", "a2"])
    fed.write("c", ["c1"])
    return Wanted(pattern=str(fed.inbox / "*"))


@pytest.mark.seed("I4")
@pytest.mark.parametrize("code", ["halt", None], ids=["by its source", "by default, without code"])
def test_a_changed_file_is_not_queued_beside_its_earlier_state(fed: HandFed, code: str | None) -> None:
    wanted = changed(fed)
    if code is not None:
        declare(fed, code)
    with pytest.raises(UsageError) as refused:
        orders.backfill(fed.workplace, fed.region, wanted)
    assert str(fed.inbox / "a") in refused.value.message
    assert fed.workplace.registry.pending_count(fed.region) == 0
    follow(refused.value.remedy, "backfill", fed.workplace.home)
    orders.backfill(fed.workplace, fed.region, wanted).act()
    assert fed.workplace.registry.pending_count(fed.region) == 2, "what waits in place of the old one waits once"
    fed.drain()
    assert orders.backfill(fed.workplace, fed.region, wanted).facts["queued"] == 0, "it is committed"
    assert sorted(value for _, value in fed.values()) == ["a1", "a2", "b1", "c1"]


def test_the_command_for_a_changed_file_names_its_output(fed: HandFed) -> None:
    wanted = changed(fed)
    with pytest.raises(UsageError) as refused:
        orders.backfill(fed.workplace, fed.region, replace(wanted, output="late ones"))
    follow(refused.value.remedy, "backfill", fed.workplace.home)
    (trigger,) = fed.workplace.registry.triggers.pending(fed.region, 9)
    assert trigger.output == "late ones"


def test_a_changed_file_is_read_in_place_of_the_old_one_also_after_that_was_skipped_once(fed: HandFed) -> None:
    changed(fed)
    again(fed, "a")
    interventions.skip(fed.workplace, fed.region, ["a"], "not now")
    beside = plan_queue(fed.workplace, fed.region, Wanted(pattern=str(fed.inbox / "a"))).facts
    assert (beside["queued"], beside["passed"]) == (0, 1), "it was passed over"
    assert again(fed, "a")["replaces"] == [{"file": str(fed.inbox / "a"), "sequence_id": 1}]
    fed.drain()
    assert sorted(value for _, value in fed.values()) == ["a1", "a2", "b1"]


@pytest.mark.parametrize(("policy", "queued", "rows"), [("ignore", 1, ["a1", "b1", "c1"]),
                                                        ("reprocess", 2, ["a1", "a1", "a2", "b1", "c1"])])  # fmt: skip
def test_a_changed_file_is_left_out_or_comes_beside_its_earlier_state_as_the_source_says(
    fed: HandFed, policy: str, queued: int, rows: list[str]
) -> None:
    wanted = changed(fed)
    declare(fed, policy)
    order = orders.backfill(fed.workplace, fed.region, wanted)
    told = [{"file": str(fed.inbox / "a"), "sequence_id": 1}]
    assert (order.facts["queued"], order.facts["ignored" if policy == "ignore" else "beside"]) == (queued, told)
    assert "a changed since 1" in order.plan[-1]
    order.act()
    fed.drain()
    assert sorted(value for _, value in fed.values()) == rows
    assert again(fed, "a")["beside"] == []


def test_the_scan_takes_a_file_that_waits_or_was_replaced_for_what_it_is(fed: HandFed) -> None:
    fed.write("a", ["a1"])
    fed.add("a")
    fed.drain()
    registry = fed.workplace.registry
    before = registry.triggers.known(fed.region)
    again(fed)
    assert registry.triggers.known(fed.region) == before, "else the next scan would call it changed and halt"
    fed.drain()
    assert registry.triggers.known(fed.region) == before
    fed.add("a")
    assert registry.pending_count(fed.region) == 0


def test_a_changed_file_replaces_the_newest_state_of_its_name(fed: HandFed) -> None:
    fed.write("a", ["old"])
    fed.add("a")
    fed.drain()
    fed.write("a", ["new", "newer"])
    assert again(fed)["replaced"] == 1
    fed.drain()
    assert fed.values() == [(2, "new"), (2, "newer")]
    assert shown(fed, "kept", 1) == [(1, "old")]


@pytest.mark.parametrize("on_change", ["ignore", "reprocess"])
def test_a_file_that_changes_while_it_waits_still_replaces_its_rows(fed: HandFed, on_change: str) -> None:
    fed.write("a", ["old"])
    fed.add("a")
    fed.drain()
    again(fed)
    fed.write("a", ["later", "rows"])
    (waiting,) = fed.workplace.registry.triggers.pending(fed.region, 9)
    with fed.owning() as owner:  # as a run does that finds another file
        region, epoch = fed.region, owner.epoch
        fed.workplace.registry.triggers.mark(region, epoch, [waiting.id], TriggerStatus.SUPERSEDED, "it changed")
    scan = DirectoryScan(path=str(fed.inbox), pattern="*", format="text", settle=0, on_change=on_change)
    for _ in range(2):  # the second scan finds nothing new
        record_scan(fed.workplace.registry, fed.region, fed.workplace.inputs, str(fed.inbox), scan, now=world.now())
    fed.drain()
    assert fed.values() == fed.values("copied") == [(2, "later"), (2, "rows")]


def test_files_never_seen_are_queued_as_ever(fed: HandFed) -> None:
    fed.write("a", ["a1"])
    queued = again(fed)
    assert (queued["queued"], queued["replaced"]) == (1, 0)
    fed.drain()
    assert fed.values() == [(1, "a1")]


def test_twice_in_a_row_and_twice_in_one_group(fed: HandFed) -> None:
    """Withdrawn rows must be published, so a group ends before the second replacement."""
    fed.write("a", ["a1"])
    fed.add("a")
    again(fed)
    fed.drain(10)
    assert again(fed)["replaced"] == 1
    fed.drain(10)
    assert fed.history().replaced_by(1) == 2

    fed.write("a", ["a2"])
    again(fed)
    fed.write("a", ["a33"])
    again(fed)
    fed.drain(10)
    history = fed.history()
    assert [history.replaced_by(number) for number in (1, 2, 3, 4)] == [2, 3, 4, None]
    assert [row.group_last for row in history.states.values()] == [1, 2, 3, 4]
    assert fed.values() == [(4, "a33")]


def test_an_empty_file_has_nothing_to_withdraw_and_nothing_to_add(fed: HandFed) -> None:
    fed.write("a", [])
    fed.write("b", ["b1"])
    fed.add("a", "b")
    fed.drain()
    again(fed)
    fed.drain()
    fed.write("b", [])
    again(fed, "b")
    fed.drain()
    assert fed.values() == []
    assert shown(fed, "kept", 4) == [(4, "b1")]


def test_a_region_that_keeps_state_refuses_and_names_the_rewind(fed: HandFed, monkeypatch: pytest.MonkeyPatch) -> None:
    fed.write("a", ["a1"])
    fed.write("b", ["b1"])
    fed.add("a", "b")
    fed.drain()
    tables = fed.tables
    counted = RegionTable(name="state/by_hand/counts", role=TableRole.CHANGES, operator="counts",
                          schema_json=tables[0].schema_json, keys=("value",))  # fmt: skip
    monkeypatch.setattr(HandFed, "tables", property(lambda _: (*tables, counted)))
    queued_before = again(fed, "b")
    with fed.owning(), pytest.raises(ReplaceRefused):
        fed.process(1)
    with pytest.raises(ReplaceRefused) as refused:
        again(fed, "a")
    assert queued_before["replaced"] == 1, "the code kept no state then"
    assert (refused.value.operator, refused.value.facts["ids"]) == ("counts", (1,))
    assert f"drainmark reset {fed.region} --to 0" in (refused.value.remedy or "")
    assert fed.history().committed_id == 2


def test_the_registry_is_rebuilt_with_what_replaces(fed: HandFed) -> None:
    fed.write("a", ["a1"])
    fed.write("b", ["b1"])
    fed.add("a", "b")
    fed.drain()
    again(fed)
    fed.drain()
    interventions.reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=3)))
    registry = fed.workplace.registry
    before = [registry.triggers.by_uri(fed.region, str(fed.inbox / name)) for name in "ab"]

    doctor.repair(fed.workplace)

    after = [registry.triggers.by_uri(fed.region, str(fed.inbox / name)) for name in "ab"]
    facts = lambda found: [[(t.identity_key, t.order_index, t.status, t.sequence_id) for t in each] for each in found]  # noqa: E731
    assert facts(after) == facts(before)
    fed.drain()
    assert fed.values() == [(3, "a1"), (6, "b1")]


# --- crashes ------------------------------------------------------------------------------------------------------

# --- rewinds ------------------------------------------------------------------------------------------------------


def rewind(fed: HandFed, to: int) -> None:
    plan = plan_reset(fed.workplace, fed.region, RewindTarget(to=to))
    interventions.reset(fed.workplace, plan, accept_loss=True)
    assert fed.steps_done() == plan.steps, "what was shown is what was done"


def test_a_rewind_to_before_brings_the_rows_back_and_the_file_waits_again(fed: HandFed) -> None:
    for name in "abcd":
        fed.write(name, [f"{name}1"])
    fed.add("a", "b", "c", "d")
    fed.drain(4)
    contents: dict[int, list[str]] = {}
    seen(fed, contents)
    again(fed, "[abc]")
    fed.drain(3)
    seen(fed, contents)

    rewind(fed, 5)  # inside the group that replaced three files
    check(fed, contents)
    assert fed.values() == [(2, "b1"), (3, "c1"), (4, "d1"), (5, "a1")]
    rewind(fed, 4)
    check(fed, contents)
    assert fed.values() == [(1, "a1"), (2, "b1"), (3, "c1"), (4, "d1")]
    assert fed.workplace.registry.pending_count(fed.region) == 3
    fed.drain(2)
    seen(fed, contents)
    check(fed, contents)
    assert {value for _, value in fed.values()} == {"a1", "b1", "c1", "d1"}


@pytest.mark.seed("V79", "E16")
def test_a_rewind_behind_a_skip_takes_it_back_and_one_after_it_keeps_it(fed: HandFed) -> None:
    """A skipped trigger is pending again in its old place, whatever the registry remembers; no id is used twice."""
    for name in "abcd":
        fed.write(name, [f"{name}1"])
    fed.add("a", "b", "c", "d")
    with fed.owning():
        fed.process(1)
    interventions.skip(fed.workplace, fed.region, ["b"], "nonsense")
    fed.drain()
    assert fed.values() == fed.values("copied") == [(1, "a1"), (3, "c1"), (4, "d1")]

    def waiting() -> list[str]:
        return [Path(trigger.uri).name for trigger in fed.workplace.registry.triggers.pending(fed.region, 9)]

    rewind(fed, 3)
    assert (waiting(), fed.values()) == (["d"], [(1, "a1"), (3, "c1")])
    fed.drain()
    with pytest.raises(RewindRefused):
        rewind(fed, 2)  # the state of a skipped id is that of the id before it
    rewind(fed, 1)
    assert (waiting(), fed.values()) == (["b", "c", "d"], [(1, "a1")])
    doctor.repair(fed.workplace)
    assert waiting() == ["b", "c", "d"]
    fed.drain()
    assert fed.values() == [(1, "a1"), (8, "b1"), (9, "c1"), (10, "d1")]
    rewind(fed, 0)
    interventions.skip(fed.workplace, fed.region, ["a"], "nonsense")
    rewind(fed, 0)
    fed.drain(3)
    assert [value for _, value in fed.values()] == ["a1", "b1", "c1", "d1"]
    numbers = [row.sequence_id for row in fed.workplace.store(fed.region).checkpoint.rows()
               if row.kind in (RowKind.STATE, RowKind.SKIP, RowKind.REWIND)]  # fmt: skip
    assert len(numbers) == len(set(numbers))
