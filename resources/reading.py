"""Sinks as they were at a consistent state: for `show` and `dm.read`; reads Delta logs and Parquet, no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jobs.errors import RewindRefused, UnknownName
from jobs.graph.application import nearest
from jobs.protocol.history import RegionHistory, manifest_of
from jobs.protocol.ids import INITIAL_ID
from jobs.protocol.manifest import RegionTable, StagedFile, TableRole
from jobs.protocol.rows import RowKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from resources.region_store import DirectoryStore

_SEQUENCE_ID = "_sequence_id"
_POSITION = "_position"


def read_at(region: str, table: str, *, at: int | None = None, home: str | None = None) -> pa.Table:
    """Return a table of a region as it was at a consistent state.

    A group that is committed but not published yet is part of the answer: its staged files are read.

    Args:
        region: `APP/START`, or `APP` where it has one region.
        table: name of a sink's table, or a path below DRAINMARK_HOME such as `state/APP/OPERATOR`.
        at: a sequence id; the last committed one by default.
        home: DRAINMARK_HOME, found as the command line finds it by default.

    Returns:
        append tables: the rows with `_sequence_id` up to `at`, in id order; upsert tables: the last row of each key
        up to `at`, in the order of the keys.

    Raises:
        UnknownName: no such region or table.
        RewindRefused: `at` is no effective committed id.
    """
    from resources.region_store import DirectoryStore
    from resources.settings import load_settings

    root = load_settings(home=home).home
    store = DirectoryStore(root, _region_of(root, region))
    history = RegionHistory.from_rows(store.checkpoint.rows())
    wanted = _table_of(history, table, store.region)
    number = history.committed_id if at is None else _checked(history, at)
    if wanted.role is not TableRole.UPSERT:
        rows = _rows(store, history, wanted.name, number)
        return rows.sort_by(_SEQUENCE_ID)
    from jobs.state.keyed_rows import last_per_key

    changes = _rows(store, history, wanted.history or wanted.name, number)
    rows = last_per_key(changes, wanted.keys).select(list(wanted.columns) or changes.column_names)
    return in_order(rows, wanted)


def read_visible(home: Path, region: str, table: str) -> pa.Table:
    """Return a table as every reader of the Delta table sees it now.

    Raises:
        UnknownName: no such region or table.
    """
    from resources.region_store import DirectoryStore

    store = DirectoryStore(home, _region_of(home, region))
    history = RegionHistory.from_rows(store.checkpoint.rows())
    wanted = _table_of(history, table, store.region)
    rows = store.table(wanted.name).read()
    return in_order(rows, wanted) if wanted.role is TableRole.UPSERT else rows.sort_by(_SEQUENCE_ID)


def in_order(rows: pa.Table, table: RegionTable) -> pa.Table:
    """Return rows by key, where the types of the keys have an order."""
    import pyarrow as pa

    keys = [(key, "ascending") for key in table.keys if not pa.types.is_nested(rows.schema.field(key).type)]
    return rows.sort_by(keys) if keys else rows


def owner_of(home: Path, table: str) -> str:
    """Return the region that writes a table.

    Raises:
        UnknownName: none does; the remedy names the nearest table.
    """
    from resources.region_store import DirectoryStore

    known: list[str] = []
    for region in regions_of(home):
        history = RegionHistory.from_rows(DirectoryStore(home, region).checkpoint.rows())
        names = [found.name for found in history.tables]
        if table in names or f"lake/{table}" in names:
            return region
        known += [name.removeprefix("lake/") for name in names]
    raise UnknownName(f"no region writes a table {table!r}", remedy=nearest(table, known))


def regions_of(home: Path) -> tuple[str, ...]:
    """Return the regions that have a checkpoint table, sorted."""
    root = home / "checkpoints"
    return tuple(sorted(log.parent.relative_to(root).as_posix() for log in root.glob("*/*/_delta_log")))


def _region_of(home: Path, name: str) -> str:
    known = regions_of(home)
    if name in known:
        return name
    below = [region for region in known if region.partition("/")[0] == name]
    if len(below) == 1:
        return below[0]
    if below:
        raise UnknownName(f"application {name!r} has several regions", remedy=f"name one of {', '.join(below)}")
    raise UnknownName(f"there is no region {name!r}", remedy=nearest(name, list(known)))


def _table_of(history: RegionHistory, name: str, region: str) -> RegionTable:
    for table in history.tables:
        if table.name in (name, f"lake/{name}"):
            return table
    known = [table.name.removeprefix("lake/") for table in history.tables]
    raise UnknownName(f"region {region!r} has no table {name!r}", remedy=nearest(name, known))


def _checked(history: RegionHistory, at: int) -> int:
    if at == INITIAL_ID or at in history.states:
        return at
    allowed = [INITIAL_ID, *history.states]
    closest = min(allowed, key=lambda number: abs(number - at))
    last = history.committed_id
    why = f"the last committed id is {last}" if at > last else "no such state is in force"
    msg = f"there is no consistent state {at}: {why}"
    raise RewindRefused(msg, remedy=f"the nearest id is {closest}", nearest=closest)


def _rows(store: DirectoryStore, history: RegionHistory, name: str, at: int) -> pa.Table:
    """Return the rows of a table of rows up to an id, whether published, staged or in an image."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from jobs.state.keyed_rows import read_parquet

    table = store.table(name)
    published = table.read(None, pc.field(_SEQUENCE_ID) <= at)
    live = {file.path for file in table.live_files()}
    missing = [file.path for file in _further_files(history, name, at) if file.path not in live]
    if not missing:
        return published
    paths = [table.root / path for path in missing]
    further = read_parquet(paths, published.schema, None, pc.field(_SEQUENCE_ID) <= at)
    return pa.concat_tables([published, further])


def _further_files(history: RegionHistory, name: str, at: int) -> Sequence[StagedFile]:
    files: list[StagedFile] = []
    for row in history.unpublished:
        manifest = manifest_of(row) if row.kind is RowKind.STATE else None
        files += manifest.files.get(name, ()) if manifest else ()
    for number in reversed(list(history.states)):
        manifest = manifest_of(history.states[number]) if number <= at else None
        images = [image for image in manifest.images if image.table == name] if manifest else []
        if images:
            return [*files, *images[-1].files]
    return files
