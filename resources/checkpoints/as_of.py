"""Sinks at a consistent state, for `show` and `dm.read`: from Delta logs and Parquet, without Spark."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import RewindRefused, UnknownName, UsageError
from drainmark.jobs.graph.application import nearest
from drainmark.jobs.protocol.history import RegionHistory, manifest_of, replaced_in, state_by
from drainmark.jobs.protocol.records.ids import INITIAL_ID, txn_version
from drainmark.jobs.protocol.records.manifest import RegionTable, StagedFile, TableRole
from drainmark.jobs.state.keyed_rows import last_per_key, present
from drainmark.resources.delta import commits, delta_tables, file_lists
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.table_files import TableFiles
from drainmark.resources.storage.bucket_folder import tables_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import pyarrow as pa

    from drainmark.resources.checkpoints.region_store import RegionTables
    from drainmark.resources.settings import Settings
    from drainmark.resources.storage.folder import Folder

OUTSIDE = ("database/", "files/")
"""The beginnings of the names of sinks outside Delta."""

_SEQUENCE_ID = "_sequence_id"


def read_at(region: str, table: str, *, at: int | dt.datetime | None = None, home: str | None = None) -> pa.Table:
    """Return a table of a region as it was at a consistent state.

    A group that is committed but not published yet is part of the answer: its staged files are read.

    Args:
        region: `APP/START`, or `APP` if it has only one region.
        table: name of a sink's table, or a path below DRAINMARK_HOME such as `state/APP/OPERATOR`.
        at: a sequence id, or a time: the last state committed by then; the last committed one by default.
        home: DRAINMARK_HOME, found as the command line finds it by default.

    Returns:
        append tables: the rows with `_sequence_id` up to `at`, in id order; upsert tables: the last row of each key
        up to `at`, in the order of the keys; overwrite tables: the rows of the last id up to `at` that has any. A sink
        outside Delta is read from its history; for an append sink, rows with ids before the rewind horizon are read
        from the sink itself.

    Raises:
        UnknownName: no such region or table, or `APP` has several regions.
        UsageError: `at` is given for a table of autonomous operators, which has no states, or is neither id nor time.
        RewindRefused: `at` is not the id of a state in force, or its rows are out of reach.
    """
    from drainmark.resources.settings import load_settings

    settings = load_settings(home=home)
    try:
        reader = RegionReader(settings, region)
        return reader.as_of(table, reader.id_of(at))
    except UnknownName:
        found = outside_at(settings, table, at)
        if found is None:
            raise
        return found


class RegionReader:
    """The tables of a region, by one read of its checkpoint table.

    Raises:
        UnknownName: no such region, or the application has several.
    """

    def __init__(self, settings: Settings, region: str) -> None:
        self._read(_store_of(settings, region))

    def _read(self, store: RegionTables) -> None:
        self.store = store
        self.history = store.checkpoint.history()

    @classmethod
    def of(cls, store: RegionTables) -> RegionReader:
        """Return the reader of a region whose tables are known."""
        found = cls.__new__(cls)
        found._read(store)
        return found

    def as_of(self, table: str, at: int | None = None, where: pa.compute.Expression | None = None) -> pa.Table:
        """Return a table at a consistent state, as `read_at` does.

        Args:
            where: a condition on `_sequence_id` of the rows from which the table is made: so of an upsert table the
                last row of each key that has one. An overwrite table is returned whole.
        """
        wanted = self.named(table)
        number = self.newest_id(wanted) if at is None else at
        self.require_state(wanted, number)
        if wanted.role is TableRole.OVERWRITE:
            return self._newest_rows(wanted, number)
        if wanted.adopted and wanted.role is TableRole.APPEND:
            rows = _adopted_rows(self.store, self.history, wanted, number)
        else:
            rows = _rows(self.store, self.history, wanted.history or wanted.name, number, where)
        if wanted.role is TableRole.COPY:
            rows = _with_trimmed(self.store, self.history, wanted, rows, number)
        if where is not None:
            rows = rows.filter(where)
        if wanted.role is TableRole.UPSERT:
            last = present(last_per_key(rows, wanted.keys))
            return in_order(last.select(list(wanted.columns) or rows.column_names), wanted)
        return rows.sort_by(_SEQUENCE_ID)

    def id_of(self, at: int | dt.datetime | None) -> int | None:
        """Return the id that a time means: of the last state committed by then; a time without an offset is UTC.

        Raises:
            UsageError: it is neither a whole number nor a time, such as a text.
        """
        if at is None or (isinstance(at, Integral) and not isinstance(at, bool)):
            return at
        if not isinstance(at, dt.datetime):
            msg = f"at={at!r} is neither a sequence id nor a time"
            raise UsageError(msg, remedy="at=7, or at=datetime.datetime.fromisoformat('2026-01-31T12:00Z')")
        return state_by(self.history, at if at.tzinfo else at.replace(tzinfo=dt.UTC))

    def newest_id(self, table: RegionTable) -> int:
        """Return the id of the newest state that a table has: finished by its stage, and before it left the code."""
        history = self.history
        reached = history.left.get(table.name, history.flow.reached(table.operator))
        return history.committed_id if reached is None else history.states.ids.at_most(reached) or INITIAL_ID

    def require_state(self, table: RegionTable, at: int) -> None:
        """Refuse an id that is not that of a state in force, or of one that the table does not have.

        It does not have a state with its batches in flight, or of code that no longer had the table.
        """
        number, closest = _checked(self.history, at), self.newest_id(table)
        if number <= closest:
            return
        if table.name in self.history.left:
            msg, remedy = f"{table.name!r} left the code after {closest}: it has no state {number}", ""
        else:
            msg = f"{table.name!r} is complete up to {closest}; the state {number} is still in flight"
            remedy = "run the region until it is there, or "
        raise RewindRefused(msg, remedy=f"{remedy}ask for {closest}", nearest=closest)

    def require_kept(self, table: RegionTable, at: int) -> None:
        """Refuse a state of an overwrite table whose rows are gone."""
        edge = self.history.trimmed.get(table.history or "", INITIAL_ID)
        if INITIAL_ID < at < edge:
            msg = f"the state {at} of {table.name!r} is out of reach: the rows before {edge} are no longer kept"
            raise RewindRefused(msg, remedy=f"{edge} or a later id", nearest=edge)

    def _newest_rows(self, wanted: RegionTable, at: int) -> pa.Table:
        """Return the rows of the last id up to `at` that has any; no file of other ids is read."""
        self.require_kept(wanted, at)
        table = self.store.table(wanted.history or "")
        files = committed_files(self.store, self.history, wanted.history or "")
        found = table.files.newest_rows(files, at, deletes=wanted.deletes)
        found = table.files.read([]) if found is None else found
        return found.select(list(wanted.columns)) if wanted.deletes else found

    def replaced_between(self, after: int, through: int) -> list[int]:
        """Return the ids up to `after` whose rows were replaced behind it, up to `through` (inclusive)."""
        found = self.history.replaced.items()
        return [number for number, replaced in found if number <= after < replaced.by <= through]

    def now(self, table: str) -> pa.Table:
        """Return a table as it is now; if it lags behind its history, return it at the last committed id."""
        is_behind = self.named(table).name in self.history.lags
        return self.as_of(table) if is_behind else self.visible(table)

    def visible(self, table: str) -> pa.Table:
        """Return a table as every reader of the Delta table sees it now."""
        wanted = self.named(table)
        rows = self.store.open(wanted).read()
        return in_order(rows, wanted) if wanted.role is TableRole.UPSERT else rows.sort_by(_SEQUENCE_ID)

    def named(self, name: str) -> RegionTable:
        """Return the table that a name means: one of the code, or else one that left it and is still the region's."""
        former = called(self.history.former, name) if called(self.history.tables, name) is None else None
        if former is not None and self.store.is_own(former):
            return former
        return table_named(self.history, name, self.store.region)


