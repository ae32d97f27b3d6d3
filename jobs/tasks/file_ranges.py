"""Large files in ranges: each range is a work item, and the driver joins the facts of a file's ranges to a verdict.

A task reads its range from the file's disk or bucket (an object with `If-Match`), in pieces of some megabytes. It
judges the pieces, lets Arrow parse the good and plain ones, and leaves the others to Spark as rows of Parquet files. If
Arrow cannot parse the format and the file is on a disk that the executors share, Spark's own reader reads the file; it
reads by ranges, too. It cannot leave out bad lines: the good lines of such a file are left as rows in a second pass.

A large compressed file is one range: its task decompresses it piece by piece.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import ObjectChanged, ObjectMissing
from drainmark.jobs.formats.bad_records import CAPS, BadRecord, FileVerdict
from drainmark.jobs.formats.csv_dialect import RecordEnds
from drainmark.jobs.formats.format import Expected, Lines
from drainmark.jobs.formats.layout import Layout, layout_of
from drainmark.jobs.formats.lines.arrow_parser import can_parse, parse_lines
from drainmark.jobs.formats.lines.line_format import PLAIN, can_be_read_here, unpacked
from drainmark.jobs.formats.lines.line_ranges import RangeFacts, RangeJudge, Readable, numbered_records_in, verdict_of
from drainmark.jobs.formats.lines.record_ranges import EdgeFacts, RecordJudge, edge_facts, quoted_at
from drainmark.jobs.formats.lines.spark_rejects import LineText, Misfit, bad_records_at, lines_like, texts_of
from drainmark.jobs.tasks.inspected_files import (
    ROWS,
    VALUES,
    InputFile,
    Inspection,
    inspect_in_tasks,
    shares_of,
    values_batch,
)
from drainmark.jobs.tasks.parquet_files import WrittenFile, facts_of_failure, failure_of, write_file
from drainmark.jobs.tasks.places import Place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_HEAD_BYTES = 64 * 1024
_FILE_BYTES = 16 * 1024 * 1024
"""The bytes of rows that a task holds in memory before it writes them to a file."""

_PACKED = 16
"""A compressed file counts as large if it has this fraction of the bytes of a range."""

_UNPACKED_END = 2**62
"""The end of the range of a compressed file: the size of its content is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRange:
    """The lines or records of a file that begin at or after byte `start` and before byte `end` of its content.

    Attributes:
        is_quoted: it begins within quotes.
        line_end: the first one of the file, if records may have several lines.
    """

    file: InputFile
    start: int
    end: int
    is_quoted: bool = False
    line_end: str = ""

    @property
    def size(self) -> int:
        return (self.end if self.end != _UNPACKED_END else self.file.size) - self.start


def ranges_of(file: InputFile, expected: Expected, range_bytes: int) -> list[FileRange]:
    """Return the ranges of a file, in their order; none if it is read as a whole.

    A file is read as a whole if it is small, or if only Spark's own reader can find its records.
    """
    path, ends = Path(file.path), _record_ends(expected)
    most = range_bytes if ends is None else min(range_bytes, CAPS.document_bytes)  # no larger file is read whole
    if path.suffix != PLAIN:
        most //= _PACKED
    if file.size <= most or not can_be_read_here(path):
        return []
    if ends is None and (not expected.has_records_in_lines or expected.reads.values_of(path, expected) is None):
        return []
    if path.suffix != PLAIN:
        return [FileRange(file=file, start=0, end=_UNPACKED_END)] if ends is None else []
    size = file.stored.size if file.stored is not None else os.path.getsize(path)
    starts = range(0, size, range_bytes)
    return [FileRange(file=file, start=start, end=min(size, start + range_bytes)) for start in starts]


def _record_ends(expected: Expected) -> RecordEnds | None:
    """Return the finder of records with several lines; None if there are no such records, or only Spark finds them."""
    lines = expected.lines
    return lines.record_ends(expected) if lines is not None and expected.has_multiline else None


