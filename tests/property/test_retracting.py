"""Retracted files: their rows are in no table, as if they had never come; see `retracted_by_hand`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from by_hand import HandFed
from chained_by_hand import Reader, source_of
from followed import follow
from retracted_by_hand import DATABASES, Keyed, check, files_at

from drainmark.jobs.errors import InputChanged, RetractRefused, UnknownName, UsageError
from drainmark.jobs.protocol.history import retracted_by
from drainmark.jobs.runtime.maintenance.compaction import drop_changes
from drainmark.orchestration import doctor
from drainmark.orchestration.inspection.status import history_entries
from drainmark.orchestration.tracing.trace import Tracer
from drainmark.orchestration.verbs import interventions, orders
from drainmark.orchestration.verbs.inputs.backfill import Wanted, plan_queue
from drainmark.orchestration.verbs.rewinds import retract
from drainmark.orchestration.verbs.rewinds.readers import Home
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings


@pytest.fixture(params=[HandFed, Keyed], ids=["rows", "keys"])
def fed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[HandFed]:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, databases=DATABASES))
    scene = request.param(place, tmp_path / "inbox", names=("kept", "copied"))
    yield scene
    place.registry.close()


def back(fed: HandFed, *names: str) -> dict[str, Any]:
    return retract.carry_out(fed.workplace, retract.plan_retract(fed.workplace, fed.region, names), "bad prices")


def rewind(fed: HandFed, to: int) -> None:
    plan = plan_reset(fed.workplace, fed.region, RewindTarget(to=to))
    interventions.reset(fed.workplace, plan, accept_loss=True)
    assert fed.steps_done() == plan.steps, "what was shown is what was done"


@pytest.mark.seed("RC1", "RC2")
def test_a_file_leaves_and_comes_back_with_a_rewind(fed: HandFed) -> None:
    fed.write("a", ["a1", "b1"])
    fed.write("b", ["b2", "c2"])
    fed.write("c", ["c3"])
    fed.add("a", "b", "c")
    fed.drain(3)
    done = back(fed, "b")
    assert [(each["sequence_id"], each["retracted_by"]) for each in done["retracted"]] == [(2, 4)]
    check(fed)
    assert back(fed, "b")["retracted"] == []
    fed.write("d", ["b4"])
    fed.add("d")
    fed.drain()
    check(fed)
    rewind(fed, 3)
    check(fed)
    assert [Path(each.uri).name for each in fed.workplace.registry.triggers.pending(fed.region, 9)] == ["d"]
    back(fed, "a", "b", "c")
    check(fed)
    assert fed.values() == []
    fed.drain()
    check(fed)


@pytest.mark.seed("RC1", "RC2")
@pytest.mark.parametrize("steps", [9, pytest.param(30, marks=pytest.mark.slow)])
def test_any_history_of_files_retractions_and_rewinds_has_the_tables_of_the_files_that_count(
    fed: HandFed, steps: int
) -> None:
    chance = random.Random(7)
    names = [f"file-{n:02}" for n in range(24)]
    for name in names:
        fed.write(name, [f"{chance.choice('abcde')}{name}{n}" for n in range(chance.randrange(4))])
    waiting = list(names)
    for _ in range(steps):
        match chance.choice(["add", "add", "retract", "retract", "rewind"]):
            case "add":
                new, waiting = waiting[:3], waiting[3:]
                fed.add(*new)
                fed.drain(chance.choice([1, 2, 3]))
            case "retract":
                there = [Path(uri).name for _, uri in files_at(fed.history(), fed.history().committed_id)]
                if there:
                    back(fed, *chance.sample(there, min(len(there), chance.choice([1, 2]))))
            case _:
                states = fed.history().states
                if states:
                    rewind(fed, chance.choice([*states][-4:]))
        check(fed)
    fed.drain(2)
    check(fed)
    doctor.repair(fed.workplace)
    check(fed)


@pytest.mark.seed("RC6")
def test_what_is_said_of_a_retracted_file(fed: HandFed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        fed.write(name, [f"{name}1"])
    fed.add("a", "b")
    fed.drain()
    fed.add("c")
    order = orders.retract(fed.workplace, fed.region, ["a"], "bad prices")
    assert order.facts["files"] == [{"file": str(fed.inbox / "a"), "sequence_id": 1, "code": None}]
    assert fed.history().committed_id == 2, "a plan changes nothing"
    order.act()
    entries = history_entries(fed.workplace, fed.region)
    assert [(e["sequence_id"], e["retracted_by"], e["retracts"], e["reason"]) for e in entries] == [
        (1, 3, None, None), (2, None, None, None), (3, None, 1, "bad prices")]  # fmt: skip
    traced = Tracer.of(fed.workplace, fed.region).file("a")
    assert [entry["status"] for entry in traced["ids"]] == ["retracted", "retraction"]
    with pytest.raises(UsageError, match="pending") as waits:
        back(fed, "c")
    with pytest.raises(UnknownName):
        back(fed, "nothing")
    fed.add("a")
    assert fed.workplace.registry.pending_count(fed.region) == 1, "the scan does not take it again"
    monkeypatch.setenv("DRAINMARK_DATABASES__SHOP", DATABASES["shop"])
    follow(str(waits.value), "skip", fed.workplace.home)
    check(fed)


@pytest.mark.seed("RC6")
def test_a_retracted_file_comes_back_by_backfill_under_a_new_id(fed: HandFed) -> None:
    for name in "ab":
        fed.write(name, [f"{name}1"])
    fed.add("a", "b")
    fed.drain()
    back(fed, "a")
    wanted = str(fed.inbox / "*")
    assert plan_queue(fed.workplace, fed.region, Wanted(pattern=wanted)).carry_out(fed.workplace)["passed"] == 1
    if isinstance(fed, Keyed):  # what is in force cannot be replaced there
        wanted = str(fed.inbox / "a")
    queued = plan_queue(fed.workplace, fed.region, Wanted(pattern=wanted, again=True)).carry_out(fed.workplace)
    assert queued["queued"] == (1 if isinstance(fed, Keyed) else 2)
    fed.drain()
    assert {value for _, value in fed.values()} == {"a1", "b1"}
    if not isinstance(fed, Keyed):
        return
    check(fed)
    back(fed, "a")
    check(fed)
    assert retracted_by(fed.history(), 1) == 3
    doctor.repair(fed.workplace)
    check(fed)


def test_a_plan_of_another_history_is_refused(fed: HandFed) -> None:
    fed.write("a", ["a1"])
    fed.add("a")
    fed.drain()
    plan = retract.plan_retract(fed.workplace, fed.region, ["a"])
    back(fed, "a")
    with pytest.raises(RetractRefused):
        retract.carry_out(fed.workplace, plan)


@pytest.mark.seed("RC2", "RC4")
@pytest.mark.parametrize("fed", [Keyed], indirect=True)
def test_changes_that_were_dropped_are_not_guessed(fed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAINMARK_DATABASES__SHOP", DATABASES["shop"])
    fed.has_images = True
    for name, values in {"a": ["a1", "b1"], "b": ["a2", "c2"], "c": ["b3"], "d": ["a4", "b4", "d4"]}.items():
        fed.write(name, values)
        fed.add(name)
        fed.drain()
    with fed.owning() as owner:
        drop_changes(owner, 2)
    assert set(fed.history().dropped.values()) == {2}
    before = fed.history().committed_id
    with pytest.raises(RetractRefused) as refused:
        back(fed, "b")
    assert refused.value.operator in {"newest", "stock"}
    assert (fed.history().committed_id, retracted_by(fed.history(), 2)) == (before, None)
    back(fed, "d")
    check(fed, since=2)
    back(fed, "c")
    check(fed, since=2)
    rewind(fed, 5)
    check(fed, since=2)
    follow(refused.value.remedy, "reset", fed.workplace.home)
    fed.drain()
    assert fed.newest("lake/newest") == {"a": "a4", "b": "b4", "d": "d4"}


@pytest.mark.seed("RC2", "RC4")
@pytest.mark.parametrize("fed", [Keyed], indirect=True)
def test_what_was_retracted_before_an_image_took_its_place_does_not_come_back(
    fed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image has the last row of a key alone, and that row is of a file that was retracted later."""
    monkeypatch.setenv("DRAINMARK_DATABASES__SHOP", DATABASES["shop"])
    fed.has_images = True
    for name, values in {"a": ["a1", "b1"], "b": ["b2"], "c": ["c3"], "d": ["b4"], "e": ["c5"]}.items():
        fed.write(name, values)
        fed.add(name)
        fed.drain()
    back(fed, "b")
    with fed.owning() as owner:
        drop_changes(owner, 3)
    back(fed, "e")
    check(fed, since=3)
    with pytest.raises(RetractRefused, match="retracted later") as refused:
        back(fed, "d")
    assert refused.value.operator in {"newest", "stock"}
    follow(refused.value.remedy, "reset", fed.workplace.home)
    fed.drain()
    assert fed.newest("lake/newest") == {"a": "a1", "b": "b1", "c": "c3"}


