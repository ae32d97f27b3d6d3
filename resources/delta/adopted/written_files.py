"""The check that files of a delta-spark commit are on this disk: the log lists them, even if they are on another disk.

It runs before the staged files, which have the same rows, are deleted. An owner that finds the commit done repeats it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from drainmark.jobs.errors import AccountingError
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.resources.delta.commit_log import LogCommit, commits_back
from drainmark.resources.storage.folder import Folder


def require_written(
    folder: Folder, region: str, version: int, newest: int, staged: Sequence[StagedFile] | None = None
) -> None:
    """Check that the files which a region's commit added are here, with the rows that were staged if it appended.

    Files that others removed or rewrote since then are not checked. Only the region's last commit is checked: each
    earlier one was checked before the next one was made.

    Args:
        version: `txnVersion` of the commit.
        newest: Delta version from which the log is read backwards.
        staged: the files with the rows that were appended; None if the number of rows is not known.

    Raises:
        AccountingError: a file is missing or has another size, or the number of rows differs.
    """
    is_live: dict[str, bool] = {}
    for commit in commits_back(folder, region, newest):
        if commit.transaction == version:
            live = [path for path in commit.added if is_live.get(path, True)]
            _require_files(folder, commit, live, _after_a_loss(folder, staged))
            if staged and len(live) == len(commit.added):
                _require_rows(folder, live, staged)
        if commit.transaction is not None:
            return
        is_live = {**dict.fromkeys(commit.removed, False), **dict.fromkeys(commit.added, True), **is_live}


def _require_files(folder: Folder, commit: LogCommit, paths: Collection[str], remedy: str) -> None:
    for path in paths:
        try:
            found = folder.size(path)
        except FileNotFoundError:
            found = -1
        if found != commit.added[path]:
            here = f"has {found} bytes here" if found >= 0 else "is not here"
            msg = f"{path} was committed to {folder} with {commit.added[path]} bytes, and {here}"
            raise AccountingError(msg, remedy=remedy, path=path, size=found, expected=commit.added[path])


def _require_rows(folder: Folder, live: Sequence[str], staged: Sequence[StagedFile]) -> None:
    import pyarrow.parquet as pq

    wanted = sum(file.rows for file in staged)
    first, last = min(file.first_id or 0 for file in staged), max(file.last_id or 0 for file in staged)
    found = sum(pq.read_metadata(folder.source(path)).num_rows for path in live)
    if found != wanted:
        msg = f"{wanted} rows of ids {first} to {last} were written for {folder}, and {found} are in it"
        remedy = f"delete those that are in it, append {_named(folder, staged)}"
        raise AccountingError(msg, remedy=remedy, rows=found, expected=wanted)


def _after_a_loss(folder: Folder, staged: Sequence[StagedFile] | None) -> str:
    put_back = "put it back from the disk of the worker that wrote it"
    if not staged:
        return put_back
    return f"{put_back}; where it is lost, first restore the version before and append {_named(folder, staged)}"


def _named(folder: Folder, staged: Sequence[StagedFile]) -> str:
    return f"the rows of {', '.join(str(folder / file.path) for file in staged)}"