def inspect_in_ranges(
    session: SparkSession, files: Sequence[InputFile], expected: Expected, place: Place, range_bytes: int
) -> Inspection:
    """Let Spark's tasks inspect files, as `inspect_in_tasks` does, and large files by ranges.

    Raises:
        OSError, StoreUnavailable, AccountingError: as `inspect_in_tasks`.
    """
    cut = {file.number: ranges for file in files if (ranges := ranges_of(file, expected, range_bytes))}
    found, whole = Inspection(), [file for file in files if file.number not in cut]
    if cut:
        undecided = RangeReading(session=session, expected=expected, place=place, found=found).read(cut)
        whole += [file for file in files if file.number in undecided]
    if whole:
        found.add(inspect_in_tasks(session, whole, expected, place))
    return found


@dataclass(slots=True, kw_only=True)
class RangeReading:
    """A reading of files by ranges: it starts the tasks, and joins their answers in `found`."""

    session: SparkSession
    expected: Expected
    place: Place
    found: Inspection

    def read(self, cut: Mapping[int, Sequence[FileRange]]) -> set[int]:
        """Read all ranges of some files; return the ids of the files that must be inspected as a whole instead."""
        undecided: set[int] = set()
        if _record_ends(self.expected) is not None:
            cut = self._begun(cut, undecided)
        answers = iter(self._read([each for ranges in cut.values() for each in ranges]) if cut else ())
        joined = {number: self._join(ranges, [next(answers) for _ in ranges]) for number, ranges in cut.items()}
        return undecided | {number for number, is_joined in joined.items() if not is_joined}

    def _begun(self, cut: Mapping[int, Sequence[FileRange]], undecided: set[int]) -> Mapping[int, Sequence[FileRange]]:
        """Look at the edges of all ranges. Return the ranges to read, each with `is_quoted` and `line_end` set."""
        shares = tuple(shares_of([each for ranges in cut.values() for each in ranges]))
        answers = iter(_answers(self.session, EdgeTask(shares=shares, expected=self.expected), shares))
        begun: dict[int, Sequence[FileRange]] = {}
        for number, ranges in cut.items():
            found = [next(answers) for _ in ranges]
            if lost := next((answer["lost"] for answer in found if "lost" in answer), None):
                self._lose(number, lost)
                continue
            facts = [EdgeFacts(**{**each, "quoted_after": tuple(each["quoted_after"])}) for each in found]
            begins = quoted_at(facts)
            if isinstance(begins, FileVerdict):
                self.found.verdicts[number] = begins
            elif begins is None:
                undecided.add(number)
            else:
                end = next((each.line_end for each in facts if each.line_end), "")
                pairs = zip(ranges, begins, strict=True)
                begun[number] = [replace(each, is_quoted=is_quoted, line_end=end) for each, is_quoted in pairs]
        return begun

    def _join(self, ranges: Sequence[FileRange], answers: list[_Answer]) -> bool:
        """Join the answers for a file's ranges; return False if they are not enough for a verdict."""
        number = ranges[0].file.number
        verdict = verdict_of([answer.facts for answer in answers], self.expected.on_schema)
        if verdict is not None and verdict.refused is None and not _lost(answers):
            if verdict.bad and not all(answer.is_kept for answer in answers):
                answers = self._read(ranges, keeps=True)  # because Spark's reader would read the bad lines, too
            self._complete(ranges, answers)
            verdict = verdict_of([answer.facts for answer in answers], self.expected.on_schema)
        if lost := _lost(answers):
            self._lose(number, lost)
            return True
        if verdict is None:
            return False
        self.found.verdicts[number] = verdict
        if verdict.refused is None and all(answer.is_kept for answer in answers):
            self._take(number, answers)
        return True

    def _lose(self, number: int, lost: str) -> None:
        (self.found.gone if lost == "gone" else self.found.changed).append(number)

    def _complete(self, ranges: Sequence[FileRange], answers: list[_Answer]) -> None:
        """Read the bad records that the first answers left out."""
        places = [place for place, answer in enumerate(answers) if answer.facts.is_sample]
        more = self._read([ranges[place] for place in places], sends_all=True) if places else []
        for place, answer in zip(places, more, strict=True):
            answers[place].facts.bad, answers[place].lost = answer.facts.bad, answer.lost

    def _take(self, number: int, answers: Sequence[_Answer]) -> None:
        """Register the files that tasks wrote for an input file: parsed rows, and values that Spark parses."""
        parsed = sum(answer.facts.parsed for answer in answers)
        left = sum(answer.facts.records for answer in answers) - parsed
        if left or not can_parse(self.expected):
            self.found.values.ids.add(number)
            self.found.parsed.parts.update({number: parsed} if parsed else {})
        else:
            self.found.parsed.counts[number] = parsed
        self.found.take(self.place, [file for answer in answers for file in answer.written])

    def _read(self, ranges: Sequence[FileRange], *, keeps: bool = False, sends_all: bool = False) -> list[_Answer]:
        shares = tuple(shares_of(ranges))
        task = RangeTask(shares=shares, expected=self.expected, place=self.place, keeps=keeps, sends_all=sends_all)
        return [
            _Answer(
                facts=_facts_of(answer["facts"]) if "facts" in answer else RangeFacts(),
                is_kept=answer.get("is_kept", False),
                written=[WrittenFile(**file) for file in answer.get("written", ())],
                lost=answer.get("lost"),
            )
            for answer in _answers(self.session, task, shares)
        ]


