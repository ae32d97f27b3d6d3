"""`TableSource`: the rows that each version of a Delta table added, or the changes that it made."""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from drainmark.jobs.errors import InputChanged, InputMissing, ObjectMissing, UsageError
from drainmark.jobs.frames.origins import with_origins, with_tags_of_table
from drainmark.jobs.frames.tags import GONE, RESERVED
from drainmark.jobs.operators.sources.contract import RowSlices, SourceAccess, Workers
from drainmark.jobs.operators.sources.slices import ANEW, Position, Slice, SliceLimit
from drainmark.jobs.operators.sources.table_feed import ById, ByVersion, TableChanges, with_changes
from drainmark.jobs.operators.sources.table_log import (
    REWOUND,
    FilesSlice,
    Followed,
    actions_of,
    ids_in,
    is_worth_remembering,
    missing_version,
    rewinds_between,
    rewound_to,
    written_at,
)
from drainmark.jobs.protocol.chains import IDS, KEEPS, Upstream
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.tasks.parquet_shares import FileShare, RowFile, packed, rows_of
from drainmark.jobs.tasks.places import LocalPlace

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TableSource"]

_FRESH_SECONDS = 3600.0
"""Files of younger versions are there: nothing deletes files of managed tables that left less than a day ago."""


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

    A position in such a table is an id of the region that made it, beside the version. So rows are found by their ids
    when the version that added them has left the log, or its files were compacted and deleted: a reader may be away for
    as long as it likes, and its own rewinds replay rows of any age. Rows that are found so come in the order of their
    ids; within an id, in that of the file that has them now.

    If a rewind of that region withdraws rows, they are not read any more. If they were read before, the reading region
    goes back with it (`drainmark reset REGION --to N --cascade`), or halts (`SOURCEREWOUND`), and the remedy names the
    state to which its own `reset` has to go.

    If a group is larger than `small_group_bytes`, tasks read the files that the versions added, large files in parts;
    the run reads the files of a smaller group. If Spark's workers do not see the table's folder, the run reads all.

    Args:
        table: below `lake`, an absolute path, or a URI, as for `lookup`.
        on_change: the reaction to a version that removes or rewrites rows: `"halt"`, or `"ignore"`, which skips the
            whole version, with the rows that it adds. What was made of removed rows then stays; rows that come again
            later, as after a rewind of the region that writes the table, are read twice. Upsert and overwrite tables
            rewrite rows all the time: read the append table before them.
        starting_version: the first version to read; earlier ones are not read.
        changes: read the changes of the table instead of the rows that it gets: also rows that are updated and
            deleted. Rows have the columns `_change_type` (`insert`, `update_preimage`, `update_postimage`, `delete`),
            `_commit_version` bigint, `_commit_timestamp` timestamp, and `dm.apply_changes` makes tables of them. The
            first slice is the whole table, as inserts; with `starting_version`, there are only the changes from that
            version on. A table of others needs Delta's change data feed
            (`alter table … set tblproperties ('delta.enableChangeDataFeed' = true)`), and is read version by version.
            A table of another region needs nothing: its changes are those that `dm.changes` tells, id by id, and
            `_commit_version` is the id; many ids may be one slice. They are there as long as that region's horizon
            goes back, and the run reads them itself.

    Example:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.TableSource(table="lake_of_others/stock", starting_version=10))
        def stock(scanned):
            return scanned

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.TableSource(table="lake_of_others/customers", changes=True))
        def changed_customers(scanned):
            return scanned.where("_change_type <> 'update_preimage'")
    """

    kind: ClassVar[str] = "delta"
    has_origins: ClassVar[bool] = True

    table: str
    on_change: Literal["halt", "ignore"] = "halt"
    starting_version: int = 0
    changes: bool = False

    def problems(self, trigger: str | None) -> Iterator[tuple[str, str, str]]:
        if self.on_change not in ("halt", "ignore"):
            yield "UNKNOWN_POLICY", f"on_change={self.on_change!r} is not known", "one of halt, ignore"
        if isinstance(self.starting_version, bool) or self.starting_version < 0:
            yield "STARTING_VERSION", f"starting_version={self.starting_version!r} is none", "a number from 0 up"
        if self.changes and self.on_change != "halt":
            msg = (
                f"changes=True reads what is removed and rewritten, and on_change={self.on_change!r} would pass over it"
            )
            yield "ON_CHANGE", msg, "leave on_change= out"

    def fingerprint(self) -> Any:
        found = {"table": self.table, "on_change": self.on_change}
        return found | ({"changes": True} if self.changes else {})

    def columns(self, access: SourceAccess) -> pa.Schema:
        read = _read_of(access.newest_version(self.table)[2])
        return with_changes(read) if self.changes else read

    def _changes_of(self, access: SourceAccess) -> TableChanges:
        """Return what reads the changes of the table."""
        columns, upstream = self.columns(access), access.upstream(self.table)
        if upstream is None:
            return ByVersion(self.table, access, columns)
        return ById(self.table, access, columns, upstream)

    def next_slice(self, after: Position | None, access: SourceAccess, cut: SliceLimit) -> Slice | None:
        newest, identity, _ = access.newest_version(self.table)
        self._require_same(after, identity)
        if after is not None and newest < int(after["version"]):
            msg = f"{self.table} was read up to version {after['version']}, and its newest is {newest} now"
            raise InputChanged(msg, remedy=f"restore its log; or read the table {ANEW}")
        if self.changes:
            end = {"version": newest, "table": identity}
            return self._changes_of(access).next_slice(after, end, self.starting_version, cut)
        found = _Cut(source=self, after=after, newest=newest, identity=identity, access=access)
        try:
            return found.by_versions(cut)
        except InputMissing:  # the first of these versions has left the log
            piece = found.by_ids()
            if piece is None:
                raise
            return piece

    def label(self, piece: Slice, source: str, access: SourceAccess) -> str:
        place = f"id-{piece.end['id']}" if self.changes and "id" in piece.end else piece.end["version"]
        return f"delta:{self.table}#{place}"

    def check(self, piece: Slice, access: SourceAccess, source: str) -> None:
        if self.changes:
            self._changes_of(access).check(piece)
            return
        folder = access.table(self.table)
        try:
            for version in self.versions(piece):
                actions_of(folder, version, self.table)
        except InputMissing:  # rows in force are found by their ids
            try:
                is_found = IDS in piece.facts and _has_ids_in_order(access.upstream(self.table))
            except UsageError:  # the whole table is gone
                is_found = False
            if not is_found:
                raise

    def versions(self, piece: Slice) -> range:
        """Return the versions of a slice; none for a slice without rows, which a replay reads without a log."""
        if not piece.size_bytes:
            return range(0)
        first = int(piece.start["version"]) + 1 if piece.start is not None else self.starting_version
        return range(first, int(piece.end["version"]) + 1)

    def read(self, piece: Slice, access: SourceAccess) -> Iterator[pa.RecordBatch]:
        if isinstance(piece, FilesSlice):  # in a task
            yield from map(with_origins, piece.share.rows())
            return
        if self.changes:
            self._require_same(piece.end, access.newest_version(self.table)[1])
            yield from self._changes_of(access).read(piece)
            return
        folder, (schema, newest) = access.table(self.table), self._columns_of(piece, access)
        rows = rows_of(
            _SliceFiles(self, piece, access, newest).found(), folder.source, schema, Followed(table=self.table)
        )
        yield from map(with_origins, rows)

    def shares(
        self, piece: Slice, access: SourceAccess, *, share_bytes: int, workers: Workers
    ) -> Sequence[Slice] | None:
        if self.changes:
            self._require_same(piece.end, access.newest_version(self.table)[1])
            return self._changes_of(access).shares(piece, share_bytes, workers)
        folder = access.table(self.table)
        if isinstance(place := folder.place, LocalPlace) and not workers.see(Path(place.folder)):
            return None
        (schema, newest), owner = self._columns_of(piece, access), Followed(table=self.table)
        files = _SliceFiles(self, piece, access, newest).found()
        if isinstance(place, LocalPlace):  # a worker that does not see a file cannot say whether it is gone
            for file in files:
                if not Path(place.folder, file.path).exists():
                    raise missing_version(self.table, file.version, f"its file {file.path} is gone")
            owner = Followed(table=self.table, seen=place.folder)
        cut = [FileShare(files=some, place=place, schema=schema, owner=owner) for some in packed(files, share_bytes)]
        return [FilesSlice(start=piece.start, end=piece.end, size_bytes=share.size, share=share) for share in cut]

    def _columns_of(self, piece: Slice, access: SourceAccess) -> tuple[pa.Schema, int]:
        """Return the columns to read, with the tags of the table, and its newest version.

        Raises:
            InputChanged: it is no longer the table of the slice.
        """
        newest, identity, found = access.newest_version(self.table)
        self._require_same(piece.end, identity)
        return with_tags_of_table(_read_of(found), found), newest

    def _require_same(self, position: Position | None, identity: str) -> None:
        if position is not None and position["table"] != identity:
            msg = f"{self.table} is another table now than the one whose versions were read"
            raise InputChanged(msg, remedy=f"restore it; or read the new one {ANEW}")

    def left_above(self, piece: Slice) -> int | None:
        return piece.facts.get(REWOUND) if self.on_change == "halt" else None

    def upstream(self, access: SourceAccess) -> Upstream | None:
        return access.upstream(self.table) if self.on_change == "halt" else None

    def highest_id(self, piece: Slice, access: SourceAccess) -> int | None:
        folder, highest = access.table(self.table), 0
        if IDS in piece.facts:
            return int(piece.facts[IDS][1])
        if self.changes:
            return 0
        try:
            for version in self.versions(piece):
                for action in self.added(version, actions_of(folder, version, self.table)):
                    highest = max(highest, ids_in(action)[1] or 0)
        except (InputChanged, InputMissing):
            return None
        return highest

    def added(self, version: int, actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
        raise self.changed(version, "removes or rewrites rows that were read")

    def changed(self, version: int, what: str) -> InputChanged:
        """Return the error for rows that changed after they were read."""
        return InputChanged(
            f"version {version} of {self.table} {what}",
            remedy='on_change="ignore" at the source passes over such versions: rows that were removed stay in what was'
            " made of them, rows that such a version adds are never read, and rows that come again later are read twice"
            " (an upstream region that was rewound by Drainmark before 0.4 processes its files again)",
            trigger=f"delta:{self.table}#{version}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """The next slice of a table after a position."""

    source: TableSource
    after: Position | None
    newest: int
    identity: str
    access: SourceAccess

    def by_versions(self, limit: SliceLimit) -> Slice | None:
        """Return the slice of the next versions; None if nothing is new.

        Raises:
            InputMissing: the first of them has left the log.
            InputChanged: it removes or rewrites rows, and the policy is to halt.
        """
        table, folder = self.source.table, self.access.table(self.source.table)
        first = int(self.after["version"]) + 1 if self.after is not None else self.source.starting_version
        size, last, oldest = 0, first - 1, time.time()
        rewound: list[int] = []
        read = _IdsAdded(self.after)
        for version in range(first, self.newest + 1):
            actions = actions_of(folder, version, table)
            oldest = min(oldest, written_at(actions))
            try:
                added = self.source.added(version, actions)
            except InputChanged:
                if size:
                    break  # the versions before it are a slice first
                raise
            if size and limit.max_bytes is not None and size + _bytes(added) > limit.max_bytes:
                break
            size, last = size + _bytes(added), version
            if (to := rewound_to(actions)) is not None:
                rewound.append(to)
            read.add(added, to)
            if (added or rewound) and not limit.is_periodic:
                break
        if not size and not rewound and not is_worth_remembering(last - first + 1, oldest):
            return None  # the next scan looks at these versions again
        facts: dict[str, Any] = {REWOUND: min(rewound)} if rewound else {}
        upstream = self.access.upstream(table)
        if upstream is not None and read.bounds is not None:
            facts[IDS] = list(read.bounds)
        end = self._position(last, upstream, read.through)
        return Slice(start=self.after, end=end, size_bytes=size, facts=facts)

    def by_ids(self) -> Slice | None:
        """Return the slice of all later ids, for versions that left the log; None if ids do not tell what is new.

        Raises:
            InputChanged: rows that were read were replaced since, and the policy is to halt.
        """
        source, after = self.source, self.after
        through = after.get("id") if after is not None else (None if source.starting_version else INITIAL_ID)
        upstream = self.access.upstream(source.table)
        facts = upstream.facts() if upstream is not None and through is not None else None
        if upstream is None or through is None or facts is None or facts.flow.operators:
            return None
        replaced = min((old for old, new in facts.replaced.items() if old <= through < new.by), default=None)
        if replaced is not None:
            if source.on_change == "halt":
                raise source.changed(self.newest, f"replaced rows of id {replaced} of {upstream.region}")
            return None  # these rows are there again, under a new id, and were read under the old one
        stays = facts.states.ids.at_most(through) or INITIAL_ID
        # At this version, not the newest by now: what comes after it is the next slice's.
        live = self.access.live_files(source.table, self.newest)
        found = [file for file in live if (file.last_id or 0) > stays]
        last = max((file.last_id or 0 for file in found), default=stays)
        return Slice(
            start=after,
            end=self._position(self.newest, upstream, last),
            size_bytes=sum(max(1, file.size) for file in found),
            facts={**({IDS: [stays + 1, last]} if found else {}), **({REWOUND: stays} if stays < through else {})},
        )

    def _position(self, version: int, upstream: Upstream | None, through: int | None) -> Position:
        end: dict[str, Any] = {"version": version, "table": self.identity}
        if upstream is not None:
            end["region"] = upstream.region
            end |= {"home": upstream.home} if upstream.home else {}
            end |= {"id": through} if through is not None else {}
        return end | ({KEEPS: True} if self.source.on_change == "ignore" else {})


def _has_ids_in_order(upstream: Upstream | None) -> bool:
    """Say whether the ids of a region's rows tell which rows a slice has: its stages may add rows of an id later."""
    facts = upstream.facts() if upstream is not None else None
    return facts is not None and not facts.flow.operators


