"""The one guarded function through which every Delta commit goes, and the parts of a commit.

Nothing is committed twice: a table that has the version of a commit, or a later one, has the commit (`is_done`).
Check and commit use one `DeltaTable` object that is never refreshed in between: if another commit landed after its
load, Delta refuses ours. An error of a commit does not tell its outcome, so the outcome is always read back. The object
of a table with a sole writer is kept from commit to commit: opening one replays the log, and loads a client's
certificates if the table is in a bucket.

`log_entries` writes what is committed; `deltalake` and delta-spark only read. On a local disk a commit of delta-spark
may overwrite one that was acknowledged, and it reports success for a transaction id that it skips because it has seen
it, even after a restore.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import (
    CommitOutcomeUnknown,
    DrainmarkError,
    ForeignTable,
    Interrupted,
    LayoutChanged,
    SplitBrain,
    StoreRefused,
    StoreUnavailable,
)
from drainmark.jobs.errors.machine_faults import machine_fault
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.printable import shell_word
from drainmark.jobs.protocol.records.ids import app_id
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.tasks.layout import OF_IDS, partition_text
from drainmark.jobs.world import Seam
from drainmark.resources.delta.log import log_entries
from drainmark.resources.delta.log.commit_log import LOG, LOG_ENTRY, LogCommit, SoleWriter, entry_path
from drainmark.resources.delta.log.log_entries import write_entry
from drainmark.resources.delta.log.marked_files import (
    ENABLED,
    FEATURE,
    Adds,
    adds_of,
    may_have_vectors,
    takes_vectors,
    vector_files,
    vector_of,
)
from drainmark.resources.delta.staging import (
    STAGING_FOLDER,
    all_nullable,
    compare_schemas,
    facts,
    verify,
)
from drainmark.resources.delta.turns import Turn
from drainmark.resources.storage.folder import Folder, LocalFolder

if TYPE_CHECKING:
    import pyarrow as pa

COMMIT_TRIES = 5
CONTENDED_SECONDS = 600.0
"""For how long a commit is retried without limit after it lost to commits of others, since those make progress."""

_FIRST_PAUSE_SECONDS = 0.02
_READ_BACK_SECONDS = 60.0

CONFIGURATION = {
    # A long log makes each commit slow, and a rewind needs no time travel: one day, for any horizon.
    "delta.logRetentionDuration": "interval 1 days",
    # Each log checkpoint lists removed files for this time, and every commit reads the list: one compaction for each
    # group fills it. The files themselves are kept for a day: `log_retention` records them, and `gc` deletes them.
    "delta.deletedFileRetentionDuration": "interval 1 hours",
}

Act = Callable[[], None]
"""Makes the commit, on the table object that was checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The outcome of a commit to a table.

    Attributes:
        delta_version: a version of the table that holds the change and nothing of a later group.
        done_before: nothing was committed, the table had it already.
    """

    delta_version: int
    done_before: bool


def commit(
    folder: Folder,
    *,
    verb: str,
    prepare: Callable[[Any], Act | None],
    landed: Callable[[Any], bool],
    writer: SoleWriter | None,
    turn: Turn | None = None,
    told: Callable[[LogCommit], bool] | None = None,
) -> Published:
    """Check and commit on one table object until the commit is found in the table, at most `COMMIT_TRIES` times.

    Args:
        folder: of the table.
        verb: names the fail points before and after the commit; an error at the first is passed on, one at the second
            counts as a lost reply.
        prepare: gets a table object of the newest version and makes all checks on it; returns the commit to make on
            that same object, or None when it is done already; raises to refuse (`Fenced`).
        landed: gets a table object as the store has it after the commit, and says whether this very commit is in it.
        writer: for a table that only one region may change: checks the authors of new commits. None if others may.
        turn: for a table that others write, too: tries that were lost to them do not count for `CONTENDED_SECONDS`.
        told: says whether an entry of the log is this very commit. After a commit without an error that entry is read,
            and nothing else: `landed` needs a replay of the log, which takes as long as the commit.

    Raises:
        CommitOutcomeUnknown: the commit kept being refused, or could not be read back.
        SplitBrain: there is no table, or somebody else changed its rows, or gave it a feature or a property with which
            no commit of ours may follow.
        StoreUnavailable: the store does not answer; if a commit was sent, a later try finds out whether it landed.
    """
    cause: Exception | None = None
    until, version, tries = world.monotonic() + CONTENDED_SECONDS, -1, 0
    for attempt in itertools.count():
        if turn is not None:
            turn.take(attempt)
        elif attempt:
            world.sleep(_FIRST_PAUSE_SECONDS * 2**attempt)
        table = _taken(folder, writer)
        seen, version = version, int(table.version())
        is_lost_to_others = turn is not None and -1 < seen < version and world.monotonic() < until
        tries += not is_lost_to_others
        if tries > COMMIT_TRIES:
            break
        if writer is not None:
            writer.require(version)
        act = prepare(table)
        if act is None:
            _keep(writer, table)
            return Published(delta_version=version, done_before=cause is None)
        world.pass_point(f"{verb}.before_commit")
        cause = _reply(
            functools.partial(world.across, Seam.DELTA_COMMIT, act, folder),
            lambda: world.pass_point(f"{verb}.after_commit"),
        )
        sole = writer if cause is None else None
        found = table if _is_told(sole, table, told) else _read_back(folder, landed, table if sole else None)
        if found is not None:
            reached = int(found.version())
            if sole is not None:
                reached = sole.through = version + 1  # without retries a commit comes right after the checked version
            _keep(writer, found)
            return Published(delta_version=reached, done_before=False)
    error = _given_up(folder, verb, attempt, cause)
    raise error from (cause if isinstance(error, CommitOutcomeUnknown) else None)


def _given_up(folder: Folder, verb: str, tries: int, cause: Exception | None) -> DrainmarkError:
    """Return the error of a commit whose last try failed, and which is not in the table."""
    if isinstance(cause, StoreRefused | StoreUnavailable):
        return cause
    if cause is not None and not isinstance(cause, FileExistsError) and folder.is_failure(cause):
        return folder.failure(f"commit ({verb}) to", cause)
    msg = f"the commit ({verb}) to {folder} was tried {tries} times and is not in the table: {cause}"
    return CommitOutcomeUnknown(msg, table=folder.uri)


def replace(
    folder: Folder,
    region: str,
    version: int,
    *,
    replaced: Sequence[StagedFile],
    rewritten: Sequence[StagedFile],
    writer: SoleWriter | None,
    verb: str = "compact",
) -> bool:
    """Replace live files by staged ones with the same rows, or by none, at the version that the table has.

    Args:
        verb: names the fail points; with `erase`, rows of a person are left out, and readers pass over that.

    Returns:
        False if it gave up: the version has changed, or a file to replace is no longer live.
    """
    old, new = ({file.path for file in files} for files in (replaced, rewritten))
    given_up = False

    def prepare(table: Any) -> Act | None:
        nonlocal given_up
        if txn_version(table, region) != version or not old <= live_paths(table):
            given_up = True
            return None
        verify(folder, rewritten)
        return lambda: transact(folder, table, region, version, adds=rewritten, removes=replaced, data_change=False)

    def landed(table: Any) -> bool:  # `new` may be empty, so the old files must be gone, too
        live = live_paths(table)
        return new <= live and not old & live

    commit(folder, verb=verb, prepare=prepare, landed=landed, writer=writer)
    return not given_up


def _reply(act: Act, answered: Act) -> Exception | None:
    """Make the commit and return its error, or None; neither tells whether it landed.

    Raises:
        SplitBrain: the table takes no such commit, so nothing was sent.
    """
    try:
        act()
        answered()
    except (Interrupted, SplitBrain):
        raise
    except Exception as error:
        return error
    return None


def _is_told(writer: SoleWriter | None, used: Any, told: Callable[[LogCommit], bool] | None) -> bool:
    """Say whether the log's entry behind the version of a table object is the commit that was made on it.

    False also if the entry cannot be read: then the table is read back, which tells why.
    """
    if writer is None or told is None:
        return False
    try:
        entry = writer.committed(used, int(used.version()) + 1)
    except Interrupted:
        raise
    except Exception:
        return False
    return entry is not None and told(entry)


def _read_back(folder: Folder, landed: Callable[[Any], bool], used: Any | None) -> Any | None:
    """Return a table object of a version in which a commit was found, None if it is not in the table.

    Args:
        used: the table object of the commit, to be brought up to date; None to open another one.
    """
    error: Exception | None = None
    until = world.monotonic() + _READ_BACK_SECONDS
    for attempt in range(COMMIT_TRIES):
        if attempt:
            world.sleep(_FIRST_PAUSE_SECONDS * 2**attempt)
        if attempt and world.monotonic() > until:
            break
        try:
            table = open_table(folder) if used is None or attempt else _up_to_date(folder, used)
            return table if landed(table) else None
        except (SplitBrain, Interrupted):
            raise
        except Exception as failed:
            error = failed
    msg = f"a commit to {folder} was sent and the table cannot be read back: {error}"
    fault = error if isinstance(error, StoreUnavailable) else machine_fault(error) if error is not None else None
    if fault is not None:
        raise StoreUnavailable(msg, remedy=fault.remedy, table=folder.uri) from error
    raise CommitOutcomeUnknown(msg, table=folder.uri) from error


# --- tables -------------------------------------------------------------------------------------------------------


@contextmanager
def newest(folder: Folder, writer: SoleWriter | None) -> Iterator[Any]:
    """Yield a `DeltaTable` of the newest version, which nobody else uses inside the block.

    Raises:
        SplitBrain, StoreUnavailable: see `open_table`.
    """
    table = _taken(folder, writer)
    yield table
    _keep(writer, table)


def _taken(folder: Folder, writer: SoleWriter | None) -> Any:
    try:
        return _up_to_date(folder, writer.kept.pop()) if writer is not None else open_table(folder)
    except IndexError:
        return open_table(folder)


def _keep(writer: SoleWriter | None, table: Any) -> None:
    if writer is not None:
        writer.kept[:] = [table]


def _up_to_date(folder: Folder, table: Any) -> Any:
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


def open_table(folder: Folder) -> Any:
    """Return a new `DeltaTable` of the newest version.

    Raises:
        SplitBrain: the table is gone, or others gave it a feature that no reader here knows.
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
        if not folder.is_failure(error):
            raise
        raise folder.failure("read the table", error) from None