def in_order(rows: pa.Table, table: RegionTable) -> pa.Table:
    """Return rows in the order of those keys that have a type with an order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keys = [(pc.field(key), "ascending") for key in table.keys if not pa.types.is_nested(rows.schema.field(key).type)]
    return rows.sort_by(keys) if keys else rows


def reader_of(settings: Settings, table: str, *, declared: Callable[[], list[str]] = list) -> RegionReader:
    """Return a reader of the region that writes a table, or else of one that wrote it before its sink left the code.

    Args:
        declared: returns the names of tables that the code declares; it is called if no region wrote this one.

    Raises:
        UnknownName: none does; the remedy names the nearest table.
    """
    from drainmark.resources.checkpoints.checkpoint_table import regions_of

    tables = tables_folder(settings)
    known, outside, former = list[str](), list[RegionReader](), list[RegionReader]()
    for region in regions_of(tables):
        reader = RegionReader.of(_tables_of(settings, region, tables))
        found = called(reader.history.tables, table)
        if found is not None and found.name in (table, f"lake/{table}"):
            return reader
        if found is not None:  # a sink outside Delta, by the end of its name
            outside.append(reader)
        elif called(reader.history.former, table) is not None:
            former.append(reader)
        known += [each.name.removeprefix("lake/") for each in reader.history.tables]
    if outside or former:
        return [*outside, *former][0]
    known += [name.removeprefix("lake/") for name, _ in delta_tables.tables_outside(tables)]
    known += [name for name in declared() if name not in known]
    if not known:
        raise _nothing_ran(settings)
    raise UnknownName(f"no region writes a table {table!r}", remedy=nearest(table, known))


def _nothing_ran(settings: Settings) -> UnknownName:
    """Return the error of a home without regions: nothing ran yet, or the reader thinks of another home."""
    msg = f"no region has run in {settings.tables_url or settings.home} yet"
    return UnknownName(msg, remedy="run an application first, or name another home: home=, --home, DRAINMARK_HOME")


def outside_at(settings: Settings, table: str, at: int | dt.datetime | str | None) -> pa.Table | None:
    """Return the rows of a table that autonomous operators write, in the order of their ids; None if there is none.

    It belongs to no region, and has the rows that it has now.

    Args:
        at: the state that is asked for, if any.

    Raises:
        UsageError: a state of it is asked for.
    """
    tables = tables_folder(settings)
    found = next((each for each in delta_tables.tables_outside(tables) if is_called(each[0], table)), None)
    if found is None:
        return None
    if at is not None:
        msg = f"{table!r} is written by autonomous operators, outside of every region: it has no state {at}"
        raise UsageError(msg, remedy="read it as it is now")
    name, application = found
    rows = ManagedTable(tables / name, application).read()
    return rows.sort_by(_SEQUENCE_ID) if _SEQUENCE_ID in rows.column_names else rows


def _store_of(settings: Settings, name: str) -> RegionTables:
    """Return the tables of a region, named in full or by its application."""
    from drainmark.resources.checkpoints.checkpoint_table import regions_of

    tables = tables_folder(settings)
    known = regions_of(tables)
    below = [name] if name in known else [region for region in known if region.partition("/")[0] == name]
    if len(below) == 1:
        return _tables_of(settings, below[0], tables)
    if below:
        raise UnknownName(f"application {name!r} has several regions", remedy=f"name one of {', '.join(below)}")
    if not known:
        raise _nothing_ran(settings)
    raise UnknownName(f"there is no region {name!r}", remedy=nearest(name, list(known)))


def _tables_of(settings: Settings, region: str, tables: Folder) -> RegionTables:
    from drainmark.resources.checkpoints.region_store import RegionTables
    from drainmark.resources.sinks.external_sinks import Externals

    return RegionTables(settings.home, region, tables, externals=Externals(settings))


def is_called(table: str, name: str) -> bool:
    """Say whether a name means a table: its name, also without `lake/`, or the end of it for a sink outside Delta."""
    return table in (name, f"lake/{name}") or (table.startswith(OUTSIDE) and table.endswith(f"/{name}"))


def called(tables: Sequence[RegionTable], name: str) -> RegionTable | None:
    """Return the table that a name means, if any; an exact match comes before others."""
    found = [table for table in tables if is_called(table.name, name)]
    return min(found, key=lambda table: table.name not in (name, f"lake/{name}"), default=None)


def table_named(history: RegionHistory, name: str, region: str) -> RegionTable:
    """Return the table that a name means.

    Raises:
        UnknownName: the region has none; the remedy names the nearest.
    """
    found = called(history.tables, name)
    if found is not None:
        return found
    known = [table.name.removeprefix("lake/") for table in history.tables]
    raise UnknownName(f"region {region!r} has no table {name!r}", remedy=nearest(name, known))


def _checked(history: RegionHistory, at: int) -> int:
    if at == INITIAL_ID or at in history.states:
        return at
    ids = history.states.ids
    near = [number for number in (INITIAL_ID, ids.at_most(at), ids.at_least(at)) if number is not None]
    closest = min(near, key=lambda number: abs(number - at))
    last = history.committed_id
    why = f"the last committed id is {last}" if at > last else "no such state is in force"
    msg = f"there is no consistent state {at}: {why}"
    raise RewindRefused(msg, remedy=f"the nearest id is {closest}", nearest=closest)


def _adopted_rows(store: RegionTables, history: RegionHistory, wanted: RegionTable, at: int) -> pa.Table:
    """Return the region's rows of an adopted table, including staged rows of groups that are not published yet."""
    import pyarrow as pa
    import pyarrow.compute as pc

    opened, staged = adopted_version(store, history, wanted.name)
    table, columns, counts = store.adopted(wanted.name), wanted.column_names, pc.field(_SEQUENCE_ID) <= at
    newer = table.folder.read_each([file.path for file in staged], columns)
    parts = [table.read(columns, counts, opened), *(rows.filter(counts) for rows in newer)]
    return pa.concat_tables(parts, promote_options="permissive")


