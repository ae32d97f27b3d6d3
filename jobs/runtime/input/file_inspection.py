"""The inspection of a group's files before Spark reads them; Arrow parses the files that are good and plain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from drainmark.jobs.errors import ObjectChanged, ObjectMissing
from drainmark.jobs.formats.bad_records import BadRecord, FileVerdict
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.layout import Layout, layout_of
from drainmark.jobs.formats.lines.line_format import inspect
from drainmark.jobs.formats.lines.spark_rejects import Misfit, bad_records
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.runtime.input.inbox import Assigned, Group, GroupInbox
from drainmark.jobs.runtime.input.lost_files import changed_files, missing_files
from drainmark.jobs.runtime.input.refusals import Refusals
from drainmark.jobs.runtime.outside import TaskFiles
from drainmark.jobs.tasks.file_ranges import FileRange, inspect_in_ranges, layouts_of, misfits_in, ranges_of, recounted
from drainmark.jobs.tasks.inspected_files import (
    InputFile,
    Inspection,
    Lookup,
    Parsed,
    Values,
    inspect_files,
    look_up,
)
from drainmark.jobs.tasks.places import LocalPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInspection:
    """The inspection of one attempt's files.

    Attributes:
        small: this process inspects the files and keeps the parsed rows in memory; otherwise tasks inspect the files.
        files: the folder for files that tasks write for this attempt.
        records: by id, the number of records that Spark must find; None if only Spark can count them.
        values: by output, the values of files that Spark's functions will parse.
        parsed_in_part: by id, the number of rows of a file that are parsed already; Spark's functions parse the rest.
    """

    session: SparkSession
    group: Group
    inbox: GroupInbox
    small: bool
    files: TaskFiles
    refusals: Refusals
    records: dict[int, int | None] = field(default_factory=dict)
    values: dict[str, Values] = field(default_factory=dict)
    parsed_in_part: dict[int, int] = field(default_factory=dict)

    @property
    def is_on_disk(self) -> bool:
        """Can executors read the files in the inbox?"""
        return isinstance(self.files.place, LocalPlace)

    def parse(self, source: DirectorySource, output: str, members: Sequence[Assigned], expected: Expected) -> Parsed:
        """Inspect the files, and parse those that are good and plain. Spark will read only the others.

        Raises:
            InputMissing, InputChanged: an object is gone, or has changed since the scan.
        """
        if not members:
            return Parsed()
        found = self._inspected(members, expected)
        if found.gone:
            raise missing_files([self.group.member(number).trigger for number in found.gone], "the object is gone")
        if found.changed:
            raise changed_files([self.group.member(number).trigger for number in found.changed])
        for member in members:
            self._judge(source, member, found.verdicts[member.sequence_id], expected)
        self.values[output] = found.values
        for counts in (found.parsed.counts, found.parsed.parts):
            for number in [number for number in counts if self.refusals.has_refused(self.group.member(number))]:
                del counts[number]
                found.parsed.refused.append(number)
        self._leave_in_part(found.parsed.parts)
        if len(found.parsed.counts) < len(members):
            for number in {*found.parsed.counts, *found.values.ids}:
                if not self.refusals.has_refused(self.group.member(number)):
                    self.inbox.put_aside(self.group.member(number))
        return found.parsed

    def _leave_in_part(self, parts: Mapping[int, int]) -> None:
        """Leave the unparsed rest of files to Spark: subtract the parsed rows from the records that it must find."""
        self.parsed_in_part.update(parts)
        for number, rows in parts.items():
            if (records := self.records.get(number)) is not None:
                self.records[number] = records - rows

    def layouts(self, members: Sequence[Assigned], expected: Expected) -> list[Layout | None]:
        """Return the layout of each file; see `jobs.formats.layout.layout_of`."""
        files = [self._input_file(member) for member in members]
        if files and not self.small:
            return layouts_of(self.session, files, expected)
        found = []
        for file in files:
            with open(file.path, "rb") as opened:
                found.append(layout_of(opened, Path(file.path).suffix, expected))
        return found

    def inspect(self, source: DirectorySource, member: Assigned, expected: Expected) -> None:
        """Inspect one more file that Spark will read."""
        cleaned = self.inbox.folder / f"{member.sequence_id:019d}.cleaned"
        self._judge(source, member, inspect(self.inbox.path(member), expected, cleaned), expected)

    def recount(self, member: Assigned, expected: Expected) -> int | None:
        """Count again the records of a file that Spark must find; see `Format.recount`."""
        if ranges := self._ranges(member, expected):
            counted = self._asking(member, lambda: recounted(self.session, ranges, expected))
            return counted - self.parsed_in_part.get(member.sequence_id, 0)
        if member.sequence_id in self.inbox.objects:
            lookup = Lookup(file=self._input_file(member), expected=expected)
            found = self._asking(member, lambda: look_up(self.session, lookup))
            return found if isinstance(found, int) else None
        return expected.reads.recount(self.inbox.scanned(member), expected)

    def bad_records(self, member: Assigned, misfits: Sequence[Misfit], expected: Expected) -> Sequence[BadRecord]:
        """Return the rows of a file that do not fit the schema, with their line numbers if records are lines."""
        if ranges := self._ranges(member, expected):
            return self._asking(member, lambda: misfits_in(self.session, ranges, expected, misfits))
        if member.sequence_id in self.inbox.objects and expected.has_records_in_lines:
            lookup = Lookup(file=self._input_file(member), expected=expected, misfits=tuple(misfits))
            found = self._asking(member, lambda: look_up(self.session, lookup))
            return found if isinstance(found, list) else []
        return bad_records(misfits, self.inbox.scanned(member), expected)

    def _asking(self, member: Assigned, ask: Callable[[], _T]) -> _T:
        """Ask tasks about a file. If it is gone or changed, raise the error that names its trigger."""
        try:
            return ask()
        except ObjectMissing as error:
            raise missing_files([member.trigger], "the object is gone") from error
        except ObjectChanged as error:
            raise changed_files([member.trigger]) from error

    def _ranges(self, member: Assigned, expected: Expected) -> Sequence[FileRange]:
        """Return the ranges of a file of lines; none if the file is read as a whole."""
        if self.small or not expected.has_records_in_lines:
            return []
        file = self._input_file(member)
        if file.stored is None:
            file = replace(file, path=str(self.inbox.scanned(member)))
        return ranges_of(file, expected, self.inbox.inputs.range_bytes)

    def _inspected(self, members: Sequence[Assigned], expected: Expected) -> Inspection:
        files = [self._input_file(member) for member in members]
        if self.small:
            return inspect_files(files, expected, self.inbox.folder)
        if expected.reads.may_give_rows:
            files = [
                replace(file, is_out_of_reach=self.inbox.inputs.readable(member.trigger.uri) is None)
                if file.stored is not None
                else file
                for file, member in zip(files, members, strict=True)
            ]
        place = self.files.place.for_an_attempt()
        return inspect_in_ranges(self.session, files, expected, place, self.inbox.inputs.range_bytes)

    def _input_file(self, member: Assigned) -> InputFile:
        return InputFile(
            number=member.sequence_id,
            path=str(self.inbox.path(member)),
            size=member.trigger.size_bytes,
            stored=self.inbox.objects.get(member.sequence_id),
        )

    def _judge(self, source: DirectorySource, member: Assigned, verdict: FileVerdict, expected: Expected) -> None:
        self.records[member.sequence_id] = verdict.records if expected.has_row_a_record else None
        if verdict.refused is not None:
            self.refusals.refuse(source, member, verdict.refused, is_schema=verdict.is_schema)
        elif verdict.bad:
            self.refusals.keep(source, member, verdict.bad, of=len(verdict.bad) + (verdict.records or 0))
            if not self.refusals.has_refused(member):
                self._replace(member, verdict.cleaned)

    def _replace(self, member: Assigned, cleaned: Path | None) -> None:
        """Hide a file from Spark; if there is a copy without the bad lines, let Spark read the copy instead."""
        place = LocalPlace(str(self.inbox.folder)) if self.small else self.files.place
        if cleaned is None:
            self.inbox.put_aside(member)
        elif isinstance(place, LocalPlace):
            self.inbox.put_aside(member, place.folder / cleaned)
        else:
            self.inbox.read_copy(member, f"{place}/{cleaned}")
