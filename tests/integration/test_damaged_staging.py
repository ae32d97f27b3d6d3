"""A staged file that is removed, cut short or swapped before its commit: the group is refused, and nothing is lost."""

from __future__ import annotations

import datetime as dt
import itertools
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from damages import DAMAGES, Damage
from harness import passing, settle
from staged_app import FILES, Gate, staged

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import AccountingError, DrainmarkError
from drainmark.jobs.failpoints import FailPoint, arm
from drainmark.jobs.state import keyed_state
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.testing.processing import drive, scan
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.delta import staging as staging_module
from drainmark.resources.delta.staging import Staging
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

slow = pytest.mark.slow
RunApp = Callable[..., Result]
pytestmark = [pytest.mark.spark, pytest.mark.seed("DX1")]


def staged_files(home: Path) -> dict[str, Path]:
    """Return a staged file of the newest epoch for each table and kind of content (`rows`, `image`, …)."""
    files = [path for path in home.rglob("*.parquet") if "_staged" in path.parts and "checkpoints" not in path.parts]
    newest = max(_epoch(path) for path in files)
    return {_kind(path.relative_to(home)): path for path in files if _epoch(path) == newest}


def _kind(path: Path) -> str:
    table, _, rest = path.as_posix().partition("/_staged/")
    return f"{table} {rest.split('/')[1].removesuffix('.parquet')}"


def _epoch(path: Path) -> int:
    return int(path.parts[path.parts.index("_staged") + 1].partition("-")[0])


def declared(inbox: Path) -> Opened:
    with dm.application("damaged") as application:

        @dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=1000)
        @dm.source(dm.DirectoryScan(path=str(inbox), pattern="*.csv", format="csv", schema="k string, n int", settle=0))
        def events(scanned: Any) -> Any:
            return scanned

        @dm.functor
        def bad(events: Any) -> Any:
            return dm.select(events.where("n < 0"), F.lit("below zero").alias("reason"), "n")

        counts = dm.aggregate(events, name="counts", keys=["k"], values={"rows": dm.count()})
        dm.quarantine(bad, name="refused")
        dm.sink(counts, dm.DeltaUpsert("counts", keys=["k"]))
        dm.sink(events, dm.DeltaUpsert("newest", keys=["k"]))
        dm.sink(events, dm.DeltaAppend("events"))
    return open_application(dm.build_application(application))


def joined(inbox: Path) -> Opened:
    """Return sinks with a history that show their rows elsewhere, and a join, which keeps the rows of both sides."""
    with dm.application("damaged") as application:
        schema = "k string, n int, t timestamp"

        @dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=1000)
        @dm.source(dm.DirectoryScan(path=str(inbox), pattern="*.csv", format="csv", schema=schema, settle=0))
        def events(scanned: Any) -> Any:
            return scanned

        @dm.functor
        def odd(events: Any) -> Any:
            return dm.select(events.where("n % 2 = 1"), "k", "t", F.col("n").alias("odd"))

        pairs = dm.join(
            events, odd, on=["k"], within=(dt.timedelta(0), dt.timedelta(hours=1)), left_time="t", right_time="t",
            lateness=60, name="pairs",
        )  # fmt: skip
        dm.sink(pairs, dm.DeltaAppend("pairs"))
        dm.sink(events, dm.DatabaseAppend("shop", "rows"))
        dm.sink(events, dm.DeltaOverwrite("newest"))
        dm.sink(events, dm.FileSink("{home}/out"), name="files")
    return open_application(dm.build_application(application))


@pytest.fixture(params=["by Arrow", pytest.param("by Spark", marks=slow)])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workplace]:
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 0)  # write an image with every group
    if request.param == "by Spark":
        monkeypatch.setattr(keyed_state, "MEMORY_STATE_BYTES", 0)
    limits = {} if request.param == "by Arrow" else {"small_group_bytes": 0}
    databases = {"shop": "sqlite:///{home}/shop.db"}
    workplace = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, databases=databases, **limits))
    workplace.use_engine(engine)
    yield workplace
    workplace.registry.close()


def damaging(damage: Callable[[], bool]) -> AbstractContextManager[None]:
    """Call `damage` when a group is staged completely and nothing is committed, until it returns True."""
    is_done = False

    def reached(point: str) -> None:
        nonlocal is_done
        if point == FailPoint.CHECKPOINT_PENDING_WRITTEN and not is_done:
            is_done = damage()

    return passing(reached)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=slow)])
def test_a_damaged_file_is_not_committed_and_the_next_run_is_right(
    place: Workplace, tmp_path: Path, every: bool
) -> None:
    """All files that the row would name are damaged: of both sinks, the quarantine, a history, a state, its image."""
    choose, text = _in_every_way if every else _some, "a,1\nb,2\na,3\nc,-1\n"
    kinds = _refused(place, declared, tmp_path / "inbox", text, choose=choose)
    assert {each.split()[0] for each in kinds} >= {"lake/events", "lake/damaged_quarantine"}, kinds
    assert any(each.endswith("image") for each in kinds), kinds
    store = place.store("damaged/events")
    assert store.table("lake/events").row_count() == 4
    counts = {row["k"]: row["rows"] for row in store.table("lake/counts").read().to_pylist()}
    assert counts == {"a": 2, "b": 1, "c": 1}


