"""Records and files that are not read: their source decides between quarantine and halting the region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drainmark.jobs.errors import BadInput
from drainmark.jobs.formats.bad_records import BadRecord
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.runtime.input.inbox import Assigned
from drainmark.jobs.runtime.input.quarantine_rows import Quarantine

_SHOWN = 200
_WHOLE = "nothing is read of a file of which more than {:.0%} is bad: {} of {} rows; the first, line {}: {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """The bad records and files of one attempt: quarantined, or an error."""

    quarantine: Quarantine

    def has_refused(self, member: Assigned) -> bool:
        return member.sequence_id in self.quarantine.files

    def keep(self, source: DirectorySource, member: Assigned, bad: Sequence[BadRecord], *, of: int) -> None:
        """Quarantine records, or the whole file if too many are bad."""
        if (first := next((each for each in bad if _halts(source, is_schema=each.is_schema)), None)) is not None:
            why = f"line {first.position}: {first.reason}: {(first.raw or '')[:_SHOWN]!r}"
            raise _halting(source, member, why, is_schema=first.is_schema)
        number = member.sequence_id
        self.quarantine.keep(number, bad)
        kept = self.quarantine.records[number]
        if len(kept) > source.scan.max_bad_ratio * of:
            why = _WHOLE.format(source.scan.max_bad_ratio, len(kept), of, kept[0].position, kept[0].reason)
            self.refuse(source, member, why, is_schema=kept[0].is_schema)

    def refuse(self, source: DirectorySource, member: Assigned, reason: str, *, is_schema: bool = False) -> None:
        """Quarantine a whole file, or halt the region."""
        if _halts(source, is_schema=is_schema):
            raise _halting(source, member, reason, is_schema=is_schema)
        self.quarantine.refuse(member.sequence_id, reason)


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
