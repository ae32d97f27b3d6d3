"""A region's checkpoint table: the only commit point, and the fence of its owners.

A commit is successful only if its own rows are found in the table. The `txnVersion` is no proof, since a later owner's
commit raises it as well.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import Fenced, Interrupted, SplitBrain
from drainmark.jobs.protocol.digest import digest_of, history_from
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.checkpoint_row import WITH_IDS, CheckpointRow, RowKind
from drainmark.jobs.protocol.records.ids import split_txn_version, txn_version
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.resources.checkpoints.checkpoint_archive import (
    DIGEST_KEY,
    ROWS_PER_GROUP,
    CheckpointArchive,
    LiveFile,
    merges,
    newest_digest,
    read_digest,
    stem_of,
)
from drainmark.resources.checkpoints.checkpoint_rows import (
    POSITION_BITS,
    POSITION_COLUMN,
    SMALL_ROWS,
    PlacedRows,
    arrow_schema,
    arrow_table,
    placed_rows,
    read_rows,
    schema_json,
)
from drainmark.resources.checkpoints.newest_rows import NewestRows, newest_rows
from drainmark.resources.delta import commits, delta_tables, file_lists
from drainmark.resources.delta.commits import Act
from drainmark.resources.delta.log.commit_log import SoleWriter
from drainmark.resources.delta.staging import Staging, verify
from drainmark.resources.delta.upkeep import log_retention
from drainmark.resources.storage.folder import Folder, folder_at

if TYPE_CHECKING:
    import pyarrow as pa

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoint tables, below the folder of all tables."""


@dataclass(frozen=True, slots=True)
class _Folded:
    """A history and its end in the table.

    Attributes:
        through: position of the newest row in it.
        base: path of the file with the digest that it began with, None if it began with the first row.
        seen: paths of the files that have its rows.
    """

    history: RegionHistory
    through: int = -1
    base: str | None = None
    seen: frozenset[str] = frozenset()