@dataclass(slots=True, kw_only=True)
class _Answer:
    """The answer of a task about a range.

    Attributes:
        is_kept: the good lines were written to files: parsed, or as values for Spark.
        lost: "gone" or "changed", if the object is not the one that was scanned; else None.
    """

    facts: RangeFacts
    is_kept: bool
    written: list[WrittenFile]
    lost: str | None


def _lost(answers: Sequence[_Answer]) -> str | None:
    return next((answer.lost for answer in answers if answer.lost is not None), None)


# --- a second look ------------------------------------------------------------------------------------------------


def recounted(session: SparkSession, ranges: Sequence[FileRange], expected: Expected) -> int:
    """Count the records of a file, line by line.

    Raises:
        ObjectMissing, ObjectChanged, OSError, StoreUnavailable: as `jobs.tasks.inspected_files.look_up`.
    """
    return sum(found["records"] for found in _looked_up(session, ranges, expected, {}))


def misfits_in(
    session: SparkSession, ranges: Sequence[FileRange], expected: Expected, misfits: Sequence[Misfit]
) -> list[BadRecord]:
    """Return the rows of a file that do not fit their columns, with the numbers of their lines.

    Raises:
        ObjectMissing, ObjectChanged, OSError, StoreUnavailable: as `recounted`.
    """
    before = 0
    lines: list[LineText] = []
    for found in _looked_up(session, ranges, expected, texts_of(misfits)):
        lines += [(before + number, crc, size) for number, crc, size in found["like"]]
        before += found["lines"]
    return bad_records_at(misfits, iter(lines), expected)


def _looked_up(
    session: SparkSession, ranges: Sequence[FileRange], expected: Expected, texts: Mapping[int, set[int]]
) -> list[Mapping[str, Any]]:
    shares = tuple(shares_of(ranges))
    answers = _answers(session, LineTask(shares=shares, expected=expected, texts=texts), shares)
    if lost := next((answer["lost"] for answer in answers if "lost" in answer), None):
        raise (ObjectMissing if lost == "gone" else ObjectChanged)(ranges[0].file.path)
    return answers


def digests_of(session: SparkSession, files: Sequence[InputFile]) -> list[str | None]:
    """Return the digest of each object's bytes; None if the object is gone or has changed.

    Raises:
        OSError, StoreUnavailable: a store failed a task.
    """
    shares = tuple(shares_of([FileRange(file=file, start=0, end=file.size) for file in files]))
    answers = _answers(session, DigestTask(shares=shares, expected=Expected(format="text", columns=None)), shares)
    return [answer.get("digest") for answer in answers]


def layouts_of(session: SparkSession, files: Sequence[InputFile], expected: Expected) -> list[Layout | None]:
    """Return the layout of each file (`jobs.formats.layout.layout_of`); None also if an object is gone or has changed.

    Raises:
        OSError, StoreUnavailable: a disk or a store failed a task.
    """
    shares = tuple(shares_of([FileRange(file=file, start=0, end=file.size) for file in files]))
    answers = _answers(session, LayoutTask(shares=shares, expected=expected), shares)
    found = [answer.get("layout") for answer in answers]
    return [Layout(each["ddl"], tuple(each["unread"])) if each is not None else None for each in found]


