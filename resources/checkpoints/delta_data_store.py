"""The two-level store in a Delta table: each write is a row, and the last row of a key counts.

One commit has all pairs of a `put_all`. When the files are many, the rows that count are rewritten.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drainmark.jobs import world
from drainmark.jobs.errors import CommitOutcomeUnknown, ObjectMissing
from drainmark.jobs.failpoints import StorePoint
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.state.handlers.data_store import VALUE_LIMIT, DataStore, DataStoreEntry
from drainmark.resources.delta import commits
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.storage.folder import Folder, folder_at

if TYPE_CHECKING:
    import pyarrow as pa

_OWNER = "state-store"  # replaces the region in the mark of the table
_FILES = 64
_TRIES = 20
_ENTRY, _KEY, _VALUE = "entry", "key", "value"
_SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in ((_ENTRY, "string"), (_KEY, "binary"), (_VALUE, "binary"), (SEQUENCE_ID, "long"))
        ],
    }
)

_Write = tuple[bytes | None, bytes | None]
"""Key and value; the key None stands for the entry itself, the value None deletes."""


class DeltaDataStore(DataStore):
    """Entries as rows of one table: `entry`, `key`, `value`, and the number of the write as `_sequence_id`.

    Several processes may write, each its own entries; a write whose number is taken uses the next one.

    Args:
        root: folder of the table; a path is one on this machine.
        value_limit: bytes.
    """

    def __init__(self, root: Path | Folder, value_limit: int = VALUE_LIMIT) -> None:
        self.folder = folder_at(root)
        self.value_limit = value_limit
        self._table = ManagedTable(self.folder, _OWNER)
        self._read: tuple[int, dict[str, dict[bytes | None, tuple[int, bytes]]]] = (-1, {})

    def create(self, name: str) -> DataStoreEntry:
        self._table.create(_SCHEMA)
        if name not in self._entries():
            self.write(name, [(None, b"")])
        return _ChunkRows(name, self, self._entries()[name][None][0])

    def exists(self, name: str) -> bool:
        return self._table.exists() and name in self._entries()

    def delete(self, name: str) -> None:
        if self.exists(name):
            self.write(name, [(None, None)])
            self._compact(at_least=2)

    def pairs(self, name: str, made: int) -> Mapping[bytes | None, tuple[int, bytes]]:
        """Return key -> (number of the write, value) of an entry that write number `made` created.

        Raises:
            ObjectMissing: that entry is gone.
        """
        found = self._entries().get(name)
        if found is None or found[None][0] != made:
            raise ObjectMissing(f"there is no entry {name!r} any more", remedy="create it again")
        return found

    def write(self, name: str, writes: Iterable[_Write]) -> None:
        """Add rows in one commit."""
        import pyarrow as pa

        listed = list(writes)
        for _ in range(_TRIES):
            number = (self._table.txn_version() or 0) + 1
            rows = pa.table(
                {
                    _ENTRY: pa.array([name] * len(listed), pa.string()),
                    _KEY: pa.array([key for key, _ in listed], pa.binary()),
                    _VALUE: pa.array([value for _, value in listed], pa.binary()),
                    SEQUENCE_ID: pa.array([number] * len(listed), pa.int64()),
                }
            )
            staged = Staging(self.folder, 0, world.token())
            files = staged.write(rows, "rows")
            self._table.publish(number, files)
            if {file.path for file in files} <= {file.path for file in self._table.files.live()}:
                return self._compact()
            staged.discard()  # the number is another writer's
        msg = f"{_TRIES} other writes to {self.folder} were faster each time"
        raise CommitOutcomeUnknown(msg, remedy="give each application a state_store of its own")

    def _entries(self) -> dict[str, dict[bytes | None, tuple[int, bytes]]]:
        """Return the entries that the table holds now; read it again only if it has changed."""
        for tries_left in reversed(range(_TRIES)):
            version = self._table.delta_version()
            if self._read[0] == version:
                break
            try:
                self._read = (version, _folded(self._table.read()))
            except (FileNotFoundError, ObjectMissing):  # rewritten by another writer meanwhile
                if not tries_left:
                    raise
        return self._read[1]

    def _compact(self, at_least: int = _FILES) -> None:
        """Rewrite the rows that count, and delete the files that held the others."""
        live = self._table.files.live()
        if len(live) < at_least:
            return
        version = self._table.txn_version() or 0
        try:
            rows = _of(_folded(self._table.files.read(live)))
        except (FileNotFoundError, ObjectMissing):  # another writer does it
            return
        rewritten = Staging(self.folder, 0, world.token()).write(rows, "compacted")
        is_done = commits.replace(
            self.folder,
            _OWNER,
            version,
            replaced=live,
            rewritten=rewritten,
            writer=self._table.writer,
        )
        self.folder.remove([file.path for file in (live if is_done else rewritten)])
        self._table.upkeep.maintain()


class _ChunkRows(DataStoreEntry):
    def __init__(self, name: str, of: DeltaDataStore, made: int) -> None:
        self.name = name
        self.value_limit = of.value_limit
        self._of = of
        self._made = made

    def _pairs(self) -> Mapping[bytes | None, tuple[int, bytes]]:
        return self._of.pairs(self.name, self._made)

    def _write(self, pairs: Mapping[bytes, bytes]) -> None:
        self._pairs()
        world.pass_point(StorePoint.PAIR_BEFORE)
        self._of.write(self.name, pairs.items())

    def get(self, key: bytes) -> bytes:
        return self._pairs()[key][1]

    def exists(self, key: bytes) -> bool:
        return key in self._pairs()

    def delete_all(self, keys: Iterable[bytes]) -> None:
        found = self._pairs()
        gone: list[_Write] = [(key, None) for key in keys if key in found]
        if gone:
            self._of.write(self.name, gone)


def _folded(rows: pa.Table) -> dict[str, dict[bytes | None, tuple[int, bytes]]]:
    """Return entry -> key -> (number of the write, value); the key None stands for the entry itself."""
    entries: dict[str, dict[bytes | None, tuple[int, bytes]]] = {}
    for row in rows.sort_by(SEQUENCE_ID).to_pylist():
        name, key, value = row[_ENTRY], row[_KEY], row[_VALUE]
        if key is None and value is None:
            entries.pop(name, None)
        elif value is None:
            entries.get(name, {}).pop(key, None)
        elif key is None:
            entries.setdefault(name, {None: (row[SEQUENCE_ID], value)})
        elif name in entries:
            entries[name][key] = (row[SEQUENCE_ID], value)
    return entries


def _of(entries: Mapping[str, Mapping[bytes | None, tuple[int, bytes]]]) -> pa.Table:
    import pyarrow as pa

    rows: list[dict[str, Any]] = [
        {_ENTRY: name, _KEY: key, _VALUE: value, SEQUENCE_ID: number}
        for name, pairs in entries.items()
        for key, (number, value) in pairs.items()
    ]
    kinds = {_ENTRY: pa.string(), _KEY: pa.binary(), _VALUE: pa.binary(), SEQUENCE_ID: pa.int64()}
    return pa.Table.from_pylist(rows, pa.schema(list(kinds.items())))
