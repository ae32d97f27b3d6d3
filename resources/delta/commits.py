"""The one guarded function through which every Delta commit goes, and the parts of a commit.

Nothing is committed twice: a table that has the version of a commit, or a later one, has the commit (`is_done`).
Check and commit use one `DeltaTable` object that is never refreshed in between: if another commit landed after its
load, Delta refuses ours. An error of a commit does not tell its outcome, so the outcome is always read back.

`log_entries` writes what is committed; `deltalake` and delta-spark only read. On a local disk a commit of delta-spark
may overwrite one that was acknowledged, and it reports success for a transaction id that it skips because it has seen
it, even after a restore.
"""

from __future__ import annotations

import functools
import itertools
import json
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import (
    CommitOutcomeUnknown,
    DrainmarkError,
    Interrupted,
    SplitBrain,
    StoreRefused,
    StoreUnavailable,
)
from drainmark.jobs.errors.machine_faults import machine_fault
from drainmark.jobs.protocol.records.ids import app_id
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.jobs.world import Seam
from drainmark.resources.delta import delta_tables, file_lists
from drainmark.resources.delta.log import log_entries
from drainmark.resources.delta.log.commit_log import LogCommit, SoleWriter
from drainmark.resources.delta.log.log_entries import write_entry
from drainmark.resources.delta.log.marked_files import ENABLED, FEATURE, Adds, adds_of, may_have_vectors, takes_vectors
from drainmark.resources.delta.staging import verify
from drainmark.resources.delta.turns import Turn
from drainmark.resources.storage.folder import Folder, folder_at

COMMIT_TRIES = 5
CONTENDED_SECONDS = 600.0
"""For how long a commit is retried without limit after it lost to commits of others, since those make progress."""

_FIRST_PAUSE_SECONDS = 0.02
_READ_BACK_SECONDS = 60.0

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
        table = delta_tables.taken(folder, writer)
        seen, version = version, int(table.version())
        is_lost_to_others = turn is not None and -1 < seen < version and world.monotonic() < until
        tries += not is_lost_to_others
        if tries > COMMIT_TRIES:
            break
        if writer is not None:
            writer.require(version)
        act = prepare(table)
        if act is None:
            delta_tables.keep(writer, table)
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
            delta_tables.keep(writer, found)
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
        if txn_version(table, region) != version or not old <= file_lists.live_paths(table):
            given_up = True
            return None
        verify(folder, rewritten)
        return lambda: transact(folder, table, region, version, adds=rewritten, removes=replaced, data_change=False)

    def landed(table: Any) -> bool:  # `new` may be empty, so the old files must be gone, too
        live = file_lists.live_paths(table)
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
            is_kept = used is not None and not attempt
            table = delta_tables.up_to_date(folder, used) if is_kept else delta_tables.open_table(folder)
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
    texts = file_lists.adds(table).column("path").to_pylist()
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


class RegionDeltaTable:
    """A Delta table to which a region commits under its `txnVersion`; opened anew by each call.

    Args:
        root: folder of the table; a path is one on this machine.
        region: the region that commits.
    """

    def __init__(self, root: Path | Folder, region: str) -> None:
        self.folder = folder_at(root)
        self.region = region

    def exists(self) -> bool:
        """Say whether there is a Delta table, made by this region or by others."""
        return delta_tables.is_table(self.folder)

    def txn_version(self) -> int | None:
        """Return the newest version of the region that is published, None before the first."""
        return txn_version(self._open(), self.region)

    def delta_version(self) -> int:
        """Return Delta's own version."""
        version: int = self._open().version()
        return version

    def _open(self) -> Any:
        return delta_tables.open_table(self.folder)
