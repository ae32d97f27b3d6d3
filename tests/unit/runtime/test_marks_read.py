"""What of a file that a task wrote passes through the run's process before the commit names it (CL8)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from drainmark.jobs.errors.environment import FilesLost
from drainmark.jobs.tasks.parquet_files import write_file
from drainmark.jobs.tasks.places import LocalPlace, stamp_of
from drainmark.resources.delta.staging import Staging, verify
from drainmark.resources.storage import folder

ROWS = pa.table({"_sequence_id": pa.array([1, 1], pa.int64()), "value": ["x", "y"]})


def test_the_end_of_a_tasks_file_is_read_once_and_compared_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write_file(ROWS, LocalPlace(str(tmp_path)), "_staged/1-a/rows")
    asked: list[Path] = []
    monkeypatch.setattr(folder, "stamp_of", lambda path: asked.append(path) or stamp_of(path))
    files = Staging(tmp_path, 1, "a")._staged(lambda: [written])
    verify(tmp_path, files)
    assert len(asked) == 1
    path = tmp_path / written.name
    path.write_bytes(path.read_bytes()[:-5] + b"xPAR1")
    with pytest.raises(FilesLost):
        verify(tmp_path, files)
    path.unlink()
    with pytest.raises(FilesLost):
        Staging(tmp_path, 1, "a")._staged(lambda: [written])