@dataclass(frozen=True, slots=True)
class _SliceFiles:
    """The files with the rows of a slice that are in force."""

    source: TableSource
    piece: Slice
    access: SourceAccess
    newest: int

    def found(self) -> list[RowFile]:
        """Return the files that the slice's versions added, or, if one of these is gone, those that have the rows now.

        Raises:
            InputMissing, InputChanged: see `actions_of` and `TableSource.added`.
        """
        if IDS not in self.piece.facts:
            return list(self._added())
        try:
            found = list(self._added())
        except InputMissing:
            if not _has_ids_in_order(self.access.upstream(self.source.table)):
                raise
            return self._with_ids()
        if self._are_there(found) or not _has_ids_in_order(self.access.upstream(self.source.table)):
            return found
        return self._with_ids()

    def _added(self) -> Iterator[RowFile]:
        """Yield the files that versions added, without the rows that a later rewind of their region withdrew."""
        table, folder = self.source.table, self.access.table(self.source.table)
        versions, identity = self.source.versions(self.piece), self.piece.end["table"]
        rewinds = rewinds_between(folder, table, identity, versions.start, self.newest) if versions else []
        for version in versions:
            through = min((to for at, to in rewinds if at > version), default=None)
            for action in self.source.added(version, actions_of(folder, version, table)):
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

    def _with_ids(self) -> list[RowFile]:
        """Return the files of the table that have the slice's ids now: rewinds and compactions are done there."""
        first, last = self.piece.facts[IDS]
        return [
            RowFile(
                version=int(self.piece.end["version"]),
                path=urllib.parse.unquote(file.path),
                size=file.size,
                constants=json.loads(file.partition or "{}"),
                above=first - 1 if (file.first_id or 0) < first else None,
                through=last if (file.last_id or 0) > last else None,
            )
            for file in self.access.live_files(self.source.table)
            if (file.first_id or 0) <= last and first <= (file.last_id or 0)
        ]

    def _are_there(self, files: Sequence[RowFile]) -> bool:
        folder = self.access.table(self.source.table)
        if not isinstance(folder.place, LocalPlace):  # asking a bucket takes as long as reading a small file
            versions = {file.version for file in files}
            written = [written_at(actions_of(folder, version, self.source.table)) for version in versions]
            if time.time() - min(written, default=0.0) < _FRESH_SECONDS:
                return True
        try:
            for file in files:
                folder.size(file.path)
        except (FileNotFoundError, ObjectMissing):
            return False
        return True


