"""Both kinds of tables behind one set of verbs: managed (deltalake commits) and adopted (delta-spark commits)."""

from __future__ import annotations

import json
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.resources.delta.adopted.adopted_table import AdoptedTable
from drainmark.resources.delta.keyed.keyed_changes import GivenRows, Restored
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.storage.folder import Folder

REGION = "shop/orders"
KEYS = ["customer", "day"]
SCHEMA = pa.schema(
    [("customer", pa.string()), ("day", pa.int32()), ("total", pa.int64()), ("_sequence_id", pa.int64())]
)
Row = tuple[str | None, int | None, int, int]
Faults = Callable[[str], None]
Table = ManagedTable | AdoptedTable


def column(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}, **more}


def schema_json(*columns: dict[str, Any]) -> str:
    return json.dumps({"type": "struct", "fields": list(columns)})


ORDERS = schema_json(
    column("customer", "string"), column("day", "integer"), column("total", "long"), column("_sequence_id", "long")
)


def rows(*values: Row) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, value, strict=True)) for value in values], schema=SCHEMA)


def content(table: Table) -> list[Row]:
    found = [tuple(row.values()) for row in table.read(SCHEMA.names).to_pylist()]
    return sorted(found, key=repr)  # type: ignore[arg-type]


def staged(table: Table, *values: Row, epoch: int = 1, attempt: str = "", stem: str = "rows") -> Any:
    """Stage rows, under a new attempt if none is named."""
    return Staging(table.folder, epoch, attempt or uuid.uuid4().hex).write(rows(*values), stem)


START: tuple[Row, ...] = (("a", 1, 1, 1), ("b", 1, 2, 2), ("c", 1, 3, 3))
VERBS: dict[str, Callable[[Any, ManagedTable], Any]] = {
    "publish": lambda table, _: table.publish(txn_version(1, 4), staged(table, ("n", 1, 4, 4))),
    "publish nothing": lambda table, _: table.publish(txn_version(1, 4), ()),
    "merge": lambda table, _: table.merge(txn_version(1, 4), given_rows(rows(("a", 1, 4, 4), ("n", 1, 4, 4)), KEYS)),
    "merge nothing": lambda table, _: table.merge(txn_version(1, 4), given_rows(rows(), KEYS)),
    "rewind rows": lambda table, _: table.rewind_rows(txn_version(2, 4), 1, Staging(table.folder, 2, "r")),
    "rewind upsert": lambda table, history: table.rewind_upsert(
        txn_version(2, 4), Restored(1, history, KEYS, SCHEMA.names)
    ),
}
"""What commits to a table with the rows of `START`, by a history of them."""


class LostReplyError(RuntimeError):
    """The error that stands for a lost answer to a commit."""


def lose_replies(point: str) -> None:
    if point.endswith(".after_commit"):
        raise LostReplyError(point)


def fail_before(point: str) -> None:
    if point.endswith(".before_commit"):
        raise LostReplyError(point)


class Publisher(ABC):
    """A maker of tables of one kind below a folder."""

    def __init__(self, folder: Path | Folder) -> None:
        self.folder = folder

    @abstractmethod
    def table(self, name: str) -> Table:
        """Return a table of `ORDERS`, made at first use."""

    @abstractmethod
    def table_of(self, name: str, columns: list[str]) -> Table:
        """Return a new table of columns of whole numbers."""

    def history(self) -> ManagedTable:
        """Return a history, which is a managed table."""
        table = ManagedTable(self.folder / "state" / "orders", REGION)
        table.create(ORDERS)
        return table


class Deltalake(Publisher):
    """Managed tables, on a disk or in a bucket."""

    def table(self, name: str) -> ManagedTable:
        table = ManagedTable(self.folder / "lake" / name, REGION)
        table.create(ORDERS)
        return table

    def table_of(self, name: str, columns: list[str]) -> ManagedTable:
        table = ManagedTable(self.folder / "lake" / name, REGION)
        table.create(schema_json(*(column(name, "long") for name in columns)))
        return table


FEATURES = "'delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true'"
"""Features that deltalake can read but not write; constraints and generated columns are others."""


class DeltaSpark(Publisher):
    """Adopted tables: column mapping, deletion vectors, a constraint, a generated column, a column of their owner's.

    Args:
        template: an adopted table, copied for each test: making one takes Spark five commits.
    """

    folder: Path

    def __init__(self, folder: Path, engine: Any, template: Path) -> None:
        super().__init__(folder)
        self.engine = engine
        self.template = template

    def table(self, name: str) -> AdoptedTable:
        root = self.folder / "lake" / name
        if not root.exists():
            shutil.copytree(self.template, root)
        return AdoptedTable(root, REGION, lambda: self.engine)

    def table_of(self, name: str, columns: list[str]) -> AdoptedTable:
        root = self.folder / "lake" / name
        quoted = ["`" + name.replace("`", "``") + "` BIGINT" for name in columns if name != "_sequence_id"]
        make(self.engine, root, ", ".join(quoted))
        table = AdoptedTable(root, REGION, lambda: self.engine)
        table.create(schema_json(*(column(name, "long") for name in columns)))
        return table


def make(engine: Any, root: Path, columns: str, properties: str = FEATURES) -> None:
    """Make a table with Spark, as its owner would."""
    engine.session.sql(f"CREATE TABLE delta.`{root}` ({columns}) USING delta TBLPROPERTIES ({properties})")


def make_template(engine: Any, root: Path) -> None:
    """Make the table that `DeltaSpark` copies, and adopt it."""
    make(engine, root, "customer STRING, day INT, total BIGINT, cents BIGINT GENERATED ALWAYS AS (total * 100)")
    engine.session.sql(f"ALTER TABLE delta.`{root}` ADD CONSTRAINT positive CHECK (total >= 0)")
    AdoptedTable(root, REGION, lambda: engine).create(ORDERS)


def given_rows(rows: pa.Table, keys: Sequence[str]) -> GivenRows:
    """Return rows in memory to merge."""
    return GivenRows(rows=rows, keys=tuple(keys))
