"""`TableSource`: the rows that each version of a Delta table added."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from drainmark.jobs.errors import InputChanged, InputMissing
from drainmark.jobs.frames.origins import with_origins, with_tags_of_table
from drainmark.jobs.frames.tags import RESERVED
from drainmark.jobs.operators.sources.contract import Files, Reach, RowSlices, Workers
from drainmark.jobs.operators.sources.slices import ANEW, Position, Slice, SliceLimit
from drainmark.jobs.operators.sources.table_log import (
    FilesSlice,
    Followed,
    actions_of,
    ids_in,
    missing_version,
    rewinds_between,
    rewound_to,
    written_at,
)
from drainmark.jobs.tasks.file_shares import FileShare, RowFile, packed, rows_of
from drainmark.jobs.tasks.places import LocalPlace

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TableSource"]

_REWOUND = "rewound_to"
"""In a slice: the lowest id to which its versions took the region of the table back."""

_REMEMBERED_SECONDS = 3600.0
_REMEMBERED_VERSIONS = 100
"""The age, and the number, at which versions without rows become a slice: well before the log is cleaned of them."""


@dataclass(frozen=True)
class TableSource(RowSlices):
    """A Delta table as a stream of its versions: in an operator-driven region each version is a trigger.

    A version gives the rows that it added. Versions that only rewrite files (compaction) or change no data are
    skipped: they are part of the next slice that has rows. If none comes for an hour, or for a hundred versions, a
    slice without rows remembers them, because the table's log may forget them. Versions are read as a whole; in a
    periodic region, all versions that are there at the tick. The table may be a sink of another region: its
    `_sequence_id` and `source_file` are left out, since the rows get those of the reading region. Rows come in the
    order that they had there: by id, and within an id by their place, however its region groups its files. In an
    adopted table, the places of a large group are lost, and only the ids order its rows.

    If a rewind of that region withdraws rows, they are not read any more. If they were read before, the reading region
    halts (`SOURCE_REWOUND`), and the remedy names the state to which its own `reset` has to go.

    If a group is larger than `small_group_bytes`, tasks read the files that the versions added, large files in parts;
    the run reads the files of a smaller group. If Spark's workers do not see the table's folder, the run reads all.

    Args:
        table: below `lake`, an absolute path, or a URI, as for `lookup`.
        on_change: the reaction to a version that removes or rewrites rows: `"halt"`, or `"ignore"`, which skips the
            whole version, with the rows that it adds. What was made of removed rows then stays; rows that come again
            later, as after a rewind of the region that writes the table, are read twice. Upsert and overwrite tables
            rewrite rows all the time: read the append table before them.
        starting_version: the first version to read; earlier ones are not read.

    Example:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.TableSource(table="lake_of_others/stock", starting_version=10))
        def stock(scanned):
            return scanned
    """

    kind: ClassVar[str] = "delta"
    has_origins: ClassVar[bool] = True

    table: str
    on_change: Literal["halt", "ignore"] = "halt"
    starting_version: int = 0

    def problems(self, trigger: str | None) -> Iterator[tuple[str, str, str]]:
        if self.on_change not in ("halt", "ignore"):
            yield "UNKNOWN_POLICY", f"on_change={self.on_change!r} is not known", "one of halt, ignore"
        if isinstance(self.starting_version, bool) or self.starting_version < 0:
            yield "STARTING_VERSION", f"starting_version={self.starting_version!r} is none", "a number from 0 up"

    def fingerprint(self) -> Any:
        return {"table": self.table, "on_change": self.on_change}

    def columns(self, reach: Reach) -> pa.Schema:
        return _read_of(reach.newest_version(self.table)[2])

    def next_slice(self, after: Position | None, reach: Reach, cut: SliceLimit) -> Slice | None:
        newest, identity, _ = reach.newest_version(self.table)
        self._require_same(after, identity)
        folder = reach.table(self.table)
        first = int(after["version"]) + 1 if after is not None else self.starting_version
        if after is not None and newest < int(after["version"]):
            msg = f"{self.table} was read up to version {after['version']}, and its newest is {newest} now"
            raise InputChanged(msg, remedy=f"restore its log; or read the table {ANEW}")
        size, last, oldest = 0, first - 1, time.time()
        rewound: list[int] = []
        for version in range(first, newest + 1):
            actions = actions_of(folder, version, self.table)
            oldest = min(oldest, written_at(actions))
            try:
                added = self._added(version, actions)
            except InputChanged:
                if size:
                    break  # the versions before it are a slice first
                raise
            if size and cut.max_bytes is not None and size + _bytes(added) > cut.max_bytes:
                break
            size, last = size + _bytes(added), version
            if (to := rewound_to(actions)) is not None:
                rewound.append(to)
            if (added or rewound) and not cut.is_periodic:
                break
        is_old = time.time() - oldest >= _REMEMBERED_SECONDS
        if not size and not rewound and not (last >= first and (is_old or last - first + 1 >= _REMEMBERED_VERSIONS)):
            return None  # the next scan looks at these versions again
        facts = {_REWOUND: min(rewound)} if rewound else {}
        return Slice(start=after, end={"version": last, "table": identity}, size_bytes=size, facts=facts)

    def label(self, piece: Slice, source: str, reach: Reach) -> str:
        return f"delta:{self.table}#{piece.end['version']}"

    def check(self, piece: Slice, reach: Reach, source: str) -> None:
        folder = reach.table(self.table)
        for version in self._versions(piece):
            actions_of(folder, version, self.table)

    def _versions(self, piece: Slice) -> range:
        if not piece.size_bytes:
            return range(0)  # without rows, a replay needs no log
        first = int(piece.start["version"]) + 1 if piece.start is not None else self.starting_version
        return range(first, int(piece.end["version"]) + 1)

    def read(self, piece: Slice, reach: Reach) -> Iterator[pa.RecordBatch]:
        if isinstance(piece, FilesSlice):  # in a task
            yield from map(with_origins, piece.share.rows())
            return
        folder, (schema, newest) = reach.table(self.table), self._columns_of(piece, reach)
        rows = rows_of(self._files(piece, folder, newest), folder.source, schema, Followed(table=self.table))
        yield from map(with_origins, rows)

    def shares(self, piece: Slice, reach: Reach, *, share_bytes: int, workers: Workers) -> Sequence[Slice] | None:
        folder = reach.table(self.table)
        if isinstance(place := folder.place, LocalPlace) and not workers.see(Path(place.folder)):
            return None
        (schema, newest), owner = self._columns_of(piece, reach), Followed(table=self.table)
        files = list(self._files(piece, folder, newest))
        if isinstance(place, LocalPlace):  # a worker that does not see a file cannot say whether it is gone
            for file in files:
                if not Path(place.folder, file.path).exists():
                    raise missing_version(self.table, file.version, f"its file {file.path} is gone")
            owner = Followed(table=self.table, seen=place.folder)
        cut = [FileShare(files=some, place=place, schema=schema, owner=owner) for some in packed(files, share_bytes)]
        return [FilesSlice(start=piece.start, end=piece.end, size_bytes=share.size, share=share) for share in cut]

    def _columns_of(self, piece: Slice, reach: Reach) -> tuple[pa.Schema, int]:
        """Return the columns to read, with the tags of the table, and its newest version.

        Raises:
            InputChanged: it is no longer the table of the slice.
        """
        newest, identity, found = reach.newest_version(self.table)
        self._require_same(piece.end, identity)
        return with_tags_of_table(_read_of(found), found), newest

    def _require_same(self, position: Position | None, identity: str) -> None:
        if position is not None and position["table"] != identity:
            msg = f"{self.table} is another table now than the one whose versions were read"
            raise InputChanged(msg, remedy=f"restore it; or read the new one {ANEW}")

    def left_above(self, piece: Slice) -> int | None:
        return piece.facts.get(_REWOUND) if self.on_change == "halt" else None

    def highest_id(self, piece: Slice, reach: Reach) -> int | None:
        folder, highest = reach.table(self.table), 0
        try:
            for version in self._versions(piece):
                for action in self._added(version, actions_of(folder, version, self.table)):
                    highest = max(highest, ids_in(action)[1] or 0)
        except (InputChanged, InputMissing):
            return None
        return highest

    def _files(self, piece: Slice, folder: Files, newest: int) -> Iterator[RowFile]:
        """Yield the files that versions added, without the rows that a later rewind of their region withdrew."""
        versions = self._versions(piece)
        rewinds = rewinds_between(folder, self.table, piece.end["table"], versions.start, newest) if versions else []
        for version in versions:
            through = min((to for at, to in rewinds if at > version), default=None)
            for action in self._added(version, actions_of(folder, version, self.table)):
                first, last = ids_in(action) if through is not None else (None, None)
                if through is not None and first is not None and first > through:
                    continue  # the file may be gone, too
                yield RowFile(
                    version=version,
                    path=urllib.parse.unquote(action["path"]),
                    size=_size(action),
                    constants=action.get("partitionValues") or {},
                    through=through if last is None or last > (through or 0) else None,
                )

    def _added(self, version: int, actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the `add` actions of a version with new rows; none for a version that is skipped.

        Raises:
            InputChanged: the version removes or rewrites rows, and the policy is to halt.
        """
        added = [entry["add"] for entry in actions if "add" in entry and entry["add"].get("dataChange", True)]
        removed = any("remove" in entry and entry["remove"].get("dataChange", True) for entry in actions)
        has_vectors = any(action.get("deletionVector") for action in added)
        if not (removed or has_vectors):
            return added
        if self.on_change == "ignore" or rewound_to(actions) is not None:
            return []
        raise InputChanged(
            f"version {version} of {self.table} removes or rewrites rows that were read",
            remedy='on_change="ignore" at the source passes over such versions: rows that were removed stay in what was'
            " made of them, rows that such a version adds are never read, and rows that come again later are read twice"
            " (an upstream region that was rewound by Drainmark before 0.4 processes its files again)",
            trigger=f"delta:{self.table}#{version}",
        )


def _read_of(found: pa.Schema) -> pa.Schema:
    """Return a table's columns without the reserved ones, which the rows get from the reading region."""
    import pyarrow as pa

    return pa.schema([field for field in found if field.name.casefold() not in RESERVED])


def _bytes(added: list[dict[str, Any]]) -> int:
    return sum(map(_size, added))


def _size(action: dict[str, Any]) -> int:
    return max(1, int(action.get("size", 1)))
