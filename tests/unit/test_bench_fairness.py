"""The benchmarks are fair: rows that sleep, files in a trigger, columns, pipelines and kills are alike on all sides."""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from waiting import SOON, eventually

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # the benchmarks are programs in one folder, not a package

import bench_changes  # noqa: E402
import bench_checkpoints  # noqa: E402
import bench_flink  # noqa: E402
import bench_input  # noqa: E402
import bench_landing  # noqa: E402
import bench_ours  # noqa: E402
import bench_peer  # noqa: E402
import bench_recovery  # noqa: E402
import bench_stages  # noqa: E402
import bench_stages_job  # noqa: E402
import bench_streaming  # noqa: E402
import flink_job  # noqa: E402
from bench_input import WrongResult  # noqa: E402

# --- stages: single records sleep ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sleepers", [2, 4, 5, 8, 10])
@pytest.mark.parametrize("order", ["as numbered", "shuffled"])
def test_as_many_rows_sleep_at_a_time_as_there_are_cores(sleepers: int, order: str) -> None:
    numbers = list(range(20_000))
    if order == "shuffled":
        random.Random(1).shuffle(numbers)
    shares = bench_stages_job.dealt(numbers, 10, sleepers)
    assert {len(share) for share in shares} == {2000 // sleepers}
    assert sorted(number for share in shares for number in share) == list(range(0, 20_000, 10))


def test_a_batch_of_few_rows_is_shared_as_evenly_as_can_be() -> None:
    assert sorted(len(share) for share in bench_stages_job.dealt(range(50), 10, 4)) == [1, 1, 1, 2]


def test_the_same_rows_sleep_as_long_in_both_jobs() -> None:
    theirs = (BENCHMARKS / "flink_stages_job.py").read_text()
    assert f"_NAP_US = {bench_stages_job._NAP_US}\n" in theirs
    assert "row[0] % every == 0" in theirs
    assert bench_stages.size_of(quick=False).load.sleepers == os.cpu_count()


# --- bulk: same files a trigger, the columns that the job needs ---------------------------------------------------


def bulk(**more: Any) -> bench_streaming.Load:
    expected = bench_input.Expected(kept=0, totals={})
    return bench_streaming.Load(folder=Path(), files=2000, expected=expected, is_bulk=True, **more)


def contenders(tmp_path: Path) -> list[bench_streaming.Contender]:
    bench = bench_streaming.Benchmark(tmp_path, None, None, all_peers=True)  # type: ignore[arg-type]
    return bench.contenders


def test_in_bulk_all_take_the_same_number_of_files_a_trigger(tmp_path: Path) -> None:
    for upsert in (False, True):
        taken = {each.name: bulk(upsert=upsert).a_trigger(each.name) for each in contenders(tmp_path)}
        assert set(taken.values()) == {bench_streaming.BULK_FILES_A_TRIGGER}
        assert bench_streaming.OURS in taken


def test_ours_is_told_the_same_number_as_the_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}

    def ours(engine: Any, inbox: Path, home: Path, files: int | None, upsert: bool) -> Any:
        told["ours"] = files
        return SimpleNamespace(kept=0, totals={}), SimpleNamespace(seconds={})

    def peer(start: Any, job: bench_peer.Job) -> Any:
        told[start.__name__] = job.files
        return SimpleNamespace(kept=0, totals={})

    monkeypatch.setattr(bench_ours, "measure", ours)
    monkeypatch.setattr(bench_peer, "measure", peer)
    engine = SimpleNamespace(session=None)
    bench = bench_streaming.Benchmark(tmp_path, engine, None, all_peers=False)  # type: ignore[arg-type]
    for contender in bench.contenders:
        if not contender.any_trigger:  # Polars and DuckDB, where they are installed, have none
            bench.once(contender, bulk())
    assert told == dict.fromkeys(("ours", "two_queries", "one_query_merging"), bench_streaming.BULK_FILES_A_TRIGGER)


