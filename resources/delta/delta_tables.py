"""Delta tables as deltalake opens them, how they are made, and whose they are.

The object of a table with a sole writer is kept from commit to commit: opening one replays the log, and loads a
client's certificates if the table is in a bucket.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import ForeignTable, Interrupted, LayoutChanged, SplitBrain
from drainmark.jobs.errors.environment import damaged
from drainmark.jobs.printable import shell_word
from drainmark.jobs.protocol.records.ids import app_id
from drainmark.jobs.tasks.layout import OF_IDS
from drainmark.jobs.world import Seam
from drainmark.resources.delta.log import log_entries
from drainmark.resources.delta.log.commit_log import LOG, LOG_ENTRY, SoleWriter, entry_path
from drainmark.resources.delta.staging import STAGING_FOLDER, all_nullable, compare_schemas
from drainmark.resources.storage.folder import Folder, LocalFolder, around

CONFIGURATION = {
    # A long log makes each commit slow, and a rewind needs no time travel: one day, for any horizon.
    "delta.logRetentionDuration": "interval 1 days",
    # Each log checkpoint lists removed files for this time, and every commit reads the list: one compaction for each
    # group fills it. The files themselves are kept for a day: `log_retention` records them, and `gc` deletes them.
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}

_OURS = {STAGING_FOLDER, LOG}
_OUTSIDE = re.compile(re.escape(app_id("")) + "([^/]+)")
"""The mark of a table that no region owns: the application whose autonomous operators write it."""

_UNREADABLE = re.compile(r"Unsupported: Feature .*|.*catalog-managed.*")


@contextmanager
def newest(folder: Folder, writer: SoleWriter | None) -> Iterator[Any]:
    """Yield a `DeltaTable` of the newest version, which nobody else uses inside the block.

    Raises:
        SplitBrain, StoreUnavailable: see `open_table`.
    """
    table = taken(folder, writer)
    yield table
    keep(writer, table)


def taken(folder: Folder, writer: SoleWriter | None) -> Any:
    """Return a `DeltaTable` of the newest version: the kept one, which is then nobody else's, or a new one."""
    try:
        return up_to_date(folder, writer.kept.pop()) if writer is not None else open_table(folder)
    except IndexError:
        return open_table(folder)


def keep(writer: SoleWriter | None, table: Any) -> None:
    """Let the next caller of `taken` have a table object."""
    if writer is not None:
        writer.kept[:] = [table]


def up_to_date(folder: Folder, table: Any) -> Any:
    """Let a table object read the new entries of the log; return another one if that fails."""
    try:
        catch_up(folder, table)
        folder.size(entry_path(int(table.version())))  # it does not notice that the table was deleted
    except Interrupted:
        raise
    except Exception:
        return open_table(folder)
    return table


def catch_up(folder: Folder, table: Any) -> None:
    """Let a table object read the new entries of its log; any error leaves it unfit."""
    world.across(Seam.DELTA_OPEN, table.update_incremental, folder)


def is_table(folder: Folder) -> bool:
    """Say whether there is any Delta table in a folder; `DeltaTable.is_deltatable` would hold the GIL."""
    return any(LOG_ENTRY.match(name) for name in folder.names(LOG))


