"""The changes of a Delta table: by the versions of its change data feed, or by the ids of the region that made it."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import InputChanged, InputMissing, RewindRefused, StoreUnavailable, UsageError
from drainmark.jobs.frames.origins import ORIGIN
from drainmark.jobs.operators.sources.contract import ChangesById
from drainmark.jobs.operators.sources.slices import ANEW, Position, Slice, SliceLimit
from drainmark.jobs.operators.sources.table_log import (
    REWOUND,
    is_worth_remembering,
    written_at,
)
from drainmark.jobs.operators.sources.table_reading import Actions, ByVersion, TableReading, at_id, file_of
from drainmark.jobs.protocol.chains import CHANGES, IDS, Upstream
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.tasks.parquet_shares import RowFile, typed

if TYPE_CHECKING:
    import pyarrow as pa

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"

_WHOLE = "whole"
"""In a slice: its rows are all rows of the table at its end, as inserts."""

_FIRST = "first"
"""In the first slice, if it does not begin with the whole table: its first version."""

_LEAVES, _COMES = ("delete", "update_preimage"), ("insert", "update_postimage")
"""The changes that take a row back, and those that bring one."""

_FEED = "delta.enableChangeDataFeed"
_MOST_IDS = 100
"""The most ids of a slice in an operator-driven region; so many ids without changes become a slice, too."""


def with_changes(columns: pa.Schema) -> pa.Schema:
    """Return the columns of changes: those of the rows, and what a change has beside them.

    Raises:
        UsageError: the table has a column of such a name.
    """
    import pyarrow as pa

    added = [
        pa.field(CHANGE_TYPE, pa.string()),
        pa.field(COMMIT_VERSION, pa.int64()),
        pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", "UTC")),
    ]
    names = {name.casefold() for name in columns.names}
    if taken := [field.name for field in added if field.name in names]:
        msg = f"the table has a column {taken[0]!r}, where changes tell what they are"
        raise UsageError(msg, remedy="give the column another name; or read the table without changes=True")
    return pa.schema([*columns, *added])


# --- by versions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangeFeed(ByVersion):
    """The change data feed of a table of others, version by version, as Delta's protocol has it."""

    def next_slice(self, after: Position | None, end: Position, first: int, cut: SliceLimit) -> Slice | None:
        self.require_not_older(after, end)
        newest = int(end["version"])
        if after is None and not first:
            self._require_feed(newest, is_on=self.access.has_feed(self.table, newest))
            size = sum(max(1, file.size) for file in self.access.files_at(self.table, newest))
            return Slice(start=None, end=end, size_bytes=size, facts={_WHOLE: True}) if size else None
        begin = int(after["version"]) + 1 if after is not None else first
        size, last, oldest = 0, begin - 1, time.time()
        is_on = self.access.has_feed(self.table, begin) if begin <= newest else False

        def size_of(version: int, actions: Actions) -> int:
            nonlocal is_on
            is_on = _feed_after(actions, is_on)
            return sum(max(1, file.size) for file in self._changed_files(version, actions, is_on=is_on))

        for version, actions, added in self.next_versions(begin, newest, cut, size_of):
            size, last, oldest = size + added, version, min(oldest, written_at(actions))
        if not size and not is_worth_remembering(last - begin + 1, oldest):
            return None
        facts = {_FIRST: begin} if after is None else {}
        return Slice(start=after, end={**end, "version": last}, size_bytes=size, facts=facts)

    def check(self, piece: Slice) -> None:
        if piece.facts.get(_WHOLE):
            self.access.files_at(self.table, int(piece.end["version"]))
            return
        for version in self.versions(piece):
            self.actions(version)

    def columns(self) -> pa.Schema:
        return with_changes(self.table_columns())

    def first_version(self, piece: Slice) -> int:
        return int(piece.facts[_FIRST])

    def files(self, piece: Slice) -> list[RowFile]:
        if piece.facts.get(_WHOLE):
            version = int(piece.end["version"])
            moment = _moment(self.actions(version))
            return [_changed(file, version, "insert", moment) for file in self.access.files_at(self.table, version)]
        found = list[RowFile]()
        for version in self.versions(piece):  # the feed was on when the slice was cut
            found += self._changed_files(version, self.actions(version), is_on=True)
        return found

    def _changed_files(self, version: int, actions: Actions, *, is_on: bool) -> list[RowFile]:
        """Return the files with the changes of a version.

        A version that has files of changes has all its changes there. In others, added files are inserts, and removed
        ones are deletes; but only while the feed is on: else a file may be rewritten for one of its rows.

        The rows that leave come first: a version may replace the row of a key by a delete and an insert, and its files
        have them in any order. So files of changes are read twice.

        Raises:
            InputChanged: the feed is off, or rows are marked as deleted beside their files.
        """
        moment = _moment(actions)
        told = [entry["cdc"] for entry in actions if "cdc" in entry]
        if told:
            self._require_feed(version, is_on=is_on)
            files = [_changed(file_of(action, version), version, None, moment) for action in told]
            halves = [replace(file, size=max(1, file.size // 2)) for file in files]
            return [replace(file, only=(CHANGE_TYPE, kinds)) for kinds in (_LEAVES, _COMES) for file in halves]
        found = []
        for kind, change in (("remove", "delete"), ("add", "insert")):
            for entry in actions:
                action = entry.get(kind)
                if action is None or not action.get("dataChange", True):
                    continue
                self._require_feed(version, is_on=is_on)
                if action.get("deletionVector"):
                    raise InputChanged(
                        f"version {version} of {self.table} has deletion vectors, and no files of its changes",
                        remedy="alter table … set tblproperties ('delta.enableDeletionVectors' = false), then reorg"
                        f" table … apply (purge); and read its changes from the version behind that {ANEW}",
                        trigger=f"delta:{self.table}#{version}",
                    )
                found.append(_changed(file_of(action, version), version, change, moment))
        return found

    def _require_feed(self, version: int, *, is_on: bool) -> None:
        if is_on:
            return
        raise InputChanged(
            f"version {version} of {self.table} has no change data feed, so nothing says which rows it changed",
            remedy=f"alter table … set tblproperties ('{_FEED}' = true); then begin at a version behind that:"
            f" starting_version=… at the source, or 0 for the whole table first, {ANEW}",
            trigger=f"delta:{self.table}#{version}",
        )


def _feed_after(actions: Sequence[Mapping[str, Any]], is_on: bool) -> bool:
    """Say whether the feed is on after a version, by whether it was on before."""
    for entry in actions:
        if "metaData" in entry:
            is_on = str((entry["metaData"].get("configuration") or {}).get(_FEED, "")).lower() == "true"
    return is_on


def _changed(file: RowFile, version: int, change: str | None, moment: str | None) -> RowFile:
    """Return a file whose rows are changes of a version; without `change` they say themselves which ones."""
    told = {COMMIT_VERSION: str(version), COMMIT_TIMESTAMP: moment, **({CHANGE_TYPE: change} if change else {})}
    return replace(file, version=version, constants={**file.constants, **told})


def _moment(actions: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the time of a version as its log entry has it; None if it has none."""
    info: Mapping[str, Any] = next((entry["commitInfo"] for entry in actions if "commitInfo" in entry), {})
    told = info.get("inCommitTimestamp") or info.get("timestamp")
    if told is None:
        return None
    return (dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(milliseconds=int(told))).isoformat()


# --- by ids -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangesOfIds(TableReading):
    """The changes of a table that a region made, id by id; this process reads them."""

    upstream: Upstream

    def columns(self) -> pa.Schema:
        return with_changes(self.table_columns())

    def next_slice(self, after: Position | None, end: Position, first: int, cut: SliceLimit) -> Slice | None:
        feed = self._feed()
        through = int(after["id"]) if after is not None else INITIAL_ID
        stays = feed.in_force(through)
        facts: dict[str, Any] = {REWOUND: stays} if stays < through else {}
        if after is None:
            last = feed.newest()
            _, size = feed.cut(INITIAL_ID, None, None)
            facts[_WHOLE] = True
        else:
            last, size = feed.cut(stays, None if cut.is_periodic else _MOST_IDS, cut.max_bytes)
        if size:
            facts[IDS] = [stays + 1, last]
        elif REWOUND not in facts and (after is None or last - stays < _MOST_IDS):
            return None  # the next scan looks at these ids again
        end = at_id({**end, CHANGES: True}, self.upstream, last)
        return Slice(start=after, end=end, size_bytes=size, facts=facts)

    def _feed(self) -> ChangesById:
        """Return the feed.

        Raises:
            StoreUnavailable: the region's checkpoint table is out of reach.
        """
        found = self.access.changes_by_id(self.table)
        if found is None:
            msg = f"the checkpoint table of {self.upstream.region}, which made {self.table}, is out of reach"
            raise StoreUnavailable(msg, remedy="look whether its home is there; a new attempt starts by itself")
        return found

    def check(self, piece: Slice) -> None:
        if IDS in piece.facts and not piece.facts.get(_WHOLE):
            feed = self._feed()
            with _out_of_reach(self, piece):
                feed.require(feed.in_force(int(piece.facts[IDS][0]) - 1))

    def read(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        if IDS not in piece.facts:
            return
        feed, (first, last), columns = self._feed(), piece.facts[IDS], self.columns()
        before, through = feed.in_force(int(first) - 1), feed.in_force(int(last))
        count = 0
        with _out_of_reach(self, piece):
            parts = [feed.whole(through)] if piece.facts.get(_WHOLE) else [*feed.rows(before, through)]
        for part in parts:
            for batch in part.to_batches(max_chunksize=1 << 16):
                yield _told(batch, feed, columns, count)
                count += batch.num_rows


def _told(batch: pa.RecordBatch, feed: ChangesById, columns: pa.Schema, count: int) -> pa.RecordBatch:
    """Return changes in their columns, with the times of their states and `ORIGIN`."""
    import pyarrow as pa

    ids = batch.column(COMMIT_VERSION)
    moments = {number: feed.moment(number) for number in ids.unique().to_pylist()}
    times = pa.array([moments[number] for number in ids.to_pylist()], pa.timestamp("us", "UTC"))
    rows = typed(batch.append_column(COMMIT_TIMESTAMP, times), columns)
    places = pa.array(range(count, count + batch.num_rows), pa.int64())
    blocks = pa.array([0] * batch.num_rows, pa.int64())
    return rows.append_column(ORIGIN, pa.StructArray.from_arrays([ids, blocks, places], ["id", "block", "row"]))


@contextmanager
def _out_of_reach(changes: ChangesOfIds, piece: Slice) -> Iterator[None]:
    """Turn the refusal of an id that is no longer kept into the error for a slice."""
    try:
        yield
    except RewindRefused as error:
        last = piece.end["id"]
        raise InputMissing(
            f"the changes of {changes.table} up to {last} cannot be read any more: {error.message}",
            remedy=f"a longer horizon at {changes.upstream.region} keeps more from now on; to begin with the whole"
            f" table: read it {ANEW}",
            triggers=(),
            trigger=f"delta:{changes.table}#{last}",
        ) from error
