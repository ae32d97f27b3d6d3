"""Remedies that name a command, followed as they are printed: afterwards each file is counted once. Without Spark."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from by_hand import Counting, HandFed, Shown
from deltalake import DeltaTable, write_deltalake
from followed import chains, follow, parse

from drainmark.jobs import failpoints
from drainmark.jobs.errors import (
    Fenced,
    Halted,
    LayoutChanged,
    RegistryLost,
    ReplaceRefused,
    RewindRefused,
    SplitBrain,
    UnknownName,
    UsageError,
)
from drainmark.jobs.failpoints import InjectedFailure
from drainmark.jobs.protocol.claimed_code import Code
from drainmark.jobs.scan.folder import uri_of
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.dagster_jobs.sensors import RegionTicks
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.doctor import machine
from drainmark.orchestration.doctor import regions as doctor_regions
from drainmark.orchestration.doctor.regions import examine_region
from drainmark.orchestration.inspection.status import status_of
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.tracing.trace import Tracer
from drainmark.orchestration.verbs import orders, table_repair
from drainmark.orchestration.verbs.inputs.backfill import Wanted
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget
from drainmark.orchestration.workplace.application_identity import NOTE
from drainmark.orchestration.workplace.workplace import Workplace, open_application
from drainmark.resources.checkpoints.as_of import read_at
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

Scene = TypeVar("Scene", bound=HandFed)
FILES = {"a": ["x", "y"], "b": ["y"], "c": ["z", "x"]}
NO_TEXT = os.fsdecode(b"\xff.txt")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workplace]:
    """Yield a home that the command line finds with the same settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAINMARK_DATABASES__SHOP", "sqlite:///{home}/shop.db")
    databases = {"shop": "sqlite:///{home}/shop.db"}
    found = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, databases=databases))
    yield found
    failpoints.arm("")
    found.registry.close()


@pytest.fixture
def fed(place: Workplace, tmp_path: Path) -> Counting:
    """Return a region with an append table, a state and an upsert table, that has processed three files."""
    return filled(Counting(place, tmp_path / "inbox"))


def filled(fed: Scene) -> Scene:
    for name, values in FILES.items():
        fed.write(name, values)
    fed.add(*FILES)
    fed.drain()
    return fed


def reopened(fed: HandFed) -> HandFed:
    """Return the region in a new process: its registry is opened anew."""
    fed.workplace.registry.close()
    return replace(fed, workplace=Workplace(fed.workplace.settings))


def require_right(fed: HandFed, *more: str) -> None:
    """Process what is pending and a further file; require that each file is counted once, and the state follows.

    Args:
        more: names of files that are not to be counted.
    """
    fed.write("later", ["w", "x"])
    fed.add("later")
    fed.drain()
    states = fed.history().states.items()
    found = [(number, Path(row.trigger_uri or "")) for number, row in states if row.rows_in]
    wanted = {path.name for path in fed.inbox.iterdir()} - set(more)
    assert sorted(path.name for _, path in found) == sorted(wanted), "each file once"
    rows = [(number, value) for number, path in found for value in path.read_text().splitlines()]
    assert fed.values(fed.names[0]) == sorted(rows)
    if isinstance(fed, Counting):
        last = {value: number for number, value in rows}
        assert fed.values("last") == sorted((number, value) for value, number in last.items())
    assert status_of(fed.workplace, fed.region)["state"] == "STARTED"


# --- the registry --------------------------------------------------------------------------------------------------


def lose_registry(fed: HandFed) -> Workplace:
    fed.workplace.registry.close()
    (fed.workplace.home / "registry.db").unlink()
    return Workplace(fed.workplace.settings)


def ask_the_claim(fed: HandFed) -> str:
    with pytest.raises(RegistryLost) as lost, fed.owning():
        pass
    return str(lost.value)


def ask_backfill(fed: HandFed) -> str:
    with pytest.raises(RegistryLost) as lost:
        orders.backfill(fed.workplace, fed.region, Wanted(pattern=str(fed.inbox)))
    return str(lost.value)


def ask_status(fed: HandFed) -> str:
    return status_of(fed.workplace, fed.region)["remedies"][0]


