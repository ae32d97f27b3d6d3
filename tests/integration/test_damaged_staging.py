"""A staged file that is removed, cut short or swapped before its commit: the group is refused, and nothing is lost."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import settle
from staged_app import FILES, Gate, staged

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import AccountingError, DrainmarkError
from drainmark.jobs.failpoints import FailPoint, arm, reach
from drainmark.jobs.runtime.commit import background_checkpoint
from drainmark.jobs.state import keyed_state
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.testing.processing import drive, scan
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.delta.staging import Staging
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

slow = pytest.mark.slow
RunApp = Callable[..., Result]
pytestmark = [pytest.mark.spark, pytest.mark.seed("DX1")]

Damage = Callable[[Path], None]


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def swap(path: Path) -> None:
    """Put another valid file of the same size, columns and rows in its place."""
    table, size = pq.read_table(path).replace_schema_metadata(None), path.stat().st_size
    table = table.take(list(range(table.num_rows))[::-1])
    for padding in range(size):
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(
            sink, table.schema, compression="zstd", use_dictionary=False, write_statistics=False, store_schema=False
        ) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({"p": "x" * padding})
        if sink.getvalue().size == size:
            path.write_bytes(sink.getvalue())
            return
    raise AssertionError(f"no file of {size} bytes")


DAMAGES: dict[str, Damage] = {"removed": remove, "cut": cut, "swapped": swap}


def staged_files(home: Path) -> dict[str, Path]:
    """Return a staged file of the newest epoch by table and what is in it (`rows`, `image`, …)."""
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


@pytest.fixture(params=["by Arrow", "by Spark"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workplace]:
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 0)  # an image with every group
    if request.param == "by Spark":
        monkeypatch.setattr(keyed_state, "SMALL_STATE_BYTES", 0)
    limits = {} if request.param == "by Arrow" else {"small_group_bytes": 0}
    workplace = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, **limits))
    workplace.use_engine(engine)
    yield workplace
    workplace.registry.close()


def damaging(monkeypatch: pytest.MonkeyPatch, damage: Callable[[], bool]) -> None:
    """Have something done when all of a group is staged and nothing is committed, until it says that it was done."""
    is_done = False

    def reached(point: str) -> None:
        nonlocal is_done
        reach(point)
        if point == FailPoint.CHECKPOINT_PENDING_WRITTEN and not is_done:
            is_done = damage()

    monkeypatch.setattr(background_checkpoint, "reach", reached)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=slow)])
def test_a_damaged_file_is_not_committed_and_the_next_run_is_right(
    place: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: bool
) -> None:
    """Every file that the row would name: of both sinks, the quarantine, a history, a state and its image."""
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "a.csv").write_text("a,1\nb,2\na,3\nc,-1\n")
    settle(inbox)
    application = declared(inbox)
    scan(place, application, application.region())
    blueprint = region_run(place, application, application.region()).blueprint

    def run() -> None:
        drive(region_run(place, application, application.region(), blueprint=blueprint))

    arm(f"{FailPoint.CHECKPOINT_PENDING_WRITTEN.value}:raise")
    with pytest.raises(DrainmarkError):
        run()
    kinds = sorted(staged_files(place.home))
    assert {each.split()[0] for each in kinds} >= {"lake/events", "lake/damaged_quarantine"}, kinds
    assert any(each.endswith("image") for each in kinds), kinds
    cases = list(itertools.product(kinds, DAMAGES)) if every else list(zip(kinds[::2], DAMAGES, strict=False))
    for kind, name in cases:
        damaging(monkeypatch, partial(_damage, place.home, kind, DAMAGES[name]))
        with pytest.raises(AccountingError) as refused:
            run()
        assert refused.value.facts["path"].startswith("_staged/"), (kind, name)
        assert place.history("damaged/events").committed_id == 0, (kind, name)
    run()
    store = place.store("damaged/events")
    assert store.table("lake/events").row_count() == 4
    counts = {row["k"]: row["rows"] for row in store.table("lake/counts").read().to_pylist()}
    assert counts == {"a": 2, "b": 1, "c": 1}


def _damage(home: Path, kind: str, damage: Damage) -> bool:
    damage(staged_files(home)[kind])
    return True


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_in_flight_between_stages_is_what_was_written(
    run_app: RunApp, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    gate = Gate(held_from=2)
    result = run_app(staged(gate, alignment="unaligned", max_consecutive_reset_attempts=100)).add(FILES)
    scan(result.workplace, result.opened, result.region)
    hit: list[Path] = []

    def once() -> bool:
        hit.extend(list((result.home / "channels").rglob("*.parquet"))[:1])
        for path in hit:
            DAMAGES[damage](path)
        return bool(hit)

    damaging(monkeypatch, once)
    with pytest.raises(AccountingError) as refused:
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
    """As where executors write to their own disks, or a file is lost before its footer is read (DX1)."""
    rows = engine.session.range(0, 1000, 1, 4).selectExpr("id as _sequence_id", "cast(id as string) as text")
    staging = Staging(tmp_path, 1, "a")
    assert sum(file.rows for file in staging.write_frame(rows, "whole")) == 1000
    describe = Staging.describe

    def damaged(self: Staging, subdirectory: str, **more: Any) -> Any:
        DAMAGES[damage](min(self.path(subdirectory).glob("*.parquet")))
        return describe(self, subdirectory, **more)

    monkeypatch.setattr(Staging, "describe", damaged)
    with pytest.raises(AccountingError):
        staging.write_frame(rows, damage)
