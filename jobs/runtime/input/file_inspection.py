"""The files of a group before Spark reads them: judged, and parsed in this process where they are good and plain."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from drainmark.jobs.formats.arrow_parser import Content, Parsed, Parser, can_parse
from drainmark.jobs.formats.bad_records import FileVerdict
from drainmark.jobs.formats.format import Expected
from drainmark.jobs.formats.inspection import inspect
from drainmark.jobs.operators.sources.directory_source import DirectorySource
from drainmark.jobs.runtime.input.inbox import PARSED_FOLDER, Assigned, Group, GroupInbox
from drainmark.jobs.runtime.input.refusals import Refusals

INSPECTORS = 2
"""Files that are looked at at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInspection:
    """Inspects the files of one attempt.

    Attributes:
        small: what is parsed stays in memory.
        records: by id, how many Spark must find; None where only Spark can tell.
    """

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
        if not can_parse(expected):
            self.inspect(source, here, expected)
            return Parsed()
        folder = None if self.small else self.inbox.folder / PARSED_FOLDER / (output or "all")
        parser = Parser(expected, folder)
        try:
            self.inspect(source, here, replace(expected, parsed_here=True), parser)
            parsed = parser.finish()
        finally:
            parser.close()
        if expected.lossless.matters_in_csv:
            self.inspect(source, [member for member in here if self._is_as_scanned(member, parsed)], expected)
        if len(parsed.counts) < len(here):
            for number in parsed.counts:
                self.inbox.put_aside(self.group.member(number))
        return parsed

    def _is_as_scanned(self, member: Assigned, parsed: Parsed) -> bool:
        """Is a file Spark's to read, with its values still to be judged?"""
        number = member.sequence_id
        is_judged = self.refusals.has_refused(member) or self.inbox.original(member).exists()
        return number not in parsed.counts and not is_judged

    def inspect(
        self, source: DirectorySource, members: Sequence[Assigned], expected: Expected, parser: Parser | None = None
    ) -> None:
        def verdict_on(member: Assigned) -> FileVerdict:
            cleaned = self.inbox.folder / f"{member.sequence_id:019d}.cleaned"
            if parser is None:
                return inspect(self.inbox.path(member), expected, cleaned)
            content = Content()
            verdict = inspect(self.inbox.path(member), expected, cleaned, content.take)
            if verdict.is_good and content.is_whole:
                parser.add(member.sequence_id, b"".join(content.pieces), verdict.records or 0)
            return verdict

        if len(members) > 1 and expected.reads.is_judged_by_libraries:
            with ThreadPoolExecutor(INSPECTORS, thread_name_prefix="inspect") as pool:
                verdicts = list(pool.map(verdict_on, members))
        else:
            verdicts = [verdict_on(member) for member in members]
        for member, verdict in zip(members, verdicts, strict=True):
            self.records[member.sequence_id] = verdict.records if expected.has_row_a_record else None
            if verdict.refused is not None:
                self.refusals.refuse(source, member, verdict.refused, is_schema=verdict.is_schema)
            elif verdict.bad:
                self.refusals.keep(source, member, verdict.bad, of=len(verdict.bad) + (verdict.records or 0))
                if not self.refusals.has_refused(member):
                    self.inbox.put_aside(member, verdict.cleaned)
