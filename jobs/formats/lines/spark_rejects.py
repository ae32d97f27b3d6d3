"""Rows that Spark's parser could not fit into the declared columns: the line and the fault of each."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs.formats.bad_records import CAPS, BadRecord
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.lines.line_format import can_be_read_here, numbered_records
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Misfit = tuple[int, str, int, int]
"""Number among the file's records from 1, text (cut), CRC-32 and length in bytes of the whole text."""

LineText = tuple[int, int, int]
"""Number of a line from 1, CRC-32 and length in bytes of its text."""


def misfits_of(rows: DataFrame, corrupt: str, ids: Sequence[int]) -> dict[int, list[Misfit]]:
    """Return the rows that do not fit, by id, in the order of their files; one Spark job, for groups that have some."""
    listed = ",".join(map(str, ids))
    found = (
        rows.where(f"{SEQUENCE_ID} in ({listed})")
        .selectExpr(
            SEQUENCE_ID,
            f"row_number() over (partition by {SEQUENCE_ID} order by {POSITION}) as place",
            f"replace({corrupt}, '\\r\\n', '\\n') as text",  # within quotes: `RecordJudge` gives them so
        )
        .where("text is not null")
        .selectExpr(
            SEQUENCE_ID,
            "place",
            f"substring(text, 1, {CAPS.raw_characters + 1}) as raw",
            "crc32(text) as crc",
            "octet_length(text) as size",
        )
        .toArrow()
    )
    misfits: dict[int, list[Misfit]] = {number: [] for number in ids}
    for row in sorted(found.to_pylist(), key=lambda row: (row[SEQUENCE_ID], row["place"])):
        misfits[row[SEQUENCE_ID]].append((row["place"], row["raw"], row["crc"], row["size"]))
    return misfits


def bad_records(misfits: Sequence[Misfit], path: Path | None, expected: Expected) -> list[BadRecord]:
    """Return the misfits of a file with their lines. Lines of equal text are all bad, so they match in their order.

    Args:
        path: of the file as it was scanned; None if it cannot be read here: the position is then the record's number.
    """
    lines = None
    if path is not None and expected.lines and expected.has_records_in_lines and can_be_read_here(path):
        lines = lines_like(numbered_records(path, expected, expected.lines), texts_of(misfits))
    return bad_records_at(misfits, lines, expected)


def bad_records_at(misfits: Sequence[Misfit], lines: Iterator[LineText] | None, expected: Expected) -> list[BadRecord]:
    """Return the misfits of a file with their lines.

    Args:
        lines: the lines of equal texts, in their order; without them the position is the record's number.
    """
    records = []
    for place, raw, crc, size in misfits:
        position = (_line_of(lines, crc, size) if lines is not None else None) or place
        reason = reason_for(raw, expected) if size == len(raw.encode()) else _MISFIT
        records.append(BadRecord.of(position, raw, reason, size=size))
    return records


def texts_of(misfits: Iterable[Misfit]) -> dict[int, set[int]]:
    """Return the CRCs of the texts by their length."""
    texts: dict[int, set[int]] = {}
    for _, _, crc, size in misfits:
        texts.setdefault(size, set()).add(crc)
    return texts


def lines_like(lines: Iterable[tuple[int, bytes]], texts: Mapping[int, Collection[int]]) -> Iterator[LineText]:
    """Yield the numbered lines that have one of the texts."""
    for number, text in lines:
        if len(text) in texts and (crc := zlib.crc32(text)) in texts[len(text)]:
            yield number, crc, len(text)


_MISFIT = "does not fit the declared columns"


def _line_of(lines: Iterator[LineText], crc: int, size: int) -> int | None:
    return next((number for number, found, length in lines if length == size and found == crc), None)


def reason_for(text: str, expected: Expected) -> str:
    """Return the fault of a record, as far as it can be found without Spark."""
    return (expected.lines.misfit(text, expected) if expected.lines is not None else None) or _MISFIT
