"""Sinks outside Delta, and overwritten tables: run, read, rewind, refuse, roll forward (V124, V147, V148, X6)."""

from __future__ import annotations

import contextlib
import csv
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import run_once, write

import drainmark as dm
from drainmark.jobs.errors import DrainmarkError, ForeignTable, Halted, SchemaMismatch
from drainmark.jobs.failpoints import InjectedFailure, arm
from drainmark.jobs.protocol.history import Outcome
from drainmark.jobs.regions.explain import as_json, as_text
from drainmark.orchestration.dagster_assets.checks import AT_COMMITTED_ID, judgements
from drainmark.orchestration.doctor.examination import examine
from drainmark.orchestration.runs.region_runs import region_owner
from drainmark.orchestration.testing.processing import compact
from drainmark.orchestration.tracing.trace import Tracer
from drainmark.orchestration.verbs.interventions import reset, skip
from drainmark.orchestration.verbs.rewinds.reset_plan import RewindTarget, plan_reset
from drainmark.orchestration.workplace.hand_off import owning
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.checkpoints.as_of import RegionReader, read_at, reader_of
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

REGION = "outer/lines"
FILES = ("a,1\nb,2\na,3\n", "", "a,4\nc,5\n", "b,6\n")
PLACES = {"all": "database/shop/all_rows", "newest": "database/shop/newest", "total": "database/shop/totals",
          "last": "lake/last_file", "files": "files/home/out"}  # fmt: skip


@pytest.fixture
def workplace(tmp_path: Path, engine: SparkEngine) -> Iterator[Workplace]:
    (tmp_path / "home").mkdir()
    databases = {"shop": "sqlite:///{home}/shop.db"}
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, databases=databases))
    place.use_engine(engine)
    yield place
    place.registry.close()


def declare(inbox: Path, *targets: Any, schema: str = "k string, n bigint") -> Opened:
    """Return an application that writes the columns of each CSV line to sinks of all kinds, or to the given sinks."""
    with dm.application("outer") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema=schema, settle=0))
        def lines(scanned: Any) -> Any:
            return scanned

        @dm.functor
        def pairs(lines: Any) -> Any:
            return dm.select(lines, *(field.split()[0] for field in schema.split(", ")))

        for target in targets:
            dm.sink(pairs, target)
        if not targets:
            dm.sink(pairs, dm.DatabaseAppend("shop", "all_rows"))
            dm.sink(pairs, dm.DatabaseUpsert("shop", "newest", keys=["k"]))
            totals = dm.aggregate(pairs, keys=["k"], values={"n": dm.sum("n")}, name="totals")
            dm.sink(totals, dm.DatabaseUpsert("shop", "totals", keys=["k"]))
            dm.sink(pairs, dm.DeltaOverwrite("last_file"))
            dm.sink(pairs, dm.FileSink("{home}/out"))
    return open_application(dm.build_application(declared))


