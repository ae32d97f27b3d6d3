"""How a table is read in slices: what the readers of its rows and of its changes have in common."""

from __future__ import annotations

import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import InputChanged
from drainmark.jobs.frames.origins import with_origins
from drainmark.jobs.frames.tags import GONE, RESERVED
from drainmark.jobs.operators.sources.contract import SourceAccess, Workers
from drainmark.jobs.operators.sources.slices import ANEW, Position, Slice, SliceLimit
from drainmark.jobs.operators.sources.table_log import (
    FilesSlice,
    Followed,
    actions_of,
    missing_version,
    rewound_to,
)
from drainmark.jobs.protocol.chains import Upstream
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.tasks.parquet_shares import FileShare, RowFile, packed, rows_of
from drainmark.jobs.tasks.places import LocalPlace

if TYPE_CHECKING:
    import pyarrow as pa

Actions = list[dict[str, Any]]
"""The entries of the log file of one version."""


@dataclass(frozen=True, slots=True)
class TableReading(ABC):
    """The slices of a table.

    Attributes:
        table: as the source names it.
        access: of the source.
    """

    table: str
    access: SourceAccess

    @abstractmethod
    def columns(self) -> pa.Schema:
        """Return the columns in which slices are read."""

    @abstractmethod
    def next_slice(self, after: Position | None, end: Position, first: int, cut: SliceLimit) -> Slice | None:
        """Return the slice behind a position.

        Args:
            end: the position of the table's newest version.
            first: the version to begin with; 0: with the whole table.
        """

    @abstractmethod
    def check(self, piece: Slice) -> None:
        """See `Replayable.check`."""

    @abstractmethod
    def read(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a slice, with `ORIGIN`."""

    def shares(self, piece: Slice, share_bytes: int, workers: Workers) -> Sequence[Slice] | None:
        """See `RowSlices.shares`."""
        return None

    def table_columns(self) -> pa.Schema:
        """Return the table's columns without the reserved ones, which the rows get from the reading region.

        A column `_gone` stays, and is refused with the columns: left out, all rows would look like rows that are there.
        """
        import pyarrow as pa

        found = self.access.newest_version(self.table)[2]
        return pa.schema([field for field in found if field.name.casefold() not in {*RESERVED} - {GONE}])


@dataclass(frozen=True, slots=True)
class ByVersion(TableReading):
    """The slices of a table by the versions of its log: a slice is read from the files that its versions name."""

    def require_not_older(self, after: Position | None, end: Position) -> None:
        """Refuse a table whose newest version is older than what was read of it.

        Raises:
            InputChanged: it is.
        """
        if after is not None and int(end["version"]) < int(after["version"]):
            msg = f"{self.table} was read up to version {after['version']}, and its newest is {end['version']} now"
            raise InputChanged(msg, remedy=f"{self._restored(after)}; or read the table {ANEW}")

    def _restored(self, after: Position) -> str:
        """Return what to do about an older copy of the table that came back."""
        upstream = self.access.upstream(self.table)
        facts = upstream.facts() if upstream is not None else None
        if upstream is None or facts is None:
            return "restore its log"
        through = int(after.get("id") or INITIAL_ID)
        stays = facts.states.ids.at_most(through) or INITIAL_ID
        if stays < through:  # versions come again with other rows, so no slice may tell of this as of a rewind
            return f"{upstream.region} is back at id {stays}: drainmark status says how far this region goes back"
        return f"see what {upstream.region} lacks, and its repair: drainmark doctor"

    @abstractmethod
    def files(self, piece: Slice) -> list[RowFile]:
        """Return the files with the rows of a slice."""

    @abstractmethod
    def first_version(self, piece: Slice) -> int:
        """Return the first version of the first slice."""

    def versions(self, piece: Slice) -> range:
        """Return the versions of a slice; none for a slice without rows, which a replay reads without a log."""
        if not piece.size_bytes:
            return range(0)
        first = int(piece.start["version"]) + 1 if piece.start is not None else self.first_version(piece)
        return range(first, int(piece.end["version"]) + 1)

    def actions(self, version: int) -> Actions:
        return actions_of(self.access.table(self.table), version, self.table)

    def next_versions(
        self, begin: int, newest: int, cut: SliceLimit, size_of: Callable[[int, Actions], int]
    ) -> Iterator[tuple[int, Actions, int]]:
        """Yield the versions of the next slice, with their actions and the bytes of their rows.

        Args:
            size_of: returns the bytes of a version's rows; raises if it cannot be read.

        Raises:
            InputChanged: from `size_of` for the first version that has rows.
        """
        total = 0
        for version in range(begin, newest + 1):
            actions = self.actions(version)
            try:
                size = size_of(version, actions)
            except InputChanged:
                if total:
                    return  # the versions before it are a slice first
                raise
            if total and cut.max_bytes is not None and total + size > cut.max_bytes:
                return
            total += size
            yield version, actions, size
            if (size or rewound_to(actions) is not None) and not cut.is_periodic:
                return

    def read(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        source, owner = self.access.table(self.table).source, Followed(table=self.table)
        yield from map(with_origins, rows_of(self.files(piece), source, self.columns(), owner))

    def shares(self, piece: Slice, share_bytes: int, workers: Workers) -> Sequence[Slice] | None:
        place = self.access.table(self.table).place
        if isinstance(place, LocalPlace) and not workers.see(Path(place.folder)):
            return None
        files, owner, schema = self.files(piece), Followed(table=self.table), self.columns()
        if isinstance(place, LocalPlace):  # a worker that does not see a file cannot say whether it is gone
            for file in files:
                if not Path(place.folder, file.path).exists():
                    raise missing_version(self.table, file.version, f"its file {file.path} is gone")
            owner = Followed(table=self.table, seen=place.folder)
        cut = [FileShare(files=some, place=place, schema=schema, owner=owner) for some in packed(files, share_bytes)]
        return [FilesSlice(start=piece.start, end=piece.end, size_bytes=share.size, share=share) for share in cut]


def file_of(action: Mapping[str, Any], version: int) -> RowFile:
    """Return the file that an action of a version names."""
    return RowFile(
        version=version,
        path=urllib.parse.unquote(action["path"]),
        size=max(1, int(action.get("size") or 1)),
        constants=action.get("partitionValues") or {},
    )


def at_id(end: Position, upstream: Upstream, number: int | None) -> Position:
    """Return a position in a table that a region made, with the id up to which its rows are read, if it is known."""
    home = {"home": upstream.home} if upstream.home else {}
    return {**end, "region": upstream.region, **home, **({"id": number} if number is not None else {})}
