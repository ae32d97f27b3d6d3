"""The staged files of a drained group, as its checkpoint row names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.records.manifest import FeedTaken, Image, Manifest, Sent, StagedFile
from drainmark.jobs.protocol.stage_flow import channels_folder
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.runtime.messages import trigger_columns
from drainmark.jobs.state.checkpointed_state import Frozen, Written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from drainmark.jobs.runtime.outside import RegionStore
    from drainmark.jobs.state.keyed_state import KeyedState


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """What one output of a group left in staging; nobody reads on from a table without a frame.

    Rows without files are changes of a state that its checkpoint is to write.
    """

    files: tuple[StagedFile, ...]
    rows: pa.Table | None = None
    frame: DataFrame | None = None
    image: Image | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedGroup:
    """A drained group: everything the checkpoint row names.

    Attributes:
        rows_in: rows read, by id; 0 for an empty file. What is quarantined is among them.
        rows_quarantined: by id, where there are any.
        unmet: by id, where there are any, how many rows do not meet which expectation.
        refused: by id, what the history is to say of it: why a file was quarantined whole, mostly.
        feeds: by name of an autonomous source, what was taken.
        sent: by name of a table outside of the region, what was written already.
        tables: by name of APPEND or CHANGES table.
        states: by name of a state's table, the states that the group was processed with: a reset, which gives the group
            up, puts others in their place.
        frozen, written: by name of a state's table, what its checkpoint has to write, and what it has written.
        progress_id: of the row that commits what stages finished late; None where the group's last id has the row.
        in_flight: files of the channels that the row names.
        stages, channels, spans, restarts, dropped_intervals: see `Manifest`.
    """

    group: Group
    rows_in: Mapping[int, int]
    tables: Mapping[str, StagedTable]
    lookups: Mapping[str, int]
    process_seconds: float
    drain_seconds: float
    upserts: tuple[str, ...] = ()
    rows_quarantined: Mapping[int, int] = field(default_factory=dict)
    unmet: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    feeds: Mapping[str, FeedTaken] = field(default_factory=dict)
    sent: Mapping[str, Sent] = field(default_factory=dict)
    states: Mapping[str, KeyedState] = field(default_factory=dict)
    frozen: Mapping[str, Frozen] = field(default_factory=dict)
    written: Mapping[str, Written] = field(default_factory=dict)
    progress_id: int | None = None
    stages: Mapping[str, int] = field(default_factory=dict)
    channels: Mapping[str, Any] = field(default_factory=dict)
    spans: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    restarts: Mapping[str, int] = field(default_factory=dict)
    dropped_intervals: int = 0
    in_flight: tuple[StagedFile, ...] = ()

    @property
    def row_id(self) -> int:
        return self.group.last_id if self.progress_id is None else self.progress_id

    def columns_of(self, member: Assigned) -> dict[str, Any]:
        """Return what the row of one of its ids says of it."""
        number = member.sequence_id
        return {
            "group_first": self.group.first_id,
            "group_last": self.group.last_id,
            "rows_in": self.rows_in.get(number, 0),
            "bytes_in": member.trigger.size_bytes,
            "process_seconds": round(self.process_seconds, 4),
            "drain_seconds": round(self.drain_seconds, 4),
            "rows_quarantined": self.rows_quarantined.get(number),
            "unmet": self.unmet.get(number),
            "reason": self.refused.get(number),
            **trigger_columns(member.trigger),
        }

    def verify(self, store: RegionStore) -> None:
        """Check that every file which the row is going to name is there, and is the one that was written.

        Raises:
            AccountingError: one is not.
        """
        for name, staged in self.tables.items():
            store.verify(name, (*staged.files, *(staged.image.files if staged.image else ())))
        store.verify(channels_folder(store.region), self.in_flight)

    def manifest(self) -> Manifest:
        return Manifest(
            files={name: staged.files for name, staged in self.tables.items()},
            upserts=self.upserts,
            images=tuple(staged.image for staged in self.tables.values() if staged.image),
            lookups=self.lookups,
            feeds=self.feeds,
            sent=self.sent,
            stages=self.stages,
            channels=self.channels,
            spans=self.spans,
            restarts=self.restarts,
            late=self._late(),
            dropped_intervals=self.dropped_intervals,
        )

    def _late(self) -> dict[int, dict[str, Any]]:
        """Return what its rows cannot say, since they are of other ids; see `Manifest.late`."""
        members = {member.sequence_id for member in self.group.members}
        found: dict[int, dict[str, Any]] = {}
        remarks: tuple[tuple[str, Mapping[int, Any]], ...] = (
            ("rows_quarantined", self.rows_quarantined),
            ("unmet", self.unmet),
            ("reason", self.refused),
        )
        for name, values in remarks:
            for number, value in values.items():
                if value and number not in members:
                    found.setdefault(number, {})[name] = value
        return found
