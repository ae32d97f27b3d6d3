"""The intake of a group's files: inspect them, read them once with Spark, and account for every record.

The source's `on_bad` decides whether a record that cannot be read goes into the region's quarantine table or halts the
region. For each id, the rows in are the rows accepted plus the rows quarantined; a whole file in quarantine counts as
one row. The result does not depend on which triggers share a group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from drainmark.jobs.errors import AccountingError
from drainmark.jobs.formats.bad_records import CAPS
from drainmark.jobs.formats.column_fit import Columns
from drainmark.jobs.formats.format import Expected, format_of
from drainmark.jobs.formats.layout import Layout, rescued_sql
from drainmark.jobs.formats.lines.arrow_parser import schema_of
from drainmark.jobs.formats.lines.line_format import unpacked_bytes
from drainmark.jobs.formats.lines.spark_rejects import misfits_of
from drainmark.jobs.formats.values.text_columns import quoted_name
from drainmark.jobs.frames.tags import CORRUPT, POSITION, RESCUED, SEQUENCE_ID
from drainmark.jobs.graph.context import with_source_file
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.runtime.input.file_inspection import FileInspection
from drainmark.jobs.runtime.input.inbox import Assigned, Group, GroupInbox, paths_by_id
from drainmark.jobs.runtime.input.materialisation import Materialiser
from drainmark.jobs.runtime.input.quarantine_rows import Quarantine
from drainmark.jobs.runtime.input.refusals import Refusals
from drainmark.jobs.runtime.input.spark_reading import SparkReading
from drainmark.jobs.runtime.outside import TaskFiles
from drainmark.jobs.tasks.inspected_files import Values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SMALL_BYTES = 16 * 1024 * 1024
_SMALL_VALUES = 16_000_000
"""Upper bounds (inclusive) of a small group, besides its size in files: bytes of unpacked files, and values."""


@dataclass(slots=True, kw_only=True)
class FileIntake:
    """The intake of one attempt's files; each instance is used once.

    Attributes:
        files: the folder for files that tasks write for this attempt.
        rows_in: by id, the number of rows accepted plus rows quarantined.
        quarantine: the rows and files that are kept out of the stream.
    """

    session: SparkSession
    group: Group
    inbox: GroupInbox
    materialiser: Materialiser
    files: TaskFiles
    rows_in: dict[int, int] = field(default_factory=dict)
    quarantine: Quarantine = field(default_factory=Quarantine)
    _refusals: Refusals = field(init=False)
    _inspection: FileInspection = field(init=False)
    _reading: SparkReading = field(init=False)

    def __post_init__(self) -> None:
        if self._unpacks_to_more():
            self.materialiser.small = False
        self._refusals = Refusals(inbox=self.inbox, quarantine=self.quarantine)
        self._inspection = FileInspection(
            session=self.session,
            group=self.group,
            inbox=self.inbox,
            small=self.materialiser.small,
            files=self.files,
            refusals=self._refusals,
        )
        self._reading = SparkReading(
            session=self.session,
            group=self.group,
            inbox=self.inbox,
            materialiser=self.materialiser,
            inspection=self._inspection,
            refusals=self._refusals,
        )

    def take(self, sources: Sequence[DirectorySource]) -> dict[str, DataFrame]:
        """Return the rows of each output by stream name, materialised with all their columns before any projection.

        Raises:
            BadInput: a record or a file cannot be read, and the policy is to halt.
            AccountingError: Spark and the inspection disagree on the number of files or records.
        """
        frames: dict[str, DataFrame] = {}
        for source in sources:
            for output in source.outputs:
                frames[source.stream(output)] = self._take(source, output)
        for number, quarantined in self.quarantine.counts().items():
            self.rows_in[number] = self.rows_in.get(number, 0) + quarantined
        return frames

    def uris(self) -> dict[int, str]:
        return {member.sequence_id: member.trigger.uri for member in self.group.members}

    def _unpacks_to_more(self) -> bool:
        """Do the group's compressed files unpack to more bytes than this process should hold?"""
        total = 0
        for member in self.group.members if self.materialiser.small else ():
            total += unpacked_bytes(self.inbox.path(member), _SMALL_BYTES - total)
            if total > _SMALL_BYTES:
                return True
        return False

    def _take(self, source: DirectorySource, output: str) -> DataFrame:
        members = [member for member in self.group.members if member.trigger.output == output]
        self.rows_in.update(dict.fromkeys((member.sequence_id for member in members), 0))
        self.inbox.output_folder(output).mkdir(parents=True, exist_ok=True)
        if source.scan.on_schema == "rescue" and format_of(source.scan.format).names_columns:
            frame = self._rescued(source, output, members)
        else:
            frame = self._read(source, output, members)
        return with_source_file(frame, self.group.first_id, paths_by_id(self.group.members))

    def _rescued(self, source: DirectorySource, output: str, members: Sequence[Assigned]) -> DataFrame:
        """Read each file in its own layout, and join the columns that are not declared to one column."""
        declared = expected_of(source, output)
        as_declared = Layout(source.scan.schema_of(output) or "")
        apart: dict[Layout, list[Assigned]] = {}
        for member, layout in zip(members, self._inspection.layouts(members, declared), strict=True):
            apart.setdefault(layout or as_declared, []).append(member)
        self._reading.apart = True
        frames = []
        for layout, alike in apart.items() or [(as_declared, [])]:
            names_read = [name for name, _ in _columns(layout.ddl)]
            # A column outside the layout is a fault, unless Spark cannot read the column at all.
            on_schema: Literal["quarantine"] | None = "quarantine" if set(layout.unread).issubset(names_read) else None
            scan = replace(source.scan, schema=layout.ddl, on_schema=on_schema)
            rows = self._read(replace(source, scan=scan), output, alike)
            names = [name for name, _ in declared.columns or ()]
            others = [name for name in names_read if name not in names]
            quoted = (quoted_name(name) for name in (SEQUENCE_ID, POSITION, *names))
            frames.append(rows.selectExpr(*quoted, f"{rescued_sql(others, layout.unread)} as {RESCUED}"))
        return self.materialiser.joined(*frames)

    def _read(self, source: DirectorySource, output: str, members: Sequence[Assigned]) -> DataFrame:
        expected = expected_of(source, output)
        parsed = self._inspection.parse(source, output, members, expected)
        done = [member for member in members if member.sequence_id in parsed.counts]
        left = [member for member in members if member.sequence_id not in parsed.counts]
        values = sum(filter(None, self._inspection.records.values())) * (len(expected.columns or ()) + 1)
        if values > _SMALL_VALUES:
            self.materialiser.small = False
        self._check_counts(source, done, {number: (rows, 0) for number, rows in parsed.counts.items()}, expected)
        for member in done:
            if self._refusals.has_refused(member):
                del parsed.counts[member.sequence_id]
                parsed.refused.append(member.sequence_id)
        self.rows_in.update({**parsed.counts, **parsed.parts})
        frame = self.materialiser.parsed(parsed, schema_of(expected)) if parsed.counts or parsed.parts else None
        if frame is not None:
            frame = _without(frame, parsed.refused)
        for_spark = [member for member in left if not self._refusals.has_refused(member)]
        as_values = self._inspection.values.get(output, Values()).ids
        in_files = [member for member in for_spark if member.sequence_id not in as_values]
        self.inbox.require_readable(in_files, here=self._inspection.is_on_disk)
        if frame is None or for_spark:
            rows = self._read_good(source, output, left, expected)
            late = [number for number in parsed.parts if number in self.quarantine.files]
            self.rows_in.update(dict.fromkeys(late, 0))
            frame = rows if frame is None else self.materialiser.joined(_without(frame, late), rows)
        return frame

    def _read_good(
        self, source: DirectorySource, output: str, members: Sequence[Assigned], expected: Expected
    ) -> DataFrame:
        """Return the good rows of files that Spark reads, and quarantine the others."""
        rows, counts = self._reading.read(source, output, members, expected)
        self._check_counts(source, members, counts, expected)
        self._keep_misfits(source, rows, counts, expected)
        refused = [number for number in counts if number in self.quarantine.files]
        if CORRUPT in rows.columns:
            rows = (rows.where(f"{CORRUPT} is null") if any(bad for _, bad in counts.values()) else rows).drop(CORRUPT)
        rows = _without(rows, refused)
        for number, (read, bad) in counts.items():
            self.rows_in[number] += 0 if number in refused else read - bad
        return rows

    def _check_counts(
        self,
        source: DirectorySource,
        members: Sequence[Assigned],
        counts: Mapping[int, tuple[int, int]],
        expected: Expected,
    ) -> None:
        """Compare Spark's count of each file with that of the inspection; if they differ, count exactly.

        Spark reads too few rows from some damaged Parquet files, without an error.
        """
        for member in members:
            number, records = member.sequence_id, self._inspection.records.get(member.sequence_id)
            found = counts.get(number, (0, 0))[0]
            if records is None or found == records or self._refusals.has_refused(member):
                continue
            if expected.reads.has_sure_count:
                self._refusals.refuse(source, member, f"has {records} rows, and Spark reads {found} of them")
                continue
            recounted = self._inspection.recount(member, expected)
            records = records if recounted is None else recounted - self._refusals.kept(member)
            if found != records:
                msg = f"{member.trigger.uri} has {records} records, and Spark read {found}"
                raise AccountingError(msg, operator=source.name, location=source.location, trigger=member.trigger.uri)

    def _keep_misfits(
        self, source: DirectorySource, rows: DataFrame, counts: Mapping[int, tuple[int, int]], expected: Expected
    ) -> None:
        """Quarantine the rows that do not fit the schema; if there are any, this takes one more Spark job."""
        is_document = expected.lines is not None and expected.lines.is_one_document(expected)
        wrong = sorted(number for number, (_, bad) in counts.items() if bad)
        listed = [number for number in wrong if counts[number][1] <= CAPS.bad_rows and not is_document]
        misfits = misfits_of(rows, CORRUPT, listed) if listed else {}
        for number in wrong:
            member, (read, bad) = self.group.member(number), counts[number]
            found = misfits.get(number)
            if found is None:
                why = f"has values that do not fit the declared columns, in {bad} of {read} rows"
                self._refusals.refuse(source, member, why)
                continue
            if len(found) != bad:
                msg = f"{member.trigger.uri} has {bad} rows that do not fit, and {len(found)} were found"
                raise AccountingError(msg, operator=source.name, location=source.location, trigger=member.trigger.uri)
            before = self._refusals.kept(member)
            records = self._inspection.bad_records(member, found, expected)
            self._refusals.keep(
                source, member, records, of=before + read + self._inspection.parsed_in_part.get(number, 0)
            )


def _without(rows: DataFrame, refused: Sequence[int]) -> DataFrame:
    return rows.where(f"{SEQUENCE_ID} not in ({','.join(map(str, refused))})") if refused else rows


def expected_of(source: DirectorySource, output: str) -> Expected:
    """Return the format, columns and options that are declared for the files of an output."""
    ddl = source.scan.schema_of(output)
    return source.scan.expects(_columns(ddl) if ddl is not None else None)


@lru_cache(maxsize=64)
def _columns(ddl: str) -> Columns:
    from pyspark.sql.types import StructType

    return tuple((column.name, column.dataType) for column in StructType.fromDDL(ddl).fields)
