"""The intake of a group's files: read them once, and account for every record.

The source's `on_bad` decides whether a record that cannot be read goes into the region's quarantine table or halts the
region. For each id, the rows in are the rows accepted plus the rows quarantined; a whole file in quarantine counts as
one row. The result does not depend on which triggers share a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from drainmark.jobs.errors import BadInput
from drainmark.jobs.formats.bad_records import BadRecord, FileVerdict
from drainmark.jobs.formats.column_fit import Columns
from drainmark.jobs.formats.file_columns import FileColumns, rescued_sql
from drainmark.jobs.formats.format import Expected, format_of, row_type
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import POSITION, RESCUED, SEQUENCE_ID, tagged_type
from drainmark.jobs.graph.context import with_source_file
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.runtime.input.attempt import Attempt
from drainmark.jobs.runtime.input.inbox import Assigned, Group, GroupInbox, paths_by_id
from drainmark.jobs.runtime.input.quarantine_rows import Quarantine
from drainmark.jobs.scan.findings import changed_files, missing_files
from drainmark.jobs.tasks.file_ranges import InputFile, layouts_of
from drainmark.jobs.tasks.read_files import ReadFiles, read_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(slots=True, kw_only=True)
class FileIntake:
    """The intake of the files of an inbox for an attempt at a group; each instance is used once.

    Attributes:
        rows_in: by id, the number of rows accepted plus rows quarantined.
        quarantine: the rows and files that are kept out of the stream.
    """

    attempt: Attempt
    inbox: GroupInbox
    rows_in: dict[int, int] = field(default_factory=dict)
    quarantine: Quarantine = field(default_factory=Quarantine)

    @property
    def group(self) -> Group:
        """Return the files; a slice's files are a group of their own."""
        return self.inbox.group

    def take(self, source: DirectorySource) -> dict[str, DataFrame]:
        """Return the rows of each output by stream name, materialised with all their columns before any projection.

        Raises:
            BadInput: a record or a file cannot be read, and the policy is to halt.
            InputMissing, InputChanged: an object is gone, or has changed since the scan.
            TooLarge: another executor must do the attempt.
        """
        self.attempt.executor.require_fit(self.inbox.path(member) for member in self.group.members)
        frames = {source.stream(output): self._take(source, output) for output in source.outputs}
        for number, quarantined in self.quarantine.counts().items():
            self.rows_in[number] = self.rows_in.get(number, 0) + quarantined
        return frames

    def uris(self) -> dict[int, str]:
        return {member.sequence_id: member.trigger.uri for member in self.group.members}

    def _take(self, source: DirectorySource, output: str) -> DataFrame:
        members = [member for member in self.group.members if member.trigger.output == output]
        self.rows_in.update(dict.fromkeys((member.sequence_id for member in members), 0))
        if source.scan.on_schema == "rescue" and format_of(source.scan.format).names_columns:
            frame = self._rescued(source, output, members)
        else:
            frame = self._read(source, output, members)
        return with_source_file(frame, self.group.first_id, paths_by_id(self.group.members))

    def _rescued(self, source: DirectorySource, output: str, members: Sequence[Assigned]) -> DataFrame:
        """Read each file in its own layout, and join the columns that are not declared to one column."""
        declared = expected_of(source, output)
        as_declared = FileColumns(source.scan.schema_of(output) or "")
        layouts = layouts_of(self.attempt.executor.tasks, list(map(self._input_file, members)), declared)
        apart: dict[FileColumns, list[Assigned]] = {}
        for member, layout in zip(members, layouts, strict=True):
            apart.setdefault(layout or as_declared, []).append(member)
        frames = []
        for layout, alike in apart.items() or [(as_declared, [])]:
            names_read = [name for name, _ in _columns(layout.ddl)]
            # A column outside the layout is a fault, unless Spark has no type for it at all.
            on_schema: Literal["quarantine"] | None = "quarantine" if set(layout.unread).issubset(names_read) else None
            scan = replace(source.scan, schema=layout.ddl, on_schema=on_schema)
            rows = self._read(replace(source, scan=scan), output, alike)
            names = [name for name, _ in declared.columns or ()]
            others = [name for name in names_read if name not in names]
            quoted = (quoted_name(name) for name in (SEQUENCE_ID, POSITION, *names))
            frames.append(rows.selectExpr(*quoted, f"{rescued_sql(others, layout.unread)} as {RESCUED}"))
        return self.attempt.executor.joined(*frames)

    def _read(self, source: DirectorySource, output: str, members: Sequence[Assigned]) -> DataFrame:
        """Return the good rows of files, and quarantine the other records."""
        expected = expected_of(source, output)
        found = self._found(members, expected)
        for member in members:
            self._account(source, member, found.verdicts[member.sequence_id])
        rows = self.attempt.executor.read(found.rows, tagged_type(row_type(expected)))
        refused = [str(member.sequence_id) for member in members if member.sequence_id in self.quarantine.files]
        return rows.where(f"{SEQUENCE_ID} not in ({','.join(refused)})") if refused else rows

    def _found(self, members: Sequence[Assigned], expected: Expected) -> ReadFiles:
        files = [self._input_file(member) for member in members]
        executor, range_bytes = self.attempt.executor, self.inbox.inputs.range_bytes
        found = read_files(executor.tasks, files, expected, executor.place, range_bytes)
        if found.gone:
            raise missing_files([self.group.member(number).trigger for number in found.gone], "the object is gone")
        if found.changed:
            raise changed_files([self.group.member(number).trigger for number in found.changed])
        return found

    def _account(self, source: DirectorySource, member: Assigned, verdict: FileVerdict) -> None:
        if verdict.refused is not None:
            self._refuse(source, member, verdict.refused, is_schema=verdict.is_schema)
        elif verdict.bad:
            self._put_aside(source, member, verdict.bad, of=len(verdict.bad) + verdict.records)
        if member.sequence_id not in self.quarantine.files:
            self.rows_in[member.sequence_id] = verdict.records

    def _put_aside(self, source: DirectorySource, member: Assigned, bad: Sequence[BadRecord], *, of: int) -> None:
        """Quarantine records, or the whole file if too many are bad."""
        if (first := next((each for each in bad if _halts(source, is_schema=each.is_schema)), None)) is not None:
            why = f"line {first.position}: {first.reason}: {(first.raw or '')[:_SHOWN]!r}"
            raise _halting(source, member, why, is_schema=first.is_schema)
        number = member.sequence_id
        self.quarantine.keep(number, bad)
        kept = self.quarantine.records[number]
        if len(kept) > source.scan.max_bad_ratio * of:
            why = _WHOLE.format(source.scan.max_bad_ratio, len(kept), of, kept[0].position, kept[0].reason)
            self._refuse(source, member, why, is_schema=kept[0].is_schema)

    def _refuse(self, source: DirectorySource, member: Assigned, reason: str, *, is_schema: bool) -> None:
        """Quarantine a whole file, or halt the region."""
        if _halts(source, is_schema=is_schema):
            raise _halting(source, member, reason, is_schema=is_schema)
        self.quarantine.refuse(member.sequence_id, reason)

    def _input_file(self, member: Assigned) -> InputFile:
        return InputFile(
            number=member.sequence_id,
            path=str(self.inbox.path(member)),
            size=member.trigger.size_bytes,
            stored=self.inbox.objects.get(member.sequence_id),
        )


def expected_of(source: DirectorySource, output: str) -> Expected:
    """Return the format, columns and options that are declared for the files of an output."""
    ddl = source.scan.schema_of(output)
    return source.scan.expects(_columns(ddl) if ddl is not None else None)


@lru_cache(maxsize=64)
def _columns(ddl: str) -> Columns:
    from pyspark.sql.types import StructType

    return tuple((column.name, column.dataType) for column in StructType.fromDDL(ddl).fields)


_SHOWN = 200
_WHOLE = "nothing is read of a file of which more than {:.0%} is bad: {} of {} rows; the first, line {}: {}"


def _halts(source: DirectorySource, *, is_schema: bool) -> bool:
    return (source.scan.on_schema if is_schema else source.scan.on_bad) == "halt"


def _halting(source: DirectorySource, member: Assigned, reason: str, *, is_schema: bool) -> BadInput:
    trigger = member.trigger
    other = 'declare the columns in schema=, or on_schema="rescue"' if is_schema else 'on_bad="quarantine"'
    return BadInput(
        f"{trigger.uri}: {reason}",
        operator=source.name,
        location=source.location,
        remedy=f"fix the file, or {other} at the source",
        triggers=(trigger,),
    )