class CheckpointFiles:
    """The files that are in the table at the time of each call; several threads may call.

    Args:
        folder: of the table.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._free: list[Any] = []  # the table object of the last look, if nobody uses it
        self._identity: str | None = None

    def identity(self) -> str | None:
        """Return the table's own id; None without a table.

        Sinks outside Delta ask before each of their commits, and it never changes: the table is opened once.
        """
        if self._identity is None:
            with suppress(SplitBrain):  # no listing is asked first: it may be stale
                self._identity = str(delta_tables.open_table(self._folder).metadata().id)
        return self._identity

    def paths(self) -> set[str]:
        """Return the paths of the files that are in the table now.

        Raises:
            SplitBrain: there is no table.
        """
        with self._newest() as table:
            return file_lists.live_paths(table)

    def parts(self) -> list[LiveFile]:
        """Return the same files, with the facts in their names."""
        return [LiveFile.of(path) for path in self.paths()]

    def sorted_rows(self, parts: Iterable[LiveFile]) -> pa.Table:
        """Return the rows of some files in commit order."""
        return self._folder.read([part.path for part in parts], arrow_schema()).sort_by(POSITION_COLUMN)

    def rows_of(self, first: int, last: int | None) -> tuple[CheckpointRow, ...]:
        """Return the rows with ids in first..last, in commit order; skip compacted files without such ids."""
        import pyarrow.compute as pc

        most = math.inf if last is None else last
        near = [part for part in self.parts() if not part.tier or (part.last_id >= first and part.first_id <= most)]
        wanted = pc.field("sequence_id") >= first
        if last is not None:
            wanted &= pc.field("sequence_id") <= last
        found = self._folder.read([part.path for part in near], arrow_schema(), None, wanted)
        return tuple(row for _, row in placed_rows(found.sort_by(POSITION_COLUMN), str(self._folder)))

    @contextmanager
    def _newest(self) -> Iterator[Any]:
        """Yield a table object of the newest version, which nobody else uses inside the block.

        It reads only new log entries, if they still exist.
        """
        try:
            table = self._free.pop()
            delta_tables.catch_up(self._folder, table)
        except Interrupted:
            raise
        except Exception:  # there is none, or the log was cleaned up under it
            table = delta_tables.open_table(self._folder)
        yield table
        self._free[:] = [table]


class CheckpointTable:
    """The checkpoint table of one region.

    Each commit loads the table again. `history` and `rows` keep the rows that they have read, so keep the object for
    fast later calls. It is not for several threads, except for rows that a history reads on demand.

    Args:
        root: folder of the table; a path is one on this machine.
        region: the region of the table.
    """

    def __init__(self, root: Path | Folder, region: str) -> None:
        self.folder = folder_at(root)
        self.region = region
        self.writer = SoleWriter(self.folder, region)
        self._files = CheckpointFiles(self.folder)
        self._read: dict[str, PlacedRows] = {}
        self._small: dict[str, PlacedRows] = {}
        self._folded: _Folded | None = None

    def exists(self) -> bool:
        """Say whether there is a Delta table, made by this region or by others."""
        return delta_tables.is_table(self.folder)

    def create(self) -> None:
        """Create the table empty, unless the region has it already.

        Raises:
            ForeignTable: another table, or other files, are in its place.
            SchemaMismatch: the existing table has other columns, of another format.
        """
        delta_tables.create_table(self.folder, self.region, schema_json(), writer=self.writer)

    def identity(self) -> str | None:
        """Return a text that no other checkpoint table has, even of a region of that name; None without a table."""
        return self._files.identity()

    def txn(self) -> tuple[int, int]:
        """Return the (epoch, id) of the newest commit, (0, 0) before the first claim."""
        return self._newest(delta_tables.open_table(self.folder))

    def history(self) -> RegionHistory:
        """Return the region's facts: the newest digest, and the rows that came after it.

        The cost does not grow with the table; older rows are read on demand.

        Raises:
            FormatTooNew: a row was written by a newer Drainmark.
            SplitBrain: there is no table.
        """
        parts = self._files.parts()
        newest = newest_digest(parts)
        folded = self._folded
        if folded is None or (newest is not None and newest.path != folded.base and newest.last >= folded.through):
            folded = self._digested(newest) or folded or _Folded(RegionHistory())
        unread = sorted(
            part.path for part in parts if part.path not in folded.seen and not 0 < part.last <= folded.through
        )
        live = {part.path for part in parts}
        read = read_rows(self.folder, unread, live)
        placed = (entry for entries in read.values() for entry in entries if entry[0] > folded.through)
        fresh = sorted(placed, key=lambda entry: entry[0])
        small = self._small | {path: entries for path, entries in read.items() if len(entries) <= SMALL_ROWS}
        self._small = {path: entries for path, entries in small.items() if path in live}
        self._folded = _Folded(
            folded.history.with_rows(row for _, row in fresh) if fresh else folded.history,
            fresh[-1][0] if fresh else folded.through,
            folded.base,
            frozenset(live),
        )
        return self._folded.history

    def forget(self) -> None:
        """Read all rows again at the next call: they were written again, in other files."""
        self._read, self._small, self._folded = {}, {}, None

    def rows(self, since: int = 0, through: int | None = None) -> tuple[CheckpointRow, ...]:
        """Return rows in commit order; if all are wanted, only files that were not read before are read.

        Args:
            since: rows with a smaller `sequence_id` are left out.
            through: rows with a larger `sequence_id` are left out.

        Raises:
            FormatTooNew: a row was written by a newer Drainmark.
            SplitBrain: there is no table.
        """
        if since > 0 or through is not None:
            return self._files.rows_of(since, through)
        paths = self._files.paths()
        new = sorted(path for path in paths if path not in self._read)
        known = self._read | dict(read_rows(self.folder, new, paths))
        self._read = {path: known[path] for path in paths}
        placed = sorted((entry for entries in self._read.values() for entry in entries), key=lambda entry: entry[0])
        return tuple(row for _, row in placed)

    def newest(self, *, rows: int, states: int) -> NewestRows:
        """Return the newest rows: `rows` rows that are not mere members of a group, and `states` states.

        The cost does not grow with the table.

        Raises:
            FormatTooNew: a row was written by a newer Drainmark.
            SplitBrain: there is no table.
        """
        self.history()
        parts = self._files.parts()
        known = [entry for part in parts for entry in self._small.get(part.path, ())]
        others = [part for part in parts if part.path not in self._small]
        return newest_rows(self.folder, known, others, rows=rows, states=states)

    def attempts(self, among: Collection[str]) -> set[str]:
        """Return the attempts in `among` that have rows in the table."""
        import pyarrow as pa
        import pyarrow.compute as pc

        paths = [part.path for part in self._files.parts()]
        wanted = pc.field("attempt").isin(pa.array(sorted(among), pa.string()))
        return set(self.folder.read(paths, arrow_schema(), ["attempt"], wanted).column("attempt").to_pylist())

    def claim(self, row: CheckpointRow) -> None:
        """Begin `row.epoch`: from now on older owners are refused. Return only if this very commit landed.

        Raises:
            Fenced: the table's epoch is not below the row's; another owner was faster.
        """

        def check(found: tuple[int, int]) -> None:
            if found[0] >= row.epoch:
                raise self._fenced(row.epoch, found)

        self._commit("claim", [row], txn_version(row.epoch, 0), check)

    def append(self, rows: Sequence[CheckpointRow], *, sequence_id: int) -> None:
        """Commit rows of one epoch at `(epoch, sequence_id)`; return only if these very rows are found in the table.

        The table must be at that epoch and below that id. If no row is a state, a skip, progress or a rewind, it may
        also be at that id.

        Raises:
            Fenced: it is not; nothing was committed, and this owner must not commit any more.
            ValueError: no rows, rows of several epochs, or a claim.
        """
        kinds = {row.kind for row in rows}
        if len({row.epoch for row in rows}) != 1 or RowKind.CLAIM in kinds:
            msg = "rows of one commit are of one epoch and hold no claim"
            raise ValueError(msg)
        mine = (rows[0].epoch, sequence_id)
        is_state = bool(kinds & WITH_IDS)

        def check(found: tuple[int, int]) -> None:
            if found[0] != mine[0] or found[1] > mine[1] or (is_state and found == mine):
                raise self._fenced(mine[0], found)

        self._commit(_verb(kinds), rows, txn_version(*mine), check)

    def compact(self, *, files_at_least: int = 64) -> bool:
        """Rewrite the files of single commits as one file, with the history's digest; rows and versions stay.

        Files of earlier compactions are merged as well, if a tier has enough of them.

        Returns:
            Whether there were enough files, and nobody else committed meanwhile.
        """
        opened = delta_tables.open_table(self.folder)
        found, sizes = self._newest(opened), file_lists.live_sizes(opened)
        parts = [LiveFile.of(path) for path in sizes]
        small = [part for part in parts if not part.tier]
        if len(small) < files_at_least:
            return False
        history, rows = self.history(), self._files.sorted_rows(small)
        if self._folded is None or self._folded.through != rows.column(POSITION_COLUMN)[-1].as_py():
            return False
        staging, merged = Staging(self.folder, found[0], world.token()), merges(parts)
        footer = {DIGEST_KEY: digest_of(history)}
        files = list(staging.write(rows, stem_of(1, rows), rows_per_group=ROWS_PER_GROUP, footer=footer))
        for tier, run in merged:
            together = self._files.sorted_rows(run)
            files += staging.write(together, stem_of(tier, together), rows_per_group=ROWS_PER_GROUP)
        paths = [part.path for run in (small, *(run for _, run in merged)) for part in run]
        return commits.replace(
            self.folder,
            self.region,
            txn_version(*found),
            replaced=[StagedFile(path=path, size=sizes[path], rows=0, first_id=None, last_id=None) for path in paths],
            rewritten=files,
            writer=self.writer,
        )

    def maintain(self) -> None:
        """Write a checkpoint of Delta's log and delete old log files, as a separate step; see `log_retention`."""
        log_retention.maintain(self.folder, self.region, writer=self.writer)

    # --- how -------------------------------------------------------------------------------------------------------

    def _newest(self, table: Any) -> tuple[int, int]:
        return _split(commits.txn_version(table, self.region))

    def _fenced(self, epoch: int, found: tuple[int, int]) -> Fenced:
        msg = f"region {self.region} is at epoch {found[0]}, id {found[1]}; this owner has epoch {epoch}"
        return Fenced(msg, epoch=epoch, found=found)

    def _commit(self, verb: str, rows: Sequence[CheckpointRow], version: int, check: Any) -> None:
        staging = Staging(self.folder, rows[0].epoch, rows[0].attempt)
        sent: list[tuple[int, StagedFile]] = []

        def prepare(table: Any) -> Act:
            check(_split(self.writer.transaction(table)))
            position = (table.version() + 1) << POSITION_BITS
            files = staging.write(arrow_table(rows, position), f"{verb}-{world.token()}")
            verify(self.folder, files)
            sent.append((position, files[0]))
            return lambda: commits.transact(self.folder, table, self.region, version, adds=files)

        commits.commit(
            self.folder,
            verb=verb,
            prepare=prepare,
            landed=lambda table: self._holds(table, rows[0].attempt, *sent[-1]),
            writer=self.writer,
            told=lambda entry: sent[-1][1].path in entry.added,
        )

    def _holds(self, table: Any, attempt: str, position: int, file: StagedFile) -> bool:
        """Say whether the table has the file, or the file's first row in a compacted file."""
        import pyarrow.compute as pc

        paths = file_lists.live_paths(table)
        if file.path in paths:
            return True
        mine = (pc.field(POSITION_COLUMN) == position) & (pc.field("attempt") == attempt)
        found = self.folder.read(sorted(paths), arrow_schema(), [POSITION_COLUMN], mine)
        return bool(found.num_rows)

    def _digested(self, part: LiveFile | None) -> _Folded | None:
        """Return the history from a file's digest, None if it has no digest that this release can read."""
        text = read_digest(self.folder, part) if part is not None else None
        if part is None or text is None:
            return None
        archive = CheckpointArchive(self.folder, partial(self._parts_through, part.last), part.last)
        history = history_from(text, archive)
        return _Folded(history, part.last, part.path) if history is not None else None

    def _parts_through(self, last: int) -> list[LiveFile]:
        """Return the live files, except those that were read and have only rows after position `last`."""
        new = {path for path, entries in self._small.items() if all(position > last for position, _ in entries)}
        return [part for part in self._files.parts() if part.path not in new]


def checkpoint_name(region: str) -> str:
    """Return the name of a region's checkpoint table among the tables."""
    return f"{CHECKPOINTS}/{region}"


def regions_of(tables: Folder) -> tuple[str, ...]:
    """Return the regions that have a checkpoint table, sorted."""
    applications = tables / CHECKPOINTS
    found = [f"{name}/{start}" for name in applications.names() for start in applications.names(name)]
    return tuple(region for region in found if delta_tables.is_table(applications / region))


def is_copy(tables: Folder, region: str) -> bool:
    """Say whether a checkpoint table is a copy of another region's."""
    return not delta_tables.is_own(delta_tables.open_table(tables / checkpoint_name(region)), region)


def _split(version: int | None) -> tuple[int, int]:
    return split_txn_version(version) if version is not None else (0, 0)


def _verb(kinds: set[RowKind]) -> str:
    if RowKind.REWIND in kinds:
        return "rewind"
    if RowKind.PROGRESS in kinds:
        return "progress"
    return "checkpoint" if kinds & WITH_IDS else "note"
