"""The memory of a run does not grow with the number of groups that it has processed (H30)."""

from __future__ import annotations

import gc
import gzip
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from harness import LONG_AGO

import drainmark as dm
from drainmark import F
from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow
from drainmark.jobs.runtime.input import executors
from drainmark.jobs.runtime.input.executors import GroupExecutor
from drainmark.jobs.runtime.maintenance import housekeeping
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.runs.region_runs import region_run
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.workplace.workplace import Workplace, open_application
from drainmark.resources.checkpoints import checkpoint_table

APP = Path(__file__).parents[1] / "recovery" / "apps" / "two_regions.py"
REGION = "two_regions/orders"
GROUPS = 60


def held(workplace: Workplace) -> dict[str, int]:
    """Count the objects that a leak would pile up: rows of the checkpoint table, and RDDs that Spark persists."""
    gc.collect()
    rows = sum(isinstance(each, CheckpointRow) for each in gc.get_objects())
    return {"rows": rows, "persisted": workplace.engine.session._jsc.sc().getPersistentRDDs().size()}


@pytest.fixture
def short_tiers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let maintenance run after every five groups, and compact from five files on."""
    original = checkpoint_table.CheckpointTable.compact
    monkeypatch.setattr(housekeeping, "EVERY_GROUPS", 5)
    monkeypatch.setattr(checkpoint_table.CheckpointTable, "compact", lambda self: original(self, files_at_least=5))
    return


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.seed("H30")
def test_what_is_held_after_many_groups_is_what_was_held_after_few(
    workplace: Workplace, tmp_path: Path, short_tiers: None
) -> None:
    for number in range(GROUPS):
        path = tmp_path / "orders" / f"{number:03d}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"ann,tea,{number}\nbob,salt,1\n")
        os.utime(path, (LONG_AGO, LONG_AGO))
    opened = open_application(str(APP), inputs=[f"orders={tmp_path / 'orders'}", f"payments={tmp_path / 'orders'}"])
    scan_region(workplace, opened.region(REGION))
    run = region_run(workplace, opened, opened.region(REGION), max_group=1)
    run.claim()
    found = [held(workplace) for number, _ in enumerate(run.groups(), 1) if number % 10 == 1]
    run.hand_over()
    assert len(found) == GROUPS // 10
    assert found[-1]["rows"] <= found[1]["rows"] + 10, found
    assert found[-1]["persisted"] <= found[1]["persisted"], found
    assert workplace.history(REGION).committed_id >= GROUPS


def summed(form: str) -> Callable[[], None]:
    def app() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="inbox", format=form, schema="k string, n bigint"))
        def rows(scanned: Any) -> Any:
            return scanned

        totals = dm.aggregate(rows, keys=["k"], values={"n": dm.sum("n")}, name="totals")
        dm.sink(totals, dm.DeltaUpsert("totals", keys=["k"]))

    return app


def lines(megabytes: int) -> bytes:
    """Return compressed lines, as long as makes them few: four megabytes are packed into some kilobytes."""
    return gzip.compress((b"a" * 3997 + b",1\n") * 1000) * (megabytes // 4)


def table(k: Any, n: Any) -> bytes:
    """Return a Parquet file; a million rows of one value take some kilobytes."""
    file = io.BytesIO()
    pq.write_table(pa.table({"k": k, "n": n}), file)
    return file.getvalue()


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the row counts of the tables that came into this process for Spark, which holds them a second time."""
    found, original = [0], GroupExecutor.local

    def local(self: GroupExecutor, rows: Any, like: Any) -> Any:
        found.append(rows.num_rows)
        return original(self, rows, like)

    monkeypatch.setattr(GroupExecutor, "local", local)
    return found


@pytest.mark.spark
@pytest.mark.seed("I14")
def test_a_bomb_beside_a_good_file_is_quarantined_by_name(run_app: Callable[..., Result], brought: list[int]) -> None:
    """A file that is over two hundred times larger when decompressed, beyond the first 256 MB, is no real input."""
    result = run_app(summed("csv"), {"1.csv": "good,1\n", "2.csv.gz": lines(280), "3.csv": "good,2\n"})
    assert result.sink("totals") == [{"k": "good", "n": 3}]
    (refused,) = result.quarantine()
    assert refused["source_file"].endswith("2.csv.gz")
    assert refused["reason"].endswith("when decompressed")
    assert max(brought) < 10


@pytest.mark.spark
@pytest.mark.seed("I14", "H35")
@pytest.mark.parametrize("share", [12, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("form", [pytest.param("csv", marks=pytest.mark.slow), "parquet"])
def test_a_small_file_of_many_rows_does_not_come_into_this_process(
    run_app: Callable[..., Result], brought: list[int], form: str, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gzip or Parquet's encodings can make it so small: a file of 60 KB killed the JVM of a run, again and again.

    The default run has a twelfth of the rows, and of the limits.
    """
    for limit in ("MOST_BYTES", "MOST_VALUES"):
        monkeypatch.setattr(executors, limit, getattr(executors, limit) // share)
    count = 6_000_000 // share
    files = {
        "csv": {"1.csv": b"good,1\n", "2.csv.gz": gzip.compress(b"a,1\n" * count, 1)},
        "parquet": {
            "1.parquet": table(["good"], [1]), "2.parquet": table(pa.nulls(count, pa.string()), pa.repeat(1, count))
        },
    }[form]  # fmt: skip
    assert max(map(len, files.values())) < 1_000_000
    result = run_app(summed(form), files)
    assert {row["k"]: row["n"] for row in result.sink("totals")} == {"good": 1, {"csv": "a"}.get(form): count}
    assert max(brought) < 10


@pytest.mark.spark
@pytest.mark.seed("I14")
def test_a_value_that_unpacks_to_more_than_it_may_is_quarantined_beside_good_ones(
    run_app: Callable[..., Result],
) -> None:
    def app() -> None:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="inbox", format="binary"))
        def mails(scanned: Any) -> Any:
            return dm.select(scanned, "content")

        unpacked = dm.decompress(mails, "content", max_bytes=1_000_000)
        lengths = dm.functor(
            lambda unpacked: dm.select(unpacked, F.length("content").alias("n")), name="lengths", inputs=[unpacked]
        )
        dm.sink(lengths, dm.DeltaAppend("lengths"))

    result = run_app(app, {"1": gzip.compress(b"good"), "2": lines(8), "3": gzip.compress(b"x" * 1_000_000)})
    assert [row["n"] for row in result.sink("lengths")] == [4, 1_000_000]
    (bad,) = result.quarantine()
    assert os.path.basename(bad["source_file"]) == "2"
    assert bad["reason"] == "more than 1000000 bytes come out of it"
