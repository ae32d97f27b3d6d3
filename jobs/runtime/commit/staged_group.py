"""The staged files of a drained group, as its checkpoint row names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import DrainTimeout
from drainmark.jobs.protocol.records.manifest import FeedTaken, Image, Manifest, Sent, StagedFile
from drainmark.jobs.protocol.stage_flow import channels_folder
from drainmark.jobs.regions.plan import RegionPlan
from drainmark.jobs.runtime.input.inbox import Assigned, Group
from drainmark.jobs.runtime.messages import trigger_columns
from drainmark.jobs.state.checkpointed_state import Frozen, Written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from drainmark.jobs.state.keyed_state import KeyedState
    from drainmark.resources.checkpoints.region_store import RegionTables


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """The staged files of one output of a group; without a `frame`, no operator can read its rows.

    Rows without files are changes of a state; the checkpoint of the state writes them.
    """

    files: tuple[StagedFile, ...]
    rows: pa.Table | None = None
    frame: DataFrame | None = None
    image: Image | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedGroup:
    """A drained group: everything the checkpoint row names.

    Attributes:
        rows_in: rows read, by id, with the quarantined ones; 0 for an empty file.
        rows_quarantined: by id; only ids that have some.
        unmet: number of rows by expectation that they do not meet, by id; only ids that have some.
        refused: the reason that the id's row gets, by id; mostly why a whole file was quarantined.
        feeds: the input taken, by name of an autonomous source.
        sent: the rows written already, by name of a table outside of the region.
        tables: by name of APPEND or CHANGES table.
        states: by name of a state's table. The group was processed with these; a reset, which gives up the group,
            makes new ones.
        frozen, written: the state to write, and the files written, by name of a state's table.
        progress_id: id of the row that commits late work of stages, above the last group's as a rewind's is; None if
            the group's last id has the row. While a group is in work its ids are taken, so late work waits for its row.
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
        """Return the columns and details of the row of one of its ids."""
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

    def verify(self, store: RegionTables) -> None:
        """Check that every file that the row will name is there and is the one that was written.

        Raises:
            AccountingError: a file is missing or was changed.
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
        """Return the remarks about ids that are not in this group; see `Manifest.late`."""
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


@dataclass(frozen=True, slots=True)
class GroupTime:
    """The limit `group_timeout`; its errors blame the region's first start."""

    region: RegionPlan

    @property
    def seconds(self) -> float:
        return self.region.parameters.group_timeout.total_seconds()

    def left_of(self, staged: StagedGroup) -> float:
        """Return the seconds that are left for the checkpoint of a drained group."""
        return max(0.0, self.seconds - staged.process_seconds - staged.drain_seconds)

    def too_late(self, group: Group) -> DrainTimeout:
        return self._error(
            f"establishing {group.first_id}..{group.last_id}",
            remedy="raise group_timeout in @consistent, or find the step that hangs",
        )

    def commit_too_late(self, number: int) -> DrainTimeout:
        """Return the error of a late commit, by the id of its row."""
        return self._error(f"committing {number}", remedy="look at the store; or raise group_timeout in @consistent")

    def _error(self, what: str, *, remedy: str) -> DrainTimeout:
        blame = self.region.starts[0]
        message = f"{what} took longer than {self.seconds:g} s"
        return DrainTimeout(message, operator=blame.name, location=blame.location, remedy=remedy)