@pytest.mark.seed("RC1")
@pytest.mark.parametrize("fed", [HandFed], indirect=True)
def test_rows_also_leave_tables_of_sinks_that_left_the_code(fed: HandFed) -> None:
    for name in "abc":
        fed.write(name, [f"{name}1"])
    fed.add("a", "b")
    fed.drain()
    fed.names = ("kept",)
    fed.add("c")
    fed.drain()
    back(fed, "a")
    check(fed)
    assert fed.values("copied") == [(2, "b1")]
    rewind(fed, 3)
    assert fed.values("copied") == [(1, "a1"), (2, "b1")]


@pytest.mark.seed("RC4")
@pytest.mark.parametrize("fed", [HandFed], indirect=True)
def test_a_sink_with_keys_that_left_the_code_is_named(fed: HandFed) -> None:
    keyed = Keyed(fed.workplace, fed.inbox, names=fed.names)
    keyed.write("a", ["a1"])
    keyed.add("a")
    keyed.drain()
    fed.write("b", ["b1"])
    fed.add("b")
    fed.drain()
    with pytest.raises(RetractRefused, match="which the code has no more") as refused:
        back(fed, "a")
    assert refused.value.operator in {"newest", "stock"}
    back(fed, "b")
    check(fed)


@pytest.mark.seed("RC6")
@pytest.mark.parametrize("fed", [HandFed], indirect=True)
def test_a_region_that_reads_the_table_keeps_what_leaves_or_gets_it_as_deletes(fed: HandFed, tmp_path: Path) -> None:
    ignores, follows = (
        reading(fed, tmp_path, name, "kept", **how)
        for name, how in (("easy", {"on_change": "ignore"}), ("following", {"changes": True}))
    )
    fill(fed, "a")
    for reader in (ignores, follows):
        reader.run()
    plan = orders.retract(fed.workplace, fed.region, ["a"])
    assert {line.rpartition(", and ")[2] for line in plan.plan if "has read" in line} == {
        "keeps them", "gets them as deletes"
    }  # fmt: skip
    assert {reader["region"] for reader in plan.facts["readers"]} == {"easy/rows", "following/rows"}
    plan.act()
    fill(fed, "b")
    for reader in (ignores, follows):
        reader.run()
    assert ignores.rows() == ["a1", "b1"]
    assert follows.rows() == ["a1", "a1", "b1"], "the delete is a row as well"


