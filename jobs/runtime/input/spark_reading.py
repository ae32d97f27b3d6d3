"""The reading of a group's files with Spark; a file that Spark cannot read is refused, the others are read again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drainmark.jobs.errors import AccountingError, DrainmarkError
from drainmark.jobs.failpoints import InjectedFailure
from drainmark.jobs.formats.format import Expected, format_of
from drainmark.jobs.formats.lines.line_format import PLAIN
from drainmark.jobs.frames.row_types import tagged_type
from drainmark.jobs.frames.tags import CORRUPT, POSITION, RESCUED, SEQUENCE_ID
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.runtime.input.file_inspection import FileInspection
from drainmark.jobs.runtime.input.inbox import Assigned, Group, GroupInbox
from drainmark.jobs.runtime.input.materialisation import Materialiser
from drainmark.jobs.runtime.input.refusals import Refusals
from drainmark.jobs.tasks.inspected_files import VALUE, Values
from drainmark.jobs.tasks.parquet_files import frame_of_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_THREADS = 2
_FILE_NAME = re.compile(r"(\d{19})\.\w+")
_UNREADABLE = ("FAILED_READ_FILE", "not in gzip format", "ZipException", "EOFException", "MALFORMED_")
_FAULTS_OF_MACHINES = (
    *("FILE_NOT_EXIST", "FileNotFoundException", "No such file", "AccessDenied", "AccessControlException"),
    *("Permission denied", "Too many open files", "Input/output error", "Stale file handle", "No space left"),
    *("AWSServiceIOException", "AWSClientIOException", "AWSS3IOException", "SdkClientException", "RemoteFileChanged"),
    *("SocketTimeout", "Unable to execute HTTP request", "ConnectTimeout", "UnknownHost"),
)
"""Faults with the same error class as bad content. The file is good: another machine or a later attempt may read it."""
_OWN_NAME = re.compile(r"\S*/\d{19}\.\w+")
_END_OF_PATH = r"(?![A-Za-z0-9_=/-]|\.[A-Za-z0-9])"


@dataclass(slots=True, kw_only=True)
class SparkReading:
    """The reading of one attempt's files with Spark.

    Attributes:
        apart: files of several layouts are in one folder.
    """

    session: SparkSession
    group: Group
    inbox: GroupInbox
    materialiser: Materialiser
    inspection: FileInspection
    refusals: Refusals
    apart: bool = False
    _is_searched: bool = False

    def read(
        self, source: DirectorySource, output: str, members: Sequence[Assigned], expected: Expected
    ) -> tuple[DataFrame, Mapping[int, tuple[int, int]]]:
        """Materialise and count the rows. If Spark cannot read a file, refuse the file and read the others again.

        If an object cannot be read in place, fetch and inspect it like any other: its content may be bad, or the store
        was unavailable for a moment.
        """
        while True:
            left = [member for member in members if not self.refusals.has_refused(member)]
            parsed = self._parsed(source, output, left)
            corrupt = CORRUPT if CORRUPT in parsed.columns else None
            try:
                return self.materialiser.counted(parsed, corrupt)
            except (DrainmarkError, InjectedFailure):
                raise
            except Exception as error:
                remote = self._named_in(str(error), left)
                if remote is not None and self.inspection.is_on_disk:
                    self.inbox.fetch(remote)
                    self.inspection.inspect(source, remote, expected)
                    continue
                found = _FILE_NAME.search(str(error))
                if (found is None and remote is None) or not is_about_content(str(error)):
                    raise
                member = remote or self.group.member(int(found.group(1)) if found else 0)
                self.refusals.refuse(source, member, f"cannot be read as {expected.format}: {_cause(str(error))}")
                if expected.reads.is_judged_in_part and not self._is_searched:
                    self._is_searched = True
                    others = (other for other in left if other is not member)
                    here = [other for other in others if not self.inbox.is_in_place(other)]
                    self._search(source, output, here, expected)

    def _parsed(self, source: DirectorySource, output: str, members: Sequence[Assigned]) -> DataFrame:
        """Define the read of a group's files: those that the inspection turned into values, and the others."""
        values = self.inspection.values.get(output, Values())
        in_files = [member for member in members if member.sequence_id not in values.ids]
        if len(in_files) == len(members) and source.scan.on_schema != "rescue":
            return self._of_files(source, output, in_files)
        ids = sorted(values.ids.intersection(member.sequence_id for member in members))
        parsed = self._of_values(source, output, values, ids)
        return parsed.unionByName(self._of_files(source, output, in_files)) if in_files else parsed

    def _of_values(self, source: DirectorySource, output: str, values: Values, ids: Sequence[int]) -> DataFrame:
        """Parse values with Spark's functions, into the columns of `DirectorySource.read`."""
        from pyspark.sql.types import StructType

        further = (RESCUED,) if source.scan.on_schema == "rescue" else ()
        schema = tagged_type(
            StructType.fromDDL(", ".join([f"{VALUE} binary", *(f"{name} string" for name in further)]))
        )
        if values.place is not None and values.names:
            rows = frame_of_files(self.session, values.place, values.names, schema)
        else:
            rows = self.session.createDataFrame([], schema)
        reads, scan = format_of(source.scan.format), source.scan
        given = scan.options.items()
        options = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given}
        columns = reads.columns_of_values(VALUE, scan.schema_of(output), options)
        listed = ",".join(map(str, ids)) or "null"
        return rows.where(f"{SEQUENCE_ID} in ({listed})").selectExpr(SEQUENCE_ID, POSITION, *columns, *further)

    def _of_files(self, source: DirectorySource, output: str, members: Sequence[Assigned]) -> DataFrame:
        """Define the read of files: those of the inbox, and those that Spark reads in place."""
        from pyspark.sql.types import StructType

        if not members and (self.apart or not self.inspection.is_on_disk):  # no paths, or a folder out of reach
            declared = StructType.fromDDL(source.scan.schema_of(output) or "value string")
            return self.session.createDataFrame([], tagged_type(declared))
        rows = self._of_all_files(source, output, members)
        _check_files(source, len(rows.inputFiles()), len(members))
        return rows

    def _of_all_files(self, source: DirectorySource, output: str, members: Sequence[Assigned]) -> DataFrame:
        addresses = {
            self.inbox.addresses[member.sequence_id]: member.sequence_id
            for member in members
            if self.inbox.is_in_place(member)
        }
        if not addresses:
            return source.read(self.session, self._paths(output, members), output)
        in_place = source.read_in_place(self.session, addresses, output)
        if len(addresses) == len(members):
            return in_place
        return source.read(self.session, self._paths(output, members), output).unionByName(in_place)

    def _paths(self, output: str, members: Sequence[Assigned]) -> list[str]:
        """Return the paths that Spark will read in the inbox: the folder, or each file if layouts differ in it."""
        if not self.apart:
            return [str(self.inbox.output_folder(output))]
        here = [self.inbox.path(member) for member in members if not self.inbox.is_in_place(member)]
        return [str(path if path.exists() else path.with_suffix(PLAIN)) for path in here]

    def _named_in(self, error: str, members: Sequence[Assigned]) -> Assigned | None:
        """Return the in-place object that an error of Spark names; None if it names none."""
        for member in members:
            address = self.inbox.addresses.get(member.sequence_id)
            if address is not None and re.search(re.escape(address) + _END_OF_PATH, error):
                return member
        return None

    def _search(self, source: DirectorySource, output: str, members: Sequence[Assigned], expected: Expected) -> None:
        """Find further files that Spark cannot read: inspect all, then let Spark read each suspect; Spark decides."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="inspect") as pool:
            faults = list(pool.map(lambda member: expected.reads.fault_within(self.inbox.path(member)), members))
        for member in (member for member, fault in zip(members, faults, strict=True) if fault is not None):
            try:
                alone = source.read(self.session, [str(self.inbox.path(member))], output)
                alone.write.format("noop").mode("overwrite").save()
            except Exception as error:
                if not is_about_content(str(error)):
                    raise
                self.refusals.refuse(source, member, f"cannot be read as {expected.format}: {_cause(str(error))}")


def _check_files(source: DirectorySource, found: int, expected: int) -> None:
    if found != expected:
        msg = f"Spark lists {found} of the group's {expected} files"
        raise AccountingError(msg, operator=source.name, location=source.location)


def is_about_content(error: str) -> bool:
    """Say whether an error of Spark that names a file is the fault of the file's content."""
    return any(sign in error for sign in _UNREADABLE) and not any(sign in error for sign in _FAULTS_OF_MACHINES)


def _cause(text: str) -> str:
    """Return the innermost cause of an error of Spark, without the name that only this attempt gives to the file."""
    causes = [line.split("Caused by:", 1)[1].strip() for line in text.splitlines() if "Caused by:" in line]
    return _OWN_NAME.sub("", (causes or text.splitlines())[-1 if causes else 0])[:300]