def adopted_version(store: RegionTables, history: RegionHistory, name: str) -> tuple[Any, list[StagedFile]]:
    """Return an adopted table at one version, and the staged files of groups that are not published there.

    A run may publish a group meanwhile, which deletes its staged files: then the next version has their rows.
    """
    folder = store.adopted(name).folder
    opened = delta_tables.open_table(folder)
    staged = _unpublished_files(history, name, commits.txn_version(opened, store.region))
    if staged and not TableFiles(folder).holds(staged):
        opened = delta_tables.open_table(folder)
        staged = _unpublished_files(history, name, commits.txn_version(opened, store.region))
    return opened, staged


def _unpublished_files(history: RegionHistory, name: str, published: int | None) -> list[StagedFile]:
    """Return the staged files of groups that are committed, and not published in a version of a table."""
    found: list[StagedFile] = []
    for row in history.unpublished:
        manifest = manifest_of(row)
        if manifest and txn_version(row.epoch, row.sequence_id) > (published or 0):
            found += manifest.files.get(name, ())
    return found


@dataclass(frozen=True, slots=True)
class TablePart:
    """Files with rows of a table at a state, and which of their rows count.

    Attributes:
        files: visible or not.
        to: the largest id whose rows count, None if `ids` says which.
        without: ids up to `to` whose rows do not count.
        ids: the only ids whose rows count.
    """

    files: Sequence[StagedFile]
    to: int | None = None
    without: Collection[int] = ()
    ids: Collection[int] = ()

    @property
    def condition(self) -> pa.compute.Expression:
        """Return the condition that a row counts."""
        from drainmark.resources.delta.merge import of_ids, up_to

        if self.to is None:
            return of_ids(self.ids)
        return up_to(self.to) & ~of_ids(self.without) if self.without else up_to(self.to)


