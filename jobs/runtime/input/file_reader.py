"""What a group takes in: its files inspected, read by Spark once, and every record accounted for (I9–I14, I19, H16).

A record that cannot be read goes into the region's quarantine table, or halts the region, as the source's `on_bad`
says. Rows in are rows accepted plus rows quarantined, for each id; a file that is quarantined whole counts as one row.
Nothing here depends on which triggers share a group. Objects that Spark reads where they are cannot be inspected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from drainmark.jobs.errors import AccountingError, BadInput, DrainmarkError
from drainmark.jobs.failpoints import InjectedFailure
from drainmark.jobs.formats.arrow_parser import Content, Parsed, Parser, can_parse, schema_of
from drainmark.jobs.formats.bad_records import CAPS, BadRecord, Verdict
from drainmark.jobs.formats.expected import Expected
from drainmark.jobs.formats.inspection import count_records, inspect
from drainmark.jobs.formats.parquet import Columns, fault_of_pages
from drainmark.jobs.formats.spark_rejects import bad_records, misfits_of
from drainmark.jobs.frames.tags import CORRUPT, SEQUENCE_ID
from drainmark.jobs.graph.context import with_source_file
from drainmark.jobs.operators.sources.directory_source import DirectorySource
from drainmark.jobs.runtime.input.inbox import PARSED_FOLDER, Assigned, Group, Inbox, paths_by_id
from drainmark.jobs.runtime.input.materialisation import Materialiser
from drainmark.jobs.runtime.input.quarantine_rows import Quarantine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE_NAME = re.compile(r"(\d{19})\.\w+")
_UNREADABLE = ("FAILED_READ_FILE", "not in gzip format", "ZipException", "EOFException", "MALFORMED_")
_FAULTS_OF_MACHINES = (
    *("FILE_NOT_EXIST", "FileNotFoundException", "No such file", "AccessDenied", "AccessControlException"),
    *("Permission denied", "Too many open files", "Input/output error", "Stale file handle", "No space left"),
)
"""Under the same error class as bad content: here the file is good, and an attempt elsewhere or later may read it."""
_OWN_NAME = re.compile(r"\S*/\d{19}\.\w+")
_END_OF_PATH = r"(?![A-Za-z0-9_=/-]|\.[A-Za-z0-9])"
_INSPECTORS = 2
_SHOWN = 200
_WHOLE = "nothing is read of a file of which more than {:.0%} is bad: {} of {} rows; the first, line {}: {}"


@dataclass(slots=True, kw_only=True)
class Intake:
    """Reads one attempt's input; used once.

    Attributes:
        rows_in: by id, rows accepted and quarantined.
        quarantine: what was kept out.
    """

    session: SparkSession
    group: Group
    inbox: Inbox
    materialiser: Materialiser
    rows_in: dict[int, int] = field(default_factory=dict)
    quarantine: Quarantine = field(default_factory=Quarantine)
    _records: dict[int, int | None] = field(default_factory=dict)
    _is_searched: bool = False

    def take(self, sources: Sequence[DirectorySource]) -> dict[str, DataFrame]:
        """Return the rows of each output, by stream, materialised with all their columns before any projection (H16).

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

    def _take(self, source: DirectorySource, output: str) -> DataFrame:
        members = [member for member in self.group.members if member.trigger.output == output]
        self.rows_in.update(dict.fromkeys((member.sequence_id for member in members), 0))
        self.inbox.output_folder(output).mkdir(parents=True, exist_ok=True)
        expected = expected_of(source, output)
        parsed = self._parse(source, output, members, expected)
        done = [member for member in members if member.sequence_id in parsed.counts]
        left = [member for member in members if member.sequence_id not in parsed.counts]
        self._check_counts(source, done, {number: (rows, 0) for number, rows in parsed.counts.items()}, expected)
        self.rows_in.update(parsed.counts)
        frame = self.materialiser.parsed(parsed, schema_of(expected)) if parsed.counts else None
        if frame is None or any(member.sequence_id not in self.quarantine.files for member in left):
            rows = self._read_good(source, output, left, expected)
            frame = rows if frame is None else self.materialiser.joined(frame, rows)
        return with_source_file(frame, self.group.first_id, paths_by_id(self.group.members))

    # --- before Spark reads ------------------------------------------------------------------------------------------

    def _parse(self, source: DirectorySource, output: str, members: Sequence[Assigned], expected: Expected) -> Parsed:
        """Inspect the files, and parse those that are good and plain; Spark gets to see the others only.

        An object that is read where it is cannot be looked at first: Spark's parser alone judges it.
        """
        here = [member for member in members if not self._is_in_place(member)]
        if not can_parse(expected):
            self._inspect(source, here, expected)
            return Parsed()
        folder = None if self.materialiser.small else self.inbox.folder / PARSED_FOLDER / (output or "all")
        parser = Parser(expected, folder)
        try:
            self._inspect(source, here, replace(expected, parsed_here=True), parser)
            parsed = parser.finish()
        finally:
            parser.close()
        if expected.lossless.matters_in_csv:
            self._inspect(source, [member for member in here if self._is_as_scanned(member, parsed)], expected)
        if len(parsed.counts) < len(here):
            for number in parsed.counts:
                self.inbox.put_aside(self.group.member(number))
        return parsed

    def _is_as_scanned(self, member: Assigned, parsed: Parsed) -> bool:
        """Is a file Spark's to read, with its values still to be judged?"""
        number = member.sequence_id
        is_judged = number in self.quarantine.files or self.inbox.original(member).exists()
        return number not in parsed.counts and not is_judged

    def _inspect(
        self, source: DirectorySource, members: Sequence[Assigned], expected: Expected, parser: Parser | None = None
    ) -> None:
        def verdict_on(member: Assigned) -> Verdict:
            cleaned = self.inbox.folder / f"{member.sequence_id:019d}.cleaned"
            if parser is None:
                return inspect(self.inbox.path(member), expected, cleaned)
            content = Content()
            verdict = inspect(self.inbox.path(member), expected, cleaned, content.take)
            if verdict.is_good and content.is_whole:
                parser.add(member.sequence_id, b"".join(content.pieces), verdict.records or 0)
            return verdict

        if len(members) > 1 and expected.format in ("json", "parquet"):  # these parsers let go of Python's lock
            with ThreadPoolExecutor(_INSPECTORS, thread_name_prefix="inspect") as pool:
                verdicts = list(pool.map(verdict_on, members))
        else:
            verdicts = [verdict_on(member) for member in members]
        for member, verdict in zip(members, verdicts, strict=True):
            # Of a line that is an array Spark makes any number of rows, where it is told not to be strict.
            self._records[member.sequence_id] = verdict.records if expected.has_row_a_record else None
            if verdict.refused is not None:
                self._refuse(source, member, verdict.refused, is_schema=verdict.is_schema)
            elif verdict.bad:
                self._keep(source, member, verdict.bad, of=len(verdict.bad) + (verdict.records or 0))
                refused = member.sequence_id in self.quarantine.files
                if not refused:
                    self.inbox.put_aside(member, verdict.cleaned)

    # --- Spark -------------------------------------------------------------------------------------------------------

    def _read_good(
        self, source: DirectorySource, output: str, members: Sequence[Assigned], expected: Expected
    ) -> DataFrame:
        """Return the good rows of files that Spark reads; the others are quarantined."""
        rows, counts = self._read(source, output, members, expected)
        self._check_counts(source, members, counts, expected)
        self._keep_misfits(source, rows, counts, expected)
        refused = [number for number in counts if number in self.quarantine.files]
        if CORRUPT in rows.columns:
            rows = (rows.where(f"{CORRUPT} is null") if any(bad for _, bad in counts.values()) else rows).drop(CORRUPT)
        if refused:
            rows = rows.where(f"{SEQUENCE_ID} not in ({','.join(map(str, refused))})")
        for number, (read, bad) in counts.items():
            self.rows_in[number] += 0 if number in refused else read - bad
        return rows

    def _read(
        self, source: DirectorySource, output: str, members: Sequence[Assigned], expected: Expected
    ) -> tuple[DataFrame, Mapping[int, tuple[int, int]]]:
        """Materialise and count; a file that Spark alone cannot read is taken out, and the others are read anew.

        An object that cannot be read where it is, is fetched and judged as any other: its content may be bad, or the
        store was away for a moment.
        """
        while True:
            left = [member for member in members if member.sequence_id not in self.quarantine.files]
            parsed = self._parsed(source, output, left)
            _check_files(source, len(parsed.inputFiles()), len(left))
            corrupt = CORRUPT if CORRUPT in parsed.columns else None
            try:
                return self.materialiser.counted(parsed, corrupt)
            except (DrainmarkError, InjectedFailure):
                raise
            except Exception as error:
                remote = self._named_in(str(error), left)
                if remote is not None:
                    self.inbox.fetch(remote)
                    self._inspect(source, [remote], expected)
                    continue
                found = _FILE_NAME.search(str(error))
                if found is None or not _is_about_content(str(error)):
                    raise
                member = self.group.member(int(found.group(1)))
                self._refuse(source, member, f"cannot be read as {expected.format}: {_cause(str(error))}")
                if expected.format == "parquet" and not self._is_searched:
                    self._is_searched = True
                    others = (other for other in left if other is not member)
                    self._search(source, output, [other for other in others if not self._is_in_place(other)])

    def _parsed(self, source: DirectorySource, output: str, members: Sequence[Assigned]) -> DataFrame:
        """Define the read of a group's files: those of the inbox, and those that are read where they are."""
        addresses = {
            self.inbox.addresses[member.sequence_id]: member.sequence_id
            for member in members if self._is_in_place(member)
        }  # fmt: skip
        if not addresses:
            return source.read(self.session, [str(self.inbox.output_folder(output))], output)
        in_place = source.read_in_place(self.session, addresses, output)
        if len(addresses) == len(members):
            return in_place
        return source.read(self.session, [str(self.inbox.output_folder(output))], output).unionByName(in_place)

    def _named_in(self, error: str, members: Sequence[Assigned]) -> Assigned | None:
        """Return the object, read where it is, that an error of Spark's names."""
        for member in members:
            address = self.inbox.addresses.get(member.sequence_id)
            if address is not None and re.search(re.escape(address) + _END_OF_PATH, error):
                return member
        return None

    def _is_in_place(self, member: Assigned) -> bool:
        return member.sequence_id in self.inbox.addresses

    def _search(self, source: DirectorySource, output: str, members: Sequence[Assigned]) -> None:
        """Find further files that Spark would stumble over, one after the other; its word alone decides."""
        with ThreadPoolExecutor(_INSPECTORS, thread_name_prefix="inspect") as pool:
            faults = list(pool.map(lambda member: fault_of_pages(self.inbox.path(member)), members))
        for member in (member for member, fault in zip(members, faults, strict=True) if fault is not None):
            try:
                alone = source.read(self.session, [str(self.inbox.path(member))], output)
                alone.write.format("noop").mode("overwrite").save()
            except Exception as error:
                if not _is_about_content(str(error)):
                    raise
                self._refuse(source, member, f"cannot be read as parquet: {_cause(str(error))}")

    def _check_counts(
        self,
        source: DirectorySource,
        members: Sequence[Assigned],
        counts: Mapping[int, tuple[int, int]],
        expected: Expected,
    ) -> None:
        """Compare Spark's count of each file with that of the inspection, which is exact after a second look.

        Of some damaged Parquet files Spark reads fewer rows than there are, and says nothing.
        """
        for member in members:
            number, records = member.sequence_id, self._records.get(member.sequence_id)
            found, path = counts.get(number, (0, 0))[0], self._path(member)
            if path is None or records is None or found == records or number in self.quarantine.files:
                continue
            if expected.format == "parquet":
                self._refuse(source, member, f"has {records} rows, and Spark reads {found} of them")
                continue
            if expected.format != "binary":
                records = count_records(path, expected) - len(self.quarantine.records.get(number, ()))
            if found != records:
                msg = f"{member.trigger.uri} has {records} records, and Spark read {found}"
                raise AccountingError(msg, operator=source.name, location=source.location, trigger=member.trigger.uri)

    def _keep_misfits(
        self, source: DirectorySource, rows: DataFrame, counts: Mapping[int, tuple[int, int]], expected: Expected
    ) -> None:
        """Quarantine the rows that do not fit the schema; one Spark job more, where there are some."""
        wrong = sorted(number for number, (_, bad) in counts.items() if bad)
        listed = [number for number in wrong if counts[number][1] <= CAPS.bad_rows and not _is_document(expected)]
        misfits = misfits_of(rows, CORRUPT, listed) if listed else {}
        for number in wrong:
            member, (read, bad) = self.group.member(number), counts[number]
            found = misfits.get(number)
            if found is None:
                why = f"has values that do not fit the declared columns, in {bad} of {read} rows"
                self._refuse(source, member, why)
                continue
            if len(found) != bad:
                msg = f"{member.trigger.uri} has {bad} rows that do not fit, and {len(found)} were found"
                raise AccountingError(msg, operator=source.name, location=source.location, trigger=member.trigger.uri)
            before = len(self.quarantine.records.get(number, ()))
            self._keep(source, member, bad_records(found, self._path(member), expected), of=before + read)

    # --- policies ----------------------------------------------------------------------------------------------------

    def _keep(self, source: DirectorySource, member: Assigned, bad: Sequence[BadRecord], *, of: int) -> None:
        """Quarantine records, or the whole file where too many are bad."""
        if source.scan.on_bad == "halt":
            first = bad[0]
            raise _halting(source, member, f"line {first.position}: {first.reason}: {(first.raw or '')[:_SHOWN]!r}")
        number = member.sequence_id
        self.quarantine.keep(number, bad)
        kept = self.quarantine.records[number]
        if len(kept) > source.scan.max_bad_ratio * of:
            why = _WHOLE.format(source.scan.max_bad_ratio, len(kept), of, kept[0].position, kept[0].reason)
            self._refuse(source, member, why)

    def _refuse(self, source: DirectorySource, member: Assigned, reason: str, *, is_schema: bool = False) -> None:
        """Quarantine a whole file, or halt."""
        if (source.scan.on_schema if is_schema else source.scan.on_bad) == "halt":
            raise _halting(source, member, reason)
        self.quarantine.refuse(member.sequence_id, reason)
        if self._is_in_place(member):
            return
        if self.inbox.original(member).exists():
            self.inbox.path(member).with_suffix(".data").unlink()
        else:
            self.inbox.put_aside(member)

    def _path(self, member: Assigned) -> Path | None:
        """Return the file as it was scanned, None where it is not on this machine."""
        if self._is_in_place(member):
            return None
        original = self.inbox.original(member)
        return original if original.exists() else self.inbox.path(member)


