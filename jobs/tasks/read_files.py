"""The reading of a group's files: their records become rows, and the bad ones are told, with the reason of each.

Tasks get objects themselves, write the rows to files, and tell their findings about each input file. The files of rows
of a small group are in the memory of this process.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs.errors import ObjectChanged, ObjectMissing
from drainmark.jobs.formats.bad_records import CAPS, BadRecord, FileVerdict, Refused
from drainmark.jobs.formats.format import Expected, as_text, row_type
from drainmark.jobs.formats.lines.content import END, PLAIN, Held, Readable, content_of
from drainmark.jobs.formats.lines.line_ranges import (
    RangeFacts,
    RangeReader,
    facts_of,
    may_be_quick,
    told_of,
    verdict_of,
)
from drainmark.jobs.formats.lines.record_ranges import EdgeFacts, quoted_at
from drainmark.jobs.formats.values.far_times import python_rows
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID, arrow_schema, tagged_type
from drainmark.jobs.tasks.executor import Executor, Facts
from drainmark.jobs.tasks.file_ranges import (
    FetchedOnce,
    FileRange,
    InputFile,
    edges_of,
    has_cuts,
    opened,
    ranges_of,
)
from drainmark.jobs.tasks.parquet_files import WrittenFile, require_here, write_file
from drainmark.jobs.tasks.places import MemoryPlace, Place

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.jobs.formats.bad_records import Parsed

ROWS = ".rows"
"""Folder of an attempt; no output of a source has such a name."""

_FILE_BYTES = 16 * 1024 * 1024
"""The bytes of rows that a task holds in memory before it writes them to a file."""

_ROWS_AT_ONCE = 1 << 20
"""Rows that get their tags at once: megabytes of blank lines are as many rows, and tags are longer than they are."""

_JOINED_BYTES, _JOINED_FILE_BYTES = 16 * 1024 * 1024, 1024 * 1024
"""Upper bounds (inclusive) of the content that is parsed at once, and of each file in it."""


@dataclass(slots=True, kw_only=True)
class ReadRows:
    """Rows that were read, in files of a place.

    Columns are `_sequence_id` bigint, `_position` struct<block, row> and those of the source.

    Attributes:
        names: of the files, below `place`.
    """

    place: Place
    names: list[str] = field(default_factory=list)

    def take(self, written: Sequence[WrittenFile]) -> None:
        """Register files of rows that tasks wrote to the place.

        Raises:
            AccountingError: this process does not find one of them.
        """
        require_here(self.place.stamp, str(self.place), written)
        self.names += [file.name for file in written]

    def tables(self) -> list[pa.Table]:
        """Return the rows, in their order; they come into the memory of this process."""
        import pyarrow.parquet as pq

        if isinstance(self.place, MemoryPlace):
            return self.place.tables(self.names)
        return [pq.read_table(self.place.opened(name)) for name in self.names]


@dataclass(slots=True, kw_only=True)
class ReadFiles:
    """The result of the reading of some files.

    Attributes:
        rows: of the good records. Files that are refused may have rows there, which must be left out.
        verdicts: by id, of the files that have not changed since the scan.
        gone, changed: ids of objects that are gone, or were replaced since the scan.
    """

    rows: ReadRows
    verdicts: dict[int, FileVerdict] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)

    def join(self, cut: Sequence[Sequence[FileRange]], answers: Iterator[_RangeAnswer], expected: Expected) -> None:
        """Join the answers about the ranges of files to verdicts."""
        for ranges in cut:
            number, found = ranges[0].file.number, [next(answers) for _ in ranges]
            if lost := next((answer.lost for answer in found if answer.lost is not None), None):
                self.lose(number, lost)
            else:
                self.verdicts[number] = verdict_of([answer.facts for answer in found], expected.on_schema)

    def lose(self, number: int, lost: str) -> None:
        """Note that an object is "gone" or "changed"."""
        (self.gone if lost == "gone" else self.changed).append(number)


def first_rows(file: InputFile, expected: Expected, most: int) -> pa.Table:
    """Return the first good rows of a file, with their tags; fewer than `most` only if the file has no more.

    Raises:
        Refused, OSError: the file cannot be read.
    """
    import pyarrow as pa

    found: list[pa.Table] = []

    def take(rows: pa.Table) -> None:
        found.append(rows)
        if sum(rows.num_rows for rows in found) >= most:
            raise _Enough

    with _scratch() as scratch, suppress(_Enough):
        (answer,) = _ShareReader(expected, take, Path(scratch), sends_all=False).read(ranges_of(file, expected, END))
        if answer.facts.refused is not None:
            raise Refused(answer.facts.refused)
    empty = arrow_schema(tagged_type(row_type(expected))).empty_table()
    return pa.concat_tables([empty, *found]).slice(0, most)


class _Enough(Exception):
    """No further rows are wanted."""


def read_files(
    executor: Executor, files: Sequence[InputFile], expected: Expected, place: Place, range_bytes: int = END
) -> ReadFiles:
    """Read files, and write the rows to files of a place.

    Args:
        range_bytes: tasks read larger files in ranges of so many bytes.

    Raises:
        OSError, StoreUnavailable: a disk or a store failed; the input files are not at fault.
        TooLarge: the place has no room for the rows.
        AccountingError: this process does not find a file of rows.
    """
    found = ReadFiles(rows=ReadRows(place=place))
    cut = [ranges_of(file, expected, range_bytes if executor.is_remote else END) for file in files]
    if expected.is_multiline and has_cuts(expected):
        cut = _begun(executor, cut, expected, found)
    ranges = [each for of_file in cut for each in of_file]
    answers, written = _read(executor, ranges, ReadTask(expected, place, sends_all=not executor.is_remote))
    sampled = [at for at, answer in enumerate(answers) if answer.facts.is_sample]
    more, _ = _read(executor, [ranges[at] for at in sampled], ReadTask(expected, None, sends_all=True))
    for at, answer in zip(sampled, more, strict=True):
        answers[at].facts.bad, answers[at].lost = answer.facts.bad, answer.lost
    found.rows.take(written)
    found.join(cut, iter(answers), expected)
    return found


def _begun(
    executor: Executor, cut: Sequence[list[FileRange]], expected: Expected, found: ReadFiles
) -> list[list[FileRange]]:
    """Return the ranges to read, each with `is_quoted` set."""
    edges = iter(edges_of(executor, [each for ranges in cut if len(ranges) > 1 for each in ranges], expected))
    begun: list[list[FileRange]] = []
    for ranges in cut:
        if len(ranges) == 1:
            begun.append(ranges)
            continue
        facts = [next(edges) for _ in ranges]
        if lost := next((each for each in facts if isinstance(each, str)), None):
            found.lose(ranges[0].file.number, lost)
            continue
        begins = quoted_at([each for each in facts if isinstance(each, EdgeFacts)])
        begun.append([replace(each, is_quoted=at) for each, at in zip(ranges, begins, strict=True)])
    return begun


def _read(
    executor: Executor, ranges: Sequence[FileRange], task: ReadTask
) -> tuple[list[_RangeAnswer], list[WrittenFile]]:
    answers: list[_RangeAnswer] = []
    written: list[WrittenFile] = []
    for told in executor.run(task, executor.shares_of(ranges)):
        answers += [_RangeAnswer(facts=facts_of(each["facts"]), lost=each["lost"]) for each in told["answers"]]
        written += [WrittenFile(**file) for file in told["written"]]
    return answers, written


@dataclass(slots=True, kw_only=True)
class _RangeAnswer:
    """The answer about a range.

    Attributes:
        lost: "gone" or "changed", if the object is not the one that was scanned; else None.
    """

    facts: RangeFacts = field(default_factory=RangeFacts)
    lost: str | None = None


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The reading of files; a share is some ranges.

    Args:
        place: for the files of rows; None to write none.
        sends_all: all bad records are among the facts, not only a sample of many.
    """

    expected: Expected
    place: Place | None
    sends_all: bool = False

    def work(self, share: Sequence[FileRange]) -> Iterator[Facts]:
        """Read a share; yield once the answers about its ranges, and the files of rows that were written."""
        rows = _RowFiles(self.place)
        with _scratch() as scratch:
            reader = _ShareReader(self.expected, rows.add, Path(scratch), sends_all=self.sends_all)
            answers = reader.read(share)
        yield {
            "answers": [{"facts": told_of(each.facts), "lost": each.lost} for each in answers],
            "written": [asdict(file) for file in rows.finish()],
        }


