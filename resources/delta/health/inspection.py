"""Facts about a Delta table for `doctor`: properties, protocol, authors of the last commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drainmark.resources.delta import commits
from drainmark.resources.delta.commit_log import LogCommit
from drainmark.resources.delta.health.damaged_tables import recent_commits
from drainmark.resources.storage.folder import Folder

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
    table = commits.open_table(folder)
    recent, _ = recent_commits(folder, region, int(table.version()))
    return TableFacts(
        configuration=dict(table.metadata().configuration),
        unknown=_unknown(table.protocol()),
        foreign=tuple(commit for commit in reversed(recent) if not commit.is_own),
    )


def _unknown(protocol: Any) -> tuple[str, ...]:
    versions = (protocol.min_reader_version, protocol.min_writer_version)
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    if features:
        return tuple(sorted(features - _FEATURES))
    if versions[0] > _READER or versions[1] > _WRITER:
        return () if versions == _BY_FEATURES else (f"protocol {versions[0]}, {versions[1]}",)
    return ()
