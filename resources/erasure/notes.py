"""The record of erasures of a region, beside its checkpoint table: what was found, what was removed, which inputs hold
rows still. It has no value of a person.

A record is written before the step that it tells of, under a name that nobody else uses, and is never changed. So an
erasure that was killed and begun again has the records of both attempts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.protocol.id_runs import Ids
from drainmark.jobs.protocol.records.triggers import (
    AGAIN,
    BACK,
    DIGESTS,
    FILE,
    RETRACTION,
    VERSION,
    kind_of,
    slices_of,
)
from drainmark.resources.delta.log.commit_log import lines_of
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    from drainmark.jobs.protocol.history import RegionHistory
    from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow

ERASED = "_erased"
"""Folder of the records, below that of the checkpoint table."""

_INPUTS = "inputs"
_NO_PART = frozenset({AGAIN, BACK, DIGESTS, VERSION, "origin", "output"})
"""What an identity says beside the content of an input."""


@dataclass(frozen=True, slots=True)
class BlockedInput:
    """An input that held rows of an erased person when it was read.

    Attributes:
        sequence_id: the newest state that read it.
        key: of its identity: another one has other content.
        state: what is known of the rows in it now; "" if they were in tables of the region.
        starts: of a slice: by name of a start, the region whose table it reads in this home, "" if it reads none.
        files: of a period: its files in which the person may be.
    """

    uri: str
    key: str
    sequence_id: int
    kind: str = ""
    state: str = ""
    starts: Mapping[str, str] = field(default_factory=dict, compare=False)
    files: Sequence[str] = field(default=(), compare=False)

    @classmethod
    def of(cls, row: CheckpointRow) -> BlockedInput:
        identity = row.trigger_identity or {}
        starts = {name: _upstream(piece.get("to") or {}) for name, piece in slices_of(identity).items()}
        kind = row.trigger_kind or ""
        return cls(row.trigger_uri or "", key_of(identity), row.sequence_id, kind, starts=starts)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _upstream(end: Mapping[str, Any]) -> str:
    return "" if end.get("home") else str(end.get("region") or "")


def key_of(identity: Mapping[str, Any]) -> str:
    """Return the key of an input's identity, as a row of the checkpoint table or the registry has it."""
    return json.dumps({name: identity[name] for name in sorted(identity) if name not in _NO_PART})


def marks_of(uri: str, identity: Mapping[str, Any]) -> list[str]:
    """Return the texts by any of which an input is known again, also in a project that was moved, copied or restored.

    A file keeps its inode or the digest of its object at another address; a copy keeps its name, size and time.
    """
    key = key_of(identity)
    found = [f"{key} {uri}"]
    if kind_of(identity) == FILE:
        found += [key] if {"inode", "etag"} & identity.keys() else []
        if {"size", "mtime_ns"} <= identity.keys():
            found.append(json.dumps([uri.rpartition("/")[2], identity["size"], identity["mtime_ns"]]))
    return found


@dataclass(frozen=True, slots=True)
class Blocked:
    """The inputs of a region that held rows of erased persons.

    Attributes:
        marks: all of them by what they are known by; see `marks_of`.
        slices: the identities of those that are slices.
    """

    marks: Mapping[str, BlockedInput]
    slices: tuple[Mapping[str, Any], ...]

    def find(self, uri: str, identity: Mapping[str, Any]) -> BlockedInput | None:
        """Return the one that an input is; None if it is none of them."""
        return next((found for mark in marks_of(uri, identity) if (found := self.marks.get(mark)) is not None), None)


@dataclass(frozen=True, slots=True)
class Notes:
    """The records of one erasure of a region.

    Attributes:
        folder: of the region's checkpoint table.
        name: of the erasure; the same for the same person.
    """

    folder: Folder
    name: str

    def write(self, kind: str, value: Any) -> None:
        """Write a record; it is durable when this returns."""
        _write(self.folder, f"{ERASED}/{self.name}/{kind}-{world.token()}.json", value)

    def read(self, kind: str) -> Iterator[Any]:
        """Yield the records of a kind, in no order."""
        for name in self._names(kind):
            yield _read(self.folder, f"{ERASED}/{self.name}/{name}")

    def has(self, kind: str) -> bool:
        """Say whether there is a record of a kind."""
        return next(self._names(kind), None) is not None

    def _names(self, kind: str) -> Iterator[str]:
        names = self.folder.names(f"{ERASED}/{self.name}")
        return (name for name in names if name.startswith(f"{kind}-") and name.endswith(".json"))

    def block(self, inputs: Iterable[BlockedInput]) -> None:
        """Note inputs that no run may read again while they are as they were."""
        found = [each.to_json() for each in inputs]
        if found:
            _write(self.folder, f"{ERASED}/{_INPUTS}/{world.token()}.json", found)

    def removed(self, table: str, files: Iterable[Mapping[str, Any]]) -> None:
        """Note files right before they are deleted."""
        self.write("removed", [{"table": table, **file} for file in files])


def blocked(folder: Folder) -> Blocked:
    """Return the inputs of a region that held rows of erased persons."""
    paths = [f"{ERASED}/{_INPUTS}/{name}" for name in folder.names(f"{ERASED}/{_INPUTS}") if name.endswith(".json")]
    found = [BlockedInput(**value) for path in paths for value in _read(folder, path)]
    known = [(each, json.loads(each.key)) for each in found]
    marks = {mark: each for each, identity in known for mark in marks_of(each.uri, identity)}
    return Blocked(marks=marks, slices=tuple(identity for _, identity in known if slices_of(identity)))


def inputs_of(history: RegionHistory, ids: Iterable[int]) -> list[BlockedInput]:
    """Return the inputs of states, those that rewinds withdrew included; a retraction read none."""
    wanted = set(ids)
    rows = [row for _, row in history.states.rows.among(Ids.of(sorted(wanted)))] if wanted else []
    withdrawn = [row for row in history.withdrawn if row.sequence_id in wanted]
    found = (BlockedInput.of(row) for row in (*withdrawn, *rows) if row.trigger_kind != RETRACTION)
    return [*{(each.uri, each.key): each for each in found if each.uri}.values()]


def _write(folder: Folder, path: str, value: Any) -> None:
    import pyarrow as pa

    folder.write(path, pa.py_buffer(json.dumps(value).encode("utf-8", "surrogatepass")))


def _read(folder: Folder, path: str) -> Any:
    return json.loads("\n".join(lines_of(folder, path)))
