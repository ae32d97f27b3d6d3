"""The rows that the owner of a region writes into its checkpoint table, their author, and the facts after each row."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import Fenced
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import (
    FORMAT_VERSION,
    PLAIN_FORMAT,
    CheckpointRow,
    PublishNote,
    RowKind,
)
from drainmark.jobs.runtime.commit.controller import Controller
from drainmark.jobs.runtime.outside import Outside, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The fields that name the author of a row; every row of one owner has the same.

    Attributes:
        code: digest of the files of the code that claims; "" for a verb, which needs no code.
    """

    region: str
    run_id: str
    drainmark_version: str
    graph_fingerprint: str = ""
    params_hash: str = ""
    code: str = ""


@dataclass(slots=True, kw_only=True)
class Ledger:
    """The rows of one owner, in commit order, and the facts that all of its collaborators share.

    Attributes:
        history: the region's facts, with every row that this owner committed.
        epoch: of this owner; 0 before the claim.
        versions: Delta version of the newest commit by this owner, by table.
        lags: by visible table that is behind its history, the last id that it shows.
        done_through: the newest id that this owner itself published or rewound; a later commit contains the note.
        controller: the region's state, and the durations of the steps since the last note.
    """

    identity: Identity
    outside: Outside
    report: Report
    controller: Controller
    history: RegionHistory = field(default_factory=RegionHistory)
    epoch: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    lags: dict[str, int] = field(default_factory=dict)
    done_through: int = 0

    @property
    def region(self) -> str:
        return self.identity.region

    @property
    def behind(self) -> tuple[CheckpointRow, ...]:
        """Return the rows, in commit order, that are committed and not known to be published."""
        return tuple(row for row in self.history.unpublished if row.sequence_id > self.done_through)

    def row(self, kind: RowKind, sequence_id: int, *, attempt: str | None = None, **values: Any) -> CheckpointRow:
        """Return a row of this owner, to be committed; values without a column go into its detail, unless None."""
        author = self.identity
        columns = {name: value for name, value in values.items() if name in CheckpointRow.__dataclass_fields__}
        return CheckpointRow(
            kind=kind,
            epoch=self.epoch,
            sequence_id=sequence_id,
            attempt=attempt or world.token(),
            recorded_at=dt.datetime.fromtimestamp(self.outside.clock(), dt.UTC),
            region=author.region,
            run_id=author.run_id,
            drainmark_version=author.drainmark_version,
            graph_fingerprint=author.graph_fingerprint,
            params_hash=author.params_hash,
            detail={name: value for name, value in values.items() if name not in columns and value is not None},
            **columns,
        )

    def append(self, rows: Sequence[CheckpointRow], sequence_id: int) -> None:
        """Commit rows under this owner's epoch and an id."""
        self.outside.store.checkpoint.append(rows, sequence_id=sequence_id)
        if any(row.kind is RowKind.PUBLISHED for row in rows):
            self.controller.durations.clear()
        self.history = self.history.with_rows(rows)

    def note(self, rows: Sequence[CheckpointRow]) -> None:
        """Commit rows that take no id of their own, under the newest id that any row has."""
        self.append(rows, self.history.next_id - 1)

    def open_note(self) -> list[CheckpointRow]:
        """Return the note of all publishing since the last one, to be added to the next commit; [] if there is none."""
        if not self.versions or not self.history.unpublished:
            return []
        return [self._published_row()]

    def note_published(self, **facts: Any) -> None:
        """Commit a note of all publishing since the last note; `facts` are further fields of `PublishNote`."""
        self.note([self._published_row(**facts)])

    def _published_row(self, **facts: Any) -> CheckpointRow:
        behind = self.behind
        note = PublishNote(
            through=behind[0].sequence_id - 1 if behind else self.history.next_id - 1,
            versions=dict(self.versions),
            lags=dict(self.lags),
            **self.controller.durations.to_detail(),
            **facts,
        )
        known = FORMAT_VERSION if self.lags else PLAIN_FORMAT
        return self.row(RowKind.PUBLISHED, self.history.committed_id, format_version=known, **note.to_detail())

    def done(self, row: CheckpointRow) -> None:
        """Note that a row is carried out in all tables and in the registry."""
        self.done_through = max(self.done_through, row.sequence_id)

    def refresh(self) -> RegionHistory:
        """Read the checkpoint table again, to learn which rows are committed after an unknown outcome.

        Raises:
            Fenced: another owner claimed meanwhile.
        """
        self.history = self.outside.store.checkpoint.history()
        if self.history.epoch != self.epoch:
            msg = f"{self.region!r} was claimed under epoch {self.history.epoch}; this owner's was {self.epoch}"
            raise Fenced(msg)
        return self.history