@slow
def test_nor_is_one_of_what_is_shown_elsewhere_or_of_a_join(place: Workplace, tmp_path: Path) -> None:
    """It damages histories of an overwritten table, a database table and files, and the rows of both join sides."""
    text = "".join(f"{key},{n},2026-01-01 00:0{n}:00\n" for key, n in (("a", 1), ("b", 2), ("a", 3)))
    kinds = _refused(place, joined, tmp_path / "inbox", text, choose=_each_once)
    operators = {each.split()[0].rpartition("/")[2] for each in kinds}
    assert operators >= {"newest_sink", "shop_rows_sink", "files"}, kinds
    assert len([each for each in operators if each.startswith("pairs-")]) >= 2, kinds
    store = place.store("damaged/events")
    assert store.table("lake/newest").row_count() == 3
    assert store.table("lake/pairs").row_count() == 3  # the pairs a1 and a1, a1 and a3, a3 and a3
    with sqlite3.connect(place.home / "shop.db") as database:
        assert database.execute("SELECT count(*) FROM rows").fetchone() == (3,)
    assert len(list((place.home / "out").glob("*.*"))) == 1


def _refused(
    place: Workplace,
    declare: Callable[[Path], Opened],
    inbox: Path,
    text: str,
    *,
    choose: Callable[[list[str]], Iterable[tuple[str, str]]],
) -> list[str]:
    """Run an application on one file once for each chosen damage to its staged files; then run it without damage.

    Args:
        choose: returns the pairs of a kind of staged file and a damage, given the kinds.

    Returns:
        the kinds of staged files.
    """
    inbox.mkdir()
    (inbox / "a.csv").write_text(text)
    settle(inbox)
    application = declare(inbox)
    scan(place, application, application.region())
    blueprint = region_run(place, application, application.region()).blueprint

    def run() -> None:
        drive(region_run(place, application, application.region(), blueprint=blueprint))

    arm(f"{FailPoint.CHECKPOINT_PENDING_WRITTEN.value}:raise")
    with pytest.raises(DrainmarkError):
        run()
    kinds = sorted(staged_files(place.home))
    for kind, name in choose(kinds):
        with damaging(partial(_damage, place.home, kind, DAMAGES[name])), pytest.raises(AccountingError) as refused:
            run()
        assert refused.value.facts["path"].startswith("_staged/"), (kind, name)
        assert place.history("damaged/events").committed_id == 0, (kind, name)
    run()
    return kinds


def _some(kinds: list[str]) -> Iterable[tuple[str, str]]:
    return zip(kinds[::2], DAMAGES, strict=False)


def _each_once(kinds: list[str]) -> Iterable[tuple[str, str]]:
    return zip(kinds, itertools.cycle(DAMAGES), strict=False)


def _in_every_way(kinds: list[str]) -> Iterable[tuple[str, str]]:
    return itertools.product(kinds, DAMAGES)


def _damage(home: Path, kind: str, damage: Damage) -> bool:
    damage(staged_files(home)[kind])
    return True


@pytest.mark.parametrize("damage", [pytest.param(each, marks=() if each == "cut" else slow) for each in DAMAGES])
def test_what_is_in_flight_between_stages_is_what_was_written(run_app: RunApp, damage: str) -> None:
    gate = Gate(held_from=2)
    result = run_app(staged(gate, alignment="unaligned", max_consecutive_reset_attempts=100)).add(FILES)
    scan(result.workplace, result.opened, result.region)
    hit: list[Path] = []

    def once() -> bool:
        hit.extend(list((result.home / "channels").rglob("*.parquet"))[:1])
        for path in hit:
            DAMAGES[damage](path)
        return bool(hit)

    with damaging(once), pytest.raises(AccountingError) as refused:
        drive(region_run(result.workplace, result.opened, result.region, max_group=1))
    assert hit
    assert refused.value.facts["path"] in str(hit[0])
    gate.hold_from(None)
    drive(region_run(result.workplace, result.opened, result.region))
    words = Counter(word for text in FILES.values() for word in text.split())
    assert {row["word"]: row["count"] for row in result.sink("word_counts")} == words


@pytest.mark.parametrize("damage", DAMAGES)
def test_rows_that_spark_wrote_and_nobody_finds_are_counted(
    tmp_path: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """So it is if executors write to their own disks, or if a file is lost after its task has ended (DX1)."""
    rows = engine.session.range(0, 1000, 1, 4).selectExpr("id as _sequence_id", "cast(id as string) as text")
    staging = Staging(tmp_path, 1, "a")
    assert sum(file.rows for file in staging.write_frame(rows, "whole")) == 1000
    require_here = staging_module.require_here

    def damaged(stamp: Any, where: str, files: Any) -> None:
        DAMAGES[damage](tmp_path / files[0].name)
        require_here(stamp, where, files)

    monkeypatch.setattr(staging_module, "require_here", damaged)
    with pytest.raises(AccountingError):  # a swapped file is found before the commit
        staging_module.verify(tmp_path, staging.write_frame(rows, damage))