def parts_at(store: RegionTables, history: RegionHistory, name: str, at: int) -> list[TablePart]:
    """Return the files of a table of rows up to `at`: published, staged, in an image, or replaced after `at`.

    Raises:
        RewindRefused: some of them are out of reach.
    """
    files = store.table(name).files
    committed = committed_files(store, history, name)
    dropped = history.dropped.get(name, 0)
    if INITIAL_ID < at < dropped:
        msg = f"the state {at} of {name!r} is out of reach: changes up to {dropped} are kept as their outcome only"
        raise RewindRefused(msg, remedy=f"{dropped} or a later id", nearest=dropped)
    by_path = {file.path: file for file in (*committed, *_image_files(store, history, name, at))}
    parts = [TablePart(list(by_path.values()), at, replaced_in(history, name))]
    for kept in history.replaced_after(at):
        replaced = kept.files.get(name, ())
        if not files.holds(replaced):
            first = max(kept.ids.values())
            msg = f"the state {at} is out of reach: rows replaced since are kept within the rewind horizon only"
            raise RewindRefused(msg, remedy=f"{first} or a later id", nearest=first)
        parts.append(TablePart(replaced, ids=tuple(kept.ids)))
    return parts


def _rows(
    store: RegionTables, history: RegionHistory, name: str, at: int, only: pa.compute.Expression | None = None
) -> pa.Table:
    """Return the rows of a table of rows up to `at`."""
    import pyarrow as pa

    files = store.table(name).files
    in_force, *replaced = parts_at(store, history, name, at)
    where = in_force.condition if only is None else in_force.condition & only
    parts = [(in_force, where), *((part, part.condition) for part in replaced)]
    return pa.concat_tables(files.read(part.files, where) for part, where in parts)