def test_at_its_best_ours_has_its_own_limits_and_each_peer_its_own_number() -> None:
    load = bulk(best={bench_streaming.OURS: None, "two queries": 2000})
    assert load.a_trigger(bench_streaming.OURS) is None
    assert load.a_trigger("two queries") == 2000
    assert load.prefix + "_ratio" + load.suffix == "bulk_ratio_best"


# --- changes: the same files, as many a trigger, and one table -----------------------------------------------------


def test_changes_come_late_and_delete_what_comes_after_them(tmp_path: Path) -> None:
    size = bench_changes.size_of(quick=True)
    changes = bench_changes.write_changes(tmp_path / "inbox", size)
    lines = [line for file in sorted((tmp_path / "inbox").iterdir()) for line in file.read_text().splitlines()]
    assert [line.split(",")[1] for line in lines] == [str(change[1]) for change in changes]
    assert len({change[1] for change in changes}) == size.changes  # no ties: the peer has no rule for them
    newest = bench_changes.expected(changes, 1)
    as_they_come = {change[0]: change[1] for change in changes if change[2] != "d"}
    assert any(key not in newest or newest[key][0] != n for key, n in as_they_come.items())


def test_both_take_as_many_files_of_changes_a_trigger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}

    class Told(Exception):
        """The number is known; nothing more is run."""

    def ours(*arguments: Any, max_group: int) -> Any:
        told["ours"] = max_group
        raise Told

    class Stream(Reader):
        def csv(self, path: str) -> Any:
            told["peer"] = self.told["maxFilesPerTrigger"]
            raise Told

    frame = SimpleNamespace(write=SimpleNamespace(format=lambda name: SimpleNamespace(save=lambda path: None)))
    session = SimpleNamespace(createDataFrame=lambda *given: frame, readStream=Stream())
    monkeypatch.setattr(bench_changes, "region_run", ours)
    monkeypatch.setattr(bench_changes, "scan_region", lambda *given: None)
    size = bench_changes.size_of(quick=True)
    engine: Any = SimpleNamespace(session=session)
    for who, contender in enumerate((bench_changes.ours, bench_changes.peer)):
        with suppress(Told):
            contender(engine, tmp_path / "inbox", tmp_path / f"home-{who}", size, 1)
    assert told == {"ours": size.a_trigger, "peer": size.a_trigger}


