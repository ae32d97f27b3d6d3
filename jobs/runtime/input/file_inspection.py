"""The files of a group before Spark reads them: judged, and parsed by Arrow where they are good and plain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs.errors import ObjectChanged, ObjectMissing
from drainmark.jobs.formats.bad_records import BadRecord, FileVerdict
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.inspection import inspect
from drainmark.jobs.formats.spark_rejects import Misfit, bad_records
from drainmark.jobs.operators.sources.directory_source import DirectorySource
from drainmark.jobs.runtime.input.inbox import Assigned, Group, GroupInbox
from drainmark.jobs.runtime.input.lost_files import changed_files, missing_files
from drainmark.jobs.runtime.input.refusals import Refusals
from drainmark.jobs.runtime.outside import TaskFiles
from drainmark.jobs.tasks.inspected_files import (
    InputFile,
    Inspection,
    Lookup,
    Parsed,
    Values,
    inspect_files,
    inspect_in_tasks,
    look_up,
)
from drainmark.jobs.tasks.places import LocalPlace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInspection:
    """Inspects the files of one attempt.

    Attributes:
        small: the files are inspected in this process, and what is parsed stays in memory; else that is done in tasks.
        files: for what tasks leave for this attempt.
        records: by id, how many Spark must find; None where only Spark can tell.
        values: by output, of objects that Spark's functions are to parse.
    """

    session: SparkSession
    group: Group
    inbox: GroupInbox
    small: bool
    files: TaskFiles
    refusals: Refusals
    records: dict[int, int | None] = field(default_factory=dict)
    values: dict[str, Values] = field(default_factory=dict)

    @property
    def is_on_disk(self) -> bool:
        """Do executors read what lies in the inbox?"""
        return isinstance(self.files.place, LocalPlace)

    def parse(self, source: DirectorySource, output: str, members: Sequence[Assigned], expected: Expected) -> Parsed:
        """Inspect the files, and parse those that are good and plain; Spark gets to see the others only.

        Raises:
            InputMissing, InputChanged: an object is not what was scanned.
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
        for number in [
            number for number in found.parsed.counts if self.refusals.has_refused(self.group.member(number))
        ]:
            del found.parsed.counts[number]
            found.parsed.refused.append(number)
        if len(found.parsed.counts) < len(members):
            for number in found.parsed.counts:
                self.inbox.put_aside(self.group.member(number))
        return found.parsed

    def inspect(self, source: DirectorySource, member: Assigned, expected: Expected) -> None:
        """Inspect one file more, which Spark is to read."""
        cleaned = self.inbox.folder / f"{member.sequence_id:019d}.cleaned"
        self._judge(source, member, inspect(self.inbox.path(member), expected, cleaned), expected)

    def recount(self, member: Assigned, expected: Expected) -> int | None:
        """Count a file's records anew; see `Format.recount`."""
        if member.sequence_id in self.inbox.objects:
            found = self._looked_up(Lookup(file=self._input_file(member), expected=expected))
            return found if isinstance(found, int) else None
        return expected.reads.recount(self.inbox.scanned(member), expected)

    def bad_records(self, member: Assigned, misfits: Sequence[Misfit], expected: Expected) -> Sequence[BadRecord]:
        """Return the rows of a file that do not fit, with their lines, where records are lines."""
        if member.sequence_id in self.inbox.objects and expected.has_records_in_lines:
            found = self._looked_up(Lookup(file=self._input_file(member), expected=expected, misfits=tuple(misfits)))
            return found if isinstance(found, list) else []
        return bad_records(misfits, self.inbox.scanned(member), expected)

    def _looked_up(self, lookup: Lookup) -> int | list[BadRecord] | None:
        trigger = self.group.member(lookup.file.number).trigger
        try:
            return look_up(self.session, lookup)
        except ObjectMissing as error:
            raise missing_files([trigger], "the object is gone") from error
        except ObjectChanged as error:
            raise changed_files([trigger]) from error

    def _inspected(self, members: Sequence[Assigned], expected: Expected) -> Inspection:
        files = [self._input_file(member) for member in members]
        if self.small:
            return inspect_files(files, expected, self.inbox.folder)
        return inspect_in_tasks(self.session, files, expected, self.files.place.for_an_attempt())

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
        """Have Spark read a copy without the bad lines, if there is one, instead of the file."""
        place = LocalPlace(str(self.inbox.folder)) if self.small else self.files.place
        if cleaned is None:
            self.inbox.put_aside(member)
        elif isinstance(place, LocalPlace):
            self.inbox.put_aside(member, place.folder / cleaned)
        else:
            self.inbox.read_copy(member, f"{place}/{cleaned}")
