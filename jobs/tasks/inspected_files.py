"""The files of a group before Spark's parser sees them: judged, and parsed by Arrow where they are good and plain.

For a small group this runs in the driver, which keeps the rows; for a large one in Spark's tasks, which leave the rows
in files, and return what they found of each input file.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.formats.arrow_parser import File, can_parse, file_of, parse_files
from drainmark.jobs.formats.bad_records import BadRecord, FileVerdict
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.inspection import inspect
from drainmark.jobs.tasks.parquet_files import WrittenFile, require_here, write_file
from drainmark.jobs.tasks.places import LocalPlace, Place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

FILE_BYTES = 64 * 1024 * 1024
"""A file beyond is left to Spark, which reads it by several tasks."""

_TASK_BYTES = 32 * 1024 * 1024
_BATCH_BYTES = 16 * 1024 * 1024
_THREADS = 2
_WAITING = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file of a group.

    Attributes:
        number: its sequence id.
        path: where it can be read, by the executors, too, where tasks are to.
        size: bytes, about.
    """

    number: int
    path: str
    size: int


@dataclass(slots=True, kw_only=True)
class Parsed:
    """What was parsed, in no order: tables of a small group, Parquet files of a large one.

    Columns are `_sequence_id` bigint, `_position` struct<block, row> and the declared ones.

    Attributes:
        counts: rows by id, of the files that were parsed; every other file is left to Spark.
    """

    counts: dict[int, int] = field(default_factory=dict)
    tables: list[pa.Table] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Inspection:
    """What was found in some files.

    Attributes:
        verdicts: by id.
        parsed: what needs no parser any more.
    """

    verdicts: dict[int, FileVerdict] = field(default_factory=dict)
    parsed: Parsed = field(default_factory=Parsed)


def inspect_files(files: Sequence[InputFile], expected: Expected, folder: Path) -> Inspection:
    """Inspect files in this process, and keep the rows that were parsed in memory.

    Args:
        folder: for copies of files without their bad lines.
    """
    return _inspected(files, expected, folder, None)[0]


def inspect_in_tasks(
    session: SparkSession, files: Sequence[InputFile], expected: Expected, folder: Path, rows: Path
) -> Inspection:
    """Have Spark's tasks inspect files, and leave the rows that were parsed in files.

    Args:
        folder: for copies of files without their bad lines; tasks and this process reach it, and the next one.
        rows: for the files of rows.

    Raises:
        OSError: a disk failed a task; no file is bad for that.
        AccountingError: a file of rows is not here.
    """
    shares = _shares(files)
    task = InspectTask(shares=tuple(shares), expected=expected, folder=str(folder), rows=str(rows))
    found, written = Inspection(), []
    for (answer,) in session.range(0, len(shares), 1, len(shares)).mapInArrow(task, "facts string").collect():
        facts = json.loads(answer)
        if "failed" in facts:
            raise OSError(*facts["failed"])
        found.verdicts.update({number: _verdict_of(verdict) for number, verdict in facts["verdicts"]})
        found.parsed.counts.update(facts["counts"])
        written += [WrittenFile(**file) for file in facts["written"]]
    require_here(LocalPlace(str(rows)).stamp, str(rows), written)
    found.parsed.paths = [str(rows / file.name) for file in written]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectTask:
    """What one task does: it inspects the files of its share, and gives what it found as one JSON text.

    Args:
        shares: of all tasks; a row of the input is the number of one.
    """

    shares: tuple[tuple[InputFile, ...], ...]
    expected: Expected
    folder: str
    rows: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for number in [number for batch in batches for number in batch.column(0).to_pylist()]:
            yield pa.RecordBatch.from_pydict({"facts": [json.dumps(self._facts(self.shares[number]))]})

    def _facts(self, files: Sequence[InputFile]) -> Mapping[str, Any]:
        try:
            found, written = _inspected(files, self.expected, Path(self.folder), LocalPlace(self.rows, is_kept=False))
        except OSError as error:
            return {"failed": [error.errno, error.strerror, error.filename]}
        return {
            "verdicts": [(number, _facts_of(verdict)) for number, verdict in found.verdicts.items()],
            "counts": list(found.parsed.counts.items()),
            "written": [asdict(file) for file in written],
        }


# --- files, one after the other -----------------------------------------------------------------------------------


def _inspected(
    files: Sequence[InputFile], expected: Expected, folder: Path, rows: Place | None
) -> tuple[Inspection, list[WrittenFile]]:
    def cleaned(file: InputFile) -> Path:
        return folder / f"{file.number:019d}-{uuid.uuid4().hex}.cleaned"

    if not can_parse(expected):
        with ThreadPoolExecutor(_THREADS if expected.reads.is_judged_by_libraries else 1) as pool:
            verdicts = pool.map(lambda file: inspect(Path(file.path), expected, cleaned(file)), files)
            return Inspection(verdicts=dict(zip((file.number for file in files), verdicts, strict=True))), []
    parser, first_look, found = Parser(expected, rows), replace(expected, parsed_here=True), Inspection()
    try:
        for file in files:
            content = Content()
            verdict = inspect(Path(file.path), first_look, cleaned(file), content.take)
            found.verdicts[file.number] = verdict
            if verdict.is_good and content.is_whole:
                parser.add(file.number, b"".join(content.pieces), verdict.records or 0)
        found.parsed = parser.finish()
    finally:
        parser.close()
    for file in files if expected.lossless.matters_in_csv else ():
        verdict = found.verdicts[file.number]
        if file.number not in found.parsed.counts and verdict.refused is None and not verdict.bad:
            found.verdicts[file.number] = inspect(Path(file.path), expected, cleaned(file))
    return found, parser.written


@dataclass(slots=True)
class Content:
    """Collects the pieces of a file, as long as they are few enough to be held."""

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
    """Parses files of one kind, batch by batch, beside whoever reads them; used once.

    Args:
        expected: what the files are declared to be; see `can_parse`.
        rows: for files of them; None keeps them in memory.
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
        """Take a file in, if its content is as plain as it must be."""
        file = file_of(number, content, records, self._expected)
        if file is None:
            return
        self._batch.append(file)
        self._bytes += len(file.content)
        if self._bytes >= _BATCH_BYTES:
            self._submit()

    def finish(self) -> Parsed:
        """Return what was parsed, whole files only."""
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
        if len(waiting) >= _WAITING:  # memory: no more than this is read ahead of the parser
            waiting[0].result()
        self._batches.append(self._pool.submit(self._parse, self._batch))
        self._batch, self._bytes = [], 0

    def _parse(self, files: Sequence[File]) -> tuple[dict[int, int], Any]:
        table, counts = parse_files(files, self._expected)
        if table is None or self._rows is None:
            return counts, table
        return counts, write_file(table, self._rows)


def _shares(files: Sequence[InputFile]) -> list[tuple[InputFile, ...]]:
    """Return the files of each task: neighbours, of about as many bytes, and enough tasks for the cores of here."""
    total = sum(file.size for file in files)
    tasks = min(len(files), max(os.cpu_count() or 2, -(-total // _TASK_BYTES)))
    shares: list[list[InputFile]] = [[] for _ in range(tasks)]
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
