"""Checks for rows that a sink of files cannot hold, made in this process or, for a frame, by Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.values.far_times import RULE, first_far
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.tasks.executor import Executor, Facts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

UNREADABLE, UNHELD = "unreadable", "unheld"


def unreadable_text(rows: pa.Table) -> dict[str, Any] | None:
    """Return the `column` with a text that is not UTF-8, and the message of Arrow as `said`; None if there is none."""
    import pyarrow as pa

    for name, column in zip(rows.column_names, rows.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            return {"column": name, "said": str(error)}
    return None


def unheld(rows: pa.Table, file_format: str) -> dict[str, Any] | None:
    """Return `rule`, `condition`, `rows` and `first_id` for the first row that files of a format cannot hold, or None.

    JSON lines are written from Python's values, and CSV readers take no dates that Python lacks. In CSV of one column a
    null is an empty line, which readers skip. In text files, a line break makes several rows of one text, and a null
    cannot be told from an empty text.

    Args:
        rows: with `_sequence_id`.
        file_format: "csv", "json", "parquet" or "text".
    """
    import pyarrow.compute as pc

    names = [name for name in rows.column_names if name != SEQUENCE_ID]
    row, rule, is_odd = None, RULE, None
    if file_format in ("csv", "json"):
        row = first_far(rows)
    if file_format == "csv" and row is None and len(names) == 1:
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


def first_unfit(executor: Executor, frame: DataFrame, *, file_format: str) -> tuple[str, dict[str, Any]] | None:
    """Check rows; return `UNREADABLE` or `UNHELD` and the facts of a bad row, or None if there is none.

    Args:
        file_format: of the files that the rows are written to.
    """
    found = executor.run_over(frame, JudgeTask(file_format))
    return (found[0]["kind"], dict(found[0]["told"])) if found else None


@dataclass(frozen=True, slots=True)
class JudgeTask:
    """The check of rows for a format of files."""

    file_format: str

    def work(self, share: Iterator[pa.RecordBatch]) -> Iterator[Facts]:
        """Yield the `kind` of the first bad batch, and the facts of a row as `told`; nothing if there is none."""
        import pyarrow as pa

        for batch in share:
            rows = pa.Table.from_batches([batch])
            for kind, look in ((UNREADABLE, unreadable_text), (UNHELD, partial(unheld, file_format=self.file_format))):
                found = look(rows)
                if found is not None:
                    yield {"kind": kind, "told": found}
                    return
