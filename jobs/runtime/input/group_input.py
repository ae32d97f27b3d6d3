"""The input of a group from all starts of its region: files, slices of files, and slices of rows.

Files of an operator-driven region go to one `FileIntake`, one id per file. The files of slices form a group of their
own, numbered from 1, and get the id of their slice afterwards: so they are inspected, parsed, counted and quarantined
like any other files. Rows that a source gives are taken unchanged, in the types that the source declares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainmark.jobs.errors import DrainmarkError, InputChanged, InputMissing, SliceLost
from drainmark.jobs.formats.byte_records import BAD, RAW, separated
from drainmark.jobs.frames.names import quoted
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.graph.context import with_source_file
from drainmark.jobs.operators.sources.contract import RowSlices
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.operators.sources.files.file_source import FileSlices
from drainmark.jobs.operators.sources.source import SlicedSource, Source, empty_rows
from drainmark.jobs.protocol.records.triggers import FILE, kind_of
from drainmark.jobs.runtime.input.attempt import Attempt
from drainmark.jobs.runtime.input.file_intake import FileIntake
from drainmark.jobs.runtime.input.inbox import Assigned, Group, GroupInbox, paths_by_id
from drainmark.jobs.runtime.input.quarantine_rows import Quarantine, put_aside
from drainmark.jobs.runtime.input.row_slices import RowIntake
from drainmark.jobs.runtime.input.slice_inputs import files_of_slices, note_fetched, require_same_bytes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from drainmark.jobs.runtime.input.inbox import PartInputs
    from drainmark.jobs.runtime.outside import Outside
    from drainmark.resources.inputs.inputs import Inputs

_BLOCK = 1 << 40
"""More than any file's length: (place of the file in its slice) * `_BLOCK` + (block in the file) is one number."""