# --- the ranges of a share, one after the other -------------------------------------------------------------------


@dataclass(slots=True)
class _ShareReader:
    """The reader of some ranges; used once.

    Args:
        take: gets the rows, with their tags.
        scratch: folder for files that are needed only during the reading.
        sends_all: all bad records go into the facts.
    """

    expected: Expected
    take: Callable[[pa.Table], object]
    scratch: Path
    sends_all: bool
    _joined: list[tuple[FileRange, _RangeAnswer, bytes]] = field(default_factory=list)
    _joined_bytes: int = 0

    def read(self, ranges: Sequence[FileRange]) -> list[_RangeAnswer]:
        """Return the answers, in the order of the ranges.

        Raises:
            OSError: a file cannot be read.
        """
        answers = [_RangeAnswer() for _ in ranges]
        for each, answer in zip(ranges, answers, strict=True):
            try:
                if self.expected.lines is None:
                    self._read_rows(each, answer)
                else:
                    self._read_lines(each, answer)
            except Refused as refused:
                answer.facts.refuse(refused)
            except ObjectMissing:
                answer.lost = "gone"
            except ObjectChanged:
                answer.lost = "changed"
        self._read_joined()
        return answers

    def _read_lines(self, each: FileRange, answer: _RangeAnswer) -> None:
        with opened(each.file) as data:
            if self._can_join(each, data):
                self._joined.append((each, answer, data.read(0, data.size)))
                self._joined_bytes += data.size
                if self._joined_bytes >= _JOINED_BYTES:
                    self._read_joined()
            else:
                self._read_alone(each, answer, content_of(data, each.file.suffix, self.expected.encoding))

    def _can_join(self, each: FileRange, data: Readable) -> bool:
        is_plain = each.is_whole and each.file.suffix == PLAIN and has_cuts(self.expected)
        return is_plain and not self.expected.is_multiline and data.size <= _JOINED_FILE_BYTES

    def _read_alone(self, each: FileRange, answer: _RangeAnswer, content: Readable) -> None:
        reader = self._reader(is_quoted=each.is_quoted)
        for place, rows in reader.read(content, each.start, each.end):
            for first in range(0, rows.num_rows, _ROWS_AT_ONCE):
                part = rows.slice(first, _ROWS_AT_ONCE)
                self.take(_tagged(part, {each.file.number: part.num_rows}, place, first=first))
        answer.facts = reader.facts

    def _reader(self, *, is_quoted: bool = False) -> RangeReader:
        lines = self.expected.lines
        if lines is None:
            raise TypeError(f"{self.expected.format} has no lines")
        return RangeReader(expected=self.expected, lines=lines, sends_all=self.sends_all, is_quoted=is_quoted)

    def _read_joined(self) -> None:
        """Parse small files together, or one by one if that fails: one odd file does not keep the others from it."""
        files, self._joined, self._joined_bytes = self._joined, [], 0
        if len(files) < 2 or not self._are_parsed(files):
            for each, answer, content in files:
                self._read_alone(each, answer, Held(content))

    def _are_parsed(self, files: Sequence[tuple[FileRange, _RangeAnswer, bytes]]) -> bool:
        """Parse files at once; return False if this is not sure to give the rows of each."""
        readers = [self._reader() for _ in files]
        try:
            bodies = [reader.begun(content) for reader, (_, _, content) in zip(readers, files, strict=True)]
        except Refused:
            return False
        joined = b"".join(body if not body or body.endswith(b"\n") else body + b"\n" for body in bodies)
        counts = [reader.count(body) for reader, body in zip(readers, bodies, strict=True)]
        if not may_be_quick(joined):
            return False
        found = readers[0].lines.parse_quickly(joined, self.expected) if joined else None
        # A file has at most as many rows as lines. So if the sums are equal, each file's count is right.
        if found is None or found.faults or found.rows.num_rows != sum(counts):
            return False
        by_number = {}
        for reader, count, (each, answer, _) in zip(readers, counts, files, strict=True):
            reader.facts.records, answer.facts, by_number[each.file.number] = count, reader.facts, count
        self.take(_tagged(found.rows, by_number, 0))
        return True

    # --- formats without lines --------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, file: InputFile) -> Iterator[Readable]:
        """Open a file of a format without lines; an object is fetched, of a format with ranges only what is read."""
        if file.stored is not None and self.expected.reads.has_ranges:
            with tempfile.TemporaryFile(dir=self.scratch) as copy:
                yield FetchedOnce(file.stored, copy)
        else:
            with opened(fetched(file, self.scratch)) as data:
                yield data

    def _read_rows(self, each: FileRange, answer: _RangeAnswer) -> None:
        facts, reads = answer.facts, self.expected.reads
        with self._opened(each.file) as data:
            for found in reads.rows_of(data, self.expected, each.start, each.end):
                bad = sorted(found.faults.items())[: CAPS.bad_rows + 1 - facts.bad_count]
                facts.note([_bad_row(found, at, facts.lines, why) for at, why in bad], sends_all=self.sends_all)
                rows = found.good
                if rows.num_rows:
                    self.take(_tagged(rows, {each.file.number: rows.num_rows}, each.start, first=facts.lines))
                facts.lines += found.rows.num_rows
                facts.records += rows.num_rows


