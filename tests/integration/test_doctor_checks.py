"""`doctor` on a home after a run, and on a home that others have changed (D9, D10, R4, U5, T1, C2)."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from harness import At, multiset, opened, rows, run_once, settle

from drainmark.jobs.errors import Halted
from drainmark.jobs.errors.environment import FileDamaged
from drainmark.jobs.protocol.failure_policy import may_be_of_input
from drainmark.jobs.tasks.places import LocalPlace
from drainmark.jobs.world import entered
from drainmark.orchestration import doctor
from drainmark.orchestration.cli.main import invoke
from drainmark.orchestration.doctor.engine import engine
from drainmark.orchestration.doctor.findings import Severity
from drainmark.orchestration.inspection.status import statuses
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.verbs import interventions, table_repair
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.delta import commits
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine
from drainmark.resources.storage.folder import LocalFolder

REGION = "word_count/lines"


def count_two_files(place: Workplace, inbox: Path) -> None:
    """Count the words of two files, in a group each."""
    inbox.mkdir()
    for name in ("a.txt", "b.txt"):
        (inbox / name).write_text("to be or not to be\n")
    settle(inbox)
    run_once(place, opened("word_count", inbox), max_group=1)


@pytest.fixture(scope="module")
def counted(engine: SparkEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a home in which two files were counted."""
    folder = tmp_path_factory.mktemp("counted")
    place = Workplace(Settings(home=folder / "home", project_root=folder))
    place.use_engine(engine)
    count_two_files(place, folder / "in")
    place.registry.close()
    return place.home


@pytest.fixture
def place(counted: Path, workplace: Workplace) -> Workplace:
    """Return a workplace with a copy of that home for one test."""
    shutil.copytree(counted, workplace.home, dirs_exist_ok=True)
    workplace.registry.region_info(REGION)  # an open database has files beside it, which `doctor` does not check
    return workplace


def found(place: Workplace) -> dict[str, set[str]]:
    """Return the checks that are not ok: the messages by check and verdict, `check:verdict`."""
    bad: dict[str, set[str]] = {}
    for entry in doctor.examine(place, with_engine=False)["checks"]:
        is_in_memory = entry["check"] == "tables_disk" and entry["verdict"] == "warn"  # test folders may be in memory
        if entry["verdict"] != "ok" and not is_in_memory:
            assert entry["remedy"]
            bad.setdefault(f"{entry['check']}:{entry['verdict']}", set()).add(entry["message"])
    return bad


def sink(place: Workplace) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(place.home / "lake" / "word_counts")