@dataclass(slots=True, kw_only=True)
class GroupInput:
    """The intake of one attempt's input; each instance is used once.

    Attributes:
        horizon: how many ids back the region can be rewound.
        rows_in: by id, the number of rows accepted plus rows quarantined.
        quarantined: by id, the number of rows for the quarantine table.
        remarks: by id, a text for the history, for example why a file was quarantined whole.
        aside: by id, the rows that operators could not interpret.
    """

    attempt: Attempt
    sources: Sequence[Source]
    horizon: int
    rows_in: dict[int, int] = field(default_factory=dict)
    quarantined: dict[int, int] = field(default_factory=dict)
    remarks: dict[int, str] = field(default_factory=dict)
    aside: Quarantine = field(default_factory=Quarantine)
    _inboxes: list[tuple[Source, GroupInbox]] = field(default_factory=list)
    _intakes: list[tuple[FileIntake, Mapping[int, int]]] = field(default_factory=list)

    @property
    def group(self) -> Group:
        return self.attempt.group

    @property
    def outside(self) -> Outside:
        return self.attempt.outside

    def take(self) -> dict[str, DataFrame]:
        """Return the rows of every stream that a source gives, by stream name.

        Raises:
            BadInput, AccountingError: see `FileIntake.take`.
            InputChanged, InputMissing: a file has changed since the scan, or is gone.
            SliceLost: a slice can no longer be read as it was cut.
            TooLarge: another executor must do the attempt.
        """
        self.rows_in.update(dict.fromkeys((member.sequence_id for member in self.group.members), 0))
        frames: dict[str, DataFrame] = {}
        for source in self.sources:
            if all(kind_of(member.trigger.identity) == FILE for member in self.group.members):
                frames.update(self._files(source))
            elif isinstance(source, SlicedSource) and isinstance(source.reads, RowSlices):
                frames[source.stream("")] = self._rows(source, source.reads)
            else:
                frames.update(self._sliced_files(source))
        return frames

    def check(self) -> None:
        """After reading, check that no file has changed since it was found.

        Raises:
            InputChanged, InputMissing, SliceLost: see `take`.
        """
        for source, inbox in self._inboxes:
            if inbox.group is self.group:
                inbox.check()
            else:
                with self._losing(source):
                    inbox.check()

    def remove(self) -> None:
        """Delete the attempt's inbox and the files that its tasks wrote."""
        GroupInbox(self.attempt.folder, self.group, self.outside.inputs).remove()
        with suppress(DrainmarkError):  # must not hide the outcome of the attempt; `gc` deletes the files, too
            self.attempt.files.delete("")

    def quarantine_rows(self) -> pa.Table | None:
        """Return the rows for the quarantine table in the order of their ids; None if there are none."""
        import pyarrow as pa

        tables = []
        for intake, ids in self._intakes:
            rows = intake.quarantine.rows(intake.uris())
            if rows is None:
                continue
            place = rows.column_names.index(SEQUENCE_ID)
            numbers = [ids.get(number, number) for number in rows[SEQUENCE_ID].to_pylist()]
            tables.append(rows.set_column(place, rows.schema.field(place), pa.array(numbers, pa.int64())))
        found = self.aside.rows({member.sequence_id: member.trigger.uri for member in self.group.members})
        tables += [found] if found is not None else []
        return pa.concat_tables(tables).sort_by(SEQUENCE_ID) if tables else None

    # --- files -------------------------------------------------------------------------------------------------------

    def _files(self, source: Source) -> dict[str, DataFrame]:
        """Read files that are triggers themselves."""
        if not isinstance(source, DirectorySource):
            msg, remedy = f"{source.name!r} reads no files, and files are pending", "reset the region, or skip them"
            raise SliceLost(msg, operator=source.name, location=source.location, remedy=remedy)
        inbox = GroupInbox(self.attempt.folder, self.group, self.outside.inputs, follow_links=source.scan.follow_links)
        self._inboxes.append((source, inbox))
        inbox.fill(by_tasks=self.attempt.executor.tasks.is_remote, here=self.attempt.engine.shares_disk)
        return self._taken(source, inbox, {})

    def _sliced_files(self, source: Source) -> dict[str, DataFrame]:
        """Read the files of slices, and give each row the id of its slice."""
        with self._losing(source):
            ids, files, inputs = files_of_slices(source, self.group, self.outside)
        reader = _reader_of(source)
        members = tuple(Assigned(sequence_id=number, trigger=file) for number, file in enumerate(files, 1))
        with self._losing(source):
            inbox = self._filled(source, members, inputs, ids)
            note_fetched(inbox, self.attempt.executor.tasks)
            require_same_bytes(source, self.group, ids, inputs)
            if not inbox.group.members:
                session = self.attempt.session
                return {
                    source.stream(output): empty_rows(session, source, output, self.outside.access)
                    for output in source.outputs
                }
            self._inboxes.append((source, inbox))
            frames = self._taken(reader, inbox, ids)
        return {name: renumbered(frame, ids) for name, frame in frames.items()}

    def _filled(
        self, source: Source, members: Sequence[Assigned], inputs: Inputs | PartInputs, ids: Mapping[int, int]
    ) -> GroupInbox:
        """Return an inbox with the files of slices; if the source skips missing files, without those that are gone.

        Raises:
            InputChanged, InputMissing: a file has changed since the scan, or is gone.
        """
        while True:
            group = Group(members=tuple(members), epoch=self.group.epoch, attempt=self.group.attempt)
            follow_links = isinstance(source, DirectorySource) and source.scan.follow_links
            inbox = GroupInbox(self.attempt.folder / source.name, group, inputs, follow_links=follow_links)
            try:
                if members:
                    inbox.fill(by_tasks=self.attempt.executor.tasks.is_remote, here=self.attempt.engine.shares_disk)
                if _skips_missing(source):  # tasks would notice missing objects too late to skip them
                    stored = (member.trigger for member in members if member.sequence_id in inbox.objects)
                    inputs.check(list(stored))
            except InputMissing as error:
                if not _skips_missing(source):
                    raise
                inbox.remove()
                gone = {trigger.order_index for trigger in error.facts["triggers"]}
                for member in members:
                    if member.trigger.order_index in gone:
                        self._remark(ids[member.sequence_id], f"{member.trigger.uri}: skipped, it was gone")
                members = [member for member in members if member.trigger.order_index not in gone]
            else:
                return inbox

    def _taken(self, reader: DirectorySource, inbox: GroupInbox, ids: Mapping[int, int]) -> dict[str, DataFrame]:
        intake = FileIntake(attempt=self.attempt, inbox=inbox)
        self._intakes.append((intake, ids))
        try:
            frames = intake.take(reader)
        except Exception:
            inbox.check()  # a file that changed during the read is not a bad file
            raise
        for number, rows in intake.rows_in.items():
            _add(self.rows_in, ids.get(number, number), rows)
        for number, rows in intake.quarantine.counts().items():
            _add(self.quarantined, ids.get(number, number), rows)
        for number, why in intake.quarantine.files.items():
            file = inbox.group.member(number).trigger.uri
            self._remark(ids.get(number, number), f"{file}: {why}" if ids else why)
        return frames

    # --- rows --------------------------------------------------------------------------------------------------------

    def _rows(self, source: SlicedSource, reads: RowSlices) -> DataFrame:
        intake = RowIntake.of(self.attempt, source, reads, horizon=self.horizon)
        with self._losing(source):
            frame = intake.take()
        for number, rows in intake.counts.items():
            _add(self.rows_in, number, rows)
        for number, remark in intake.remarks.items():
            self._remark(number, remark)
        if BAD in frame.columns:
            frame = self._good(source, frame, reads) if intake.bad else frame.drop(BAD, RAW)
        return with_source_file(frame, self.group.first_id, paths_by_id(self.group.members))

    def _good(self, source: SlicedSource, rows: DataFrame, reads: RowSlices) -> DataFrame:
        """Put the bad ones of rows aside, and return the others."""
        records = reads.records
        good, bad = separated(rows, records.place if records is not None else "")
        on_bad = records.on_bad if records is not None else reads.on_bad_cells
        put_aside(self.aside, source, bad, self.group, halts=on_bad == "halt")
        return good

    # --- both --------------------------------------------------------------------------------------------------------

    def _remark(self, number: int, text: str) -> None:
        self.remarks[number] = f"{self.remarks[number]}; {text}" if number in self.remarks else text

    @contextmanager
    def _losing(self, source: Source) -> Iterator[None]:
        """Turn a missing or changed file into `SliceLost`: no scan will find the slice again.

        If a file vanishes during the read and its source skips missing files, it is unknown which rows were read. So
        raise `InputMissing` without triggers: the group is read again without the file, which costs no attempt.
        """
        try:
            yield
        except (InputChanged, InputMissing) as error:
            if isinstance(error, InputMissing) and error.facts["triggers"] and _skips_missing(source):
                raise InputMissing(error.message, remedy=error.remedy, triggers=()) from error
            first = self.group.members[0].trigger
            raise SliceLost(
                error.message,
                operator=source.name,
                location=source.location,
                remedy=_WHOLE if error.facts.get("triggers") else error.remedy,
                commands=error.commands,
                trigger=first.uri,
            ) from error