def rows_between(
    reader: RegionReader, table: RegionTable, after: int, through: int, where: pa.compute.Expression | None = None
) -> pa.Table:
    """Return the rows of a table's history behind an id, up to another one in force, of all its keys and ids.

    Args:
        where: a condition that the rows fulfil.
    """
    import pyarrow.compute as pc

    is_later = pc.field(_SEQUENCE_ID) > after
    return _rows(
        reader.store,
        reader.history,
        table.history or table.name,
        through,
        is_later if where is None else is_later & where,
    )


def _with_trimmed(
    store: RegionTables, history: RegionHistory, wanted: RegionTable, rows: pa.Table, at: int
) -> pa.Table:
    """Return rows of a history, and the rows that were trimmed from it, which the sink outside Delta still shows.

    The edge is read after the rows, because it is recorded before any of them are trimmed.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from drainmark.resources.delta.merge import of_ids

    edge = store.checkpoint.history().trimmed.get(wanted.history or "", INITIAL_ID)
    if edge <= INITIAL_ID:
        return rows
    withdrawn = of_ids(history.replaced)  # the sink lacks them; if they count, `rows` has them
    older = store.external(wanted).read(rows.column_names, ~withdrawn, upto=min(at, edge))
    return pa.concat_tables([older.cast(rows.schema), rows.filter((pc.field(_SEQUENCE_ID) > edge) | withdrawn)])


def committed_files(store: RegionTables, history: RegionHistory, name: str) -> Sequence[StagedFile]:
    """Return the files of a managed table with all committed rows: the visible files, and the staged files of groups
    that are committed and not published.

    Both are told by one version of the table, since a run may publish a group meanwhile, and compact its files away.
    """
    managed = store.table(name)
    with delta_tables.newest(managed.folder, managed.writer) as table:
        published = commits.txn_version(table, store.region)
        files = list(file_lists.live_files(table, managed.folder))
    return [*files, *_unpublished_files(history, name, published)]


def _image_files(store: RegionTables, history: RegionHistory, name: str, at: int) -> Sequence[StagedFile]:
    """Return the files of the image to read beside the changes; no files if the changes alone are enough."""
    holds = store.table(name).files.holds
    image = history.image_held(name, at, holds)
    if image is None and at > INITIAL_ID and name in history.dropped:
        later = (number for number in history.images[name] if number >= at and history.image_held(name, number, holds))
        first = next(later, INITIAL_ID)
        msg = f"the state {at} of {name!r} is out of reach: its image is gone, and changes that it stands for"
        raise RewindRefused(msg, remedy=f"{first} or a later id" if first else "restore a backup", nearest=first)
    return image.files if image is not None else ()
