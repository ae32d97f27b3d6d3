"""For `doctor`: a test of the properties of a store that commits depend on, and the facts about one table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drainmark.jobs import world
from drainmark.jobs.errors import DrainmarkError, StoreRefused
from drainmark.jobs.tasks.parquet_shares import content_of
from drainmark.resources.delta import delta_tables, file_lists
from drainmark.resources.delta.health.damaged_tables import recent_commits
from drainmark.resources.delta.log.commit_log import LogCommit
from drainmark.resources.delta.log.marked_files import ENABLED, FEATURE
from drainmark.resources.storage.folder import Folder, LocalFolder

_PROBES = "_drainmark_probe"
_FIRST, _SECOND = b"first", b"second"


def shortcomings(folder: Folder) -> list[str]:
    """Return the faults of the store of a folder, [] if there are none; leave no file behind.

    It tests that a second write to a name is refused, and that a new file is read and listed at once. On a disk it
    first tests that a hard link onto a file is refused: links put files in place, the entries of logs too. In
    a bucket it lets writers race.
    """
    import pyarrow as pa

    name = world.token()
    path = f"{_PROBES}/{name}"
    found = []
    try:
        if isinstance(folder, LocalFolder) and (wrong := _links(folder.path / _PROBES)):
            return wrong
        try:
            folder.require_put_if_absent()
        except StoreRefused as error:
            return [error.message]
        folder.write(path, pa.py_buffer(_FIRST))
        try:
            folder.write(path, pa.py_buffer(_SECOND))
        except FileExistsError:
            pass
        else:
            found.append("a file is written over another: two owners could both commit")
        if content_of(folder.source(path)) != _FIRST:
            found.append("the content read is not the content that was written")
        if name not in folder.names(_PROBES):
            found.append("a new file is not listed at once")
    except (OSError, DrainmarkError) as error:
        found.append(f"it does not answer as a store should: {error}")
    finally:
        folder.delete(_PROBES)
    return found


def _links(folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    file, other = folder / "linked", folder / "other"
    file.write_bytes(_FIRST)
    other.write_bytes(_SECOND)
    try:
        os.link(other, file)
    except FileExistsError:
        return []
    except OSError as error:
        return [f"it knows no hard links ({error.strerror}), by which Delta's commits are made"]
    return ["a link is made over a file: two owners could both commit"]


_READER, _WRITER, _BY_FEATURES = 1, 2, (3, 7)
_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz", "variantType", "variantType-preview"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """The facts about one table.

    Attributes:
        configuration: the table's properties.
        unknown: protocol features, or versions, that a table made by Drainmark does not have.
        foreign: commits of others, among the newest ones since the last repair, oldest first.
    """

    configuration: Mapping[str, str]
    unknown: tuple[str, ...] = ()
    foreign: tuple[LogCommit, ...] = ()


def facts_of(folder: Folder, region: str) -> TableFacts:
    """Return the facts about a managed table.

    Raises:
        SplitBrain: there is no table.
    """
    table = delta_tables.open_table(folder)
    recent, _ = recent_commits(folder, region, int(table.version()))
    configuration = dict(table.metadata().configuration)
    ours = {FEATURE} if ENABLED in configuration else set[str]()  # claims set both, see `commits.take_vectors`
    return TableFacts(
        configuration=configuration,
        unknown=_unknown(table.protocol(), _FEATURES | ours),
        foreign=tuple(commit for commit in reversed(recent) if not commit.is_own),
    )


def damaged_files(folder: Folder) -> list[str]:
    """Return the paths of a table's files, vectors among them, that are gone or have another size than its log says.

    Raises:
        SplitBrain, FileDamaged: there is no table, or its log cannot be read.
        StoreUnavailable: the disk or the store does not answer.
    """
    table = delta_tables.open_table(folder)  # before the listing, which then has all of its files
    wanted, known = file_lists.live_sizes(table), file_lists.kept_paths(table, folder)
    found = {entry.path: entry.size for entry in folder.everything("")}
    return sorted(path for path in known if path not in found or found[path] != wanted.get(path, found[path]))


def _unknown(protocol: Any, known: frozenset[str]) -> tuple[str, ...]:
    versions = (protocol.min_reader_version, protocol.min_writer_version)
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    if features:
        return tuple(sorted(features - known))
    if versions[0] > _READER or versions[1] > _WRITER:
        return () if versions == _BY_FEATURES else (f"protocol {versions[0]}, {versions[1]}",)
    return ()
