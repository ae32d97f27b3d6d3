"""The verbs of sinks outside Delta, and their opener.

The checkpoint table names the adapter of a sink and its options.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from drainmark.jobs.errors import UsageError
from drainmark.jobs.protocol.records.manifest import RegionTable

if TYPE_CHECKING:
    import pyarrow as pa

    from drainmark.resources.delta.adopted.constraints import Breach
    from drainmark.resources.delta.commits import Published
    from drainmark.resources.delta.keyed.keyed_changes import Restored
    from drainmark.resources.settings import Settings


class External(Protocol):
    """A sink outside Delta: it keeps the txnVersion of its last commit beside its rows, or just as safely.

    It has the verbs of a table: if its version is at or above that of a call, the call is done, so late or repeated
    calls change nothing. Rows come from the sink's history, never from the application. A sink that an owner opens gets
    the owner's epoch, which fences off older owners if the outside system has no transactions.
    """

    judges_by_itself: bool
    """Whether it accepts or refuses a row by the row alone; then tasks can check the rows."""

    def exists(self) -> bool: ...
    def examine(self, schema_json: str) -> None:
        """Raise if the sink outside cannot take the schema; change nothing."""

    def create(self, schema_json: str) -> None:
        """Create the target of the rows, or check that the existing one belongs to the region."""

    def breach(self, rows: Iterable[pa.Table], *, replaced: Collection[int] = ()) -> Breach | None:
        """Return the rule that uncommitted rows break, as far as that can be known before the commit."""

    def copy(
        self, version: int, ids: Collection[int], rows: Iterable[pa.Table], *, replaced: Collection[int] = ()
    ) -> Published: ...
    def merge(self, version: int, rows: Iterable[pa.Table], keys: Sequence[str]) -> Published: ...
    def rewind_rows(self, version: int, to: int, *, restored: Iterable[pa.Table] = ()) -> Published: ...
    def rewind_upsert(self, version: int, restored: Restored) -> Published: ...
    def put_right(
        self,
        version: int,
        rows: Callable[[Collection[int]], Iterable[pa.Table]],
        *,
        written: Collection[int],
        leaving: Collection[int],
        keys: Sequence[str] = (),
    ) -> Published: ...
    def counts(self) -> Mapping[int, int | None]: ...
    def forget_removed(self) -> None:
        """Delete what rows that left still take, where no reader looks."""

    def newest_epoch(self) -> int: ...
    def read(
        self,
        columns: Sequence[str] | None = None,
        where: pa.compute.Expression | None = None,
        *,
        upto: int | None = None,
    ) -> pa.Table: ...
    def read_ids(self, ids: Collection[int]) -> pa.Table: ...
    def row_count(self) -> int | None: ...
    def rows_above(self, to: int) -> int: ...
    def newest_id(self) -> int: ...
    def txn_version(self) -> int | None: ...
    def delta_version(self) -> int: ...


class Externals:
    """The adapters of sinks with the settings of this process; a connection is made only when a verb is called.

    Args:
        settings: have the addresses and credentials, which checkpoint rows do not contain.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def open(
        self,
        table: RegionTable,
        region: str,
        identity: Callable[[], str | None],
        *,
        epoch: int,
        seen: dict[str, int],
    ) -> External:
        """Return the adapter of a sink.

        Args:
            identity: returns the unique id of the region's checkpoint table, None before that table exists.
            epoch: of the owner, 0 for a caller that only reads.
            seen: version by sink that it had reached when the caller last saw it; see `SeenVersion`.

        Raises:
            UsageError: a newer Drainmark made the sink, or a setting is missing.
        """
        if table.external == "database":
            from drainmark.resources.sinks.database_tables import DatabaseTable

            return DatabaseTable(self._settings, table, region, identity, seen=seen)
        if table.external == "file":
            from drainmark.resources.sinks.file_tables import FileTable

            return FileTable(self._settings, table, region, identity, epoch=epoch, seen=seen)
        raise UsageError(f"{table.name} needs an adapter {table.external!r}", remedy="install a newer Drainmark")
