"""Changes that others make to a region's tables are noticed before anything is committed on top, and repaired (RT1).

The region is fed by hand. It has an append sink, a state, and the upsert sink that is merged from the state. Only one
test uses Spark.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from by_hand import Counting, HandFed
from chained_by_hand import Reader, one, place, source_of
from deltalake import DeltaTable, write_deltalake
from followed import follow
from harness import verbs

from drainmark.jobs import failpoints
from drainmark.jobs.errors import Halted, RewindRefused, SplitBrain, UsageError
from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.protocol.records.ids import split_txn_version
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.protocol.repairs import TableVersions
from drainmark.jobs.runtime.commit import table_damage
from drainmark.jobs.runtime.commit.region_owner import RegionOwner
from drainmark.jobs.runtime.commit.staged_group import StagedTable
from drainmark.jobs.state import keyed_parts
from drainmark.orchestration import doctor
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.doctor.registry_repair import repair as rebuild
from drainmark.orchestration.doctor.registry_repair import repair_order
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.verbs import interventions, orders, table_repair
from drainmark.orchestration.verbs.inputs.backfill import Wanted, plan_queue
from drainmark.orchestration.verbs.removals import garbage
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.delta import commits
from drainmark.resources.delta.keyed import keyed_merge
from drainmark.resources.delta.log.commit_log import SoleWriter
from drainmark.resources.settings import Settings
from drainmark.resources.storage.folder import Folder

__all__ = ["one", "place"]

APPEND, STATE, UPSERT = "lake/kept", "state/by_hand/last", "lake/last"
Harm = Callable[[DeltaTable], Any]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a region that has processed two files, in a group each."""
    folder = tmp_path_factory.mktemp("begun")
    scene = opened(folder / "home", folder)
    take(scene, one="a b", two="a c")
    scene.workplace.registry.close()
    return folder


@pytest.fixture
def fed(begun: Path, tmp_path: Path) -> Iterator[Counting]:
    """Yield a copy of that region, in a home for one test."""
    shutil.copytree(begun / "home", tmp_path / "home")
    scene = opened(tmp_path / "home", begun)
    yield scene
    failpoints.arm("")
    scene.workplace.registry.close()


def opened(home: Path, folder: Path) -> Counting:
    return Counting(Workplace(Settings(home=home, project_root=folder)), folder / "inbox")


def take(fed: Counting, **files: str) -> None:
    """Give the region files, and let it process them in a group each."""
    for name, values in files.items():
        fed.write(name, values.split())
        fed.add(name)
    fed.drain()


def table(fed: HandFed, name: str) -> DeltaTable:
    return DeltaTable(fed.workplace.home / name)


def shown(fed: Counting) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of every table."""
    store = fed.workplace.store(fed.region)
    return {
        each.name: sorted(tuple(row.values()) for row in store.table(each.name).read().to_pylist())
        for each in fed.tables
    }


def versions(fed: Counting) -> dict[str, int]:
    return {name: table(fed, name).version() for name in (APPEND, STATE, UPSERT)}


def append(target: DeltaTable) -> None:
    rows = pa.table({"value": ["x"], "_sequence_id": pa.array([2], pa.int64())})
    write_deltalake(target, rows, mode="append")


def append_without_id(target: DeltaTable) -> None:
    rows = pa.table({"value": ["x"], "_sequence_id": pa.array([None], pa.int64())})
    write_deltalake(target, rows, mode="append")


def merge(target: DeltaTable) -> None:
    rows = pa.table({"value": ["a"], "_sequence_id": pa.array([9], pa.int64())})
    merger = target.merge(rows, "t.value = s.value", source_alias="s", target_alias="t")
    merger.when_matched_update_all().execute()


def overwrite(target: DeltaTable) -> None:
    write_deltalake(target, pa.table({"value": ["x"], "_sequence_id": pa.array([1], pa.int64())}), mode="overwrite")


def delete_and_optimise(target: DeltaTable) -> None:
    target.delete("value = 'a'")
    append(target)
    target.optimize.compact()


def one_of_all(chosen: str) -> list[Any]:
    """Return all tables as parameters; only the chosen one is in the default run, whose tests choose in turn."""
    return [pytest.param(name, marks=() if name == chosen else pytest.mark.slow) for name in (APPEND, STATE, UPSERT)]


HARMS: dict[str, Harm] = {
    "delete": lambda target: target.delete("value = 'a'"),
    "delete all": lambda target: target.delete(),
    "update": lambda target: target.update(updates={"_sequence_id": "1"}, predicate="value = 'a'"),
    "restore": lambda target: target.restore(1),
    "merge": merge,
    "overwrite": overwrite,
    "append": append,
    "append without id": append_without_id,
    "delete and optimise": delete_and_optimise,
}


@pytest.mark.seed("RT1")
@pytest.mark.parametrize(
    ("harm", "name"),
    [
        pytest.param(harm, name, marks=() if place == number % 3 else pytest.mark.slow)
        for number, harm in enumerate(HARMS)
        for place, name in enumerate((APPEND, STATE, UPSERT))
    ],
)
def test_the_next_run_halts_before_it_commits_to_any_table_and_a_repair_undoes_it(
    fed: Counting, harm: str, name: str
) -> None:
    """The default run does each harm to one of the tables; `make test-recovery` does it to all."""
    HARMS[harm](table(fed, name))
    before = versions(fed)
    with pytest.raises(Halted):
        take(fed, three="a d")
    assert versions(fed) == before
    assert fed.history().committed_id == 2
    halt = fed.history().halt
    assert halt is not None
    error = halt.detail["error"]
    assert error["id"] == SplitBrain.id
    assert name in error["message"]
    assert re.search(r"version \d, [A-Z]+ by delta-rs", error["message"])
    (plan,) = table_repair.plan(fed.workplace)
    (step,) = plan.tables
    assert (step.table, step.lost, plan.remedy) == (name, (), None)
    assert len(step.commits) == (2 if " and " in harm else 1)
    done = table_repair.mend(fed.workplace, fed.region)
    assert done.tables == plan.tables, "plan and deed are the same values"
    assert versions(fed) == {**before, name: before[name] + 1}
    assert table_repair.plan(fed.workplace) == []
    interventions.resume(fed.workplace, fed.region, "put right")
    fed.drain()
    assert fed.history().committed_id > 2
    assert shown(fed) == golden(fed)


def harmless(target: DeltaTable) -> None:
    target.optimize.compact()
    target.optimize.z_order(["value"])
    target.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    target.alter.set_table_properties({"delta.logRetentionDuration": "interval 30 days"})


@pytest.mark.seed("RT1", "D9")
@pytest.mark.parametrize("name", one_of_all(UPSERT))
def test_what_leaves_the_rows_as_they_are_disturbs_nobody(fed: Counting, name: str) -> None:
    harmless(table(fed, name))
    take(fed, three="a d")
    assert shown(fed)[APPEND] == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 2), ("d", 3)]
    assert shown(fed)[UPSERT] == [("a", 3), ("b", 1), ("c", 2), ("d", 3)]


# --- the way back -------------------------------------------------------------------------------------------------


def golden(fed: Counting) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of the committed files under their ids, computed in plain Python."""
    rows, last = [], {}
    for number, row in fed.history().states.items():
        for value in Path(row.trigger_uri or "").read_text().splitlines():
            rows.append((value, number))
            last[value] = number
    return {APPEND: sorted(rows), STATE: sorted(set(rows)), UPSERT: sorted(last.items())}


