"""A region's checkpoint table: the only commit point, and the fence of its owners (design.md §3.2, §3.3).

Success of a commit rests on finding its very rows in the table, never on the `txnVersion`, which a later owner's
commit would raise as well (H1).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from jobs.errors import Fenced, FormatTooNew
from jobs.protocol.ids import split_txn_version, txn_version
from jobs.protocol.manifest import StagedFile
from jobs.protocol.rows import FORMAT_VERSION, CheckpointRow, RowKind
from resources import delta_commits
from resources.delta_commits import Act, Faults
from resources.locations import Folder, folder_at
from resources.staging import Staging, verify

if TYPE_CHECKING:
    import pyarrow as pa

POSITION_COLUMN = "_position"
"""`Delta version * 2**20 + place in the commit`: rows in this order are in commit order.

A commit lands at exactly the version after the one that was checked, or not at all, so the number is known before.
"""

_POSITION_BITS = 20
_STATES = {RowKind.STATE, RowKind.SKIP, RowKind.REWIND}
_LONGS = {
    *("epoch", "sequence_id", "trigger_order", "group_first", "group_last", "rows_in", "bytes_in"),
    POSITION_COLUMN,
}
_TYPES = {
    **dict.fromkeys(_LONGS, "long"),
    "format_version": "integer",
    "recorded_at": "timestamp",
    "drain_seconds": "double",
    "checkpoint_seconds": "double",
}
_JSON_COLUMNS = ("trigger_identity", "detail")
_COLUMNS = (*(field.name for field in fields(CheckpointRow)), POSITION_COLUMN)

_Rows = tuple[tuple[int, CheckpointRow], ...]


class CheckpointTable:
    """The checkpoint table of one region.

    Commits load the table anew; `rows` keeps what it has read, so keep the object for a fast second look. Not for
    several threads.

    Args:
        root: folder of the table; a path is one on this machine.
        region: whose it is.
        faults: called around each commit with `claim`, `checkpoint` (states, skips), `rewind`, `note` (all else) or
            `compact` and `.before_commit` or `.after_commit`; what it raises after a commit is a lost reply.
    """

    def __init__(self, root: Path | Folder, region: str, *, faults: Faults | None = None) -> None:
        self.folder = folder_at(root)
        self.region = region
        self._faults = faults
        self._view: Any = None
        self._read: dict[str, _Rows] = {}

    def exists(self) -> bool:
        """Say whether there is a Delta table, anyone's."""
        return delta_commits.is_table(self.folder)

    def create(self) -> None:
        """Create the table empty; the region's own one will do.

        Raises:
            ForeignTable: something else is there.
            SchemaMismatch: the table there has other columns, of another format.
        """
        delta_commits.create_table(self.folder, self.region, _schema_json())

    def txn(self) -> tuple[int, int]:
        """Return the (epoch, id) of the newest commit, (0, 0) before the first claim."""
        return self._newest(delta_commits.open_table(self.folder))

    def rows(self) -> tuple[CheckpointRow, ...]:
        """Return all rows in commit order; reads only files that it has not read before.

        Raises:
            FormatTooNew: a row was written by a newer Drainmark.
            SplitBrain: there is no table.
        """
        self._refresh()
        paths = delta_commits.live_paths(self._view)
        new = sorted(path for path in paths if path not in self._read)
        known = self._read | dict(zip(new, map(self._rows_of, self.folder.read_each(new)), strict=True))
        self._read = {path: known[path] for path in paths}
        placed = sorted((entry for entries in self._read.values() for entry in entries), key=lambda entry: entry[0])
        return tuple(row for _, row in placed)

    def claim(self, row: CheckpointRow) -> None:
        """Open `row.epoch`: from here on older owners are refused; done only if this very commit landed.

        Raises:
            Fenced: the table's epoch is not below the row's; another owner was faster.
        """

        def check(found: tuple[int, int]) -> None:
            if found[0] >= row.epoch:
                raise self._fenced(row.epoch, found)

        self._commit("claim", [row], txn_version(row.epoch, 0), check)

    def append(self, rows: Sequence[CheckpointRow], *, sequence_id: int) -> None:
        """Commit rows of one epoch at `(epoch, sequence_id)`; done only if these very rows are found in the table.

        The table must be at that epoch, and below that id; where no row is a state, a skip or a rewind, at the same
        id will do.

        Raises:
            Fenced: it is not; nothing was committed and nothing of this owner may be any more.
            ValueError: no rows, rows of several epochs, or a claim.
        """
        kinds = {row.kind for row in rows}
        if len({row.epoch for row in rows}) != 1 or RowKind.CLAIM in kinds:
            msg = "rows of one commit are of one epoch and hold no claim"
            raise ValueError(msg)
        mine = (rows[0].epoch, sequence_id)
        is_state = bool(kinds & _STATES)

        def check(found: tuple[int, int]) -> None:
            if found[0] != mine[0] or found[1] > mine[1] or (is_state and found == mine):
                raise self._fenced(mine[0], found)

        self._commit(_verb(kinds), rows, txn_version(*mine), check)

    def compact(self, *, files_at_least: int = 64) -> bool:
        """Rewrite the small files of the commits as one; rows and versions stay.

        Returns:
            Whether there was enough to do, and nobody committed meanwhile.
        """
        opened = delta_commits.open_table(self.folder)
        found, live = self._newest(opened), delta_commits.live_files(opened, self.folder)
        if len(live) < files_at_least:
            return False
        rows = self.folder.read([file.path for file in live], _arrow_schema()).sort_by(POSITION_COLUMN)
        files = Staging(self.folder, found[0], uuid4().hex).write(rows, "compacted")
        return delta_commits.replace(
            self.folder, self.region, txn_version(*found), replaced=live, rewritten=files, faults=self._faults
        )

    def maintain(self) -> None:
        """Write a checkpoint of Delta's log and delete log files older than a day; a step of its own (H10)."""
        delta_commits.maintain(self.folder)

    # --- how -------------------------------------------------------------------------------------------------------

    def _newest(self, table: Any) -> tuple[int, int]:
        version = delta_commits.txn_version(table, self.region)
        return split_txn_version(version) if version is not None else (0, 0)

    def _fenced(self, epoch: int, found: tuple[int, int]) -> Fenced:
        msg = f"region {self.region} is at epoch {found[0]}, id {found[1]}; this owner has epoch {epoch}"
        return Fenced(msg, remedy="nothing to do: another run owns the region", epoch=epoch, found=found)

    def _commit(self, verb: str, rows: Sequence[CheckpointRow], version: int, check: Any) -> None:
        staging = Staging(self.folder, rows[0].epoch, rows[0].attempt)
        sent: list[tuple[int, StagedFile]] = []

        def prepare(table: Any) -> Act:
            check(self._newest(table))
            position = (table.version() + 1) << _POSITION_BITS
            files = staging.write(_arrow_table(rows, position), f"{verb}-{uuid4().hex}")
            verify(self.folder, files)
            sent.append((position, files[0]))
            return lambda: delta_commits.transact(table, self.region, version, adds=files)

        delta_commits.commit(
            self.folder,
            verb=verb,
            prepare=prepare,
            landed=lambda table: self._holds(table, rows[0].attempt, *sent[-1]),
            faults=self._faults,
        )

    def _holds(self, table: Any, attempt: str, position: int, file: StagedFile) -> bool:
        """Say whether the table has the file, or its first row in a compacted one."""
        import pyarrow.compute as pc

        paths = delta_commits.live_paths(table)
        if file.path in paths:
            return True
        mine = (pc.field(POSITION_COLUMN) == position) & (pc.field("attempt") == attempt)
        found = self.folder.read(sorted(paths), _arrow_schema(), [POSITION_COLUMN], mine)
        return bool(found.num_rows)

    def _refresh(self) -> None:
        """Bring the view up to the newest version, reading only new log entries where they are still there."""
        if self._view is not None:
            try:
                self._view.update_incremental()
            except Exception:  # the log was cleaned up under the view
                self._view = None
            else:
                return
        self._view = delta_commits.open_table(self.folder)

    def _rows_of(self, file: pa.Table) -> _Rows:
        values = file.to_pylist()
        newer = [value for value in values if value["format_version"] > FORMAT_VERSION]
        if newer:
            by, version = newer[0]["drainmark_version"], newer[0]["format_version"]
            known = f"this one knows {FORMAT_VERSION}"
            msg = f"the checkpoint table {self.folder} has format {version}, written by Drainmark {by}; {known}"
            raise FormatTooNew(msg, remedy=f"install drainmark {by} or newer", drainmark_version=by, format=version)
        return tuple((value.pop(POSITION_COLUMN), _row(value)) for value in values)