def ask_doctor(fed: HandFed) -> str:
    _, findings = examine_region(fed.workplace, fed.region, fed.workplace.registry)
    return next(each.remedy or "" for each in findings if each.check == "registry_agrees")


def ask_all_checks(fed: HandFed) -> str:
    return refused("doctor", "--quick", "--home", str(fed.workplace.home), code=1)


@pytest.mark.parametrize("ask", [ask_the_claim, ask_backfill, ask_status, ask_doctor, ask_all_checks])
def test_a_lost_registry_is_rebuilt(fed: Counting, ask: Callable[[HandFed], str]) -> None:
    fed = replace(fed, workplace=lose_registry(fed))
    follow(ask(fed), "doctor", fed.workplace.home)
    require_right(reopened(fed))


def test_a_damaged_registry_is_rebuilt(fed: Counting) -> None:
    fed.workplace.registry.close()
    (fed.workplace.home / "registry.db").write_bytes(b"no database" * 1000)
    with pytest.raises(RegistryLost) as damaged:
        Workplace(fed.workplace.settings).registry.pending_count(fed.region)
    follow(str(damaged.value), "doctor", fed.workplace.home)
    require_right(reopened(fed))


# --- halts ---------------------------------------------------------------------------------------------------------


def halt_for(fed: HandFed, trigger: str | None) -> str:
    """Halt as after failures of a file, and return what a run says then."""
    error = {"id": "OPERATOR_FAILED", "message": "no number"}
    with fed.owning() as owner:
        owner.halts.halt("failed 6 times in a row", trigger=trigger, operator="numbers", error=error)
    return interventions_said(fed)


def interventions_said(fed: HandFed) -> str:
    assert fed.history().halt is not None
    return ", or: ".join(status_of(fed.workplace, fed.region)["remedies"])


@pytest.mark.parametrize("name", ["d.txt", 'it\'s $HOME; `date` "x".txt', "два слова", "\x1b[2J\u202ea\nb!", NO_TEXT])
def test_a_file_that_halts_the_region_is_skipped(fed: Counting, name: str) -> None:
    path = fed.write(name, ["poison"])
    fed.add(name)
    follow(halt_for(fed, uri_of(str(path))), "skip", fed.workplace.home)
    require_right(fed, name)


def test_a_halted_region_is_resumed(fed: Counting) -> None:
    path = fed.write("d", ["good after all"])
    fed.add("d")
    follow(halt_for(fed, str(path)), "resume", fed.workplace.home)
    require_right(fed)


def test_a_halt_that_was_asked_for_is_ended_by_what_the_verbs_say(fed: Counting) -> None:
    said = orders.halt(fed.workplace, fed.region, "lunch").act().lines[0]
    plan = "\n".join(orders.reset(fed.workplace, fed.region, RewindTarget(to=1)).plan)
    follow(said, "resume", fed.workplace.home)
    follow(plan, "resume", fed.workplace.home)
    require_right(fed)


def test_a_repair_of_tables_keeps_the_files_that_wait(fed: Counting) -> None:
    fed.write("d", ["old"])
    orders.backfill(fed.workplace, fed.region, Wanted(pattern=str(fed.inbox / "d"))).act()
    DeltaTable(fed.workplace.home / "lake" / fed.names[0]).delete()
    with pytest.raises(Halted) as halted:
        fed.drain()
    follow(str(halted.value), "resume", fed.workplace.home)
    require_right(fed)


def test_lost_rows_beyond_the_horizon_come_back_by_a_rewind_to_the_beginning(fed: Counting) -> None:
    fed.workplace.registry.save_cursor(fed.region, NOTE, json.dumps({"rewind_horizon": 1}))
    fed.code = Code(operators={"any": "1"}, horizon=1)
    fed.drain()
    DeltaTable(table := fed.workplace.home / "lake" / fed.names[0]).delete()
    for path in table.rglob("*.parquet"):
        if pq.read_table(path).column("_sequence_id").to_pylist() == [2]:
            path.unlink()
    found = table_repair.mend(fed.workplace, fed.region)
    assert found.target == 0, "1 is beyond the horizon"
    follow(found.remedy, "reset", fed.workplace.home)
    require_right(fed)