# --- tasks --------------------------------------------------------------------------------------------------------


def _answers(
    session: SparkSession, task: _RangesTask, shares: Sequence[Sequence[FileRange]]
) -> list[Mapping[str, Any]]:
    """Return the answers of a task, one for each range, in the order of the ranges."""
    rows = session.range(0, len(shares), 1, len(shares)).mapInArrow(task, "facts string").collect()
    answers: list[Mapping[str, Any]] = [json.loads(answer) for (answer,) in rows]
    for answer in answers:
        if "failed" in answer:
            raise failure_of(answer["failed"])
    return answers


@dataclass(frozen=True, slots=True, kw_only=True)
class _RangesTask:
    """The work of one task: it looks at the ranges of its share, and returns a JSON text about each.

    Args:
        shares: of all tasks; a row of the input is the number of a share.
    """

    shares: tuple[tuple[FileRange, ...], ...]
    expected: Expected

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for number in [number for batch in batches for number in batch.column(0).to_pylist()]:
            for each in self.shares[number]:
                yield pa.RecordBatch.from_pydict({"facts": [json.dumps(self._answer(each))]})

    def _answer(self, wanted: FileRange) -> Mapping[str, Any]:
        try:
            with _opened(wanted.file) as data:
                return self._found(data, wanted)
        except ObjectMissing:
            return {"lost": "gone"}
        except ObjectChanged:
            return {"lost": "changed"}
        except OSError as error:
            return {"failed": facts_of_failure(error)}

    def _found(self, data: Readable, wanted: FileRange) -> Mapping[str, Any]:
        raise NotImplementedError

    @property
    def _lines(self) -> Lines:
        if self.expected.lines is None:
            raise TypeError(f"{self.expected.format} has no lines")
        return self.expected.lines


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTask(_RangesTask):
    """A task that judges ranges, and writes their good lines to files.

    Args:
        place: of the files.
        keeps: write them also if Spark's own reader could read the input file itself.
        sends_all: return all bad records with the facts, and write no files.
    """

    place: Place
    keeps: bool
    sends_all: bool

    def _found(self, data: Readable, wanted: FileRange) -> Mapping[str, Any]:
        data = _content(data, wanted)
        parses, ends, number = can_parse(self.expected), _record_ends(self.expected), wanted.file.number
        is_left = wanted.file.stored is not None or self.expected.on_schema == "rescue"
        is_kept = not self.sends_all and (parses or self.keeps or ends is not None or is_left)
        rows, values = RowFiles(self.place, ROWS), RowFiles(self.place, VALUES)

        def parse(place: int, content: bytes, records: int) -> int | None:
            table = parse_lines(number, place, content, records, self.expected)
            return rows.add(table) if table is not None else None

        def leave(place: int, records: list[bytes]) -> None:
            values.add(pa.Table.from_batches([values_batch(number, place, 0, records, self.expected)]))

        import pyarrow as pa

        if ends is not None:
            records = RecordJudge(expected=self.expected, leave=leave, line_end=wanted.line_end)
            facts = records.judge(data, wanted.start, wanted.end, is_quoted=wanted.is_quoted)
        else:
            judge = RangeJudge(
                expected=self.expected,
                lines=self._lines,
                parse=parse if is_kept and parses else None,
                leave=leave if is_kept else None,
                sends_all=self.sends_all,
            )
            facts = judge.judge(data, wanted.start, wanted.end)
        written = [asdict(file) for file in (*rows.finish(), *values.finish())]
        return {"facts": asdict(facts), "is_kept": is_kept, "written": written}


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeTask(_RangesTask):
    """A task that finds how ranges begin and end, for records that may have several lines."""

    def _found(self, data: Readable, wanted: FileRange) -> Mapping[str, Any]:
        return asdict(edge_facts(data, wanted.start, wanted.end, self.expected))


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTask(_RangesTask):
    """A task that counts the records of ranges, and finds the lines that have certain texts.

    Args:
        texts: CRC-32 of their bytes, by their length.
    """

    texts: Mapping[int, set[int]]

    def _found(self, data: Readable, wanted: FileRange) -> Mapping[str, Any]:
        counts, content = [0, 0], _content(data, wanted)

        def records() -> Iterator[tuple[int, bytes]]:
            for number, text in numbered_records_in(content, wanted.start, wanted.end, self.expected, self._lines):
                counts[0] = number
                if text is not None:
                    counts[1] += 1
                    yield number, text

        like = list(lines_like(records(), self.texts))
        return {"lines": counts[0], "records": counts[1], "like": like}


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestTask(_RangesTask):
    """A task that computes digests of files: the first 32 hex digits of SHA-256."""

    def _found(self, data: Readable, wanted: FileRange) -> Mapping[str, Any]:
        digest = hashlib.sha256()
        for start in range(0, data.size, CAPS.piece_bytes):
            digest.update(data.read(start, min(data.size, start + CAPS.piece_bytes)))
        return {"digest": digest.hexdigest()[:32]}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTask(_RangesTask):
    """A task that finds the columns that files declare; it reads only the bytes needed for that."""

    def _found(self, data: Readable, wanted: FileRange) -> Mapping[str, Any]:
        file = io.BufferedReader(SeekableData(data), _HEAD_BYTES)
        layout = layout_of(file, Path(wanted.file.path).suffix, self.expected)
        return {"layout": asdict(layout) if layout is not None else None}