_UNREADABLE = re.compile(r"Unsupported: Feature .*|.*catalog-managed.*")


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
        remedy = "choose another table name"
    raise ForeignTable(msg, remedy=remedy, table=folder.uri)


def is_own(table: Any, region: str) -> bool:
    """Say whether a table has the mark of a region."""
    return bool(table.metadata().description == app_id(region))


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


_OURS = {STAGING_FOLDER, LOG}


# --- the parts of a commit ----------------------------------------------------------------------------------------


def transact(
    folder: Folder,
    table: Any,
    region: str,
    version: int | None,
    *,
    adds: Iterable[StagedFile] = (),
    removes: Iterable[StagedFile] = (),
    data_change: bool = True,
    mark: Mapping[str, str] | None = None,
) -> None:
    """Commit adds and removes in one transaction; an empty one if there are none.

    Without a version, a repeated commit cannot be detected: only for tables outside of regions.

    Args:
        mark: goes into the commitInfo.

    The caller has checked that every file removed is live in `table` and every file added exists.
    """
    removed = list(removes)
    added = _added(folder, table, removed)
    facts_of = [added[file.path] if added else None for file in removed]
    changes = [log_entries.remove(*each, data_change=data_change) for each in zip(removed, facts_of, strict=True)]
    changes += [log_entries.add(file, data_change=data_change) for file in adds]
    write_entry(folder, table, region, version, changes, mark=mark)


