"""Changes by others to a managed table, read from its log, and the commit that repairs it.

The repair commits right after the Delta version that it was planned for, with the transaction version that the table
has, since later groups may still have to be published. Its commitInfo marks it, so that older commits are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import SplitBrain
from drainmark.jobs.protocol.records.manifest import StagedFile, is_ours
from drainmark.jobs.protocol.repairs import TableDamage, TableRepair
from drainmark.resources.delta import commits, delta_tables, file_lists
from drainmark.resources.delta.commits import Act, Published
from drainmark.resources.delta.health.visible_rows import VisibleRows
from drainmark.resources.delta.log.commit_log import REPAIR, LogCommit, SoleWriter, commits_back
from drainmark.resources.delta.merge import arrow_schema, of_ids
from drainmark.resources.delta.staging import Staging, verify
from drainmark.resources.storage.folder import Folder

COMMITS = 50
"""The number of newest commits that are checked, or more if the region's last one is older."""


def damage_of(folder: Folder, region: str, *, whatever: bool = False) -> TableDamage | None:
    """Return the changes by others since a table's last repair, among its newest commits; None if it is sound.

    Args:
        whatever: describe a sound table, too.

    Raises:
        SplitBrain: there is no table.
    """
    table = delta_tables.open_table(folder)
    version = int(table.version())
    recent, is_cut = recent_commits(folder, region, version)
    damage = [commit for commit in recent if commit.is_damage]
    if not damage and not is_cut and not whatever:
        return None
    since = [commit for commit in recent if damage and commit.version >= damage[-1].version]
    found = _FormerFiles(folder, table, since)
    is_traced = not is_cut and not any(commit.is_own for commit in since) and found.trace()
    return TableDamage(
        version=version,
        txn_version=commits.txn_version(table, region),
        commits=tuple(told(commit) for commit in reversed(damage)),
        live=file_lists.live_sizes(table),
        marked=file_lists.marked_paths(table, folder),
        sound=tuple(found.sound) if is_traced else (),
        gone=tuple(found.gone) if is_traced else (),
        is_traced=is_traced,
    )


def recent_commits(folder: Folder, region: str, version: int) -> tuple[list[LogCommit], bool]:
    """Return commits since the last repair, newest first: back to the region's last one, and at least `COMMITS`.

    Returns:
        also, whether the log was cut before a commit of the region was found.
    """
    recent: list[LogCommit] = []
    has_own = False
    for commit in commits_back(folder, region, version):
        if commit.is_repair:
            return recent, False
        recent.append(commit)
        has_own = has_own or commit.is_own
        if has_own and len(recent) >= COMMITS:
            break
    return recent, not has_own


def told(commit: LogCommit) -> dict[str, Any]:
    """Return a commit of others in the form that plans and JSON have."""
    return {
        "version": commit.version,
        "operation": commit.operation,
        "engine": commit.engine,
        "user": commit.user,
    }


class _FormerFiles:
    """The files that a table showed before some commits, which are undone one by one."""

    def __init__(self, folder: Folder, table: Any, since: list[LogCommit]) -> None:
        self.folder = folder
        self.table = table
        self.since = since
        self.sound: list[StagedFile] = []
        self.gone: list[StagedFile] = []

    def trace(self) -> bool:
        """Find the files; return False if the state before the commits cannot be known."""
        before = dict(file_lists.live_sizes(self.table))
        marked = set(file_lists.marked_paths(self.table, self.folder))
        for commit in self.since:
            before = {path: size for path, size in before.items() if path not in commit.added} | dict(commit.removed)
            marked = (marked - commit.added.keys()) | commit.marked
        if marked & before.keys():
            return False  # the vectors of that time may be gone
        changed = file_lists.marked_paths(self.table, self.folder)
        shown = file_lists.live_files(self.table, self.folder, among=before.keys() - changed)
        live = {file.path for file in shown}
        missing = [path for path, size in before.items() if path not in live and not self._is_there(path, size)]
        by = file_lists.partition_columns(self.table)
        theirs = {path for path in before.keys() - live - set(missing) if by and not is_ours(path)}
        asked = [*missing, *sorted(theirs)]  # their footers do not tell their partitions
        known = self._as_it_was(asked) if asked else {}
        if known is None:
            return False
        back = [path for path in before if path not in live and path not in known]
        there = (file_lists.footer(self.folder, path, before[path], by) for path in back)
        self.sound = [*shown, *there, *(known[path] for path in sorted(theirs))]
        self.gone = [known[path] for path in missing]
        return True

    def _is_there(self, path: str, size: int) -> bool:
        try:
            return self.folder.size(path) == size
        except FileNotFoundError:
            return False

    def _as_it_was(self, paths: list[str]) -> Mapping[str, StagedFile] | None:
        """Return files by path with their bounds, from the version before the commits; None if it is not readable."""
        from deltalake import DeltaTable

        try:
            version = self.since[-1].version - 1
            options = self.folder.storage_options()
            table = DeltaTable(self.folder.uri, version=version, storage_options=options)
            files = file_lists.live_files(table, self.folder, among=paths)
        except Exception as error:
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise
            return None
        return {file.path: file for file in files} if len(files) == len(paths) else None


def put_right(
    folder: Folder,
    region: str,
    repair: TableRepair,
    *,
    version: int | None,
    rows: VisibleRows | None,
    staging: Staging,
    writer: SoleWriter,
) -> Published:
    """Carry out the repair of a table in one commit.

    Args:
        version: of a rewind that the same commit carries out; None for a repair, which keeps the table's version.
        rows: the rows that a visible table must hold; None for a table of rows.
        staging: where rewritten files go.

    Raises:
        SplitBrain: others committed since it was planned.
        AccountingError: a file that the table must show is gone.
    """
    mark = world.token()
    txn = version if version is not None else repair.txn_version or 0

    def prepare(table: Any) -> Act | None:
        if landed(table):
            return None
        if table.version() != repair.version:
            msg = f"others committed to {folder} since its repair was planned, at version {repair.version}"
            raise SplitBrain(
                msg, remedy="make sure that nobody else writes to it, then plan it again", table=folder.uri
            )
        removes = [StagedFile(path=p, size=s, rows=0, first_id=None, last_id=None) for p, s in repair.removed.items()]
        adds = [*repair.added, *_written(table)]
        verify(folder, adds)
        return lambda: commits.transact(folder, table, region, txn, adds=adds, removes=removes, mark={REPAIR: mark})

    def _written(table: Any) -> list[StagedFile]:
        schema = arrow_schema(table)
        copied = (staging.rewrite([part.files], schema, of_ids(part.ids)) for part in repair.copied)
        whole = rows.written(table, staging) if rows is not None else ()
        return [*(file for files in copied for file in files), *whole]

    def landed(table: Any) -> bool:
        return _has_mark(folder, region, repair.version + 1, int(table.version()), mark)

    done = commits.commit(folder, verb=_verb(version), prepare=prepare, landed=landed, writer=None)
    writer.through = max(writer.through, repair.version + 1)
    return done


def _verb(version: int | None) -> str:
    return "repair" if version is None else "rewind_table"


def _has_mark(folder: Folder, region: str, version: int, newest: int, mark: str) -> bool:
    if newest < version:
        return False
    commit = next(commits_back(folder, region, version), None)
    return commit is not None and commit.mark == mark