def expected(files: tuple[str, ...], ids: list[int]) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows (k, n, id) of each sink after these files, computed in plain Python."""
    rows = [(k, int(n), number) for text, number in zip(files, ids, strict=False)
            for k, n in csv.reader(text.splitlines())]  # fmt: skip
    totals: dict[str, tuple[str, int, int]] = {}
    for k, n, number in rows:
        totals[k] = (k, n + (totals[k][1] if k in totals else 0), number)
    last = max((number for *_, number in rows), default=0)
    return {
        "all": sorted(rows),
        "newest": sorted({k: (k, n, number) for k, n, number in rows}.values()),
        "total": sorted(totals.values()),
        "last": sorted(row for row in rows if row[2] == last),
        "files": sorted(rows),
    }


def as_rows(table: Any) -> list[tuple[Any, ...]]:
    return sorted((row["k"], row["n"], row["_sequence_id"]) for row in table.to_pylist())


def seen(place: Workplace) -> dict[str, list[tuple[Any, ...]]]:
    """Return the view of all other users: databases are queried by their own tools."""
    found = {}
    with sqlite3.connect(place.home / "shop.db") as database:
        for kind in ("all", "newest", "total"):
            table = PLACES[kind].rpartition("/")[2]
            found[kind] = sorted(database.execute(f"SELECT k, n, _sequence_id FROM {table}").fetchall())  # noqa: S608
    last = place.engine.session.read.format("delta").load(str(place.home / PLACES["last"]))
    found["files"] = sorted(
        (row["k"], int(row["n"]), int(path.stem.removeprefix("part-")))
        for path in (place.home / "out").glob("*.csv")
        for row in csv.DictReader(path.open())
    )
    return {**found, "last": sorted((row["k"], row["n"], row["_sequence_id"]) for row in last.collect())}


def at(place: Workplace, number: int | None) -> dict[str, list[tuple[Any, ...]]]:
    return {kind: as_rows(read_at(REGION, name, at=number, home=str(place.home))) for kind, name in PLACES.items()}


@pytest.mark.seed("V148", "V124", "X6")
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_every_sink_is_as_plain_python_says_at_every_id(workplace: Workplace, inbox: Path, size: int) -> None:
    write(inbox, *FILES)
    run_once(workplace, declare(inbox), max_group=size)
    whole = expected(FILES, [1, 2, 3, 4])
    assert seen(workplace) == whole
    for number in range(5):
        assert at(workplace, number) == expected(FILES[:number], [1, 2, 3, 4]), number
    assert as_rows(RegionReader(workplace.settings, REGION).visible("newest")) == whole["newest"]
    assert reader_of(workplace.settings, "shop/all_rows").store.region == REGION

    plan = plan_reset(workplace, REGION, RewindTarget(to=3))
    assert {name: plan.rows[name] for name in PLACES.values() if name in plan.rows} == {
        PLACES["all"]: 1, PLACES["newest"]: 1, PLACES["total"]: 1, PLACES["last"]: 1, PLACES["files"]: 1
    }  # fmt: skip
    reset(workplace, plan)
    assert seen(workplace) == expected(FILES[:3], [1, 2, 3])
    reset(workplace, plan_reset(workplace, REGION, RewindTarget(to=2)))
    assert seen(workplace) == expected(FILES[:2], [1, 2])
    run_once(workplace, declare(inbox), scan=False)
    ids = sorted(workplace.history(REGION).states)
    assert ids[:2] == [1, 2]
    assert min(ids[2:]) > 5
    assert seen(workplace) == at(workplace, None) == expected(FILES, ids)
    reset(workplace, plan_reset(workplace, REGION, RewindTarget(to=0)))
    assert seen(workplace) == expected((), [])


def test_compaction_and_the_checks_know_them(workplace: Workplace, inbox: Path) -> None:
    write(inbox, *FILES)
    opened = declare(inbox)
    run_once(workplace, opened, max_group=1)
    compact(workplace, REGION)
    assert seen(workplace) == at(workplace, None) == expected(FILES, [1, 2, 3, 4])
    same = [found for found in judgements(workplace, opened.region(None)) if found.name == AT_COMMITTED_ID]
    assert {found.passed for found in same} == {True}
    newest = {found.assets[0].path[-1]: found.metadata["drainmark/newest_sequence_id"] for found in same}
    assert {newest[name.rpartition("/")[2]] for name in (PLACES["all"], PLACES["last"])} == {4}
    entry = Tracer.of(workplace, REGION).sequence(3)
    changed = {sink["table"]: (sink["rows"], sink["changed"], sink["version"]) for sink in entry["sinks"]}
    assert changed[PLACES["all"]] == (2, None, 3)
    assert changed[PLACES["newest"]][1] == 2
    reset(workplace, plan_reset(workplace, REGION, RewindTarget(to=1)))
    assert seen(workplace) == expected(FILES[:1], [1])


@pytest.mark.parametrize("table", [n if n == 6 else pytest.param(n, marks=pytest.mark.slow) for n in range(1, 11)])
def test_a_publish_that_stops_anywhere_is_rolled_forward_without_the_application(
    workplace: Workplace, inbox: Path, table: int
) -> None:
    """Four histories, a state and five visible targets: any verb can be the next owner, e.g. `resume`."""
    write(inbox, *FILES)
    arm(f"publish.after_commit:raise:{table},publish.before_commit:raise:{table}")
    opened = declare(inbox)
    with_errors(lambda: run_once(workplace, opened, max_group=4))
    arm("")
    with owning(region_owner(workplace, REGION)):
        pass
    if workplace.registry.pending_count(REGION):
        run_once(workplace, opened, scan=False)
    assert seen(workplace) == expected(FILES, sorted(workplace.history(REGION).states))


def with_errors(action: Callable[[], Any]) -> None:
    with contextlib.suppress(InjectedFailure, DrainmarkError):
        action()


@pytest.mark.slow
@pytest.mark.seed("V4", "H10")
def test_the_kit_shows_them_exactly_once_without_touching_what_they_name(tmp_path: Path) -> None:
    def outer_kit() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="in", format="csv", schema="k string, n bigint", settle=0))
        def lines(scanned: Any) -> Any:
            return dm.select(scanned, "k", "n")

        dm.sink(lines, dm.DatabaseAppend("shop", "all_rows"))
        dm.sink(lines, dm.DatabaseUpsert("shop", "newest", keys=["k"]))
        dm.sink(lines, dm.FileSink(str(tmp_path / "real"), format="json", layout="folder", empty=True))
        dm.sink(lines, dm.DeltaOverwrite("last_file"))

    files = {f"{number}.csv": text for number, text in enumerate(FILES)}
    (proof,) = dm.testing.assert_exactly_once(
        outer_kit, files, groupings=(2,), actions=("lost_reply",),
        fail_points=["publish.after_commit", "rewind_table.after_commit"],
    )  # fmt: skip
    assert len(proof.failures) == 2
    assert not (tmp_path / "real").exists()


def test_a_row_that_the_database_refuses_halts_before_the_commit(workplace: Workplace, inbox: Path) -> None:
    with sqlite3.connect(workplace.home / "shop.db") as database:
        database.execute("CREATE TABLE all_rows (k TEXT, n INTEGER CHECK (n < 10), _sequence_id BIGINT)")
    opened = declare(inbox, dm.DatabaseAppend("shop", "all_rows"))
    write(inbox, "a,1\n", "b,99\n")
    with pytest.raises(Halted):
        run_once(workplace, opened)
    history = workplace.history(REGION)
    assert [row.trigger_uri for row in history.states.values()] == [str(inbox / "0.csv")]
    assert not history.unpublished
    halt = history.halt.detail if history.halt else {}
    assert halt["error"]["id"] == "CONSTRAINT_VIOLATED"
    assert halt["trigger"].endswith("1.csv")
    assert "99" in halt["error"]["message"]


@pytest.mark.seed("RT2")
def test_a_key_that_sqlite_cannot_hold_halts_and_a_rewind_doubles_nothing(workplace: Workplace, inbox: Path) -> None:
    opened = declare(inbox, dm.DatabaseUpsert("shop", "newest", keys=["k"]), schema="k double, n bigint")
    write(inbox, "1.5,1\n,2\n", "NaN,3\n", "1.5,4\n,5\n")

    def newest() -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(workplace.home / "shop.db")) as database:
            return sorted(database.execute("SELECT k, n FROM newest").fetchall(), key=repr)

    with pytest.raises(Halted, match="NaN"):
        run_once(workplace, opened, max_group=3)
    halt = workplace.history(REGION).halt
    assert halt is not None
    assert halt.detail["error"]["id"] == "CONSTRAINT_VIOLATED"
    assert halt.detail["trigger"].endswith("1.csv")
    assert newest() == [(1.5, 1), (None, 2)]
    skip(workplace, REGION, [str(inbox / "1.csv")], "no key")
    run_once(workplace, opened)
    assert newest() == [(1.5, 4), (None, 5)]
    for to, before in ((min(workplace.history(REGION).states), [(1.5, 1), (None, 2)]), (0, [])):
        reset(workplace, plan_reset(workplace, REGION, RewindTarget(to=to)))
        assert newest() == before


def test_a_constraint_that_came_between_halts_at_the_publish_and_resume_goes_on(
    workplace: Workplace, inbox: Path
) -> None:
    opened = declare(inbox, dm.DatabaseAppend("shop", "all_rows"))
    write(inbox, "a,1\n")
    run_once(workplace, opened)
    write(inbox, "b,2\n")
    arm("checkpoint.after_commit:raise,publish.before_commit:raise:1,publish.before_commit:raise:2")
    with_errors(lambda: run_once(workplace, opened))
    arm("")
    assert [row.sequence_id for row in workplace.history(REGION).unpublished] == [2]
    with sqlite3.connect(workplace.home / "shop.db") as database:
        database.execute("CREATE TRIGGER no BEFORE INSERT ON all_rows BEGIN SELECT RAISE(ABORT, 'not today'); END")
    with pytest.raises(Halted):
        run_once(workplace, opened, scan=False)
    assert workplace.history(REGION).halt.detail["error"]["id"] == "TABLE_REFUSED"  # type: ignore[union-attr]
    assert [row.sequence_id for row in workplace.history(REGION).unpublished] == [2]
    assert as_rows(read_at(REGION, "all_rows", home=str(workplace.home))) == [("a", 1, 1), ("b", 2, 2)]
    with sqlite3.connect(workplace.home / "shop.db") as database:
        database.execute("DROP TRIGGER no")
    with owning(region_owner(workplace, REGION)) as owner:
        owner.halts.resume("mended")
    assert not workplace.history(REGION).unpublished
    assert as_rows(RegionReader(workplace.settings, REGION).visible("all_rows")) == [("a", 1, 1), ("b", 2, 2)]


def test_a_database_that_is_away_costs_no_attempt(workplace: Workplace, inbox: Path) -> None:
    opened = declare(inbox, dm.DatabaseAppend("shop", "all_rows"))
    write(inbox, "a,1\n")
    run_once(workplace, opened)
    (workplace.home / "shop.db").rename(workplace.home / "away")
    (workplace.home / "shop.db").mkdir()
    write(inbox, "b,2\n")
    with pytest.raises(DrainmarkError) as caught:
        run_once(workplace, opened)
    assert caught.value.id == "STORE_UNAVAILABLE"
    (workplace.home / "shop.db").rmdir()
    (workplace.home / "away").rename(workplace.home / "shop.db")
    run_once(workplace, opened, scan=True)
    history = workplace.history(REGION)
    assert history.attempts == 0
    assert history.last_outcome is Outcome.CLEAN
    assert as_rows(RegionReader(workplace.settings, REGION).visible("all_rows")) == [("a", 1, 1), ("b", 2, 2)]


def test_a_database_restored_from_a_backup_is_found_and_a_reset_brings_it_up(workplace: Workplace, inbox: Path) -> None:
    opened = declare(inbox, dm.DatabaseAppend("shop", "all_rows"), dm.DatabaseUpsert("shop", "newest", keys=["k"]))
    write(inbox, *FILES[:3])
    run_once(workplace, opened)
    backup = (workplace.home / "shop.db").read_bytes()
    write(inbox, FILES[3])
    run_once(workplace, opened)
    assert not [found for found in examine(workplace, with_engine=False)["checks"] if found["verdict"] == "fail"]
    (workplace.home / "shop.db").write_bytes(backup)
    (failed,) = [found for found in examine(workplace, with_engine=False)["checks"] if found["verdict"] == "fail"]
    assert failed["check"] == "outside"
    assert "at id 3, but was at 4" in failed["message"]
    reset(workplace, plan_reset(workplace, REGION, RewindTarget(to=3)))
    run_once(workplace, opened, scan=False)
    wanted = expected(FILES, sorted(workplace.history(REGION).states))
    for kind, table in (("all", "all_rows"), ("newest", "newest")):
        assert as_rows(RegionReader(workplace.settings, REGION).visible(table)) == wanted[kind]
    assert not [found for found in examine(workplace, with_engine=False)["checks"] if found["verdict"] == "fail"]


def test_what_cannot_be_written_is_refused_before_anything_is_claimed(workplace: Workplace, inbox: Path) -> None:
    with sqlite3.connect(workplace.home / "shop.db") as database:
        database.execute("CREATE TABLE all_rows (k TEXT, n INTEGER)")
    with pytest.raises(SchemaMismatch):
        run_once(workplace, declare(inbox, dm.DatabaseAppend("shop", "all_rows")), scan=False)
    assert not workplace.store(REGION).checkpoint.exists()


@pytest.mark.seed("Z5")
def test_neither_rows_nor_fingerprints_hold_the_address(workplace: Workplace, inbox: Path) -> None:
    opened = declare(inbox)
    write(inbox, *FILES[:1])
    run_once(workplace, opened)
    rows = json.dumps([row.to_json() for row in workplace.store(REGION).checkpoint.rows()], default=str)
    assert "sqlite" not in rows
    assert "sqlite" not in json.dumps(as_json(opened.plan))


def test_the_graph_says_what_is_promised(inbox: Path) -> None:
    opened = declare(inbox)
    tables = {table["table"]: table for table in as_json(opened.plan)["regions"][0]["tables"]}
    assert tables["database/shop/all_rows"]["guarantee"] == "exactly-once"
    assert "drainmark_applied" in tables["database/shop/all_rows"]["condition"]
    assert tables["last_file"]["condition"] is None
    assert "database/shop/newest" in as_text(opened.plan)
    assert "POSIX" in tables["files/home/out"]["condition"]


@pytest.mark.parametrize(
    ("target", "rule"),
    [
        (dm.DatabaseAppend("postgresql://u:hunter2@h/db", "t"), "DATABASE_NAME"),
        (dm.DatabaseAppend("shop", "t; drop table t"), "TABLE_NAME"),
        (dm.DatabaseAppend("shop", "t" * 64), "TABLE_NAME"),
        (dm.DatabaseAppend("shop", "Drainmark_applied"), "TABLE_NAME"),
        (dm.DatabaseUpsert("shop", "public.drainmark_given", keys=["k"]), "TABLE_NAME"),
        (dm.DatabaseUpsert("shop", "t", keys=[]), "NO_KEYS"),
        (dm.DeltaAppend("t" * 201), "TABLE_NAME"),
        (dm.DeltaUpsert("a'; drop table t; --", keys=["k"]), "TABLE_NAME"),
        (dm.DeltaOverwrite("../out"), "TABLE_NAME"),
        (dm.FileSink("s3://bucket"), "FILE_PATH"),
        (dm.FileSink("hdfs://namenode/out"), "FILE_PATH"),
        (dm.FileSink("out", name="part"), "FILE_NAME"),
        (dm.FileSink("out", format="xml"), "FILE_FORMAT"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_declaration_names_its_rule(inbox: Path, target: Any, rule: str) -> None:
    with pytest.raises(DrainmarkError) as caught:
        declare(inbox, target)
    assert rule in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_two_homes_do_not_write_one_table(workplace: Workplace, inbox: Path, tmp_path: Path) -> None:
    opened = declare(inbox, dm.DatabaseAppend("shop", "all_rows"))
    write(inbox, "a,1\n")
    run_once(workplace, opened)
    url = {"shop": f"sqlite:///{workplace.home}/shop.db"}
    other = Workplace(Settings(home=tmp_path / "second", project_root=tmp_path, databases=url))
    other.use_engine(workplace.engine)
    with pytest.raises(ForeignTable):
        run_once(other, opened)
    other.registry.close()