def _added(folder: Folder, table: Any, files: Sequence[StagedFile]) -> Adds:
    """Return what the removes of files need of their adds, by path; nothing if the files themselves tell all."""
    if may_have_vectors(table):
        return adds_of(folder, table) if files else {}
    if not any("%" in log_entries.text_of(file.path) for file in files):
        return {}
    texts = _adds(table).column("path").to_pylist()
    return {urllib.parse.unquote(text): {"path": text} for text in texts}


def take_vectors(folder: Folder, region: str, *, wanted: bool, writer: SoleWriter | None) -> None:
    """Let a table take deletion vectors from now on, or no new ones; do nothing if that is so.

    This is part of a claim, and uses its fail points. The commit keeps the version that the table has.

    Raises:
        CommitOutcomeUnknown, SplitBrain, StoreUnavailable: see `commit`.
    """

    def is_so(table: Any) -> bool:
        return takes_vectors(table) is wanted

    def prepare(table: Any) -> Act | None:
        if is_so(table):
            return None
        changes = log_entries.alter(table, features={FEATURE}, configuration={ENABLED: json.dumps(wanted)})
        return lambda: write_entry(folder, table, region, txn_version(table, region), changes)

    commit(folder, verb="claim", prepare=prepare, landed=is_so, writer=writer)


def set_properties(folder: Folder, table: Any, region: str, version: int, values: Mapping[str, str]) -> None:
    """Commit properties of a table; none of them may demand a feature."""
    write_entry(folder, table, region, version, log_entries.alter(table, configuration=values))


def txn_version(table: Any, region: str) -> int | None:
    """Return the newest `txnVersion` that the table has of a region."""
    version: int | None = table.transaction_version(app_id(region))
    return version


def is_done(table: Any, region: str, version: int, writer: SoleWriter | None = None) -> bool:
    """Say whether a table has a version of a region, or a later one: then the commit is done, or an owner undid it."""
    found = writer.transaction(table) if writer is not None else txn_version(table, region)
    return found is not None and found >= version