@pytest.mark.seed("RC4")
@pytest.mark.parametrize("fed", [HandFed], indirect=True)
@pytest.mark.parametrize("is_read", [True, False], ids=["read", "not yet"])
def test_regions_that_would_halt_are_named_with_a_remedy_that_takes_the_chain_back(
    fed: HandFed, tmp_path: Path, is_read: bool
) -> None:
    strict, below = reading(fed, tmp_path, "strict", "kept"), reading(fed, tmp_path, "below", "strict")
    fill(fed, "a")
    for reader in (strict, below):
        reader.run()
    fill(fed, "b", "c")
    for reader in (strict, below) if is_read else ():
        reader.run()
    with pytest.raises(RetractRefused, match="strict/rows reads") as refused:
        back(fed, "b")
    assert refused.value.facts["readers"] == ("strict/rows",)
    follow(refused.value.remedy, "reset", fed.workplace.home)
    for region in (fed, strict, below):
        region.run() if isinstance(region, Reader) else region.drain()
    assert [value for _, value in fed.values("kept")] == ["a1", "c1"]
    assert (strict.rows(), below.rows()) == (["a1", "c1"], ["a1", "c1"])


@pytest.mark.parametrize("fed", [HandFed], indirect=True)
def test_a_region_that_begins_to_read_behind_a_retraction_takes_changes(fed: HandFed, tmp_path: Path) -> None:
    fill(fed, "a", "b", "c")
    back(fed, "b")
    right, strict = reading(fed, tmp_path, "right", "kept", changes=True), reading(fed, tmp_path, "strict", "kept")
    for _ in range(2):
        right.run()
    assert right.rows() == ["a1", "c1"]
    strict.run()
    with pytest.raises(InputChanged, match="removes or rewrites rows"):
        strict.run()


@pytest.mark.seed("RC6")
@pytest.mark.parametrize("fed", [HandFed], indirect=True)
def test_a_region_that_nobody_knows_of_halts(fed: HandFed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one in another home."""
    strict = reading(fed, tmp_path, "strict", "kept")
    fill(fed, "a")
    strict.run()
    with monkeypatch.context() as patch:
        patch.setattr(Home, "links", lambda *_, **__: ())
        back(fed, "a")
    with pytest.raises(InputChanged):
        strict.run()


def reading(fed: HandFed, folder: Path, name: str, table: str, **how: Any) -> Reader:
    source = source_of(f"{name}_{table}", table, **how)
    return Reader(fed.workplace, folder / "none", region=f"{name}/rows", names=(name,), sources=(source,))


def fill(fed: HandFed, *names: str) -> None:
    for name in names:
        fed.write(name, [f"{name}1"])
        fed.add(name)
    fed.drain()