class _IdsAdded:
    """The ids of the rows that a slice adds.

    Attributes:
        through: the id up to which (inclusive) rows were read; None if it is not known.
        bounds: the lowest and the highest id, None without any; also if rows of an id come after those of later ones,
            or the log does not tell ids: then only the versions say which rows are new.
    """

    def __init__(self, after: Position | None) -> None:
        self.through: int | None = after.get("id") if after is not None else INITIAL_ID
        self.bounds: tuple[int, int] | None = None
        self._is_told = True

    def add(self, added: Sequence[dict[str, Any]], rewound: int | None) -> None:
        """Add the files of the next version, and the id to which it took its region back."""
        if rewound is not None and self.through is not None:
            self.through = min(self.through, rewound)
        found = [ids_in(action) for action in added]
        if not found:
            return
        first, last = min(low or 0 for low, _ in found), max(high or 0 for _, high in found)
        self._is_told &= first > (self.through or INITIAL_ID)
        self.through = max(self.through or INITIAL_ID, last)
        low = min(first, self.bounds[0]) if self.bounds is not None else first
        self.bounds = (low, last) if self._is_told else None


def _read_of(found: pa.Schema) -> pa.Schema:
    """Return a table's columns without the reserved ones, which the rows get from the reading region.

    A column `_gone` stays, and is refused with the columns: left out, all rows would look like rows that are there.
    """
    import pyarrow as pa

    return pa.schema([field for field in found if field.name.casefold() not in {*RESERVED} - {GONE}])


def _bytes(added: list[dict[str, Any]]) -> int:
    return sum(map(_size, added))


def _size(action: dict[str, Any]) -> int:
    return max(1, int(action.get("size", 1)))