class SeekableData(io.RawIOBase):
    """A seekable file object over data that are read by byte ranges."""

    def __init__(self, data: Readable) -> None:
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._data.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        found = self._data.read(self._at, min(self._data.size, self._at + len(buffer)))
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


@dataclass(slots=True)
class RowFiles:
    """A writer of rows to files of a bounded size."""

    place: Place
    folder: str
    _written: list[WrittenFile] = field(default_factory=list)
    _held: list[pa.Table] = field(default_factory=list)
    _bytes: int = 0

    def add(self, rows: pa.Table) -> int:
        """Add rows; return their number."""
        self._held.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= _FILE_BYTES:
            self._write()
        return int(rows.num_rows)

    def finish(self) -> list[WrittenFile]:
        """Write the rest, and return the files of all rows."""
        self._write()
        return self._written

    def _write(self) -> None:
        import pyarrow as pa

        rows = pa.concat_tables(self._held) if self._held else None
        if rows is not None and rows.num_rows:
            self._written.append(write_file(rows, self.place, self.folder))
        self._held, self._bytes = [], 0


@contextmanager
def _opened(file: InputFile) -> Iterator[Readable]:
    if file.stored is not None:
        yield file.stored
        return
    with open(file.path, "rb") as opened:
        yield _LocalFile(opened.fileno(), os.fstat(opened.fileno()).st_size)


@dataclass(frozen=True, slots=True)
class _LocalFile:
    """An open file on a disk."""

    descriptor: int
    size: int

    def read(self, start: int, end: int) -> bytes:
        return os.pread(self.descriptor, end - start, start) if start < end else b""


def _content(data: Readable, wanted: FileRange) -> Readable:
    """Return the content of a range's file, which is decompressed if the range is that of a compressed file."""
    if wanted.end != _UNPACKED_END:
        return data
    file = io.BufferedReader(SeekableData(data), CAPS.piece_bytes)
    return _PiecesInOrder(unpacked(file, Path(wanted.file.path).suffix, data.size))


class _PiecesInOrder:
    """Content that is read once from its beginning to its end; only the piece of the last read can be read again."""

    size = _UNPACKED_END

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._begin, self._piece = pieces, 0, b""

    def read(self, start: int, end: int) -> bytes:
        """Return bytes from `start` on, to the end of a piece at most; none at the end of the content."""
        while start >= self._begin + len(self._piece):
            self._begin += len(self._piece)
            self._piece = next(self._pieces, b"")
            if not self._piece:
                return b""
        return self._piece[start - self._begin : end - self._begin]


def _facts_of(facts: Mapping[str, Any]) -> RangeFacts:
    fault = tuple(facts["fault"]) if facts["fault"] is not None else None
    return RangeFacts(**{**facts, "bad": [BadRecord(**record) for record in facts["bad"]], "fault": fault})
