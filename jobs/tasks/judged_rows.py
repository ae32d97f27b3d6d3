"""Rows that are looked through for one that a sink of files cannot hold, by tasks where these have the rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.values.far_times import RULE, first_far
from drainmark.jobs.frames.tags import SEQUENCE_ID

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

UNREADABLE, UNHELD = "unreadable", "unheld"


def unreadable_text(rows: pa.Table) -> dict[str, Any] | None:
    """Return `column` with a text that is no UTF-8, and what is `said` of it; None where there is none."""
    import pyarrow as pa

    for name, column in zip(rows.column_names, rows.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            return {"column": name, "said": str(error)}
    return None


def unheld(rows: pa.Table, file_format: str) -> dict[str, Any] | None:
    """Return `rule`, `condition`, `rows` and `first_id` of the first row that files of a format cannot hold.

    JSON lines are written from Python's values. CSV of one column has an empty line for a null, which readers pass
    over. To whoever reads text, a line break in one makes several rows of it, and a null would be an empty one.

    Args:
        rows: with `_sequence_id`.
        file_format: "csv", "json", "parquet" or "text".
    """
    import pyarrow.compute as pc

    names = [name for name in rows.column_names if name != SEQUENCE_ID]
    row, rule, is_odd = None, RULE, None
    if file_format == "json":
        row = first_far(rows)
    elif file_format == "csv" and len(names) == 1:
        rule, is_odd = "no null in a CSV of one column, where it is an empty line", pc.is_null(rows.column(names[0]))
    elif file_format == "text":
        texts = rows.column(names[0])
        rule = "one line a row, which is all that text files hold"
        is_odd = pc.or_kleene(pc.is_null(texts), pc.match_substring_regex(texts, r"[\r\n]"))
    if is_odd is not None and (place := pc.index(is_odd, True).as_py()) >= 0:
        (row,) = rows.slice(place, 1).to_pylist()
    if row is None:
        return None
    return {"rule": rule, "condition": f"row {row}"[:500], "rows": 1, "first_id": row[SEQUENCE_ID]}


def first_unfit(frame: DataFrame, *, file_format: str) -> tuple[str, dict[str, Any]] | None:
    """Have tasks look through rows; return `UNREADABLE` or `UNHELD`, and what was found; None where all are well.

    Args:
        file_format: of the files that they go to.
    """
    found = frame.mapInArrow(_LookTask(file_format), "kind string, facts string").collect()
    return (found[0][0], json.loads(found[0][1])) if found else None


@dataclass(frozen=True, slots=True)
class _LookTask:
    """What one task does: it gives what is wrong with the first batch that has something wrong, and ends."""

    file_format: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            rows = pa.Table.from_batches([batch])
            for kind, look in ((UNREADABLE, unreadable_text), (UNHELD, partial(unheld, file_format=self.file_format))):
                found = look(rows)
                if found is not None:
                    yield pa.RecordBatch.from_pydict({"kind": [kind], "facts": [json.dumps(found)]})
                    return
