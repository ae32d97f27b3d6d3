"""`sink(stream, DeltaUpsert(table, keys))`: the newest row of each key; two tables, history and visible."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from drainmark.jobs.graph.ports import Input
from drainmark.jobs.operators.sinks.delta_append import DeltaSink, OnSchemaChange
from drainmark.jobs.operators.sinks.sink import made_for
from drainmark.jobs.printable import markdown_code
from drainmark.jobs.protocol.records.manifest import ON_READ, TableRole

__all__ = ["DeltaUpsert"]

Merge = Literal["on-write", "on-read"]


@dataclass(frozen=True)
class DeltaUpsert:
    """A Delta table `lake/<table>` with one row for each key: the last by (sequence id, position in the file).

    Its columns are the keys, the stream's other columns, and `_sequence_id` of the last change. Null keys are keys. A
    change stream deletes keys: see the docs, `how-to/tables.md`.

    Attributes:
        table: name below the lake.
        keys: key columns.
        adopt: as for `DeltaAppend`. If the stream has the key of a row that others wrote, the row becomes the region's:
            a rewind to an earlier id deletes it.
        on_schema_change: as for `DeltaAppend`. Keys stay; so do the columns of an aggregate, since they are its state.
        max_lag: the time that a large table may lag behind the committed states, a duration or seconds; 60 s by
            default. A change of few keys rewrites much of a large table. Such changes take at most a fifth of the
            region's time, until `max_lag` is over. 0: the table never lags. Small tables, adopted tables and tables of
            regions with stages never lag.
        partition_by: as for `DeltaAppend`. A row that changes its partition leaves the old one.
        cluster_by: as for `DeltaAppend`; a change sorts the files that it rewrites.
        register: as for `DeltaAppend`.
        merge: "on-write" writes each file that holds a changed key again. "on-read" marks the old rows in Delta's
            deletion vectors instead, and files with many such rows are written again later: so the bytes written, and
            a rewind, follow the change. Not every reader of Delta knows deletion vectors: see the docs,
            `how-to/tables.md`. It may be changed at any time.

    Example:
        paid = dm.aggregate(orders, keys=["customer"], values={"paid": dm.sum("amount")})
        dm.sink(paid, dm.DeltaUpsert("customer_totals", keys=["customer"]))
    """

    table: str
    keys: Sequence[str]
    adopt: bool = False
    on_schema_change: OnSchemaChange = "fail"
    max_lag: dt.timedelta | float | None = None
    partition_by: Sequence[str] = ()
    cluster_by: Sequence[str] = ()
    register: str = ""
    merge: Merge = "on-write"

    @property
    def label(self) -> str:
        return self.table

    def operator(self, *, name: str, inputs: tuple[Input, ...]) -> DeltaUpsertSink:
        lag = self.max_lag.total_seconds() if isinstance(self.max_lag, dt.timedelta) else self.max_lag
        return made_for(DeltaUpsertSink, self, name, inputs, max_lag=lag)


@dataclass(frozen=True, kw_only=True)
class DeltaUpsertSink(DeltaSink):
    """A sink that merges the group's history into the visible table; the history may be the state before it."""

    kind: ClassVar[str] = "delta-upsert"
    summary: ClassVar[str] = "Delta table of one row a key"
    role: ClassVar[TableRole] = TableRole.UPSERT

    @property
    def takes_changes(self) -> bool:
        return True

    max_lag: float | None = None
    """Seconds."""

    merge: str = "on-write"

    @property
    def options(self) -> Mapping[str, Any]:
        lag = {} if self.max_lag is None else {"max_lag": float(self.max_lag)}
        merge = {} if self.merge == "on-write" else {"merge": self.merge}
        return {**super().options, **lag, **merge}

    def _asked_of_regions(self) -> Iterator[tuple[str, bool, str, str]]:
        yield from super()._asked_of_regions()
        yield "AUTONOMOUS_MERGE", self.merge == ON_READ, "merged on read", "merge"

    @property
    def condition(self) -> str | None:
        adopted = super().condition
        return adopted and f"{adopted}; a row of theirs that an upsert changed is the region's from then on"

    def problems(self) -> Iterator[tuple[str, str, str]]:
        if not self.keys:
            yield "NO_KEYS", "an upsert sink has no keys", "name the key columns, or use DeltaAppend"
        if self.max_lag is not None and not self.max_lag >= 0:
            yield "MAX_LAG", f"max_lag is {self.max_lag!r}", "give a duration, or 0 for a table that never lags"
        if self.merge not in get_args(Merge):
            yield "MERGE", f"merge is {self.merge!r}", 'write "on-write" or "on-read"'
        elif self.merge == ON_READ and self.adopt:
            message = f"{self.table!r} is adopted, and whether it has deletion vectors is its maker's choice"
            yield "ADOPTED_MERGE", message, "leave merge out; set delta.enableDeletionVectors on the table itself"
        yield from super().problems()

    def described(self) -> str:
        return f"One row for each value of {', '.join(map(markdown_code, self.keys))}: the last one."