def live_paths(table: Any) -> set[str]:
    """Return the paths of the table's files, relative to it."""
    return set(live_sizes(table))


def live_sizes(table: Any) -> dict[str, int]:
    """Return the bytes of the table's files by path, relative to it."""
    actions = actions_of(table)
    return dict(zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True))


def kept_paths(table: Any, folder: Folder) -> set[str]:
    """Return the paths of the table's files, and of those with their deletion vectors."""
    return live_paths(table) | (vector_files(adds_of(folder, table)) if may_have_vectors(table) else set())


def marked_paths(table: Any, folder: Folder) -> frozenset[str]:
    """Return the paths of the table's files that have deletion vectors."""
    adds = adds_of(folder, table) if may_have_vectors(table) else {}
    return frozenset(path for path, action in adds.items() if action.get("deletionVector"))


def live_files(table: Any, folder: Folder, among: Collection[str] | None = None) -> tuple[StagedFile, ...]:
    """Return the files of the table's version, or those among some paths, in the order of ids.

    Bounds are exact, but for files with a deletion vector: these have the bounds of all their rows.
    """
    by = partition_columns(table)
    if may_have_vectors(table):
        adds = adds_of(folder, table)
        return _ordered(_marked_file(adds[path], folder, by) for path in adds if among is None or path in among)
    found = actions_of(table)
    wanted = ("path", "size_bytes", "num_records", f"min.{SEQUENCE_ID}", f"max.{SEQUENCE_ID}")
    # Other columns take time, and may have a date of a year that Python does not support.
    names = [name for name in (*wanted, *(f"partition.{each}" for each in by)) if name in found.column_names]
    actions = found.select(names).to_pylist()
    return _ordered(_live_file(action, folder, by) for action in actions if among is None or action["path"] in among)


def _ordered(files: Iterable[StagedFile]) -> tuple[StagedFile, ...]:
    return tuple(sorted(files, key=lambda file: (file.first_id or 0, file.last_id or 0, file.path)))


def partition_columns(table: Any) -> tuple[str, ...]:
    """Return the columns by which an open `DeltaTable` is partitioned."""
    return tuple(table.metadata().partition_columns)


def actions_of(table: Any) -> pa.Table:
    """Return the actions that added the table's files, with their paths as the folder has them, not the log."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = _adds(table)
    paths, at = found.column("path"), found.column_names.index("path")
    if not pc.any(pc.match_substring(paths, "%")).as_py():
        return found
    return found.set_column(at, "path", pa.array(map(urllib.parse.unquote, paths.to_pylist()), pa.string()))


def _adds(table: Any) -> pa.Table:
    """Return the actions that added the table's files; `pa.table` would import pandas, half of the time of `status`."""
    import pyarrow as pa

    return pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()


def _live_file(action: dict[str, Any], folder: Folder, by: Sequence[str]) -> StagedFile:
    first, last = (action.get(f"{bound}.{SEQUENCE_ID}") for bound in ("min", "max"))
    partition = partition_text({name: action[f"partition.{name}"] for name in by})
    if action["num_records"] is None or first is None or last is None:
        return dataclasses.replace(footer(folder, action["path"], action["size_bytes"]), partition=partition)
    return StagedFile(
        path=action["path"],
        size=action["size_bytes"],
        rows=action["num_records"],
        first_id=first,
        last_id=last,
        partition=partition,
    )


def _marked_file(action: Mapping[str, Any], folder: Folder, by: Sequence[str]) -> StagedFile:
    """Return a file of a table with deletion vectors, from the action that added it."""
    known, vector = json.loads(action.get("stats") or "{}"), vector_of(action)
    first, last = (known.get(bound, {}).get(SEQUENCE_ID) for bound in ("minValues", "maxValues"))
    rows, path = known.get("numRecords"), urllib.parse.unquote(action["path"])
    values = action.get("partitionValues") or {}
    partition = partition_text({name: values.get(name) for name in by})
    if rows is None or first is None or last is None:
        file = dataclasses.replace(footer(folder, path, action["size"]), partition=partition)
    else:
        file = StagedFile(path=path, size=action["size"], rows=rows, first_id=first, last_id=last, partition=partition)
    dead = vector.rows if vector is not None else 0
    return dataclasses.replace(file, rows=file.rows - dead, statistics=action.get("stats") or "", vector=vector)


def footer(folder: Folder, path: str, size: int, partition_by: Sequence[str] = ()) -> StagedFile:
    """Return the facts of a file of a table, live or not, from its footer."""
    read = functools.partial(facts, path=path, size=size, partition_by=partition_by)
    return world.across(Seam.STORE_READ, lambda: read(folder.source(path)), folder / path)
