"""The files that a table of one row a key had when it showed an earlier id: a rewind puts them back.

This reads the log, and writes no rows: so the cost of such a rewind follows neither the table nor the change. Where it
cannot be done, each changed key gets its row back from the history, by a merge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import ObjectMissing
from drainmark.jobs.errors.environment import FilesLost
from drainmark.jobs.protocol.records.ids import ABOVE, INITIAL_ID, app_id, split_txn_version
from drainmark.jobs.protocol.records.manifest import StagedFile
from drainmark.resources.delta import file_lists
from drainmark.resources.delta.keyed.keyed_merge import Rewriting, versions_of
from drainmark.resources.delta.log.commit_log import REPAIR, actions_at
from drainmark.resources.delta.log.marked_files import takes_vectors
from drainmark.resources.delta.staging import verify
from drainmark.resources.delta.upkeep.log_retention import KEPT_SECONDS
from drainmark.resources.storage.folder import Folder

_MOST_COMMITS = 200
"""The most commits that are undone: the entry of each is read."""

_MOST_SECONDS = KEPT_SECONDS / 2
"""The most seconds since the first of them: `gc` keeps files for twice as long after they left, so none deletes one
that just comes back, also by a clock that is hours ahead."""


def put_back(opened: Any, folder: Folder, region: str, to: int) -> Rewriting | None:
    """Return the change that gives a table the files of its version that showed an id.

    Args:
        opened: the table, of its newest version.
        to: an id of the region that was not withdrawn.

    Returns:
        None if no version showed just this id, if it is too old, if files of it are gone, or if more happened since
        than states and rewinds of later ids.
    """
    version = _version_of(folder, region, int(opened.version()), to)
    try:
        former = file_lists.files_at(opened, folder, version) if version is not None else None
    except (FileNotFoundError, ObjectMissing):  # the log does not reach back to all files of that version
        return None
    if former is None:
        return None
    live = file_lists.live_files(opened, folder)
    adds, leaving = _not_among(former, live), _not_among(live, former)
    if not _are_there(folder, adds) or (any(file.vector for file in adds) and not takes_vectors(opened)):
        return None
    return Rewriting(folder=folder, seen=versions_of(live), adds=adds, leaving=leaving, above=to)


def _version_of(folder: Folder, region: str, newest: int, to: int) -> int | None:
    """Return the newest version that showed an id, if only states and rewinds of later ids came after it."""
    if to == INITIAL_ID:  # the id of commits that fence off older owners
        return None
    for version in range(newest, max(-1, newest - _MOST_COMMITS), -1):
        try:
            actions = actions_at(folder, version)
        except (FileNotFoundError, ObjectMissing):
            return None
        shown = _id_of(actions, region)
        if shown == to:
            return None if REPAIR in _about(actions) else version  # a repair shows later rows of a table that lags
        if shown is None or INITIAL_ID < shown < to or not _can_be_undone(actions, to):
            return None
    return None


def _id_of(actions: Iterable[dict[str, Any]], region: str) -> int | None:
    """Return the id under which a region made a commit; None for a commit of others."""
    found = (action["txn"] for action in actions if "txn" in action)
    numbers = (split_txn_version(int(each["version"]))[1] for each in found if each["appId"] == app_id(region))
    return next(numbers, None)


def _can_be_undone(actions: Sequence[dict[str, Any]], to: int) -> bool:
    """Say whether a commit is a young one by which rows of ids above `to` came and left.

    Others give columns, repair a table, or erase a person. A stage may bring rows of an id when later ids are shown.
    """
    if any("metaData" in action or "protocol" in action for action in actions):
        return False
    about = _about(actions)
    is_young = about.get("timestamp", 0) / 1000 >= world.now() - _MOST_SECONDS
    has_files = any("add" in action or "remove" in action for action in actions)
    return is_young and (not has_files or int(about.get(ABOVE, INITIAL_ID)) >= to)


def _about(actions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def _not_among(files: Sequence[StagedFile], others: Sequence[StagedFile]) -> tuple[StagedFile, ...]:
    known = versions_of(others)
    return tuple(file for file in files if not versions_of([file]) <= known)


def _are_there(folder: Folder, files: Sequence[StagedFile]) -> bool:
    """Say whether files and those with their deletion vectors are still there."""
    vectors = {file.vector.path: file.vector for file in files if file.vector is not None}
    try:
        verify(folder, files)
        return all(folder.size(path) >= vector.span[1] for path, vector in vectors.items())
    except (FileNotFoundError, ObjectMissing, FilesLost):
        return False
