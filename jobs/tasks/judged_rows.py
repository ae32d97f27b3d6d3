"""Checks for rows that nobody could read again, or that a sink of files cannot hold; made here or by Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from drainmark.jobs.errors import Location, OperatorFailed
from drainmark.jobs.formats.values.far_times import RULE, first_far
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.tasks.executor import Executor, Facts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


class Named(Protocol):
    """An operator, as far as an error names it."""

    @property
    def name(self) -> str: ...
    @property
    def location(self) -> Location | None: ...


@dataclass(frozen=True, slots=True)
class Giver:
    """The operator whose rows a task writes; the operator itself is not sent to tasks."""

    name: str
    location: Location | None

    @classmethod
    def of(cls, operator: Named) -> Giver:
        return cls(operator.name, operator.location)


Rows = TypeVar("Rows", "pa.Table", "pa.RecordBatch")


def require_text(operator: Named, rows: Rows) -> Rows:
    """Return the rows if every text is UTF-8. Other text, e.g. from a cast of bytes, can be written but not read.

    Raises:
        OperatorFailed: a text is not UTF-8; the error names the column.
    """
    import pyarrow as pa

    for column, values in zip(rows.schema.names, rows.columns, strict=True):
        try:
            values.validate(full=True)
        except pa.ArrowInvalid as error:
            raise OperatorFailed(
                f"{operator.name!r}: the column {column!r} holds values that nobody can read again: {error}",
                operator=operator.name,
                location=operator.location,
                remedy="bytes that are no UTF-8 become text by F.decode(column, 'ISO-8859-1'), or make_valid_utf8",
            ) from error
    return rows


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


def first_unfit(executor: Executor, frame: DataFrame, *, file_format: str) -> dict[str, Any] | None:
    """Check rows; return the facts of the first row that files cannot hold, or None if there is none: see `unheld`.

    Args:
        file_format: of the files that the rows are written to.
    """
    found = executor.run_over(frame, JudgeTask(file_format))
    return dict(found[0]) if found else None


@dataclass(frozen=True, slots=True)
class JudgeTask:
    """The check of rows for a format of files."""

    file_format: str

    def work(self, share: Iterator[pa.RecordBatch]) -> Iterator[Facts]:
        """Yield the facts of the first row that files cannot hold; nothing if there is none."""
        import pyarrow as pa

        for batch in share:
            found = unheld(pa.Table.from_batches([batch]), self.file_format)
            if found is not None:
                yield found
                return