def test_going_back_by_states_never_ends_at_a_skip(fed: Counting) -> None:
    fed.write("d", ["poison"])
    fed.add("d")
    orders.skip(fed.workplace, fed.region, ["d"], "nonsense").act()
    fed.write("e", ["x"])
    fed.add("e")
    fed.drain()
    orders.reset(fed.workplace, fed.region, RewindTarget(by=1)).act()
    assert fed.history().committed_id == 3, "4 is the skip"
    require_right(fed)


# --- files that are to be read again -------------------------------------------------------------------------------


def test_a_file_that_cannot_be_replaced_is_read_again_behind_a_rewind(fed: Counting) -> None:
    fed.write("b", ["mended"])
    with pytest.raises(ReplaceRefused) as refused:
        orders.backfill(fed.workplace, fed.region, Wanted(pattern=str(fed.inbox / "b"), again=True))
    follow(str(refused.value), "reset", fed.workplace.home)
    require_right(fed)


def test_a_file_beyond_the_horizon_is_read_again_behind_a_rewind_to_the_beginning(fed: Counting) -> None:
    fed.workplace.registry.save_cursor(fed.region, NOTE, json.dumps({"reference": "gone.py", "rewind_horizon": 1}))
    fed.write("b", ["mended"])
    with pytest.raises(ReplaceRefused) as refused:
        orders.backfill(fed.workplace, fed.region, Wanted(pattern=str(fed.inbox / "b"), again=True))
    follow(str(refused.value), "reset", fed.workplace.home)
    require_right(fed)


@pytest.mark.parametrize("horizon", [None, 1], ids=["within the horizon", "beyond it, so to the beginning"])
def test_a_committed_file_is_skipped_behind_a_rewind(fed: Counting, horizon: int | None) -> None:
    if horizon is not None:
        fed.workplace.registry.save_cursor(fed.region, NOTE, json.dumps({"rewind_horizon": horizon}))
    with pytest.raises(UsageError) as refused:
        orders.skip(fed.workplace, fed.region, ["b"], "nonsense")
    follow(str(refused.value), "reset", fed.workplace.home)
    orders.skip(fed.workplace, fed.region, ["b"], "nonsense").act()
    require_right(fed, "b")