def _verb(kinds: set[RowKind]) -> str:
    if RowKind.REWIND in kinds:
        return "rewind"
    return "checkpoint" if kinds & _STATES else "note"


# --- rows as columns -----------------------------------------------------------------------------------------------


def _schema_json() -> str:
    columns = [
        {"name": name, "type": _TYPES.get(name, "string"), "nullable": True, "metadata": {}} for name in _COLUMNS
    ]
    return json.dumps({"type": "struct", "fields": columns})


def _arrow_schema() -> pa.Schema:
    import pyarrow as pa

    types = {
        "long": pa.int64(),
        "integer": pa.int32(),
        "double": pa.float64(),
        "string": pa.string(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([(name, types[_TYPES.get(name, "string")]) for name in _COLUMNS])


def _arrow_table(rows: Sequence[CheckpointRow], position: int) -> pa.Table:
    import pyarrow as pa

    values = [_values(row) | {POSITION_COLUMN: position + place} for place, row in enumerate(rows)]
    return pa.Table.from_pylist(values, schema=_arrow_schema())


def _values(row: CheckpointRow) -> dict[str, Any]:
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    values["kind"] = row.kind.value
    for name in _JSON_COLUMNS:
        value: Mapping[str, Any] | None = values[name]
        values[name] = None if value is None else json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
    return values


def _row(values: dict[str, Any]) -> CheckpointRow:
    for name in _JSON_COLUMNS:
        values[name] = None if values[name] is None else json.loads(values[name])
    return CheckpointRow(**{**values, "kind": RowKind(values["kind"])})
