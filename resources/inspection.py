"""What a Delta table says of itself, for `doctor`: properties, protocol, who made the last commits (D9, D10, U5)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.protocol.ids import app_id
from resources import delta_commits
from resources.locations import Folder

COMMITS = 50
"""How many of the newest commits are looked at."""

_COMMIT = re.compile(r"(\d{20})\.json")
_READER, _WRITER, _BY_FEATURES = 1, 2, (3, 7)
_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz", "variantType", "variantType-preview"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCommit:
    """A commit that no owner of the region made."""

    version: int
    operation: str
    engine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """What was found of one table.

    Attributes:
        configuration: the table's properties.
        unknown: protocol features, or versions, that a table of Drainmark's making does not have.
        foreign: among the newest commits that are still in the log, oldest first.
    """

    configuration: Mapping[str, str]
    unknown: tuple[str, ...] = ()
    foreign: tuple[ForeignCommit, ...] = ()


def facts_of(folder: Folder, region: str) -> TableFacts:
    """Look at a managed table.

    Raises:
        SplitBrain: there is none.
    """
    table = delta_commits.open_table(folder)
    return TableFacts(
        configuration=dict(table.metadata().configuration),
        unknown=_unknown(table.protocol()),
        foreign=_foreign(folder, region),
    )


def _unknown(protocol: Any) -> tuple[str, ...]:
    versions = (protocol.min_reader_version, protocol.min_writer_version)
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    if features:
        return tuple(sorted(features - _FEATURES))
    if versions[0] > _READER or versions[1] > _WRITER:
        return () if versions == _BY_FEATURES else (f"protocol {versions[0]}, {versions[1]}",)
    return ()


def _foreign(folder: Folder, region: str) -> tuple[ForeignCommit, ...]:
    log = "_delta_log"
    newest = sorted(name for name in folder.names(log) if _COMMIT.fullmatch(name))[-COMMITS:]
    found = []
    for name in newest:
        version = int(name[:20])
        actions = _actions(folder, f"{log}/{name}")
        owners = {action["txn"]["appId"] for action in actions if "txn" in action}
        info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        if app_id(region) not in owners and version > 0:
            operation, engine = info.get("operation", "unknown"), info.get("engineInfo", "unknown")
            found.append(ForeignCommit(version=version, operation=operation, engine=engine))
    return tuple(found)


def _actions(folder: Folder, path: str) -> list[dict[str, Any]]:
    source = folder.source(path)
    content: bytes = Path(source).read_bytes() if isinstance(source, str) else source.read()
    return [json.loads(line) for line in content.splitlines() if line.strip()]
