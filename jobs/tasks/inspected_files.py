"""Inspection of a group's files before Spark's parser: files are judged; good and plain ones are parsed by Arrow.

For a small group this runs in the driver, which keeps the rows in memory. For a large group it runs in Spark's tasks:
they fetch objects themselves, write the rows to files, and return their findings about each input file.
"""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from drainmark.jobs.errors import ObjectChanged, ObjectMissing
from drainmark.jobs.formats.bad_records import BadRecord, FileVerdict, Refused
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.lines.arrow_parser import File, can_parse, file_of, parse_files
from drainmark.jobs.formats.lines.line_format import PLAIN, inspect
from drainmark.jobs.formats.lines.spark_rejects import Misfit, bad_records
from drainmark.jobs.frames.tags import POSITION, RESCUED, SEQUENCE_ID
from drainmark.jobs.tasks.buckets import StoredObject
from drainmark.jobs.tasks.parquet_files import (
    WrittenFile,
    facts_of_failure,
    failure_of,
    require_here,
    write_batches,
    write_file,
)
from drainmark.jobs.tasks.places import LocalPlace, Place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_T = TypeVar("_T")
_Sized = TypeVar("_Sized", bound="Sized")

FILE_BYTES = 64 * 1024 * 1024
"""The largest file that Arrow parses; a larger one is left to Spark, which reads it with several tasks."""

ROWS, VALUES = ".rows", ".values"
"""Folders of an attempt; no output of a source has such a name."""

_VALUES_AT_ONCE, _VALUES_BYTES = 10_000, 8 * 1024 * 1024
VALUE = "value"
_TASK_BYTES = 32 * 1024 * 1024
_BATCH_BYTES = 16 * 1024 * 1024
_THREADS = 2
_WAITING = 3


