"""Rows that are looked through for one that a sink of files cannot hold, by tasks where these have the rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.values.far_times import RULE, first_far
from drainmark.jobs.frames.tags import SEQUENCE_ID

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

UNREADABLE, FAR = "unreadable", "far"


def unreadable_text(rows: pa.Table) -> dict[str, Any] | None:
    """Return `column` with a text that is no UTF-8, and what is `said` of it; None where there is none."""
    import pyarrow as pa

    for name, column in zip(rows.column_names, rows.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            return {"column": name, "said": str(error)}
    return None


def far_time(rows: pa.Table) -> dict[str, Any] | None:
    """Return `rule`, `condition`, `rows` and `first_id` of a row with a date or time that Python cannot hold."""
    row = first_far(rows)
    if row is None:
        return None
    return {"rule": RULE, "condition": f"row {row}"[:500], "rows": 1, "first_id": row[SEQUENCE_ID]}


def first_unfit(frame: DataFrame, *, is_json: bool) -> tuple[str, dict[str, Any]] | None:
    """Have tasks look through rows; return `UNREADABLE` or `FAR`, and what was found; None where all are well.

    Args:
        is_json: they go to JSON lines, which are written from Python's values.
    """
    found = frame.mapInArrow(_LookTask(is_json), "kind string, facts string").collect()
    return (found[0][0], json.loads(found[0][1])) if found else None


@dataclass(frozen=True, slots=True)
class _LookTask:
    """What one task does: it gives what is wrong with the first batch that has something wrong, and ends."""

    is_json: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            rows = pa.Table.from_batches([batch])
            for kind, look in ((UNREADABLE, unreadable_text), *(((FAR, far_time),) if self.is_json else ())):
                found = look(rows)
                if found is not None:
                    yield pa.RecordBatch.from_pydict({"kind": [kind], "facts": [json.dumps(found)]})
                    return
