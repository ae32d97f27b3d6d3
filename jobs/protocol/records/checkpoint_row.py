"""One row of a region's checkpoint table, and the way in which an owner ended.

The table is the truth: claims, states, rewinds, halts. Values that only some kinds have are in `detail`, a JSON object:

| kind | sequence_id | detail |
|---|---|---|
| claim | next free id | `owner`, `previous` (clean, failed, interrupted, crashed, none), `error`, `tables`, and of a |
| | | run: `code` (digest of its files), `operators` (fingerprint by name), |
| | | `dropped_states` (label of the state that begins, by operator), |
| | | `stages`: by name of a stage, where there are several, its operators but for the starts; `channels`: by |
| | | name of a channel between them its ends, and the columns that it carries (`ChannelLink`) |
| state | the state's id | on the last id of a group: `manifest`; where there are some: `rows_quarantined`, |
| | | `reason`, `unmet`: by name of an expectation, how many rows do not meet it |
| progress | its own id r | `manifest`: what stages finished of ids that are committed (format 5) |
| published | last committed id | see `PublishNote` |
| rewind | the rewind's own id r | `to`, `tables`, `former`: names of those that the code has no more, `restored`: |
| | | rows that come back (`Replaced`), `images`; `lost`: withdrawn ids, as (first, last), whose input |
| | | nobody can read again: the `refused` rows behind this one name it |
| halt | last committed id | `reason`, `trigger`, `operator`, `error`; `code`: digest of the files of code that |
| | | failed before it could claim: other code takes the halt back; `asked`: true where an operator |
| | | asked for it: a rewind leaves it in force |
| resume | last committed id | `reason` |
| skip | the id given to the skipped trigger | `reason` |
| refused | last committed id | `reason`; `anew`: true for a slice that is cut anew, and so has no place any more; |
| | | rows from before 0.4 have no `trigger_order` |

A state of the kind `retraction` has no input: it takes the state back that its identity names, and may have `why`
(format 6).
The `images` of a `manifest` may be made of `runs`, and its files may have a `partition` (format 6). The `tables` of a
claim and of a rewind may have `deletes`, or be merged on read (format 6).
A rewind names the `lags` of tables, too, and its `images` stand in for changes that are `dropped`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from drainmark.jobs.protocol.records.manifest import RegionTable

FORMAT_VERSION = 6
"""The newest format, of rows that name runs of a state, files of a partition, or tables that lag or delete keys, and of
retractions; raised whenever an older Drainmark could no longer read the table correctly."""

STAGES_FORMAT = 5
"""The format of rows with facts about stages, without runs, partitions and lags: an older Drainmark can read them."""

PLAIN_FORMAT = 4
"""The format of all other rows."""


def format_of(tables: Iterable[RegionTable]) -> int:
    """Return the format of a row that describes tables, and has nothing else that needs a newer one."""
    is_new = any(table.deletes or table.is_merged_on_read for table in tables)
    return FORMAT_VERSION if is_new else PLAIN_FORMAT


class RowKind(StrEnum):
    """The kind of a row of the checkpoint table."""

    CLAIM = "claim"
    STATE = "state"
    PUBLISHED = "published"
    REWIND = "rewind"
    HALT = "halt"
    RESUME = "resume"
    SKIP = "skip"
    PROGRESS = "progress"
    REFUSED = "refused"


WITH_IDS = frozenset({RowKind.STATE, RowKind.PROGRESS, RowKind.SKIP, RowKind.REWIND})
"""The kinds of rows that take an id of their own; tables have their versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """One row; the columns of the table are these fields in this order, `detail` and `trigger_identity` as JSON text.

    Attributes:
        recorded_at: UTC, by the clock of the process that wrote the row; the order of rows never depends on it.
        attempt: uuid of the attempt that wrote the row; a commit is recognised by it.
        trigger_order: place of the trigger in the region's input order; kept across rewinds.
        rows_in, bytes_in: of this trigger (state rows).
        drain_seconds: how long the group was DRAINING, with its rows already computed; the same on each of its ids.
            `process_seconds` in the detail is the time before. Rows without it are from 0.3.0 or older, and have both
            in `drain_seconds`.
        checkpoint_seconds: likewise for the commit; null in the table, since a commit cannot hold its own duration:
            the next `published` row brings it in `commit_seconds`, and the history puts it here.
    """

    kind: RowKind
    region: str
    epoch: int
    sequence_id: int
    attempt: str
    recorded_at: dt.datetime
    run_id: str
    drainmark_version: str
    graph_fingerprint: str
    params_hash: str
    format_version: int = PLAIN_FORMAT
    trigger_uri: str | None = None
    trigger_kind: str | None = None
    trigger_identity: Mapping[str, Any] | None = None
    trigger_order: int | None = None
    group_first: int | None = None
    group_last: int | None = None
    rows_in: int | None = None
    bytes_in: int | None = None
    drain_seconds: float | None = None
    checkpoint_seconds: float | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first_id(self) -> int:
        """Return the first id of the row's group; its own id if it has none."""
        return self.sequence_id if self.group_first is None else self.group_first

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values |= {"kind": self.kind.value, "recorded_at": self.recorded_at.isoformat()}
        return {name: value for name, value in values.items() if value is not None and value != {}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CheckpointRow:
        """Return the row that `to_json` described."""
        moment = dt.datetime.fromisoformat(value["recorded_at"])
        return cls(**{**value, "kind": RowKind(value["kind"]), "recorded_at": moment})


class Outcome(StrEnum):
    """The way in which an owner ended. The next owner concludes CRASHED if the last one left no record."""

    NONE = "none"  # there was no owner yet
    CLEAN = "clean"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    CRASHED = "crashed"


UNCLEAN = frozenset({Outcome.FAILED, Outcome.CRASHED})


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishNote:
    """The contents of a `published` row; its fields have the names under which the row keeps them.

    Attributes:
        versions: by table, the Delta version of the newest commit.
        through: the id up to which (inclusive) rows are published.
        commit_seconds, publish_seconds: by last id of a group (as text), since the last `published` row.
        resets: those that ended since then, each with `to` (the id returned to) and `seconds`.
        outcome: how the owner ended, in its last row; None in all others.
        lags: by visible table that is behind its history, the last id that it shows (format 6).
        error: why the owner failed.
        dropping: by former table that an operator drops, the id of its Delta table, "" if it stays where it is.
        reason: why it is dropped.
        forgotten: the tables that were dropped since an earlier row named them.
        dropped: by CHANGES table, the id up to which (inclusive) changes may be gone (format 3).
        trimmed: by history of rows, the id up to which (inclusive) rows may be gone (format 4).
    """

    versions: Mapping[str, int] = field(default_factory=dict)
    through: int
    commit_seconds: Mapping[str, float] = field(default_factory=dict)
    publish_seconds: Mapping[str, float] = field(default_factory=dict)
    resets: Sequence[Mapping[str, Any]] = ()
    outcome: Outcome | None = None
    lags: Mapping[str, int] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None
    dropping: Mapping[str, str] = field(default_factory=dict)
    reason: str | None = None
    forgotten: Sequence[str] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    trimmed: Mapping[str, int] = field(default_factory=dict)

    def to_detail(self) -> dict[str, Any]:
        """Return the values of the row; a value that few rows have is None if it is empty."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        always = ("versions", "through", "commit_seconds")
        return {name: value if value or name in always else None for name, value in values.items()}

    @classmethod
    def from_row(cls, row: CheckpointRow) -> PublishNote:
        known = {each.name for each in fields(cls)}
        found = {name: value for name, value in row.detail.items() if name in known and value is not None}
        if "outcome" in found:
            found["outcome"] = Outcome(found["outcome"])
        return cls(**{"through": row.sequence_id, **found})