@pytest.mark.seed("RT1")
def test_doctor_shows_the_plan_acts_with_yes_and_is_clean_afterwards(
    fed: Counting, capsys: pytest.CaptureFixture[str]
) -> None:
    append(table(fed, APPEND))
    table(fed, UPSERT).delete()
    with pytest.raises(Halted):
        take(fed, three="a d")
    run, before = verbs(fed.workplace.home, capsys), versions(fed)
    plan = run("doctor", "--repair", code=2)["repairs"]
    assert versions(fed) == before, "without --yes nothing is changed"
    assert [step["table"] for step in plan[0]["tables"]] == [APPEND, UPSERT]
    assert plan[0]["tables"][0]["commits"][0]["operation"] == "WRITE"
    done = run("doctor", "--repair", "--quick", "--yes")
    assert done["repairs"] == plan
    assert done["problems"] == []
    assert {entry["verdict"] for entry in done["checks"] if entry["check"] == "tables"} == {"ok"}
    (again,) = (entry["remedy"] for entry in done["checks"] if entry["check"] == "not_halted")
    follow(again, "resume", fed.workplace.home)
    fed.drain()
    assert shown(fed) == golden(fed)


@pytest.mark.seed("RT1")
def test_what_a_halted_run_and_the_plan_of_a_rewind_tell_puts_the_tables_right(fed: Counting) -> None:
    append(table(fed, APPEND))
    with pytest.raises(Halted) as halted:
        take(fed, three="a d")
    follow(str(halted.value), "resume", fed.workplace.home)
    fed.drain()
    assert shown(fed) == golden(fed)
    append(table(fed, APPEND))
    plan = "\n".join(orders.reset(fed.workplace, fed.region, RewindTarget(to=1)).plan)
    follow(plan, "doctor", fed.workplace.home)
    fed.drain()
    assert shown(fed) == golden(fed)


@pytest.mark.seed("RT1")
def test_nobody_goes_on_while_the_damage_is_there_and_it_is_said_once(fed: Counting) -> None:
    append(table(fed, APPEND))
    for _ in range(2):
        with pytest.raises(Halted):
            take(fed)
    with pytest.raises(Halted):
        interventions.resume(fed.workplace, fed.region, "try")
    kinds = [row.kind for row in fed.workplace.store(fed.region).checkpoint.rows()]
    assert kinds.count(RowKind.HALT) == 1


@pytest.mark.seed("RT1")
@pytest.mark.parametrize("name", one_of_all(APPEND))
def test_what_comes_between_two_groups_of_a_run_is_noticed_before_the_second_is_committed(
    fed: Counting, name: str
) -> None:
    for file in ("three", "four"):
        fed.write(file, ["e"])
        fed.add(file)
    with fed.owning() as owner:
        fed.process(1)
        append(table(fed, name))
        with pytest.raises(SplitBrain):
            owner.groups.commit(fed.group(1))
    assert len(fed.history().states) == 3