_WHOLE = "put it back as it was when it was scanned"
"""Remedy for a file of a slice: a file of its own would be scanned again, or passed."""


def _skips_missing(source: Source) -> bool:
    return isinstance(source, DirectorySource) and source.scan.on_missing == "skip"


def _reader_of(source: Source) -> DirectorySource:
    """Return the `DirectorySource` that reads the files of a source of slices."""
    if isinstance(source, DirectorySource):
        return source
    reads = source.reads if isinstance(source, SlicedSource) else None
    if not isinstance(reads, FileSlices):
        raise TypeError(f"{source.name!r} gives no files")
    return DirectorySource(name=source.name, location=source.location, scan=reads.scan, function=source.function)


def _add(counts: dict[int, int], number: int, rows: int) -> None:
    counts[number] = counts.get(number, 0) + rows


def renumbered(frame: DataFrame, ids: Mapping[int, int]) -> DataFrame:
    """Return the rows of numbered files with the ids of their slices and with their `_position` in the slice.

    Args:
        ids: number of a file -> id of its slice, both ascending.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, sequence_id in ids.items():
        first.setdefault(sequence_id, number)
        last[sequence_id] = number
    whens = [(f"{SEQUENCE_ID} <= {last[number]}", number, first[number]) for number in last]
    chosen = " ".join(f"when {condition} then {number}" for condition, number, _ in whens)
    begun = " ".join(f"when {condition} then {start}" for condition, _, start in whens)
    block = f"({SEQUENCE_ID} - case {begun} end) * {_BLOCK} + {POSITION}.block"
    others = quoted([name for name in frame.columns if name not in (SEQUENCE_ID, POSITION)])
    return frame.selectExpr(
        f"cast(case {chosen} end as bigint) as {SEQUENCE_ID}",
        f"struct(cast({block} as bigint) as block, {POSITION}.row as row) as {POSITION}",
        *others,
    )
