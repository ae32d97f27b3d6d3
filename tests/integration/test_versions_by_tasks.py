"""Files that versions of a Delta table added are read by tasks in a large group: the rows are those that the run itself
would read, at the same places.

A cluster: `tests/cluster/test_isolated_sources.py`.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake

import drainmark as dm
from drainmark.jobs.errors import Halted, SliceLost
from drainmark.jobs.runtime.input import row_slices
from drainmark.jobs.tasks.executor import Executor, OnSpark
from drainmark.jobs.tasks.parquet_shares import RowFile, packed
from drainmark.orchestration.testing.running import Result

pytestmark = pytest.mark.spark

RunApp = Callable[..., Result]
WAYS: dict[str, dict[str, int]] = {"small": {"small_group_bytes": 1 << 30}, "large": {"small_group_bytes": 0}}
LONG_FILE = 300
FAR = dt.datetime(2600, 1, 1, 1, 2, 3, 4, tzinfo=dt.UTC)
"""A time outside the range of nanoseconds since 1970."""


def reading(table: Path) -> Callable[[], None]:
    def little() -> None:
        @dm.consistent(trigger="operator-driven", max_consecutive_reset_attempts=0)
        @dm.source(dm.TableSource(str(table)))
        def stock(scanned: Any) -> Any:
            return scanned.selectExpr("*", "_position.block as block", "_position.row as row", "_sequence_id as state")

        dm.sink(stock, dm.DeltaAppend("kept"))

    return little


def add(table: Path, numbers: Sequence[int], **more: Any) -> None:
    columns = {"n": pa.array(numbers, pa.int64()), "p": [f"x {n % 3}/%" if n % 3 else None for n in numbers], **more}
    one_file = WriterProperties(max_row_group_size=100)
    write_deltalake(
        str(table), pa.table(columns), mode="append", partition_by=["p"], schema_mode="merge",
        writer_properties=one_file,
    )  # fmt: skip


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table: three partitions, a compaction, a long file, a later column, and Spark's old type of times."""
    path = tmp_path / "t"
    add(path, range(6))
    add(path, range(6, 9))
    DeltaTable(str(path)).optimize.compact()
    add(path, range(0, 3 * LONG_FILE, 3))
    add(path, [10, 11], at=pa.array([FAR, None], pa.timestamp("us", tz="UTC")))
    files = set(path.rglob("*.parquet"))
    add(path, [12], at=pa.array([FAR], pa.timestamp("us", tz="UTC")))
    (newest,) = set(path.rglob("*.parquet")) - files
    pq.write_table(pq.ParquetFile(newest).read(), newest, use_deprecated_int96_timestamps=True)
    return path


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return the number of files in each share of each group."""
    seen: list[list[int]] = []
    read = row_slices.read_shares

    def counted(executor: Executor, task: Any, wanted: Sequence[Any]) -> Any:
        if isinstance(executor, OnSpark):
            seen.append([len(each.piece.share.files) for each in wanted])
        return read(executor, task, wanted)

    monkeypatch.setattr(row_slices, "read_shares", counted)
    return seen


def ran(run_app: RunApp, table: Path, home: Path, **settings: Any) -> Result:
    return run_app(reading(table), home=home, settings=settings).run()


def told(result: Result) -> list[tuple[Any, ...]]:
    names = ("state", "block", "row", "n", "p", "at")
    return sorted((tuple(row[name] for name in names) for row in result.sink("kept")), key=lambda row: row[:3])


def test_rows_and_places_are_those_of_a_small_group(
    run_app: RunApp, tmp_path: Path, table: Path, shares: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ran(run_app, table, tmp_path / "small", **WAYS["small"])
    assert shares == []
    long = max(path.stat().st_size for path in table.rglob("*.parquet"))
    monkeypatch.setattr(row_slices, "SHARE_BYTES", long // 2)  # three parts, of one row group each
    large = ran(run_app, table, tmp_path / "large", **WAYS["large"])
    assert Counter(row[3:] for row in told(small)) == Counter(
        (n, f"x {n % 3}/%" if n % 3 else None, FAR if n in (10, 12) and version >= 4 else None)
        for version, numbers in enumerate([range(6), range(6, 9), [], range(0, 3 * LONG_FILE, 3), [10, 11], [12]])
        for n in numbers
    )
    assert told(large) == told(small)
    large.rewind(0).run()
    assert [row[1:] for row in told(large)] == [row[1:] for row in told(small)]
    assert len(shares) == 2
    assert shares[0] == shares[1]
    assert len(shares[0]) > 5


def test_a_share_has_neighbours_or_a_part_of_one() -> None:
    files = [RowFile(path=str(number), size=size) for number, size in enumerate([4, 6, 3, 25, 1, 1])]
    cut = packed(files, 10)
    assert [[(file.path, file.part, file.parts) for file in share] for share in cut] == [
        [("0", 0, 1), ("1", 0, 1)],
        [("2", 0, 1)],
        [("3", 0, 3)],
        [("3", 1, 3)],
        [("3", 2, 3)],
        [("4", 0, 1), ("5", 0, 1)],
    ]
    assert [sum(file.size for file in share) for share in cut] == [10, 3, 8, 8, 8, 2]
    assert [len(share) for share in packed([files[-1]] * 70, 1000)] == [32, 32, 6], "each file has to be opened"


def gone(path: Path) -> None:
    path.unlink()


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def overwritten(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:8] + bytes(len(content) // 2) + content[8 + len(content) // 2 :])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (gone, "version 0 of {table} cannot be read any more: its file {file} is gone"),
        (cut_off, "the file {file} of version 0 of {table} is damaged: "),
        (overwritten, "the file {file} of version 0 of {table} is damaged: "),
    ],
    ids=["gone", "cut off", "overwritten"],
)
def test_a_file_that_is_not_as_it_was_halts_in_the_same_words(
    run_app: RunApp, tmp_path: Path, way: str, damage: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / "t"
    write_deltalake(str(path), pa.table({"n": range(1000)}))
    (file,) = path.glob("*.parquet")
    damage(file)
    with pytest.raises(Halted) as caught:
        ran(run_app, path, tmp_path / "home", **WAYS[way])
    lost = caught.value.__cause__
    assert isinstance(lost, SliceLost)
    assert lost.message.startswith(said.format(table=path, file=file.name))
    assert lost.operator == "stock"
    assert "in another application" in (lost.remedy or "")