def _bad_row(found: Parsed, place: int, before: int, reason: str) -> BadRecord:
    """Return a bad row as JSON.

    Args:
        before: number of the rows of the range before these.
    """
    row = json.dumps(*python_rows(found.rows.slice(place, 1)), default=as_text, ensure_ascii=False)
    return BadRecord.of(before + place + 1, row, reason)


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is deleted after use, below the first of `SPARK_LOCAL_DIRS` if that exists."""
    told = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return tempfile.TemporaryDirectory(prefix="drainmark-", dir=told if os.path.isdir(told) else None)


def fetched(file: InputFile, scratch: Path) -> InputFile:
    """Return a file of a disk; an object is fetched.

    Args:
        scratch: folder for copies; they are deleted with it.

    Raises:
        ObjectMissing, ObjectChanged: the object is not the one that was scanned.
    """
    if file.stored is None:
        return file
    path = scratch / f"{uuid.uuid4().hex}-{os.path.basename(file.path)}"
    with path.open("wb") as copy:
        copy.writelines(file.stored.pieces())
    return replace(file, path=str(path), stored=None)


def _tagged(table: pa.Table, rows_by_id: Mapping[int, int], block: int, *, first: int = 0) -> pa.Table:
    """Return the table with the id and the place in the file before its columns.

    Args:
        first: number of the first row in its block.
    """
    import numpy as np
    import pyarrow as pa

    counts = np.fromiter(rows_by_id.values(), np.int64)
    ids = np.repeat(np.fromiter(rows_by_id, np.int64), counts)
    places = np.arange(first, first + len(ids), dtype=np.int64)
    places -= np.repeat(np.cumsum(counts) - counts, counts)  # in place: blank lines may be many millions
    position = pa.StructArray.from_arrays([np.full(len(ids), block, np.int64), places], names=["block", "row"])
    columns = [pa.array(ids), position, *table.columns]
    return pa.table(columns, names=[SEQUENCE_ID, POSITION, *table.column_names])


@dataclass(slots=True)
class _RowFiles:
    """A writer of rows to files of a bounded size; without a place it drops them."""

    place: Place | None
    _written: list[WrittenFile] = field(default_factory=list)
    _held: list[pa.Table] = field(default_factory=list)
    _bytes: int = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        if self.place is None:
            return
        self._held.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= _FILE_BYTES:
            self._write(self.place)

    def finish(self) -> list[WrittenFile]:
        """Write the rest, and return the files of all rows."""
        if self.place is not None and self._held:
            self._write(self.place)
        return self._written

    def _write(self, place: Place) -> None:
        import pyarrow as pa

        self._written.append(write_file(pa.concat_tables(self._held), place, ROWS))
        self._held, self._bytes = [], 0