def expected_of(source: DirectorySource, output: str) -> Expected:
    """Return what the files of an output are declared to be."""
    ddl = source.scan.schema_of(output)
    return Expected(
        format=source.scan.format,
        columns=_columns(ddl) if ddl is not None else None,
        options={name.lower(): str(value) for name, value in source.scan.options.items()},
        strict=source.scan.strict,
        rounding=source.scan.rounding,
    )


@lru_cache(maxsize=64)
def _columns(ddl: str) -> Columns:
    from pyspark.sql.types import StructType

    return tuple((column.name, column.dataType) for column in StructType.fromDDL(ddl).fields)


def _is_document(expected: Expected) -> bool:
    return expected.format == "json" and expected.has_multiline


def _check_files(source: DirectorySource, found: int, expected: int) -> None:
    if found != expected:
        msg = f"Spark lists {found} of the group's {expected} files"
        raise AccountingError(msg, operator=source.name, location=source.location)


def _halting(source: DirectorySource, member: Assigned, reason: str) -> BadInput:
    trigger = member.trigger
    return BadInput(
        f"{trigger.uri}: {reason}",
        operator=source.name,
        location=source.location,
        remedy=f"mend the file, or: drainmark skip {trigger.region} --file '{trigger.uri}' --reason '…', "
        'or on_bad="quarantine" at the source',
        triggers=(trigger,),
    )


def _is_about_content(error: str) -> bool:
    return any(sign in error for sign in _UNREADABLE) and not any(sign in error for sign in _FAULTS_OF_MACHINES)


def _cause(text: str) -> str:
    """Return the innermost cause of what Spark raised, less the name that only this attempt knows the file by."""
    causes = [line.split("Caused by:", 1)[1].strip() for line in text.splitlines() if "Caused by:" in line]
    return _OWN_NAME.sub("", (causes or text.splitlines())[-1 if causes else 0])[:300]