def open_table(folder: Folder, *, is_ours: bool = True) -> Any:
    """Return a new `DeltaTable` of the newest version.

    Args:
        is_ours: a region writes to the table.

    Raises:
        DeltaError: the log of a table of others cannot be read.
        SplitBrain: the table is gone, or others gave it a feature that no reader here knows.
        FileDamaged: the log cannot be read.
        StoreUnavailable: the disk or the store does not answer.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        options = folder.storage_options()
        return world.across(Seam.DELTA_OPEN, lambda: DeltaTable(folder.uri, storage_options=options), folder)
    except TableNotFoundError as error:
        msg = f"the table {folder} is gone"
        remedy = "restore it from a backup; or see how far to rewind: drainmark doctor"
        raise SplitBrain(msg, remedy=remedy, table=folder.uri) from error
    except Exception as error:
        if isinstance(error, DeltaError) and (found := _UNREADABLE.search(str(error))):
            msg = f"the table {folder} has a feature that Drainmark cannot read: {found[0]}"
            remedy = "take it away with the program that gave it (Spark: ALTER TABLE … DROP FEATURE …)"
            raise SplitBrain(msg, remedy=remedy, table=folder.uri) from error
        if folder.is_failure(error):
            raise folder.failure("read the table", error) from None
        if isinstance(error, DeltaError) and is_ours:
            raise damaged(folder / LOG, error) from error
        raise


def create_table(
    folder: Folder,
    region: str,
    schema_json: str,
    *,
    compare: Callable[[str, str, str], object] | None = None,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] = OF_IDS,
    writer: SoleWriter | None = None,
) -> None:
    """Create an empty table with the mark of the region, or check that the existing one has it and fits.

    Args:
        compare: checks the columns of an existing table, given its schema, the wanted schema, and the table's name for
            messages; by default the schemas must be the same.
        partition_by: columns by which the table is partitioned.
        properties: of the table, beside `CONFIGURATION`; an existing table keeps its own.
        writer: keeps the table object for the checks and commits that follow.

    Raises:
        ForeignTable: the table or the files at `folder` were not made by this region.
        LayoutChanged: the existing table is partitioned by other columns.
        SchemaMismatch: the table exists with other columns, or a column cannot be kept.
        StoreRefused: the store knows no conditional put, or does not let us write.
        StoreUnavailable: the store does not answer.
    """
    schema = all_nullable(schema_json)
    if not is_table(folder):
        refuse_foreign_files(folder)
        folder.require_put_if_absent()
        values = {**CONFIGURATION, **properties}
        create = functools.partial(log_entries.create, folder, region, schema, partition_by, values)
        try:
            world.across(Seam.DELTA_COMMIT, create, folder)
        except Exception as error:  # another process was faster, or the answer was lost: the table decides
            if not is_table(folder):
                if not folder.is_failure(error):
                    raise
                raise folder.failure("create the table", error) from None
    require_fit(folder, region, schema, compare=compare, partition_by=partition_by, writer=writer)


def require_fit(
    folder: Folder,
    region: str,
    schema: str,
    *,
    compare: Callable[[str, str, str], object] | None,
    partition_by: Sequence[str],
    writer: SoleWriter | None,
) -> None:
    """Check that an existing table has the mark of the region and fits; see `create_table`."""
    judge = compare or (lambda found, wanted, where: compare_schemas(found, wanted, where=where))
    with newest(folder, writer) as table:
        require_own(table, folder, region)
        judge(table.schema().to_json(), schema, f"the table {folder}")
        _require_partitions(table, folder, partition_by, region)


def _require_partitions(table: Any, folder: Folder, wanted: Sequence[str], region: str) -> None:
    found = list(table.metadata().partition_columns)
    if found != list(wanted):
        said = [f"by {', '.join(names)}" if names else "by nothing" for names in (found, wanted)]
        msg = f"the table {folder} is partitioned {said[0]}, and its sink says {said[1]}"
        remedy = (
            f"write partition_by={found}, as it was; or write to a table of another name, and have all input read again"
            f" for it: drainmark reset {region} --to-initial"
        )
        raise LayoutChanged(msg, remedy=remedy, table=folder.uri, columns=tuple(found))


def require_own(table: Any, folder: Folder, region: str) -> None:
    """Check the mark that `create_table` left.

    Raises:
        ForeignTable: it is missing, or another region's.
    """
    if is_own(table, region):
        return
    mark = table.metadata().description
    maker = (mark or "").removeprefix(app_id("")) if (mark or "").startswith(app_id("")) else None
    msg = f"the table {folder} was made by {f'region {maker}' if maker else 'somebody else'}, not by region {region}"
    app, _, start = (maker or "").partition("/")
    if maker is None:
        remedy = "adopt it (adopt=True on the sink), choose another table name, or move that table away"
    elif app == region.partition("/")[0]:  # most often its start was renamed
        remedy = (
            f"name the start {start}, as it was: a region has the name of its start; or choose another table name; or,"
            f" if nobody needs that region any more: drainmark tables drop --region {shell_word(maker)}"
        )
    else:
        remedy = f"choose another table name; or if the application {app} was renamed, give its file the old name back"
    raise ForeignTable(msg, remedy=remedy, table=folder.uri)


def is_own(table: Any, region: str) -> bool:
    """Say whether a table has the mark of a region."""
    return bool(table.metadata().description == app_id(region))


def application_of(table: Any) -> str | None:
    """Return the application whose autonomous operators write an open `DeltaTable`; None if it is another table."""
    found = _OUTSIDE.fullmatch(table.metadata().description or "")
    return found[1] if found is not None else None


def tables_outside(tables: Folder) -> Iterator[tuple[str, str]]:
    """Yield the tables of autonomous operators, each with its application.

    Args:
        tables: the folder of `lake/`.
    """
    for name in tables_below(tables, "lake"):
        if is_table(tables / name):
            application = application_of(open_table(tables / name))
            if application is not None:
                yield name, application


def tables_below(tables: Folder, path: str) -> Iterator[str]:
    """Yield the folders at any depth that are tables, or have a staging folder."""
    names = list(tables.names(path))
    if STAGING_FOLDER in names or LOG in names:
        yield path
        return
    for name in names:
        if not name.startswith(("_", ".")):
            yield from tables_below(tables, f"{path}/{name}")


def refuse_foreign_files(folder: Folder) -> None:
    """Check that there is nothing of others where a table is to be made.

    Raises:
        ForeignTable: there is.
    """
    if isinstance(folder, LocalFolder) and folder.path.is_file():
        msg = f"{folder} is a file, expected a folder for a table"
        raise ForeignTable(msg, remedy="choose another table name, or move the file away", table=folder.uri)
    foreign = next((name for name in folder.names() if name not in _OURS), None)
    if foreign is not None and not is_table(folder):
        msg = f"the folder {folder} is not empty and no table of Drainmark: it holds {foreign}"
        raise ForeignTable(msg, remedy="choose another table name, or move the folder away", table=folder.uri)
    if (outer := next(filter(is_table, around(folder)), None)) is not None:
        msg = f"the folder {folder} is inside the table {outer}"
        raise ForeignTable(msg, remedy="choose another table name, outside of that table", table=folder.uri)
