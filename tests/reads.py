"""One file of bytes, read as the sources read it: its verdict, and its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from drainmark.jobs.formats.bad_records import BadRecord, FileVerdict, Parsed
from drainmark.jobs.formats.column_fit import Columns
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.lines.content import END, LocalFile
from drainmark.jobs.formats.values.far_times import python_rows
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.tasks.executor import Here
from drainmark.jobs.tasks.file_ranges import InputFile
from drainmark.jobs.tasks.places import MemoryPlace
from drainmark.jobs.tasks.read_files import ReadFiles, read_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What comes of a file; a file that is refused has no rows."""

    rows: Sequence[Mapping[str, Any]]
    verdict: FileVerdict

    @property
    def refused(self) -> str | None:
        return self.verdict.refused

    @property
    def bad(self) -> Sequence[BadRecord]:
        return self.verdict.bad

    @property
    def reasons(self) -> dict[int | None, str]:
        """Return line number -> reason of the bad records."""
        return {each.position: each.reason for each in self.verdict.bad}


def input_file(path: Path, number: int = 7) -> InputFile:
    return InputFile(number=number, path=str(path), size=path.stat().st_size)


def read_here(files: Sequence[InputFile], expected: Expected) -> ReadFiles:
    """Read files as a small group is read."""
    return read_files(Here(), files, expected, MemoryPlace())


def read(path: Path, expected: Expected) -> Read:
    """Return what comes of one file."""
    found = read_here([input_file(path)], expected)
    return Read(rows=rows_of(found.rows.tables(), 7, found.verdicts[7]), verdict=found.verdicts[7])


def parsed(path: Path, expected: Expected, start: int = 0, end: int = END) -> Iterator[Parsed]:
    """Yield what the format of a file without lines makes of it, or of a range of it."""
    with path.open("rb") as file:
        yield from expected.reads.rows_of(LocalFile.of(file), expected, start, end)


def read_bytes(folder: Path, content: bytes, format: str, columns: Columns | None, **given: Any) -> Read:  # noqa: A002
    """Write bytes to a file and return what comes of it.

    Args:
        given: the other attributes of `Expected`, and `suffix`, the ending of the file's name.
    """
    path = folder / f"file{given.pop('suffix', '.data')}"
    path.write_bytes(content)
    return read(path, Expected(format=format, columns=columns, **given))


def rows_of(tables: Sequence[pa.Table], number: int, verdict: FileVerdict) -> list[Mapping[str, Any]]:
    """Return the rows of one file in the order of their places, without their tags."""
    if verdict.refused is not None:
        return []
    rows = [row for table in tables for row in python_rows(table) if row[SEQUENCE_ID] == number]
    rows.sort(key=lambda row: (row[POSITION]["block"], row[POSITION]["row"]))
    assert len({(row[POSITION]["block"], row[POSITION]["row"]) for row in rows}) == len(rows) == verdict.records
    return [{name: value for name, value in row.items() if name not in (SEQUENCE_ID, POSITION)} for row in rows]