@pytest.mark.seed("RT1", "H2")
def test_what_comes_between_check_and_commit_is_never_committed_on_top(
    fed: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table refuses the publish that was checked; the next try finds the commit in between."""
    fed.write("three", ["e"])
    fed.add("three")
    real, came = commits.transact, []

    def late(folder: Folder, *given: Any, **named: Any) -> None:
        if not came and APPEND in folder.uri:
            came.append(append(table(fed, APPEND)))
        real(folder, *given, **named)

    with fed.owning() as owner:
        row = owner.groups.commit(fed.group(1))
        monkeypatch.setattr(commits, "transact", late)
        with pytest.raises(SplitBrain):
            owner.groups.publish(row)
    assert came
    assert ("x", 2) in shown(fed)[APPEND]
    assert ("e", row.sequence_id) not in shown(fed)[APPEND]
    table_repair.mend(fed.workplace, fed.region)
    fed.drain()
    assert shown(fed) == golden(fed), "what was committed is published after the repair"


@pytest.mark.seed("RT1")
def test_nothing_is_collected_before_the_tables_are_put_right(fed: Counting) -> None:
    """What a repair shows again is garbage in the eyes of a table that others changed."""
    fed.write("three", ["a"])
    fed.add("three")
    with suppress(KeyboardInterrupt), fed.owning():
        fed.group(1)
        raise KeyboardInterrupt  # leaves staged files that nobody needs
    table(fed, APPEND).delete("value = 'a'")
    before = sorted((fed.workplace.home / "lake").rglob("*.parquet"))
    assert garbage.collect_region(fed.workplace, fed.region, dry_run=True)["files"] > 0
    with pytest.raises(Halted):
        garbage.collect_region(fed.workplace, fed.region)
    assert sorted((fed.workplace.home / "lake").rglob("*.parquet")) == before


def vanish(fed: HandFed, name: str, number: int) -> None:
    """Delete the files of one id that checkpoint rows name for a table: not even a repair finds them."""
    files = [file for row in fed.history().states.values() if row.sequence_id == number
             for file in row.detail["manifest"]["files"].get(name, ())]  # fmt: skip
    for file in files:
        (fed.workplace.home / name / file["path"]).unlink()


@pytest.mark.seed("RT1")
def test_files_that_are_gone_are_made_anew_from_those_that_were_staged(fed: Counting) -> None:
    """After a compaction and a delete, the compacted file is lost: the staged files still have the rows."""
    with fed.owning() as owner:
        staging = owner.outside.store.staging(APPEND, owner.epoch, "c")
        kept = owner.outside.store.table(APPEND)
        assert kept.upkeep.compact(kept.txn_version() or 0, staging, files_at_least=2)
    (compacted,) = table(fed, APPEND).file_uris()
    table(fed, APPEND).delete("value = 'a'")
    Path(compacted).unlink()
    (plan,) = table_repair.plan(fed.workplace)
    (step,) = plan.tables
    assert (len(step.added), step.lost) == (2, ())
    table_repair.mend(fed.workplace, fed.region)
    assert shown(fed) == golden(fed)


@pytest.mark.seed("RT1")
def test_a_visible_table_whose_files_are_gone_is_rebuilt_from_its_history(fed: Counting) -> None:
    target = table(fed, UPSERT)
    target.delete()
    target.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    (plan,) = table_repair.plan(fed.workplace)
    assert [step.history for step in plan.tables] == [STATE]
    table_repair.mend(fed.workplace, fed.region)
    assert shown(fed) == golden(fed)


@pytest.mark.seed("RT1")
def test_a_large_visible_table_is_rebuilt_a_few_rows_at_a_time(fed: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also its rows are counted so, if its log no longer tells who wrote which file."""
    monkeypatch.setattr(keyed_parts, "ROWS_AT_ONCE", 2)
    for limit in ("_FEW_BYTES", "_PART_BYTES", "_FILE_BYTES"):
        monkeypatch.setattr(keyed_merge, limit, 500)
    history = fed.workplace.store(fed.region).checkpoint.history()
    rows = table_damage.RepairPlan(fed.workplace.store(fed.region), history).rows_for(UPSERT)
    assert rows.counts() == Counter(number for _, number in golden(fed)[UPSERT])
    target = table(fed, UPSERT)
    target.delete()
    target.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table_repair.mend(fed.workplace, fed.region)
    assert shown(fed) == golden(fed)
    assert len(table(fed, UPSERT).file_uris()) > 1, "all keys were in memory at once"


@pytest.mark.seed("RT1")
def test_what_the_region_committed_on_top_of_is_put_right_too(fed: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older version left such tables: it noticed nothing."""
    append(table(fed, APPEND))
    table(fed, UPSERT).update(updates={"_sequence_id": "9"}, predicate="value = 'b'")
    with monkeypatch.context() as older:
        older.setattr(SoleWriter, "require", lambda self, version: None)
        take(fed, three="a d")
    assert shown(fed) != golden(fed)
    (plan,) = table_repair.plan(fed.workplace)
    assert {step.table: step.lost for step in plan.tables} == {APPEND: (), UPSERT: ()}
    table_repair.mend(fed.workplace, fed.region)
    assert shown(fed) == golden(fed)
    assert table_repair.plan(fed.workplace) == []


@pytest.mark.seed("RT1")
@pytest.mark.parametrize("is_told_by_doctor", [True, False], ids=["by the doctor", "by the rewind"])
def test_ids_that_are_lost_are_told_and_a_rewind_below_them_brings_them_back(
    fed: Counting, capsys: pytest.CaptureFixture[str], is_told_by_doctor: bool
) -> None:
    table(fed, APPEND).delete("value = 'a'")
    append(table(fed, STATE))
    table(fed, UPSERT).delete("value = 'a'")
    vanish(fed, APPEND, 2)
    run = verbs(fed.workplace.home, capsys)
    plan = run("doctor", "--repair", code=2)["repairs"]
    assert {step["table"]: step["lost_ids"] for step in plan[0]["tables"]} == {APPEND: [2], STATE: [], UPSERT: []}
    assert f"reset {fed.region} --to 1" in plan[0]["remedy"]
    before = versions(fed)
    left = run("doctor", "--repair", "--quick", "--yes", code=1)
    assert any(APPEND in problem["message"] for problem in left["problems"])
    assert versions(fed)[APPEND] == before[APPEND], "a table of which ids are lost stays as it is, and noticed"
    with pytest.raises(Halted):
        take(fed)
    refused = run("reset", fed.region, "--to", 2, "--yes", code=2)
    assert refused["id"] == RewindRefused.id
    assert "--to 1" in refused["remedy"]
    follow(plan[0]["remedy"] if is_told_by_doctor else refused["remedy"], "reset", fed.workplace.home)
    assert shown(fed) == golden(fed)
    fed.drain()
    assert len(fed.history().states) == 2
    assert shown(fed) == golden(fed)


@pytest.mark.seed("RT1")
def test_the_plan_of_repairs_ends_with_the_rewind_where_only_that_gives_rows_back(
    fed: Counting, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--yes` would change nothing; also the desk says so."""
    shutil.rmtree(fed.workplace.home / APPEND)
    assert invoke(["doctor", "--repair", "--home", str(fed.workplace.home)]) == 2
    said = capsys.readouterr().err
    assert "to carry it out" not in said
    assert invoke(["doctor", "--repair", "--input", str(fed.inbox), "--home", str(fed.workplace.home)]) == 2
    assert "repeat it with --yes to carry it out; then: " in capsys.readouterr().err, "the registry would be rebuilt"
    with pytest.raises(UsageError) as refused:
        repair_order(fed.workplace, fed.region)
    assert str(refused.value.remedy) in said
    follow(said, "reset", fed.workplace.home)
    fed.drain()
    assert shown(fed) == golden(fed)
    assert table_repair.plan(fed.workplace) == []


@pytest.mark.seed("RT1")
def test_the_plan_of_repairs_names_the_rewind_that_is_needed_after_them(
    fed: Counting, capsys: pytest.CaptureFixture[str]
) -> None:
    table(fed, APPEND).delete("value = 'a'")
    append(table(fed, STATE))
    vanish(fed, APPEND, 2)
    assert invoke(["doctor", "--repair", "--home", str(fed.workplace.home)]) == 2
    said = capsys.readouterr().err
    assert "repeat it with --yes to carry it out; then: drainmark reset" in said
    assert invoke(["doctor", "--repair", "--yes", "--quick", "--home", str(fed.workplace.home)]) == 1
    follow(said, "reset", fed.workplace.home)
    fed.drain()
    assert shown(fed) == golden(fed)


@pytest.mark.seed("RT1")
def test_the_rewind_of_a_repair_takes_the_readers_of_the_table_back(
    place: Workplace, one: HandFed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    down = Reader(place, tmp_path / "none", region="down/read", names=("read",), sources=(source_of("read", "first"),))
    for name in "ab":
        one.write(name, [name])
        one.add(name)
    one.drain()
    down.run()
    table(one, "lake/first").delete("value = 'b'")
    vanish(one, "lake/first", 2)
    assert invoke(["doctor", "--repair", "--home", str(place.home)]) == 2
    follow(capsys.readouterr().err, "reset", place.home)
    assert (one.values(), down.rows()) == ([(1, "a")], []), "the reader had read both in one slice"
    one.drain()
    assert [value for _, value in one.values()] == ["a", "b"]


@pytest.mark.seed("RT1")
@pytest.mark.parametrize("name", one_of_all(STATE))
def test_a_table_that_was_deleted_is_not_made_anew_and_empty(fed: Counting, name: str) -> None:
    shutil.rmtree(fed.workplace.home / name)
    with pytest.raises(Halted):
        take(fed, three="a d")
    assert not (fed.workplace.home / name).exists()
    (plan,) = table_repair.plan(fed.workplace)
    (step,) = plan.tables
    assert (step.table, step.lost) == (name, () if name == UPSERT else (1, 2))
    if name == UPSERT:
        table_repair.mend(fed.workplace, fed.region)
        interventions.resume(fed.workplace, fed.region, "put right")
    else:
        assert "--to 0" in (plan.remedy or "")
        interventions.reset(
            fed.workplace,
            plan_reset(fed.workplace, fed.region, RewindTarget(to_initial=True)),
        )
    fed.drain()
    assert len(fed.history().states) == 3
    assert shown(fed) == golden(fed)


def copied(fed: HandFed, name: str) -> Callable[[], None]:
    """Copy a table's folder; return a function that restores the copy: its log, and the files that it shows."""
    at = fed.workplace.home / name
    kept = fed.workplace.home.parent / f"backup-{uuid.uuid4().hex}"
    shutil.copytree(at, kept)

    def restore() -> None:
        shutil.rmtree(at / "_delta_log")
        shutil.copytree(kept, at, dirs_exist_ok=True)

    return restore


def require_whole_repair(fed: Counting) -> None:
    """Check that a repair is planned that loses no id, carry it out, and compare all tables."""
    (plan,) = table_repair.plan(fed.workplace)
    assert plan.target is None
    table_repair.mend(fed.workplace, fed.region)
    assert shown(fed) == golden(fed)


def rewind(fed: HandFed, *, to: int) -> None:
    target = RewindTarget(to=to)
    interventions.reset(fed.workplace, plan_reset(fed.workplace, fed.region, target))


def process_again(fed: HandFed, name: str) -> None:
    plan_queue(fed.workplace, fed.region, Wanted(pattern=str(fed.inbox / name), again=True)).carry_out(fed.workplace)
    fed.drain()


@pytest.fixture
def again(tmp_path: Path) -> Iterator[HandFed]:
    """Yield a region with an append sink in which the first of two files was processed again, as id 3."""
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    scene = HandFed(place, tmp_path / "inbox")
    for name, value in (("one", "a"), ("two", "b")):
        scene.write(name, [value])
        scene.add(name)
    scene.drain()
    process_again(scene, "one")
    assert scene.values() == [(2, "b"), (3, "a")]
    yield scene
    place.registry.close()


def restart(fed: Counting) -> Counting:
    """Return the same region in a process that knows nothing of earlier checks."""
    fed.workplace.registry.close()
    return opened(fed.workplace.home, fed.inbox.parent)


@pytest.mark.seed("RT1")
@pytest.mark.parametrize("name", one_of_all(APPEND))
def test_an_older_copy_of_a_table_is_not_taken_for_the_table(
    fed: Counting, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    restore = copied(fed, name)
    take(fed, three="a d", four="e")
    restore()
    fed = restart(fed)
    examined = verbs(fed.workplace.home, capsys)("doctor", "--quick", code=1)
    assert any("was an older copy restored" in problem["message"] for problem in examined["problems"])
    with pytest.raises(Halted, match="was an older copy restored"):
        take(fed, five="f")
    table_repair.mend(fed.workplace, fed.region)
    assert shown(fed) == golden(fed)
    assert table_repair.plan(fed.workplace) == []
    interventions.resume(fed.workplace, fed.region, "put right")
    fed.drain()
    assert len(fed.history().states) == 5
    assert shown(fed) == golden(fed)


@pytest.mark.seed("RT1")
@pytest.mark.parametrize("name", [APPEND, STATE])
def test_a_reset_brings_back_rows_that_an_older_copy_lacks_and_nothing_else_has(fed: Counting, name: str) -> None:
    restore = copied(fed, name)
    take(fed, three="a d", four="e")
    vanish(fed, name, 3)
    vanish(fed, name, 4)
    restore()
    fed = restart(fed)
    (plan,) = table_repair.plan(fed.workplace)
    (step,) = plan.tables
    assert (step.lost, plan.target) == ((3, 4), 2)
    rewind(fed, to=2)
    assert shown(fed) == golden(fed)
    fed.drain()
    assert len(fed.history().states) == 4
    assert shown(fed) == golden(fed)


@pytest.mark.seed("RT1")
@pytest.mark.parametrize("reads_again", [True, False])
def test_rows_that_were_rewound_since_come_back_with_an_older_checkpoint_table(
    fed: Counting, reads_again: bool
) -> None:
    restore = copied(fed, fed.workplace.store(fed.region).checkpoint_name)
    rewind(fed, to=1)
    if reads_again:
        fed.drain()
    restore()
    fed = restart(fed)
    rebuild(fed.workplace)
    with pytest.raises(Halted, match="was an older copy of the checkpoint table restored"):
        take(fed)
    table_repair.mend(fed.workplace, fed.region)
    assert list(fed.history().states) == [1, 2]
    assert shown(fed) == golden(fed)
    assert table_repair.plan(fed.workplace) == []


@pytest.mark.seed("RT1")
def test_an_unknown_group_leaves_though_a_later_owner_fenced_its_tables(fed: Counting) -> None:
    restore = copied(fed, fed.workplace.store(fed.region).checkpoint_name)
    take(fed, three="a d")
    fed.write("four", ["e"])
    fed.add("four")
    with suppress(KeyboardInterrupt), fed.owning():
        fed.group(1)
        raise KeyboardInterrupt
    with fed.owning():
        pass  # deletes the staged files of the owner that crashed
    assert split_txn_version(fed.workplace.store(fed.region).table(APPEND).txn_version() or 0) == (4, 0)
    restore()
    fed = restart(fed)
    rebuild(fed.workplace)
    with pytest.raises(Halted, match="has a commit of epoch 4"):
        take(fed)
    table_repair.mend(fed.workplace, fed.region)
    interventions.resume(fed.workplace, fed.region, "put right")
    fed.add("three", "four")
    fed.drain()
    assert len(fed.history().states) == 4
    assert shown(fed) == golden(fed)


@pytest.mark.seed("RT1")
def test_rows_that_only_a_compacted_file_has_stay_with_an_older_checkpoint_table(fed: Counting) -> None:
    with fed.owning() as owner:
        kept, staging = owner.outside.store.table(APPEND), owner.outside.store.staging(APPEND, owner.epoch, "c")
        assert kept.upkeep.compact(kept.txn_version() or 0, staging, files_at_least=2)
    vanish(fed, APPEND, 1)
    vanish(fed, APPEND, 2)
    restore = copied(fed, fed.workplace.store(fed.region).checkpoint_name)
    take(fed, three="a d")
    restore()
    fed = restart(fed)
    rebuild(fed.workplace)
    with pytest.raises(Halted):
        take(fed)
    require_whole_repair(fed)


@pytest.mark.seed("RT1")
def test_rows_that_a_copy_shows_replaced_come_back_if_they_are_in_force(again: HandFed) -> None:
    restore = copied(again, APPEND)
    rewind(again, to=2)
    restore()
    again = HandFed(again.workplace, again.inbox)
    with pytest.raises(Halted, match="was an older copy restored"):
        again.drain()
    table_repair.mend(again.workplace, again.region)
    assert again.values() == [(1, "a"), (2, "b")]


@pytest.mark.seed("RT1")
def test_rows_that_were_replaced_since_come_back_with_an_older_checkpoint_table(again: HandFed) -> None:
    rewind(again, to=2)
    restore = copied(again, again.workplace.store(again.region).checkpoint_name)
    process_again(again, "one")
    assert again.values() == [(2, "b"), (5, "a")]
    restore()
    again = HandFed(again.workplace, again.inbox)
    rebuild(again.workplace)
    with pytest.raises(Halted, match="was an older copy of the checkpoint table restored"):
        again.drain()
    table_repair.mend(again.workplace, again.region)
    assert again.values() == [(1, "a"), (2, "b")]


@pytest.mark.seed("RT1")
def test_a_second_older_copy_is_noticed_though_it_is_newer_than_the_repair_of_the_first(fed: Counting) -> None:
    first = copied(fed, APPEND)
    take(fed, three="a d", four="e", five="f", six="g")
    second = copied(fed, APPEND)
    take(fed, seven="h")
    first()
    fed = restart(fed)
    table_repair.mend(fed.workplace, fed.region)
    assert shown(fed) == golden(fed)
    second()
    fed = restart(fed)
    with pytest.raises(Halted, match="lacks the rows of id 7"):
        take(fed)
    table_repair.mend(fed.workplace, fed.region)
    assert shown(fed) == golden(fed)


@pytest.mark.seed("RT1")
def test_rows_without_an_id_after_a_rewind_are_those_of_another_program(fed: Counting) -> None:
    rewind(fed, to=1)
    append_without_id(table(fed, APPEND))
    fed = restart(fed)
    with pytest.raises(Halted, match="another program"):
        take(fed)
    table_repair.mend(fed.workplace, fed.region)
    assert shown(fed) == golden(fed)


@pytest.mark.seed("RT1")
def test_a_run_that_commits_beside_the_doctor_is_no_restored_backup(
    fed: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed.write("three", ["c"])
    fed.write("four", ["d"])
    fed.add("three", "four")
    with fed.owning():
        store, history = fed.workplace.store(fed.region), fed.history()
        fed.process(1)
        really = store.foreign_commits.versions

        def beside(name: str) -> TableVersions:
            found = really(name)
            fed.process(1)
            return found

        monkeypatch.setattr(store.foreign_commits, "versions", beside)
        assert table_damage.other_copy(store, history, APPEND) == ""


@pytest.mark.seed("RT1")
def test_a_copy_of_a_checkpoint_table_in_the_home_is_no_region_to_repair(fed: Counting) -> None:
    home, name = fed.workplace.home, fed.workplace.store(fed.region).checkpoint_name
    shutil.copytree(home / name, home / f"{name}_copy")
    rows = DeltaTable(home / f"{name}_copy").to_pyarrow_table().num_rows
    assert table_repair.plan(fed.workplace) == []
    assert [each["region"] for each in rebuild(fed.workplace)] == [fed.region]
    found = [
        each["message"]
        for each in doctor.examine(fed.workplace, with_engine=False)["checks"]
        if each["verdict"] == "warn"
    ]
    assert any("is a copy of another region's checkpoint table" in message for message in found)
    assert DeltaTable(home / f"{name}_copy").to_pyarrow_table().num_rows == rows


@pytest.mark.seed("RT1")
def test_ids_that_were_rewound_since_leave_an_older_copy(fed: Counting) -> None:
    take(fed, three="a d")
    restore = copied(fed, APPEND)
    rewind(fed, to=1)
    fed.drain()
    restore()
    fed = restart(fed)
    require_whole_repair(fed)


@pytest.mark.seed("RT1")
def test_a_repair_of_an_older_copy_that_was_killed_before_its_note_is_done_again(fed: Counting) -> None:
    restore = copied(fed, APPEND)
    take(fed, three="a d")
    restore()
    fed = restart(fed)

    def killed(owner: RegionOwner) -> bool:
        found = table_damage.plan_repairs(owner.outside.store, owner.history)
        table_damage.repair_tables(owner.outside.store, owner.history, found, owner.epoch)
        raise KeyboardInterrupt

    owner = region_owner(fed.workplace, fed.region)
    with pytest.raises(KeyboardInterrupt):
        owner.claim(repair=killed)
    owner.leave()
    assert shown(fed) == golden(fed)
    table_repair.mend(fed.workplace, fed.region)
    assert table_repair.plan(fed.workplace) == []
    assert shown(fed) == golden(fed)


@pytest.mark.seed("RT1")
@pytest.mark.parametrize("name", one_of_all(STATE))
def test_groups_that_an_older_checkpoint_table_does_not_know_leave_the_tables(fed: Counting, name: str) -> None:
    store = fed.workplace.store(fed.region)
    others = [copied(fed, other) for other in (store.checkpoint_name, APPEND, STATE, UPSERT) if other != name]
    take(fed, three="a d", four="e")
    for restore in others:
        restore()
    fed = restart(fed)
    rebuild(fed.workplace)
    with pytest.raises(Halted, match="was an older copy of the checkpoint table restored"):
        take(fed, five="f")
    table_repair.mend(fed.workplace, fed.region)
    assert shown(fed) == golden(fed)
    interventions.resume(fed.workplace, fed.region, "put right")
    fed.add("three", "four")
    fed.drain()
    assert len(fed.history().states) == 5
    assert shown(fed) == golden(fed)


@pytest.mark.seed("RT1")
@pytest.mark.parametrize("name", one_of_all(UPSERT))
def test_a_rewind_of_a_damaged_region_puts_its_tables_right_on_the_way(fed: Counting, name: str) -> None:
    for harm in (append, merge):
        harm(table(fed, name))
    plan = plan_reset(fed.workplace, fed.region, RewindTarget(to=1))
    assert [repair.table for repair in plan.repairs] == [name]
    interventions.reset(fed.workplace, plan)
    assert shown(fed) == golden(fed)
    fed.drain()
    assert shown(fed) == golden(fed)


def test_a_rewind_takes_back_what_its_plan_says_or_nothing(fed: Counting) -> None:
    plan = plan_reset(fed.workplace, fed.region, RewindTarget(to=1))
    take(fed, three="a d")
    before = shown(fed)
    with pytest.raises(RewindRefused, match="withdraws 1 state above 1, and by_hand/files has 2 states") as refused:
        interventions.reset(fed.workplace, plan)
    assert "new plan" in (refused.value.remedy or "")
    assert shown(fed) == before
    interventions.reset(fed.workplace, plan_reset(fed.workplace, fed.region, RewindTarget(to=1)))
    assert list(fed.history().states) == [1]


@pytest.mark.seed("RT1")
def test_what_is_committed_and_not_published_leaves_with_a_rewind_of_a_table_that_lost_ids(fed: Counting) -> None:
    fed.write("three", ["a"])
    fed.add("three")
    with fed.owning() as owner:
        row = owner.groups.commit(fed.group(1))
        table(fed, APPEND).delete("value = 'c'")
        with pytest.raises(SplitBrain):
            owner.groups.publish(row)
    vanish(fed, APPEND, 2)
    plan = plan_reset(fed.workplace, fed.region, RewindTarget(to=1))
    interventions.reset(fed.workplace, plan)
    fed.drain()
    assert len(fed.history().states) == 3
    assert shown(fed) == golden(fed)


def crash_at(monkeypatch: pytest.MonkeyPatch, point: str, act: Callable[[], object]) -> None:
    """Let a process end at a fail point, without a word."""

    def end(name: str, action: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_act", end)
        failpoints.arm(f"{point}:kill")
        with pytest.raises(KeyboardInterrupt):
            act()
    failpoints.arm("")


@pytest.mark.seed("RT1", "H4")
def test_a_rewind_that_crashed_after_it_repaired_a_history_takes_the_visible_table_back_too(
    fed: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history no longer has the rows that leave, which say whose keys change."""
    crash_at(monkeypatch, "rewind.after_commit", lambda: rewind(fed, to=1))
    append(table(fed, STATE))
    crash_at(monkeypatch, "rewind_table.after_commit", fed.drain)
    with fed.owning():
        assert shown(fed) == golden(fed)


@pytest.mark.seed("RT1", "H4")
def test_rows_that_came_back_with_a_rewind_come_back_once_though_others_changed_the_table_then(
    again: HandFed, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_at(monkeypatch, "rewind_table.after_commit", lambda: rewind(again, to=2))
    append(DeltaTable(again.workplace.home / APPEND))
    with again.owning():
        assert again.values() == [(1, "a"), (2, "b")]


@pytest.mark.seed("RT1")
def test_a_committed_rewind_that_needs_lost_ids_goes_on_when_a_backup_has_them(
    fed: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_at(monkeypatch, "rewind.after_commit", lambda: rewind(fed, to=1))
    backup = shutil.copytree(fed.workplace.home / APPEND / "_staged", fed.inbox.with_name("backup"))
    table(fed, APPEND).delete("value = 'a'")
    vanish(fed, APPEND, 1)
    with pytest.raises(Halted) as halted:
        fed.drain()
    assert "reset" not in str(halted.value), "no later rewind can come before it"
    shutil.copytree(backup, fed.workplace.home / APPEND / "_staged", dirs_exist_ok=True)
    follow(str(halted.value), "resume", fed.workplace.home)
    fed.drain()
    assert len(fed.history().states) == 2
    assert shown(fed) == golden(fed)


@pytest.mark.seed("RT1", "F6")
def test_a_rewind_of_a_table_that_lost_ids_leaves_out_none_that_a_stage_brings_late(
    tmp_path: Path,
) -> None:
    """A row that waits to be published includes late files of earlier ids, which would leave with it."""
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    fed = HandFed(place, tmp_path / "inbox", names=("kept", "late"))
    for number in range(1, 10):
        fed.write(str(number), [f"r{number}"])
        fed.add(str(number))
    held: list[StagedFile] = []
    with suppress(KeyboardInterrupt), fed.owning() as owner:
        for _ in range(4):
            fed.process(1)
        for number in range(5, 10):
            staged = fed.group(1)
            held += staged.tables["lake/late"].files
            files = StagedTable(files=tuple(held) if number == 9 else ())
            staged = replace(staged, tables={**staged.tables, "lake/late": files})
            if number < 9:
                owner.groups.publish(owner.groups.commit(replace(staged, stages={"start": number, "sink": 4})))
            else:
                owner.groups.commit(staged)
                raise KeyboardInterrupt
    assert (fed.history().committed_id, fed.values("late")[-1]) == (9, (4, "r4"))
    table(fed, "lake/kept").delete("value = 'r8'")
    vanish(fed, "lake/kept", 8)
    with pytest.raises(RewindRefused) as refused:
        interventions.reset(place, plan_reset(place, fed.region, RewindTarget(to=7)))
    assert refused.value.facts["nearest"] == 4
    interventions.reset(place, plan_reset(place, fed.region, RewindTarget(to=4)))
    fed.drain()
    assert [value for _, value in fed.values("late")] == [f"r{number}" for number in range(1, 10)]
    assert fed.values("kept") == fed.values("late")
    place.registry.close()


@pytest.mark.seed("RT1")
def test_a_log_that_was_cut_is_no_damage_where_the_rows_are_all_there(fed: Counting) -> None:
    """Somebody optimises every night and cleans the log, so the log no longer tells what was done."""
    for name in (APPEND, STATE, UPSERT):
        harmless(table(fed, name))
        cut(fed, name)
    take(fed, three="a d")
    assert shown(fed) == golden(fed)
    for name in (APPEND, UPSERT):
        table(fed, name).delete("value = 'd'")
        table(fed, name).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
        cut(fed, name)
        with pytest.raises(Halted):
            take(fed)
        table_repair.mend(fed.workplace, fed.region)
        interventions.resume(fed.workplace, fed.region, "put right")
        assert shown(fed) == golden(fed)


def cut(fed: Counting, name: str) -> None:
    """Write a checkpoint of a table's log, and delete every earlier entry: the log no longer tells what was done."""
    table(fed, name).create_checkpoint()
    for entry in sorted((fed.workplace.home / name / "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()


@pytest.mark.seed("RT1")
def test_the_checkpoint_table_is_watched_and_put_right_before_all_others(
    fed: Counting, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = f"checkpoints/{fed.region}"
    table(fed, checkpoint).delete("kind = 'state' and sequence_id = 2")
    append(table(fed, APPEND))
    version = table(fed, checkpoint).version()
    with pytest.raises(Halted, match="checkpoints"):
        take(fed, three="a d")
    assert table(fed, checkpoint).version() == version
    run = verbs(fed.workplace.home, capsys)
    assert [step["table"] for step in run("doctor", "--repair", code=2)["repairs"][0]["tables"]] == [checkpoint]
    done = run("doctor", "--repair", "--quick", "--yes")
    assert [step["table"] for step in done["repairs"][0]["tables"]] == [checkpoint, APPEND]
    assert fed.history().committed_id == 2
    fed.drain()
    assert shown(fed) == golden(fed)
