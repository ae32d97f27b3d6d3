"""Rows whose types say that what is nested is never null, though the whole is: as Spark gives them to tasks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drainmark.jobs.tasks.parquet_files import WriteTask, write_file
from drainmark.jobs.tasks.places import LocalPlace

NEVER = pa.field("a", pa.bool_(), nullable=False)
MISSING = pa.StructArray.from_arrays([pa.array([True, None])], fields=[NEVER], mask=pa.array([False, True]))
KINDS = {
    "struct": MISSING,
    "struct of a struct": pa.StructArray.from_arrays(
        [MISSING], fields=[pa.field("b", MISSING.type, nullable=False)], mask=pa.array([False, True])
    ),
    "list of structs": pa.ListArray.from_arrays([0, 1, 2], MISSING),
    "map to structs": pa.MapArray.from_arrays([0, 1, 2], pa.array(["x", "y"]), MISSING),
}


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_written_as_they_are(tmp_path: Path, kind: str) -> None:
    rows, place = pa.table({"s": KINDS[kind]}), LocalPlace(str(tmp_path))
    (facts,) = WriteTask(place, "").work(iter(rows.to_batches()))
    for name in (facts["name"], write_file(rows, place).name):
        assert pq.read_table(tmp_path / name).to_pylist() == rows.to_pylist()
