"""A small group without an application: tasks write rows below the tables; tasks and this process read them back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.errors import AccountingError
from drainmark.jobs.frames.row_types import arrow_schema
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.tasks.parquet_files import frame_of_files, require_here, write_files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from drainmark.resources.storage.folder import Folder

_ROWS = 1000
_TASKS = 2


def try_group(session: SparkSession, tables: Folder) -> None:
    """Have tasks write rows like those of a group, compare the rows that all read back, and delete the files.

    Args:
        tables: folder of all tables.

    Raises:
        AccountingError: rows are missing, or differ.
        OSError, StoreUnavailable: a task could not write.
    """
    name = f"_drainmark_probe-{world.token()}"
    folder = tables / name
    wanted = session.range(0, _ROWS, 1, _TASKS).selectExpr(f"id AS {SEQUENCE_ID}", "CAST(id AS string) AS value")
    try:
        files = write_files(wanted, folder.place)
        require_here(folder.stamp, str(folder), files)
        names = [file.name for file in files]
        _require_rows("this process", folder.read(names, arrow_schema(wanted.schema)))
        _require_rows("tasks", frame_of_files(session, folder.place, names, wanted.schema).toArrow())
    finally:
        tables.delete(name)


def _require_rows(who: str, rows: pa.Table) -> None:
    found = sorted(zip(*(rows.column(name).to_pylist() for name in (SEQUENCE_ID, "value")), strict=True))
    if found != [(number, str(number)) for number in range(_ROWS)]:
        msg = f"of {_ROWS} rows that tasks wrote {who} read {rows.num_rows}, or others"
        raise AccountingError(msg, rows=rows.num_rows, expected=_ROWS)
