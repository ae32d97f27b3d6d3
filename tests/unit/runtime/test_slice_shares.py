"""The error that a task reports for a share that it cannot read or write; without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from drainmark.jobs.errors import InputMissing, OperatorFailed
from drainmark.jobs.tasks.parquet_files import ROW_GROUP_BYTES
from drainmark.jobs.tasks.places import LocalPlace
from drainmark.jobs.tasks.slice_shares import Share, ShareTask
from drainmark.resources.inputs.task_access import TaskAccess

PLACE = pa.struct([("block", pa.int64()), ("row", pa.int64())])
SCHEMA = pa.schema([("_sequence_id", pa.int64()), ("_position", PLACE), ("text", pa.string())])


GO_ON = "drainmark resume app/s --accept-loss --reason '…'"


class Breaking:
    """A source that gives rows until the task has begun to write its file, and then fails."""

    def read(self, piece: Any, access: Any) -> Iterator[pa.RecordBatch]:
        for _ in range(2):
            yield pa.record_batch([pa.array(["x" * ROW_GROUP_BYTES])], names=["text"])
        raise ConnectionResetError(104, "Connection reset by peer")


class Losing:
    """A source that has lost its input."""

    def read(self, piece: Any, access: Any) -> Iterator[pa.RecordBatch]:
        raise InputMissing("it is gone", remedy=f"go on: {GO_ON}", commands=(GO_ON,), triggers=())
        yield


def read_to(folder: Path, reads: Any) -> None:
    task = ShareTask(
        reads=reads,
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
        read_to(tmp_path, Breaking())
    assert [path.stat().st_size > 0 for path in tmp_path.glob("rows/*")] == [True]


def test_a_file_that_cannot_be_written_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(NotADirectoryError) as caught:
        read_to(tmp_path / "taken", Breaking())
    assert str(tmp_path) in str(caught.value.filename)


def test_the_error_of_lost_input_brings_the_commands_that_end_its_halt(tmp_path: Path) -> None:
    with pytest.raises(InputMissing) as caught:
        read_to(tmp_path, Losing())
    told = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - as a task sends it
    assert (told.remedy, told.commands) == (f"go on: {GO_ON}", (GO_ON,))