def test_a_sound_home_has_no_problems_and_every_check_a_name(
    place: Workplace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found(place) == {}
    assert invoke(["doctor", "--quick", "--home", str(place.home), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["problems"] == []
    assert {
        *("java", "versions", "jars", "space", "tables_disk", "registry_disk", "spark_conf", "registry"),
        *("registry_agrees", "not_halted", "one_writer", "clock", "garbage", "tables", "store"),
    } <= {entry["check"] for entry in told["checks"]}
    assert {"home", "project_root", "versions", "registry_revision", "regions", "free_bytes", "jars_cached"} < set(told)
    assert invoke(["doctor", "--quick", "--home", str(place.home)]) == 0
    assert "all is well" in capsys.readouterr().out


@pytest.mark.seed("D9")
def test_foreign_commits_are_told_and_an_optimise_is_forgiven(place: Workplace) -> None:
    sink(place).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    sink(place).optimize.compact()
    (kind,) = found(place)
    assert kind == "tables:warn"
    columns = sink(place).schema().to_arrow()
    rows = pa.table({field.name: pa.nulls(1) for field in pa.schema(columns)}, schema=pa.schema(columns))
    deltalake.write_deltalake(place.home / "lake" / "word_counts", rows, mode="append")
    (message,) = found(place)["tables:fail"]
    assert "WRITE by delta-rs" in message


@pytest.mark.slow
@pytest.mark.seed("RT1")
def test_a_run_halts_where_others_changed_rows_and_goes_on_after_the_repair(
    workplace: Workplace, tmp_path: Path
) -> None:
    """The run finds the change at the claim, and in the middle of a run, independent of the file that it processes."""
    place, inbox = workplace, tmp_path / "in"
    count_two_files(place, inbox)
    before = sorted(map(str, place.store(REGION).table("lake/word_counts").read().to_pylist()))
    sink(place).update(updates={"count": "999"}, predicate="word = 'be'")
    (inbox / "c.txt").write_text("question\n")
    settle(inbox)
    with pytest.raises(Halted):
        run_once(place, opened("word_count", inbox))
    assert statuses(place, REGION)[0]["state"] == "HALTED"
    assert "not_halted:fail" in found(place)
    table_repair.mend(place, REGION)
    assert set(found(place)) == {"not_halted:warn"}
    assert sorted(map(str, place.store(REGION).table("lake/word_counts").read().to_pylist())) == before
    interventions.resume(place, REGION, "put right")
    run = region_run(place, opened("word_count", inbox), opened("word_count", inbox).region(REGION))
    run.claim()
    sink(place).delete("word = 'to'")
    with pytest.raises(Halted) as raised:
        list(run.groups())
    run.hand_over(raised.value)
    assert raised.value.facts["trigger"] is None, "no file is to blame"
    assert len(place.history(REGION).states) in (2, 3)
    table_repair.mend(place, REGION)
    interventions.resume(place, REGION, "put right")
    run_once(place, opened("word_count", inbox))
    counts = {row["word"]: row["count"] for row in place.store(REGION).table("lake/word_counts").read().to_pylist()}
    assert counts == {"to": 4, "be": 4, "or": 2, "not": 2, "question": 1}
    assert found(place) == {}


@pytest.mark.seed("D10", "U5")
def test_properties_and_features_that_we_did_not_set_are_told(place: Workplace) -> None:
    sink(place).alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 days"})
    sink(place).alter.set_table_properties({"delta.logRetentionDuration": "interval 30 days"})
    assert any("would be forgotten" in message for message in found(place)["tables:fail"])
    assert any("logRetentionDuration" in message for message in found(place)["tables:warn"])
    feature = deltalake.TableFeatures.DeletionVectors
    sink(place).alter.add_feature(feature, allow_protocol_versions_increase=True)
    assert any("deletionVectors" in message for message in found(place)["tables:fail"])


@pytest.mark.parametrize("wanted", [True, False])
def test_deletion_vectors_that_a_claim_gave_are_not_told(place: Workplace, wanted: bool) -> None:
    """A table that is merged on read no more keeps the feature."""
    table = place.store(REGION).table("lake/word_counts")
    commits.take_vectors(table.folder, REGION, wanted=True, writer=table.writer)
    commits.take_vectors(table.folder, REGION, wanted=wanted, writer=table.writer)
    assert "deletionVectors" in (sink(place).protocol().reader_features or ())
    assert found(place) == {}


@pytest.mark.seed("R4")
def test_a_registry_that_is_ahead_is_told(place: Workplace) -> None:
    place.registry.progress.set_epoch(REGION, 9)
    assert "registry_agrees:fail" not in found(place), "a claim without a state is no loss"
    place.registry.triggers.settle(REGION, 9, [(1, 9)])
    assert "registry_agrees:fail" in found(place)


@pytest.mark.seed("FM-T1")
def test_a_clock_behind_the_last_row_is_told(place: Workplace) -> None:
    rows = place.store(REGION).checkpoint.rows()
    newest = max(row.recorded_at for row in rows)
    with entered(At((newest - dt.timedelta(hours=1)).timestamp())):
        assert "clock:fail" in found(place)


def test_one_broken_region_keeps_no_check_from_its_turn(place: Workplace) -> None:
    log = place.home / "checkpoints" / REGION / "_delta_log"
    for file in log.glob("*.json"):
        file.write_text("torn")
    told: dict[str, Any] = doctor.examine(place, with_engine=False)
    checks = {entry["check"]: entry["verdict"] for entry in told["checks"]}
    assert checks["checkpoint"] == "fail"
    assert checks["store"] == "ok"
    assert told["regions"] == [{"region": REGION, "epoch": None, "registry_epoch": None, "is_code_found": False}]


# --- the engine ---------------------------------------------------------------------------------------------------


def files_of(place: Workplace) -> set[Path]:
    return set(place.home.rglob("*"))


def engine_checks(place: Workplace) -> dict[str, str]:
    return {finding.check: finding.verdict.value for finding in engine(place)}


@pytest.mark.seed("DX1")
def test_the_engine_is_tried_to_the_end_and_nothing_is_left_of_that(place: Workplace) -> None:
    before = files_of(place)
    told = {entry["check"]: entry["verdict"] for entry in doctor.examine(place)["checks"]}
    assert {check: verdict for check, verdict in told.items() if check.startswith("engine")} == {
        "engine": "ok", "engine_versions": "ok", "engine_reach": "ok", "engine_group": "ok",
    }  # fmt: skip
    assert files_of(place) == before


def test_an_engine_without_java_is_told(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    (finding,) = engine(Workplace(settings))
    assert (finding.check, finding.verdict) == ("engine", Severity.FAIL)
    assert "Java" in (finding.remedy or "")


class Elsewhere(LocalFolder):
    """A folder, but tasks write its files to another disk."""

    def __truediv__(self, path: str) -> Elsewhere:
        return Elsewhere(self.path / path)

    @property
    def place(self) -> LocalPlace:
        return LocalPlace(str(self.path).replace("tables", "elsewhere"))


@pytest.mark.seed("DX1")
def test_a_group_whose_rows_are_elsewhere_is_told(place: Workplace, tmp_path: Path) -> None:
    place.tables = Elsewhere(tmp_path / "tables")
    assert engine_checks(place) == {
        "engine": "ok", "engine_versions": "ok", "engine_reach": "ok", "engine_group": "fail",
    }  # fmt: skip
    assert not (tmp_path / "tables").exists()


# --- files that are damaged or gone -------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def soil(path: Path) -> None:
    path.write_text("no JSON\n")


def rot(path: Path) -> None:
    """Overwrite the middle of a file, which keeps its size: `doctor` reads no rows, so only readers find it."""
    content = path.read_bytes()
    path.write_bytes(content[:8] + bytes(24) + content[32:])


DAMAGED = {
    "a page of a file of a table is overwritten": ("lake/word_counts/*.parquet", rot),
    "a file of a table is cut": ("lake/word_counts/*.parquet", cut),
    "a file of a table is gone": ("lake/word_counts/*.parquet", Path.unlink),
    "an entry of a log is soiled": ("lake/word_counts/_delta_log/*1.json", soil),
    "a file of a state is cut": ("state/word_count/*/_staged/*/*.parquet", cut),
    "a checkpoint is cut": (f"checkpoints/{REGION}/_staged/*/checkpoint-*.parquet", cut),
    "a checkpoint is gone": (f"checkpoints/{REGION}/_staged/*/checkpoint-*.parquet", Path.unlink),
    "an entry of the log of the checkpoint table is soiled": (f"checkpoints/{REGION}/_delta_log/*2.json", soil),
}


@pytest.mark.seed("D9")
@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_told_by_its_place_and_a_backup_is_the_remedy(
    place: Workplace, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    """Each command names the file, or the log, and what to do; none ends with a traceback, and `doctor` goes on."""
    pattern, spoil = DAMAGED[damage]
    paths = {path: path.read_bytes() for path in place.home.glob(pattern)}
    for path in paths:
        spoil(path)
    (place.home.parent / "drainmark.toml").touch()
    codes = set()
    for command in (("status",), ("history", REGION), ("show", "word_counts"), ("reset", REGION, "--to", "1", "--yes")):
        codes.add(code := invoke([*command, "--home", str(place.home)]))
        said = capsys.readouterr().err
        assert "Traceback" not in said
        if code:
            assert code == 1, said
            assert any(str(path.relative_to(place.home).parent) in said for path in paths), said
            assert "backup" in said
    assert 1 in codes
    messages = [message for bad in found(place).values() for message in bad]
    assert spoil is rot or any(told in each for each in messages for told in ("cut off", "damaged", "Errno 2"))
    for path, content in paths.items():
        path.write_bytes(content)
    assert found(place) == {}
    assert invoke(["reset", REGION, "--to", "1", "--home", str(place.home), "--yes"]) == 0


@pytest.mark.seed("D9")
def test_a_damaged_state_is_no_fault_of_the_next_file(place: Workplace, tmp_path: Path) -> None:
    (path, *_) = place.home.glob("state/word_count/*/_staged/*/*.parquet")
    content = path.read_bytes()
    cut(path)
    inbox = tmp_path / "in"
    count = opened("word_count", inbox)
    inbox.mkdir()
    (inbox / "c.txt").write_text("to be\n")
    settle(inbox)
    with pytest.raises(FileDamaged, match=path.name) as failed:
        run_once(place, count)
    assert failed.value.facts.get("trigger") is None
    assert not may_be_of_input(failed.value.id)
    path.write_bytes(content)
    (report,) = run_once(place, count)
    assert report.rows_in == 1


@pytest.mark.seed("D9")
def test_a_region_whose_files_are_damaged_can_begin_anew_without_a_backup(place: Workplace, counted: Path) -> None:
    """To the initial state all rows leave, so no file of a table, a history or a state is read."""
    counts = rows(place, REGION, "word_counts", ids=False)
    damaged = [each for pattern in ("lake", "state/word_count") for each in place.home.glob(f"{pattern}/**/*.parquet")]
    assert {"lake", "state"} <= {each.relative_to(place.home).parts[0] for each in damaged}
    for path in damaged:
        cut(path)
    (place.home.parent / "drainmark.toml").touch()
    asked = ["--home", str(place.home), "--yes"]
    assert invoke(["reset", REGION, "--to", "1", *asked]) == 1
    assert invoke(["reset", REGION, "--to-initial", *asked]) == 0
    assert rows(place, REGION, "word_counts") == []
    run_once(place, opened("word_count", counted.parent / "in"))
    assert multiset(rows(place, REGION, "word_counts", ids=False)) == multiset(counts)
