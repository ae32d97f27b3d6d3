"""The error that a task reports for a share that it cannot read or write; without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from drainmark.jobs.errors import OperatorFailed
from drainmark.jobs.tasks.parquet_files import ROW_GROUP_BYTES
from drainmark.jobs.tasks.places import LocalPlace
from drainmark.jobs.tasks.slice_shares import Share, ShareTask
from drainmark.resources.inputs.task_access import TaskAccess

PLACE = pa.struct([("block", pa.int64()), ("row", pa.int64())])
SCHEMA = pa.schema([("_sequence_id", pa.int64()), ("_position", PLACE), ("text", pa.string())])


class Breaking:
    """A source that gives rows until the task has begun to write its file, and then fails."""

    def read(self, piece: Any, access: Any) -> Iterator[pa.RecordBatch]:
        for _ in range(2):
            yield pa.record_batch([pa.array(["x" * ROW_GROUP_BYTES])], names=["text"])
        raise ConnectionResetError(104, "Connection reset by peer")


def read_to(folder: Path) -> None:
    task = ShareTask(
        reads=Breaking(),
        access=TaskAccess(region="app/s"),
        of_task=TaskAccess(region="app/s"),
        schema=SCHEMA,
        reading=None,
        place=LocalPlace(str(folder)),
        folder="rows",
    )
    list(task.work([Share(number=0, sequence_id=7, piece=None, size=1)]))


def test_a_source_that_breaks_off_is_not_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OperatorFailed, match=r"ConnectionResetError: .*reset by peer"):
        read_to(tmp_path)
    assert [path.stat().st_size > 0 for path in tmp_path.glob("rows/*")] == [True]


def test_a_file_that_cannot_be_written_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(NotADirectoryError) as caught:
        read_to(tmp_path / "taken")
    assert str(tmp_path) in str(caught.value.filename)