def test_a_rewind_to_a_time_behind_a_skip_goes_to_the_state_before_it(fed: Counting) -> None:
    fed.write("d", ["d"])
    fed.add("d")
    orders.skip(fed.workplace, fed.region, ["d"], "nonsense").act()
    target = RewindTarget(to_time=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
    assert orders.reset(fed.workplace, fed.region, target).facts["to"] == 3


# --- sinks outside Delta --------------------------------------------------------------------------------------------


def test_a_database_that_lost_the_row_of_a_table_is_filled_anew(place: Workplace, tmp_path: Path) -> None:
    fed = filled(Shown(place, tmp_path / "inbox", sinks=("rows",)))
    fed.write("d", ["d"])
    fed.add("d")

    def lose_and_go_on() -> None:
        with fed.owning(), closing(sqlite3.connect(place.home / "shop.db")) as database:
            database.execute("DELETE FROM drainmark_applied")
            database.commit()
            fed.process(1)

    with pytest.raises(SplitBrain) as lost:
        lose_and_go_on()
    follow(str(lost.value), "reset", place.home)
    require_right(fed)
    assert fed.shown("rows") == fed.values()


# --- tables and disks ----------------------------------------------------------------------------------------------


def test_a_table_of_other_partitions_is_given_up_for_one_with_all_input(place: Workplace, tmp_path: Path) -> None:
    fed = filled(HandFed(place, tmp_path / "inbox"))
    owner = region_owner(place, fed.region)
    (kept,) = fed.tables
    with pytest.raises(LayoutChanged) as refused:
        owner.claim([replace(kept, options={"partition_by": ["value"]})])
    follow(str(refused.value), "reset", place.home)
    fed.names = ("kept_by_value",)
    require_right(fed)


def test_a_table_that_is_gone_is_named_with_whole_commands(fed: Counting) -> None:
    shutil.rmtree(fed.workplace.home / "lake" / fed.names[0])
    with pytest.raises(Halted) as halted:
        fed.drain()
    commands = [command for chain in chains(str(halted.value)) for command in chain]
    assert [verb for verb, *words in commands if parse(verb, words)] == ["doctor", "doctor", "resume"]


@pytest.mark.parametrize("of_region", [True, False], ids=["of a region", "of all"])
def test_garbage_is_collected(fed: Counting, monkeypatch: pytest.MonkeyPatch, of_region: bool) -> None:
    monkeypatch.setattr(machine, "_ENOUGH_BYTES", 1 << 60)
    monkeypatch.setattr(doctor_regions, "_MUCH_GARBAGE", -1)
    _, findings = examine_region(fed.workplace, fed.region, fed.workplace.registry)
    garbage = next(each for each in findings if each.check == "garbage")
    _, space = machine.free_bytes(fed.workplace.home)
    follow((garbage if of_region else space).remedy, "gc", fed.workplace.home)
    require_right(fed)


# --- regions whose code is at hand ---------------------------------------------------------------------------------

APPLICATION = """import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path={path!r}, pattern="*", settle=0))
def lines(scanned):
    return scanned

dm.sink(lines, dm.DeltaAppend("kept"))
"""


@pytest.fixture
def shop(place: Workplace, tmp_path: Path) -> HandFed:
    """Return a region with code that the command line finds; its groups are processed by hand."""
    found = HandFed(place, tmp_path / "inbox", region="shop/lines")
    (tmp_path / "shop.py").write_text(APPLICATION.format(path=str(found.inbox)))
    (tmp_path / "drainmark.toml").write_text('applications = ["shop.py"]\n')
    for name, values in FILES.items():
        found.write(name, values)
    assert invoke(["scan", "shop.py", "--home", str(place.home)]) == 0
    found.drain()
    return found


def scan(fed: HandFed) -> None:
    opened = open_application(str(fed.inbox.parent / "shop.py"))
    scan_region(fed.workplace, opened.region(fed.region))


def test_a_file_that_is_not_known_yet_is_found_by_a_scan(shop: HandFed) -> None:
    shop.write("d", ["bad"])
    with pytest.raises(UnknownName) as unknown:
        orders.skip(shop.workplace, shop.region, ["d"], "nonsense")
    follow(str(unknown.value), "scan", shop.workplace.home)
    orders.skip(shop.workplace, shop.region, ["d"], "nonsense").act()
    require_right(shop, "d")


def test_a_file_that_is_to_be_traced_is_found_by_a_scan(shop: HandFed) -> None:
    shop.write("d", ["new"])
    with pytest.raises(UnknownName) as unknown:
        Tracer.of(shop.workplace, shop.region).file("/nowhere/d")
    follow(str(unknown.value), "scan", shop.workplace.home)
    assert Tracer.of(shop.workplace, shop.region).file("d")["sequence_id"] is None
    require_right(shop)


def ask_the_scan(shop: HandFed) -> str:
    with pytest.raises(RegistryLost) as lost:
        scan(shop)
    return str(lost.value)


def ask_the_sensor(shop: HandFed) -> str:
    region = open_application(str(shop.inbox.parent / "shop.py")).region(shop.region)
    return RegionTicks(workplace=shop.workplace, region=region, node="lines").why_not(shop.history()) or ""


@pytest.mark.parametrize("ask", [ask_the_scan, ask_the_sensor])
def test_a_registry_that_the_scan_misses_is_rebuilt(shop: HandFed, ask: Callable[[HandFed], str]) -> None:
    shop = replace(shop, workplace=lose_registry(shop))
    follow(ask(shop), "doctor", shop.workplace.home)
    require_right(reopened(shop))


def test_a_region_of_files_accepts_no_loss_and_says_what_it_does(shop: HandFed) -> None:
    path = shop.write("d", ["poison"])
    scan(shop)
    halt_for(shop, str(path))
    with pytest.raises(UsageError, match="no source that can go on after lost input") as refused:
        orders.resume(shop.workplace, shop.region, "go", accept_loss=True)
    follow(str(refused.value), "skip", shop.workplace.home)
    require_right(shop, "d")


TABLE_READER = """import drainmark as dm

@dm.consistent(trigger="operator-driven")
@dm.source(dm.TableSource("stock"))
def lines(scanned):
    return scanned

dm.sink(lines, dm.DeltaAppend("kept"))
"""


def test_a_halt_without_a_loss_is_ended_without_accepting_one(shop: HandFed, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(TABLE_READER)
    write_deltalake(shop.workplace.home / "lake" / "stock", pa.table({"value": ["x"]}))
    halt_for(shop, None)
    with pytest.raises(UsageError, match="is lost") as refused:
        orders.resume(shop.workplace, shop.region, "go", accept_loss=True).act()
    follow(str(refused.value), "resume", shop.workplace.home)
    require_right(shop)


# --- runs, with Spark ----------------------------------------------------------------------------------------------


def ask_show(home: Path) -> str:
    return refused("show", "kept", "--home", str(home))


def ask_trace(home: Path) -> str:
    return refused("trace", "shop", "--file", "a", "--home", str(home))


def refused(*arguments: str, code: int = 2) -> str:
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        assert invoke(arguments) == code
    return said.getvalue()


@pytest.mark.spark
@pytest.mark.parametrize("ask", [ask_show, ask_trace])
def test_a_region_that_never_ran_is_run(
    ask: Callable[[Path], str], engine: SparkEngine, place: Workplace, tmp_path: Path
) -> None:
    assert engine.session is not None  # the command line's own engine finds this session
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "a").write_text("x\ny\n")
    (tmp_path / "shop.py").write_text(APPLICATION.format(path=str(inbox)))
    (tmp_path / "drainmark.toml").write_text('applications = ["shop.py"]\n')
    follow(ask(place.home), "run", place.home)
    found = read_at("shop", "kept", home=str(place.home)).to_pylist()
    assert sorted(row["value"] for row in found) == ["x", "y"]


@pytest.mark.parametrize(
    ("ask", "known"),
    [
        pytest.param(str, (), id="by the halt, first group"),
        pytest.param(ask_status, ("a", "b"), id="by status, later group"),
        pytest.param(str, ("a", "b"), id="by the halt, later group", marks=pytest.mark.slow),
        pytest.param(ask_status, (), id="by status, first group", marks=pytest.mark.slow),
    ],
)
def test_a_group_whose_files_are_lost_before_it_is_published_comes_again_behind_a_rewind(
    place: Workplace, tmp_path: Path, known: Sequence[str], ask: Callable[[Any], str]
) -> None:
    fed = Counting(place, tmp_path / "inbox")
    for name, values in FILES.items():
        fed.write(name, values)
    fed.add(*known)
    fed.drain()
    fed.add(*FILES)
    failpoints.arm("publish.before_commit:raise")
    with pytest.raises(InjectedFailure):
        fed.drain()
    failpoints.arm("")
    newest = max((place.home / "lake").glob("*/_staged/*"), key=lambda path: path.stat().st_mtime_ns)
    shutil.rmtree(newest)
    with pytest.raises(Halted) as halted:
        fed.drain()
    with pytest.raises(RewindRefused, match="cannot rewind"):
        orders.reset(place, fed.region, RewindTarget(to=fed.history().committed_id)).act()
    follow(ask(halted.value if ask is str else fed), "reset", place.home)
    require_right(reopened(fed))


def test_a_table_that_is_gone_before_a_group_is_published_comes_back_behind_a_rewind(fed: Counting) -> None:
    fed.write("d", ["y"])
    fed.add("d")
    failpoints.arm("publish.before_commit:raise")
    with pytest.raises(InjectedFailure):
        fed.drain()
    failpoints.arm("")
    shutil.rmtree(fed.workplace.home / "lake" / fed.names[0])
    with pytest.raises(Halted, match="is gone"):
        fed.drain()
    follow(table_repair.mend(fed.workplace, fed.region).remedy, "reset", fed.workplace.home)
    require_right(reopened(fed))


def test_a_command_that_another_owner_cut_off_says_what_to_do(fed: Counting) -> None:
    over = fed.history().epoch - 1
    with pytest.raises(Fenced) as cut:
        fed.workplace.registry.progress.take_ids(fed.region, over, 1)
    assert cut.value.remedy
