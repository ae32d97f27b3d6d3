"""Autonomous input of a region: its files are read at most once, and no group waits for them.

When a group is processed, a feed takes the files that have come since its cursor. The cursor is moved before the first
row is read (`Outside.take_feed`). So the files of a failed attempt are lost, and a replay reads later files or none.
No error here fails a group: unreadable input is left out, and counted in the group's checkpoint row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from drainmark.jobs import world
from drainmark.jobs.errors import DrainmarkError, InputChanged, InputMissing, Interrupted
from drainmark.jobs.failpoints import FailPoint
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.graph.blame import summary_of
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.operators.sources.files.directory_source import DirectorySource
from drainmark.jobs.operators.sources.source import empty_rows
from drainmark.jobs.protocol.records.manifest import FeedTaken
from drainmark.jobs.protocol.records.triggers import Trigger
from drainmark.jobs.runtime.input.attempt import Attempt
from drainmark.jobs.runtime.input.file_intake import FileIntake
from drainmark.jobs.runtime.input.inbox import Assigned, Group, GroupInbox
from drainmark.jobs.state.handlers.permits import PermitGate
from drainmark.jobs.tasks.places import TooLarge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FOLDER = "_feeds"
"""Name of the folder of the feeds' files below an attempt's inbox."""

_FILE_SHIFT = 40
"""The block of a row's position has the number of the feed's file above this bit, and the block in the file below."""


def feeding_sources(feeds: Sequence[Operator]) -> list[DirectorySource]:
    """Return the autonomous sources among a region's feeds."""
    return [operator for operator in feeds if isinstance(operator, DirectorySource)]


@dataclass(slots=True, kw_only=True)
class Feeding:
    """The feeds of one attempt at a group, taken and read; used once.

    Attributes:
        attempt: all rows of the feeds get the first id of its group.
        ports: a cursor is moved under a permit of these, so never while a state is established or reset.
        life: number of resets of the region when the attempt began.
        taken: by name of the source; complete once `take` has returned.
    """

    attempt: Attempt
    region: str
    ports: PermitGate
    life: int
    taken: dict[str, FeedTaken] = field(default_factory=dict)

    def take(self, sources: Sequence[DirectorySource]) -> dict[str, DataFrame]:
        """Return the new rows by stream; a stream without new rows has an empty frame."""
        frames: dict[str, DataFrame] = {}
        for source in sources:
            rows: Mapping[str, DataFrame] = {}
            try:
                rows = self._take(source)
            except Exception as error:  # injected failures, too: a feed never fails a group
                before = self.taken.get(source.name, FeedTaken())
                self.taken[source.name] = replace(before, rows=0, error=sentence_of(error))
            for output in source.outputs:
                stream = source.stream(output)
                found = rows.get(stream)
                frames[stream] = self._nothing(source, output) if found is None else found
        return frames

    def _nothing(self, source: DirectorySource, output: str) -> DataFrame:
        return empty_rows(self.attempt.session, source, output, self.attempt.outside.access)

    def _take(self, source: DirectorySource) -> Mapping[str, DataFrame]:
        with self.ports.permit() as granted:
            if granted.resets != self.life:  # this attempt was abandoned: files that it takes would be lost
                raise Interrupted("the group was abandoned", operator=source.name)
            world.pass_point(FailPoint.FEED_BEFORE)
            triggers = self.attempt.outside.take_feed(self.region, source, self.attempt.group.first_id)
            world.pass_point(FailPoint.FEED_AFTER)
        if not triggers:
            return {}
        self.taken[source.name] = FeedTaken(files=len(triggers))
        on_schema = "quarantine" if source.scan.on_schema == "halt" else source.scan.on_schema
        tolerant = replace(source, scan=replace(source.scan, on_bad="quarantine", on_schema=on_schema))
        while triggers:
            files = self._numbered(triggers)
            try:
                return self._read(tolerant, files, missing=self.taken[source.name].files - len(triggers))
            except (InputMissing, InputChanged) as error:
                gone = {trigger.id for trigger in error.facts["triggers"]}
                triggers = [trigger for trigger in triggers if trigger.id not in gone]
        self.taken[source.name] = FeedTaken(files=self.taken[source.name].files, bad=self.taken[source.name].files)
        return {}

    def _read(self, source: DirectorySource, files: Group, *, missing: int) -> Mapping[str, DataFrame]:
        intake, rows = self._taken(source, files)
        bad = sum(intake.quarantine.counts().values())
        self.taken[source.name] = FeedTaken(
            files=len(files.members) + missing, rows=sum(intake.rows_in.values()) - bad, bad=bad + missing
        )
        return {stream: self._tagged(frame) for stream, frame in rows.items()}

    def _taken(self, source: DirectorySource, files: Group) -> tuple[FileIntake, Mapping[str, DataFrame]]:
        attempt = self.attempt.for_input(files.bytes_to_read)
        try:
            return self._taken_by(attempt, source, files)
        except TooLarge:
            return self._taken_by(attempt.by_tasks(), source, files)

    @staticmethod
    def _taken_by(
        attempt: Attempt, source: DirectorySource, files: Group
    ) -> tuple[FileIntake, Mapping[str, DataFrame]]:
        folder, follow_links = attempt.folder / FOLDER / source.name, source.scan.follow_links
        inbox = GroupInbox(folder, files, attempt.outside.inputs, follow_links=follow_links)
        intake = FileIntake(attempt=attempt, inbox=inbox)
        try:
            inbox.fill(by_tasks=attempt.executor.tasks.is_remote, here=attempt.engine.shares_disk)
            return intake, intake.take(source)
        except (InputMissing, InputChanged, TooLarge):
            inbox.remove()
            raise

    def _numbered(self, triggers: Sequence[Trigger]) -> Group:
        """Return the files as a group of their own, numbered by their place in the feed instead of sequence ids."""
        members = tuple(Assigned(sequence_id=place, trigger=found) for place, found in enumerate(triggers, start=1))
        return Group(members=members, epoch=self.attempt.group.epoch, attempt=self.attempt.group.attempt)

    def _tagged(self, rows: DataFrame) -> DataFrame:
        """Return the rows with the id of the group's first trigger, and positions in the order of the files."""
        block = f"shiftleft({SEQUENCE_ID}, {_FILE_SHIFT}) + {POSITION}.block"
        others = (quoted_name(name) for name in rows.columns if name not in (SEQUENCE_ID, POSITION))
        return rows.selectExpr(
            f"cast({self.attempt.group.first_id} as bigint) as {SEQUENCE_ID}",
            f"struct({block} as block, {POSITION}.row as row) as {POSITION}",
            *others,
        )


def sentence_of(error: BaseException) -> str:
    """Return the text to note for an error that fails no group."""
    return error.message if isinstance(error, DrainmarkError) else summary_of(error)
