"""The files of a group before Spark reads them: judged, and parsed by Arrow where they are good and plain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainmark.jobs.formats.bad_records import FileVerdict
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.inspection import inspect
from drainmark.jobs.operators.sources.directory_source import DirectorySource
from drainmark.jobs.runtime.input.inbox import PARSED_FOLDER, Assigned, Group, GroupInbox
from drainmark.jobs.runtime.input.refusals import Refusals
from drainmark.jobs.tasks.inspected_files import InputFile, Inspection, Parsed, inspect_files, inspect_in_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInspection:
    """Inspects the files of one attempt.

    Attributes:
        small: the files are inspected in this process, and what is parsed stays in memory; else that is done in tasks.
        records: by id, how many Spark must find; None where only Spark can tell.
    """

    session: SparkSession
    group: Group
    inbox: GroupInbox
    small: bool
    refusals: Refusals
    records: dict[int, int | None] = field(default_factory=dict)

    def parse(self, source: DirectorySource, output: str, members: Sequence[Assigned], expected: Expected) -> Parsed:
        """Inspect the files, and parse those that are good and plain; Spark gets to see the others only.

        An object that is read where it is cannot be looked at first: Spark's parser alone judges it.
        """
        here = [member for member in members if not self.inbox.is_in_place(member)]
        if not here:
            return Parsed()
        found = self._inspected(here, output, expected)
        for member in here:
            self._judge(source, member, found.verdicts[member.sequence_id], expected)
        if len(found.parsed.counts) < len(here):
            for number in found.parsed.counts:
                self.inbox.put_aside(self.group.member(number))
        return found.parsed

    def inspect(self, source: DirectorySource, member: Assigned, expected: Expected) -> None:
        """Inspect one file more, which Spark is to read."""
        cleaned = self.inbox.folder / f"{member.sequence_id:019d}.cleaned"
        self._judge(source, member, inspect(self.inbox.path(member), expected, cleaned), expected)

    def _inspected(self, members: Sequence[Assigned], output: str, expected: Expected) -> Inspection:
        files = [
            InputFile(number=member.sequence_id, path=str(self.inbox.path(member)), size=member.trigger.size_bytes)
            for member in members
        ]
        if self.small:
            return inspect_files(files, expected, self.inbox.folder)
        rows = self.inbox.folder / PARSED_FOLDER / (output or "all")
        return inspect_in_tasks(self.session, files, expected, self.inbox.folder, rows)

    def _judge(self, source: DirectorySource, member: Assigned, verdict: FileVerdict, expected: Expected) -> None:
        self.records[member.sequence_id] = verdict.records if expected.has_row_a_record else None
        if verdict.refused is not None:
            self.refusals.refuse(source, member, verdict.refused, is_schema=verdict.is_schema)
        elif verdict.bad:
            self.refusals.keep(source, member, verdict.bad, of=len(verdict.bad) + (verdict.records or 0))
            if not self.refusals.has_refused(member):
                self.inbox.put_aside(member, verdict.cleaned)