class Reader:
    """A substitute for `readStream` that keeps its options."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def schema(self, text: str) -> Reader:
        self.told["schema"] = text
        return self

    def option(self, name: str, value: Any) -> Reader:
        self.told[name] = value
        return self

    def csv(self, path: str) -> dict[str, Any]:
        return self.told


def test_a_peer_parses_only_the_columns_of_its_query(tmp_path: Path) -> None:
    session: Any = SimpleNamespace(readStream=Reader())
    told: Any = bench_peer._read(
        bench_peer.Job(session=session, inbox=tmp_path, home=tmp_path, files=1000, upsert=False)
    )
    assert told == {"schema": bench_input.SCHEMA, "columnPruning": True, "maxFilesPerTrigger": 1000}


def test_both_recoveries_take_the_same_number_of_files_a_trigger(tmp_path: Path) -> None:
    ours = bench_recovery.Bare(tmp_path, tmp_path).command()
    theirs = bench_recovery.Peer(tmp_path, tmp_path).command()
    assert ours[-2:] == ["--max-group", str(bench_recovery.FILES_A_TRIGGER)]
    assert theirs[-1] == str(bench_recovery.FILES_A_TRIGGER)


def test_flink_reads_the_columns_of_the_same_input_once() -> None:
    columns = [each.split()[0] for each in bench_input.SCHEMA.split(",")]
    assert [each.split()[0] for each in flink_job.COLUMNS.split(",")] == columns
    once = "== Optimized Execution Plan ==\nTableSourceScan(…)"
    flink_job.require_one_scan(once)
    with pytest.raises(RuntimeError, match="2 times"):
        flink_job.require_one_scan(f"{once}\nTableSourceScan(…)")
    assert bench_flink.JOB.name == "flink_job.py"


# --- checkpoints: a pipeline on both sides, and a window that is written whole ------------------------------------


def test_spark_alone_computes_a_file_while_the_one_before_is_written() -> None:
    computing = {number: threading.Event() for number in range(4)}

    def compute(path: Path) -> int:
        computing[int(path.name)].set()
        return int(path.name)

    def write(number: int) -> None:
        written.append(number)
        if number < 3:
            assert computing[number + 1].wait(SOON), f"nothing was computed while {number} was written"

    written: list[int] = []
    ends = bench_checkpoints.pipelined([Path(str(number)) for number in range(4)], compute, write)
    assert written == [0, 1, 2, 3]
    assert ends == sorted(ends)
    assert len(ends) == 4


def test_spark_alone_is_one_file_ahead_and_no_more() -> None:
    computed: list[int] = []
    seen: dict[int, int] = {}

    def compute(path: Path) -> int:
        computed.append(int(path.name))
        return computed[-1]

    def write(number: int) -> None:
        time.sleep(0.05)
        seen[number] = len(computed)

    bench_checkpoints.pipelined([Path(str(number)) for number in range(5)], compute, write)
    assert all(count <= number + 2 for number, count in seen.items()), seen


def test_what_spark_alone_cannot_write_ends_the_part() -> None:
    def write(number: int) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        bench_checkpoints.pipelined([Path("0"), Path("1")], lambda path: 0, write)


def test_periods_are_those_of_the_measured_files() -> None:
    load = bench_checkpoints.Load(megabytes=8, work=1, periods=3)
    assert bench_checkpoints.periods_of([0.0, 10.0, 30.0, 60.0, 100.0, 150.0], 2, load) == [20.0, 30.0, 40.0]


WHOLE, _, CHANGES, _ = bench_checkpoints.WAYS


def history_of(load: bench_checkpoints.Load, image_rows: int, first: int) -> Any:
    """Return the history of a region whose states all wrote an image of `image_rows` rows, and one file of changes."""
    files = [load.rows // load.fills] * load.fills + [bench_checkpoints.PERIOD_ROWS] * (first - load.fills + 4)
    states = {
        number: SimpleNamespace(sequence_id=number, rows_in=rows, image_rows=image_rows)
        for number, rows in enumerate(files, 1)
    }
    return SimpleNamespace(states=states)


def staged(rows: int) -> Any:
    return SimpleNamespace(rows=rows, size=2**20)


@pytest.fixture
def manifests(monkeypatch: pytest.MonkeyPatch) -> None:
    def manifest_of(row: Any) -> Any:
        images = [SimpleNamespace(files=[staged(row.image_rows)])] if row.image_rows else []
        return SimpleNamespace(images=images, files={"state/window": [staged(1)], "lake/windows": [staged(1)]})

    monkeypatch.setattr(bench_checkpoints, "manifest_of", manifest_of)


@pytest.mark.usefixtures("manifests")
def test_a_state_that_did_not_write_the_whole_window_is_a_wrong_result() -> None:
    load = bench_checkpoints.Load(megabytes=8, work=1, periods=3)
    first, window = load.fills + bench_checkpoints.LEAD, load.rows // bench_checkpoints.KEYS * bench_checkpoints.KEYS
    assert bench_checkpoints.written_by(history_of(load, window, first), load, WHOLE, first) == 2.0
    for rows in (0, bench_checkpoints.PERIOD_ROWS, window - 1):
        with pytest.raises(WrongResult, match=f"wrote {rows} rows of a window of {window}"):
            bench_checkpoints.written_by(history_of(load, rows, first), load, WHOLE, first)
    assert bench_checkpoints.written_by(history_of(load, 0, first), load, CHANGES, first) == 1.0


@pytest.mark.usefixtures("manifests")
def test_rows_that_a_region_lost_are_a_wrong_result() -> None:
    load = bench_checkpoints.Load(megabytes=8, work=1, periods=3)
    first = load.fills + bench_checkpoints.LEAD
    history = history_of(load, 0, first)
    history.states[1].rows_in -= 1
    with pytest.raises(WrongResult, match="rows were processed"):
        bench_checkpoints.written_by(history, load, CHANGES, first)


# --- recovery: the JVM dies on both sides -------------------------------------------------------------------------


class Program(bench_recovery.Peer):
    """A program that starts a `java` through a shell, in its own process group or in another one."""

    jvm: str = ""

    def command(self) -> list[str]:
        return ["/bin/sh", "-c", f"({self.jvm}) & wait"]


@pytest.fixture
def java(tmp_path: Path) -> Path:
    """Return the path of a `java` that sleeps."""
    (tmp_path / "java").symlink_to("/bin/sleep")
    return tmp_path / "java"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path, tmp_path / "home")
    yield made
    made.kill()
    for jvm in made.jvms:
        with suppress(psutil.NoSuchProcess):
            jvm.kill()


def running(program: Program, jvm: str, *, has_java: bool = True) -> psutil.Process:
    """Start a program; return its grandchild when it runs."""
    program.jvm = jvm
    program.start()
    assert program.process is not None
    process, name = psutil.Process(program.process.pid), "java" if has_java else "sleep"
    return eventually(lambda: [each for each in process.children(recursive=True) if each.name() == name], name)[0]


def test_the_kill_notes_the_jvm_and_ends_it(program: Program, java: Path) -> None:
    jvm = running(program, f"{java} 60; true")
    before = time.monotonic()
    killed = program.kill()
    assert before <= killed <= time.monotonic()
    assert [each.pid for each in program.jvms] == [jvm.pid]
    program.require_dead()
    assert not bench_recovery.is_alive(jvm)


def test_a_jvm_that_outlives_the_kill_is_a_wrong_result(
    program: Program, java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_recovery, "_DYING_SECONDS", 0.2)
    jvm = running(program, f"setsid {java} 60; true")
    program.kill()
    assert bench_recovery.is_alive(jvm)
    with pytest.raises(WrongResult, match=f"{jvm.pid}.* outlived"):
        program.require_dead()
    jvm.wait(SOON)


def test_a_program_without_a_jvm_proves_nothing(program: Program) -> None:
    running(program, "sleep 60; true", has_java=False)
    program.kill()
    with pytest.raises(WrongResult, match="had no JVM"):
        program.require_dead()


def test_where_spark_is_resident_no_jvm_is_to_die(tmp_path: Path) -> None:
    bench_recovery.Resident(tmp_path, tmp_path).require_dead()


def test_a_recovery_that_spared_the_jvm_is_no_figure(
    program: Program, java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_recovery, "_DYING_SECONDS", 0.2)
    monkeypatch.setattr(Program, "note", lambda self: None)
    monkeypatch.setattr(Program, "await_commit", lambda self, *, new: time.sleep(0.5))
    program.jvm = f"setsid {java} 60; true"
    with pytest.raises(WrongResult, match="outlived"):
        program.recover()


# --- landing ------------------------------------------------------------------------------------------------------


def test_a_file_that_does_not_become_visible_shows_what_dagster_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_landing, "WAIT_SECONDS", 0.02)
    (tmp_path / "unsettled_inbox").mkdir()
    (tmp_path / "dagster.log").write_text("x" * 50_000 + "\nthe run queue is full\n")
    with pytest.raises(TimeoutError, match="file 1 did not become visible") as late:
        bench_landing.Landing(tmp_path, "unsettled").drop()
    assert "the run queue is full" in str(late.value)
    assert len(str(late.value)) < 10_000


def test_rows_are_counted_from_the_log_of_the_sink(tmp_path: Path) -> None:
    log = tmp_path / ".drainmark" / "lake" / "each_rows" / "_delta_log"
    log.mkdir(parents=True)
    landing = bench_landing.Landing(tmp_path, "each")
    assert landing._visible() == 0
    stats = json.dumps({"numRecords": 100})
    lines = [{"add": {"dataChange": True, "stats": stats}}, {"add": {"dataChange": False, "stats": stats}}, {"txn": {}}]
    (log / "00000000000000000001.json").write_text("\n".join(map(json.dumps, lines)))
    assert landing._visible() == 100
    assert landing._visible() == 100