class Sized(Protocol):
    """An input of a task, with its size in bytes."""

    @property
    def size(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file of a group.

    Attributes:
        number: its sequence id.
        path: to read it; executors reach it by the same path if tasks inspect it. For an object: the name of its copy.
        size: bytes, about.
        stored: the object to fetch first; None for a file.
        is_out_of_reach: Spark's own reader does not reach it.
    """

    number: int
    path: str
    size: int
    stored: StoredObject | None = None
    is_out_of_reach: bool = False


@dataclass(slots=True, kw_only=True)
class Parsed:
    """The parsed rows, in no order: tables of a small group, Parquet files of a large one.

    Columns are `_sequence_id` bigint, `_position` struct<block, row> and the declared ones.

    Attributes:
        counts: rows by id, of the files that were parsed; every other file is left to Spark.
        parts: parsed rows by id, of files parsed in part; the values of the rest are left to Spark.
        names: of the Parquet files, below `place`.
        refused: ids of files that must not be read; their rows are among the others and must be left out.
    """

    counts: dict[int, int] = field(default_factory=dict)
    parts: dict[int, int] = field(default_factory=dict)
    tables: list[pa.Table] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    place: Place | None = None
    refused: list[int] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Values:
    """The unparsed records of files, as rows of Parquet files. Spark's functions parse them as its reader would.

    Columns are `_sequence_id` bigint, `_position` struct<block, row> and `value` binary; bad lines are left out.
    With `on_schema="rescue"` there is `_rescued` string, too.

    Attributes:
        ids: of the files.
        names: of the Parquet files, below `place`.
    """

    ids: set[int] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    place: Place | None = None


@dataclass(slots=True, kw_only=True)
class Inspection:
    """The findings about some files.

    Attributes:
        verdicts: by id, of the files that have not changed since the scan.
        parsed: the rows that need no parser any more.
        values: the records left to Spark: of objects, of large files, and of all files with `on_schema="rescue"`.
        gone, changed: ids of objects that are gone, or were replaced since the scan.
    """

    verdicts: dict[int, FileVerdict] = field(default_factory=dict)
    parsed: Parsed = field(default_factory=Parsed)
    values: Values = field(default_factory=Values)
    gone: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)

    def add(self, other: Inspection) -> None:
        """Add the findings of tasks about other files."""
        self.verdicts.update(other.verdicts)
        self.parsed.counts.update(other.parsed.counts)
        self.parsed.parts.update(other.parsed.parts)
        self.parsed.names += other.parsed.names
        self.values.ids |= other.values.ids
        self.values.names += other.values.names
        self.parsed.place = self.values.place = other.parsed.place or self.parsed.place
        self.gone += other.gone
        self.changed += other.changed

    def take(self, place: Place, written: Sequence[WrittenFile]) -> None:
        """Register files of rows and of values that tasks wrote to a place.

        Raises:
            AccountingError: this process does not find one of them.
        """
        require_here(place.stamp, str(place), written)
        self.parsed.place = self.values.place = place
        for file in written:
            (self.parsed if file.name.startswith(f"{ROWS}/") else self.values).names.append(file.name)


def inspect_files(files: Sequence[InputFile], expected: Expected, folder: Path) -> Inspection:
    """Inspect files in this process, and keep the parsed rows in memory.

    Args:
        folder: for copies of files without their bad lines.
    """
    place = LocalPlace(str(folder), is_kept=False)
    found, written = _inspected(files, expected, place, folder, None)
    if written:
        found.take(place, written)
    return found


def inspect_in_tasks(session: SparkSession, files: Sequence[InputFile], expected: Expected, place: Place) -> Inspection:
    """Let Spark's tasks inspect files and write the parsed rows to files.

    Args:
        place: for the files of rows, and for copies of files without their bad lines.

    Raises:
        OSError, StoreUnavailable: a disk or a store failed a task; the input files are not at fault.
        AccountingError: this process does not find a file of rows.
    """
    shares = shares_of(files)
    task = InspectTask(shares=tuple(shares), expected=expected, place=place)
    found, written = Inspection(), []
    for (answer,) in session.range(0, len(shares), 1, len(shares)).mapInArrow(task, "facts string").collect():
        facts = json.loads(answer)
        if "failed" in facts:
            raise failure_of(facts["failed"])
        found.verdicts.update({number: _verdict_of(verdict) for number, verdict in facts["verdicts"]})
        found.gone += facts["gone"]
        found.changed += facts["changed"]
        found.parsed.counts.update(facts["counts"])
        found.values.ids.update(facts["values"])
        written += [WrittenFile(**file) for file in facts["written"]]
    found.take(place, written)
    return found


def look_up(session: SparkSession, lookup: Lookup) -> int | list[BadRecord] | None:
    """Let a task of Spark read an object once more, and return its answer.

    Raises:
        ObjectMissing, ObjectChanged: the object is gone, or was replaced by another one.
        OSError, StoreUnavailable: a disk or a store failed the task.
    """
    ((answer,),) = session.range(0, 1, 1, 1).mapInArrow(lookup, "facts string").collect()
    facts = json.loads(answer)
    if "failed" in facts:
        raise failure_of(facts["failed"])
    if "lost" in facts:
        raise (ObjectMissing if facts["lost"] == "gone" else ObjectChanged)(lookup.file.path)
    found = facts["found"]
    return [BadRecord(**record) for record in found] if isinstance(found, list) else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """The work of one task: it finds the lines of an object's rows that do not fit, or counts its records.

    Args:
        misfits: the rows to find; empty to count the records.
    """

    file: InputFile
    expected: Expected
    misfits: tuple[Misfit, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"facts": [json.dumps(self._answer())]})

    def _answer(self) -> Mapping[str, Any]:
        found: Any
        try:
            with _scratch() as scratch:
                path = fetched(self.file, scratch)
                if self.misfits:
                    found = [asdict(record) for record in bad_records(self.misfits, path, self.expected)]
                else:
                    found = self.expected.reads.recount(path, self.expected)
        except ObjectMissing:
            return {"lost": "gone"}
        except ObjectChanged:
            return {"lost": "changed"}
        except OSError as error:
            return {"failed": facts_of_failure(error)}
        return {"found": found}


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectTask:
    """The work of one task: it inspects the files of its share, and returns its findings as one JSON text.

    Args:
        shares: of all tasks; a row of the input is the number of a share.
    """

    shares: tuple[tuple[InputFile, ...], ...]
    expected: Expected
    place: Place

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for number in [number for batch in batches for number in batch.column(0).to_pylist()]:
            yield pa.RecordBatch.from_pydict({"facts": [json.dumps(self._facts(self.shares[number]))]})

    def _facts(self, files: Sequence[InputFile]) -> Mapping[str, Any]:
        try:
            with _scratch() as scratch:
                found, written = _inspected(files, self.expected, self.place, Path(scratch), self.place)
        except OSError as error:
            return {"failed": facts_of_failure(error)}
        return {
            "verdicts": [(number, _facts_of(verdict)) for number, verdict in found.verdicts.items()],
            "gone": found.gone,
            "changed": found.changed,
            "counts": list(found.parsed.counts.items()),
            "values": sorted(found.values.ids),
            "written": [asdict(file) for file in written],
        }


# --- files, one after the other -----------------------------------------------------------------------------------


def _inspected(
    files: Sequence[InputFile], expected: Expected, place: Place, scratch: Path, rows: Place | None
) -> tuple[Inspection, list[WrittenFile]]:
    """Inspect files, and parse those that are plain.

    Args:
        place: for copies of files without their bad lines.
        scratch: folder for files that are needed only during the inspection.
        rows: for files of rows; None keeps the rows in memory.
    """
    inspector = Inspector(scratch)
    if not can_parse(expected):
        with ThreadPoolExecutor(_THREADS if expected.reads.is_judged_by_libraries else 1) as pool:
            list(pool.map(lambda file: inspector.inspect(file, expected), files))
        return inspector.found, inspector.hand_over(files, expected, place)
    parser, first_look = Parser(expected, rows), replace(expected, parsed_here=True)
    try:
        for file in files:
            content, records = inspector.good_lines(file, first_look)
            if content is not None:
                parser.add(file.number, content, records)
        inspector.found.parsed = parser.finish()
    finally:
        parser.close()
    for file in files if expected.lossless.matters_in_csv else ():
        verdict = inspector.found.verdicts.get(file.number)
        if file.number not in inspector.found.parsed.counts and verdict and not verdict.refused and not verdict.bad:
            inspector.inspect(file, expected)
    return inspector.found, [*parser.written, *inspector.hand_over(files, expected, place)]


@dataclass(slots=True)
class Inspector:
    """An inspection of files, one by one; it fetches an object before it inspects it.

    Args:
        scratch: folder for files that are needed only during the inspection.
    """

    scratch: Path
    found: Inspection = field(default_factory=Inspection)

    def good_lines(self, file: InputFile, expected: Expected) -> tuple[bytes | None, int]:
        """Inspect a file; return its content without the bad lines, and the number of records in it.

        The content is None if the verdict is not good (`FileVerdict.is_good`), if it is longer than `FILE_BYTES`, or if
        the object is not the one that was scanned.
        """
        content = Content()
        verdict = self.inspect(file, expected, content)
        if verdict is not None and verdict.cleaned is not None:
            content = Content()
            verdict = inspect(verdict.cleaned, expected, self._cleaned(file), content.take)
        if verdict is None or not verdict.is_good or not content.is_whole:
            return None, 0
        return b"".join(content.pieces), verdict.records or 0

    def inspect(self, file: InputFile, expected: Expected, content: Content | None = None) -> FileVerdict | None:
        """Inspect a file and keep its verdict; None if the object is not the one that was scanned."""
        take = content.take if content is not None else lambda piece: None
        verdict = self._reading(file, lambda path: inspect(path, expected, self._cleaned(file), take))
        if verdict is not None:
            self.found.verdicts[file.number] = verdict
        return verdict

    def hand_over(self, files: Sequence[InputFile], expected: Expected, place: Place) -> list[WrittenFile]:
        """Write for Spark the records that were not parsed: as values, or as copies of files without bad lines."""
        written = []
        for file in files:
            verdict = self.found.verdicts.get(file.number)
            if verdict is None or verdict.refused is not None:
                continue
            is_left = file.number not in self.found.parsed.counts
            if is_left and (file.stored is not None or expected.on_schema == "rescue"):
                fetched_as = self.scratch / Path(file.path).name if file.stored is not None else Path(file.path)
                values = expected.reads.values_of(verdict.cleaned or fetched_as, expected)
                if values is not None:
                    batches = _batches_of(file.number, values, expected)
                    found = self._write_values(file, batches, verdict.cleaned, place)
                    written += [found] if found is not None else []
                    self.found.values.ids.add(file.number)
                    is_left = False
                elif file.is_out_of_reach:
                    found = self._write_rows(file, expected, place)
                    written += [found] if found is not None else []
            if verdict.cleaned is not None:
                if is_left:
                    place.take_in(verdict.cleaned, verdict.cleaned.name)
                else:
                    verdict.cleaned.unlink()
                cleaned = Path(verdict.cleaned.name) if is_left else None
                self.found.verdicts[file.number] = replace(verdict, cleaned=cleaned)
        return written

    def _write_values(
        self, file: InputFile, batches: Iterator[pa.RecordBatch], cleaned: Path | None, place: Place
    ) -> WrittenFile | None:
        return self._reading(file, lambda _: write_batches(batches, place, VALUES), cleaned)

    def _write_rows(self, file: InputFile, expected: Expected, place: Place) -> WrittenFile | None:
        """Write the rows of a file in the declared columns, if they are the rows that Spark's reader would read."""

        def write(path: Path) -> WrittenFile | None:
            rows = expected.reads.rows_of(path, expected)
            if rows is None:
                return None
            written = write_batches(_tagged(file.number, rows), place, ROWS)
            self.found.parsed.counts[file.number] = written.rows if written is not None else 0
            return written

        try:
            return self._reading(file, write)
        except Refused as refused:
            self.found.verdicts[file.number] = FileVerdict.of(refused)
            return None

    def _reading(self, file: InputFile, read: Callable[[Path], _T], cleaned: Path | None = None) -> _T | None:
        """Read a file, or its copy without bad lines; note the id and return None if the object is gone or changed."""
        try:
            return read(cleaned if cleaned is not None else fetched(file, self.scratch))
        except ObjectMissing:
            self.found.gone.append(file.number)
        except ObjectChanged:
            self.found.changed.append(file.number)
        return None

    def _cleaned(self, file: InputFile) -> Path:
        return self.scratch / f"{file.number:019d}-{uuid.uuid4().hex}.cleaned{PLAIN}"


def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is deleted after use, below the first of `SPARK_LOCAL_DIRS` if that exists."""
    told = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return tempfile.TemporaryDirectory(prefix="drainmark-", dir=told if os.path.isdir(told) else None)


def fetched(file: InputFile, scratch: Path | str) -> Path:
    """Return the path of a file. An object is fetched once: the inspection and the reader of its rows share one copy.

    Args:
        scratch: folder for copies; they are deleted with it.

    Raises:
        ObjectMissing, ObjectChanged: the object is not the one that was scanned.
    """
    if file.stored is None:
        return Path(file.path)
    path = Path(scratch, os.path.basename(file.path))
    if not path.exists():
        partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        with partial.open("wb") as copy:
            copy.writelines(file.stored.pieces())
        partial.replace(path)
    return path


def values_batch(number: int, block: int, first: int, values: Sequence[bytes], expected: Expected) -> pa.RecordBatch:
    """Return values of a file in the columns of `Values`.

    Args:
        block, first: block and row of the first value.
    """
    import pyarrow as pa

    columns = {**_tags(number, block, first, len(values)), VALUE: pa.array(values, pa.binary())}
    if expected.on_schema == "rescue":
        columns[RESCUED] = pa.array(expected.reads.others_of(values, expected), pa.string())
    return pa.RecordBatch.from_pydict(columns)


def _batches_of(number: int, values: Iterator[bytes], expected: Expected) -> Iterator[pa.RecordBatch]:
    """Yield the values of an object in batches of bounded size."""
    batch: list[bytes] = []
    size, first = 0, 0
    for value in itertools.chain(values, [None]):
        if value is None or size >= _VALUES_BYTES or len(batch) >= _VALUES_AT_ONCE:
            yield values_batch(number, 0, first, batch, expected)
            first, size = first + len(batch), 0
            batch.clear()
        if value is not None:
            batch.append(value)
            size += len(value)


def _tagged(number: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of a file with two more columns before the others: the id, and the position in the file."""
    import pyarrow as pa

    first = 0
    for batch in batches:
        tags = _tags(number, 0, first, batch.num_rows)
        yield pa.RecordBatch.from_arrays([*tags.values(), *batch.columns], names=[*tags, *batch.schema.names])
        first += batch.num_rows


def _tags(number: int, block: int, first: int, count: int) -> dict[str, pa.Array]:
    """Return the ids and positions of `count` consecutive rows in a block of a file, from row number `first` on."""
    import numpy as np
    import pyarrow as pa

    place = [pa.array(np.full(count, block, np.int64)), pa.array(np.arange(first, first + count, dtype=np.int64))]
    return {
        SEQUENCE_ID: pa.array(np.full(count, number, np.int64)),
        POSITION: pa.StructArray.from_arrays(place, ["block", "row"]),
    }


@dataclass(slots=True)
class Content:
    """The pieces of a file; it drops them when they exceed `FILE_BYTES`."""

    pieces: list[bytes] = field(default_factory=list)
    size: int = 0

    @property
    def is_whole(self) -> bool:
        return self.size <= FILE_BYTES

    def take(self, piece: bytes) -> None:
        self.size += len(piece)
        self.pieces.append(piece)
        if not self.is_whole:
            self.pieces.clear()


class Parser:
    """A parser of files of one kind. It parses batches in threads, while the caller reads more files; used once.

    Args:
        expected: the declaration of the files; see `can_parse`.
        rows: the place for files of rows; None keeps the rows in memory.
    """

    def __init__(self, expected: Expected, rows: Place | None) -> None:
        self.written: list[WrittenFile] = []
        self._expected = expected
        self._rows = rows
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="parse")
        self._batch: list[File] = []
        self._batches: list[Future[tuple[dict[int, int], Any]]] = []
        self._bytes = 0

    def add(self, number: int, content: bytes, records: int) -> None:
        """Add a file, if its content is plain enough for Arrow."""
        file = file_of(number, content, records, self._expected)
        if file is None:
            return
        self._batch.append(file)
        self._bytes += len(file.content)
        if self._bytes >= _BATCH_BYTES:
            self._submit()

    def finish(self) -> Parsed:
        """Return the parsed rows, of whole files only."""
        if self._batch:
            self._submit()
        parsed = Parsed()
        try:
            for batch in self._batches:
                counts, rows = batch.result()
                parsed.counts.update(counts)
                if isinstance(rows, WrittenFile):
                    self.written.append(rows)
                elif rows is not None:
                    parsed.tables.append(rows)
        finally:
            self.close()
        return parsed

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _submit(self) -> None:
        waiting = [batch for batch in self._batches if not batch.done()]
        if len(waiting) >= _WAITING:  # bounds the memory for content that is read ahead of the parser
            waiting[0].result()
        self._batches.append(self._pool.submit(self._parse, self._batch))
        self._batch, self._bytes = [], 0

    def _parse(self, files: Sequence[File]) -> tuple[dict[int, int], Any]:
        table, counts = parse_files(files, self._expected)
        if table is None or self._rows is None:
            return counts, table
        return counts, write_file(table, self._rows, ROWS)


def shares_of(files: Sequence[_Sized]) -> list[tuple[_Sized, ...]]:
    """Return the files of each task: neighbours, about equal bytes for each; at least a task for each core here."""
    total = sum(file.size for file in files)
    tasks = min(len(files), max(os.cpu_count() or 2, -(-total // _TASK_BYTES)))
    shares: list[list[_Sized]] = [[] for _ in range(tasks)]
    passed = 0
    for file in files:
        shares[min(tasks - 1, passed * tasks // max(1, total))].append(file)
        passed += file.size
    return [tuple(share) for share in shares if share]


def _facts_of(verdict: FileVerdict) -> Mapping[str, Any]:
    return {**asdict(verdict), "cleaned": str(verdict.cleaned) if verdict.cleaned is not None else None}


def _verdict_of(facts: Mapping[str, Any]) -> FileVerdict:
    bad = tuple(BadRecord(**record) for record in facts["bad"])
    cleaned = Path(facts["cleaned"]) if facts["cleaned"] is not None else None
    return FileVerdict(**{**facts, "bad": bad, "cleaned": cleaned})
