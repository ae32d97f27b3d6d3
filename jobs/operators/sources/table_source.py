"""`TableSource`: the rows that each version of a Delta table added, or the changes that it made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from drainmark.jobs.errors import InputChanged
from drainmark.jobs.frames.origins import with_origins
from drainmark.jobs.graph.annotations import is_count
from drainmark.jobs.operators.sources.contract import RowSlices, SourceAccess, Workers
from drainmark.jobs.operators.sources.slices import ANEW, Position, Slice, SliceLimit
from drainmark.jobs.operators.sources.table_feed import ChangeFeed, ChangesOfIds, with_changes
from drainmark.jobs.operators.sources.table_log import REWOUND, FilesSlice
from drainmark.jobs.operators.sources.table_reading import TableReading
from drainmark.jobs.operators.sources.table_rows import TableRows
from drainmark.jobs.protocol.chains import IDS, Upstream

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TableSource"]


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
    goes back with it (`drainmark reset REGION --to N --cascade`), or halts (`SOURCE_REWOUND`), and the remedy names the
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
        if not is_count(self.starting_version, 0):
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
        read = self._rows(access).table_columns()
        return with_changes(read) if self.changes else read

    def _rows(self, access: SourceAccess) -> TableRows:
        return TableRows(self.table, access, self.starting_version, self.on_change == "ignore")

    def _reading(self, access: SourceAccess) -> TableReading:
        """Return what reads the table: its rows, or its changes."""
        if not self.changes:
            return self._rows(access)
        upstream = access.upstream(self.table)
        return ChangeFeed(self.table, access) if upstream is None else ChangesOfIds(self.table, access, upstream)

    def next_slice(self, after: Position | None, access: SourceAccess, cut: SliceLimit) -> Slice | None:
        newest, identity, _ = access.newest_version(self.table)
        self._require_same(after, identity)
        end = {"version": newest, "table": identity}
        return self._reading(access).next_slice(after, end, self.starting_version, cut)

    def label(self, piece: Slice, source: str, access: SourceAccess) -> str:
        place = f"id-{piece.end['id']}" if self.changes and "id" in piece.end else piece.end["version"]
        return f"delta:{self.table}#{place}"

    def check(self, piece: Slice, access: SourceAccess, source: str) -> None:
        self._reading(access).check(piece)

    def read(self, piece: Slice, access: SourceAccess) -> Iterator[pa.RecordBatch]:
        if isinstance(piece, FilesSlice):  # in a task
            yield from map(with_origins, piece.share.rows())
            return
        self._require_same(piece.end, access.newest_version(self.table)[1])
        yield from self._reading(access).read(piece)

    def shares(
        self, piece: Slice, access: SourceAccess, *, share_bytes: int, workers: Workers
    ) -> Sequence[Slice] | None:
        self._require_same(piece.end, access.newest_version(self.table)[1])
        return self._reading(access).shares(piece, share_bytes, workers)

    def _require_same(self, position: Position | None, identity: str) -> None:
        if position is not None and position["table"] != identity:
            msg = f"{self.table} is another table now than the one whose versions were read"
            raise InputChanged(msg, remedy=f"restore it; or read the new one {ANEW}")

    def left_above(self, piece: Slice) -> int | None:
        return piece.facts.get(REWOUND) if self.on_change == "halt" else None

    def upstream(self, access: SourceAccess) -> Upstream | None:
        return access.upstream(self.table) if self.on_change == "halt" else None

    def highest_id(self, piece: Slice, access: SourceAccess) -> int | None:
        if IDS in piece.facts:
            return int(piece.facts[IDS][1])
        return 0 if self.changes else self._rows(access).highest_id(piece)
