"""What lies in the folders of a history, read without the product: Delta tables, databases, files, the registry."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from simulation.model import Pairs, Row

T = TypeVar("T")

_ROW = ("kind", "sequence_id", "epoch", "group_first", "group_last", "trigger_uri", "trigger_identity", "recorded_at",
        "detail", "_position")  # fmt: skip


Shown = Mapping[str, Collection[int]]
"""By path of a file that a table shows, the numbers of the rows that have left it."""

_KINDS = ("add", "remove")
"""The actions of a log that change which files a table shows."""


@dataclass(slots=True)
class Looks:
    """A reader of one history's folders; a Parquet file is read once, as nobody may change it.

    Args:
        home: DRAINMARK_HOME.
        databases: path of the SQLite file, by name of a database.
    """

    home: Path
    databases: Mapping[str, Path]
    _files: dict[str, list[Any]] = field(default_factory=dict)
    _opened: dict[Path, tuple[object, Shown]] = field(default_factory=dict)
    _entries: dict[tuple[str, int], tuple[dict[str, bool], set[str]]] = field(default_factory=dict)

    def checkpoint(self, region: str) -> list[Row]:
        """Return the rows of a checkpoint table in commit order; [] without a table."""
        return sorted(self._rows(self.home / "checkpoints" / region, _ROW, _row) or (), key=lambda row: row.position)

    def table(self, table: Mapping[str, Any]) -> Pairs | None:
        """Return the rows of a table as sorted (id, value); None if there is no table."""
        options = table.get("options") or {}
        if table.get("external") == "database":
            return self._of_database(options["database"], options["table"])
        if table.get("external") == "file":
            return _of_folder(Path(options["path"].replace("{home}", str(self.home))))
        found = self._rows(
            self.home / table["name"], ("_sequence_id", value_column(table["name"])), lambda row: tuple(row.values())
        )
        return None if found is None else sorted(found)

    def live(self, name: str) -> set[str] | None:
        """Return the paths of the files that a Delta table shows, below its folder; None without a table."""
        shown = self._live(self.home / name)
        return None if shown is None else set(shown)

    def data_files(self, name: str) -> set[str]:
        """Return the Parquet files, and parts of them, in a table's folder, without those of its log."""
        folder = self.home / name
        found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        return {
            str(path)
            for path in found
            if path.parts[0] not in ("_delta_log", "_erased", "_removed") and path.suffix != ".bin"
        }

    def triggers(self, region: str) -> list[dict[str, Any]]:
        """Return the inputs that the registry knows: uri, identity, identity_key, status and sequence_id of each."""
        with closing(sqlite3.connect(f"file:{self.home}/registry.db?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            found = connection.execute(
                "SELECT uri, identity, identity_key, status, sequence_id FROM drainmark_trigger WHERE region = ?",
                (region,),
            )
            return [{**row, "identity": json.loads(row["identity"])} for row in found]

    def _live(self, folder: Path) -> Shown | None:
        """Return the files that a table shows; it is opened anew if its log has another newest entry."""
        entries = _log_entries(folder)
        if not entries:
            return None
        newest = entries[-1]
        if self._opened.get(folder, (None,))[0] != newest:
            self._opened[folder] = newest, self._shown(folder, entries)
        return self._opened[folder][1]

    def _shown(self, folder: Path, entries: Sequence[tuple[str, int]]) -> Shown:
        ends = entries[0][0], entries[-1][0]
        if ends != tuple(f"{folder}/_delta_log/{number:020d}.json" for number in (0, len(entries) - 1)):  # it was cut
            uris = DeltaTable(str(folder)).file_uris()
            return {_relative(uri, folder): () for uri in uris} | _dead(folder)
        shown = dict[str, bool]()
        for entry in entries:
            if entry not in self._entries:
                self._entries[entry] = _changes(entry[0])
            added, removed = self._entries[entry]
            shown = {path: marked for path, marked in shown.items() if path not in removed} | added
        return dict.fromkeys(shown, ()) | (_dead(folder) if any(shown.values()) else {})

    def _rows(self, folder: Path, columns: tuple[str, ...], made: Callable[[dict[str, Any]], T]) -> list[T] | None:
        """Return the rows of a table, each made of its values; None without a table."""
        live = self._live(folder)
        if live is None:
            return None
        for path in (str(folder / each) for each in live):
            if path not in self._files:
                self._files[path] = [made(values) for values in _pylist(path, columns)]
        return [
            row
            for each, dead in live.items()
            for number, row in enumerate(self._files[str(folder / each)])
            if number not in dead
        ]

    def _of_database(self, name: str, table: str) -> Pairs | None:
        with closing(sqlite3.connect(self.databases[name])) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                return None
            return sorted(connection.execute(f'SELECT _sequence_id, value FROM "{table}"'))  # noqa: S608


def value_column(name: str) -> str:
    """Return the column of a table that stands for a row: of a quarantine, why the row is there."""
    return "reason" if name.endswith("_quarantine") else "value"


def _log_entries(folder: Path) -> list[tuple[str, int]]:
    """Return the path and the inode of each entry of a table's log, in order; [] if there is no table."""
    with suppress(FileNotFoundError), os.scandir(f"{folder}/_delta_log") as entries:
        return sorted((entry.path, entry.inode()) for entry in entries if entry.name.endswith(".json"))
    return []


def _changes(entry: str) -> tuple[dict[str, bool], set[str]]:
    """Return the paths that an entry of a log adds, with whether some rows have left, and those that it removes."""
    actions = [json.loads(line) for line in Path(entry).read_text().split("\n") if line]
    added, removed = ({unquote(each[kind]["path"]): each[kind] for each in actions if kind in each} for kind in _KINDS)
    return {path: "deletionVector" in action for path, action in added.items()}, set(removed)


def _relative(uri: str, folder: Path) -> str:
    return os.path.relpath(unquote(uri).removeprefix("file://"), folder)


def _dead(folder: Path) -> Shown:
    """Return the rows that have left files by deletion vectors, as deltalake tells them."""
    found = pa.table(DeltaTable(str(folder)).deletion_vectors()).to_pylist()
    return {
        _relative(each["filepath"], folder): [n for n, stays in enumerate(each["selection_vector"]) if not stays]
        for each in found
    }


def _pylist(path: str, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    read = pq.ParquetFile(path).read(list(columns))
    if "recorded_at" in columns:  # as seconds: Arrow would need pandas for a time
        place = columns.index("recorded_at")
        read = read.set_column(place, "recorded_at", read.column("recorded_at").cast("int64"))
    found: list[dict[str, Any]] = read.to_pylist()
    return found


def _of_folder(folder: Path) -> Pairs | None:
    """Return the rows of files whose names end with the id of their rows, `part-7.json`."""
    if not folder.is_dir():
        return None
    shown = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith((".", "_")))
    return sorted((int(path.stem.rpartition("-")[2]), value) for path in shown for value in _values(path))


def _values(path: Path) -> Iterator[str]:
    return (json.loads(line)["value"] for line in path.read_text().splitlines())


def _row(values: Mapping[str, Any]) -> Row:
    number = values["sequence_id"]
    return Row(
        position=values["_position"],
        kind=values["kind"],
        sequence_id=number,
        epoch=values["epoch"],
        first=number if values["group_first"] is None else values["group_first"],
        last=number if values["group_last"] is None else values["group_last"],
        uri=values["trigger_uri"] or "",
        identity=json.loads(values["trigger_identity"] or "{}"),
        recorded_at=values["recorded_at"] / 1e6,
        detail=json.loads(values["detail"] or "{}"),
    )
