"""`join_as_of`: joins each row with the version of a looked-up row that was valid at the row's own time.

A group reads the table as it is then, so a version that comes later would be missed. So a row waits until the table is
complete up to its time: until the newest time in the table, minus the lateness, is past it. A version that comes after
that is valid from a later time, as the lateness promises, and changes no row that has left. So each row meets the same
version in any order of arrival, and at every replay.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from drainmark.jobs.errors import OperatorFailed, Violation
from drainmark.jobs.frames.names import quoted, quoted_name
from drainmark.jobs.frames.row_order import order_of_values, payload_of
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.graph.annotations import LONGEST, duration_of, micros
from drainmark.jobs.graph.context import UPTO, Due
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, default_name, port_to
from drainmark.jobs.graph.operator import KeptState, Measured, Operator, Positions, Retention, StepResult, names_of
from drainmark.jobs.lazy import F
from drainmark.jobs.state.placed_rows import (
    FROM,
    HELD,
    IS_NEW,
    LEAVES,
    PLACE,
    held_changes,
    placed,
    require_columns,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["join_as_of"]

_HELD = "held"
_TIME, _ROW, _VERSION, _FOUND, _KNOWN = "__as_of", "__row_as_of", "__version_as_of", "__found_as_of", "__known_as_of"
_OUTER: dict[str, bool] = {"left": True, "inner": False}


@dataclass(frozen=True, kw_only=True)
class AsOfJoin(Operator):
    """State: the rows for whose time the table is not complete yet."""

    kind: ClassVar[str] = "as-of join"
    summary: ClassVar[str] = "each row with the version of a looked-up row that was valid at its time"
    keeps_tags: ClassVar[bool] = True
    positions: ClassVar[Positions] = Positions.OWN
    configurations: ClassVar[tuple[str, ...]] = ("left", "inner", "valid to")

    keys: tuple[str, ...]
    as_of: str
    valid_from: str
    valid_to: str | None
    known_by: str | None
    late: dt.timedelta | None
    how: str
    suffix: str
    has_table: bool

    @property
    def kept(self) -> tuple[KeptState, ...]:
        retention = Retention(of=f"rows that wait by `{self.as_of}`")
        return (KeptState(part=_HELD, keys=HELD, looked_up_by=HELD, retention=retention),)

    @property
    def measured(self) -> tuple[Measured, ...]:
        row, version = self.inputs
        times = dict.fromkeys(name for name in (self.valid_from, self.valid_to, self.known_by) if name)
        return (Measured(row, self.as_of), *(Measured(version, name) for name in times))

    def fingerprint(self) -> Any:
        return {
            **super().fingerprint(),
            "on": list(self.keys),
            "as_of": [self.as_of, self.valid_from, self.valid_to, self.known_by],
            "late": str(self.late),
            "how": self.how,
            "suffix": self.suffix,
        }

    def notes(self, read: Collection[str]) -> Iterator[str]:
        if self.how == "inner":
            yield f'{self.name}: a row without a version is dropped, and nothing counts it; how="left" keeps it'

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if not self.has_table:
            message = "its second input is no lookup, and only a table has versions"
            remedy = 'give dm.lookup("prices"); streams are joined by time with dm.join(…, within=…)'
            yield self.wrong("ASOF_TABLE", message, remedy)
        if not self.keys:
            yield self.wrong("JOIN_KEYS", "it has no columns to join on", 'give keys=["item"]')
        if self.how not in _OUTER:
            yield self.wrong("JOIN_HOW", f"how={self.how!r} is not known", "left or inner")
        times = {"as_of": self.as_of, "valid_from": self.valid_from}
        times |= {name: text for name, text in self._further_times().items() if text is not None}
        if wrong := [name for name, text in times.items() if not isinstance(text, str) or not text]:
            message = f"{wrong[0]}={times[wrong[0]]!r} is no column of event time"
            yield self.wrong("JOIN_TIME", message, 'such as as_of="ordered_at", valid_from="valid_from"')
        if self.valid_to is not None and self.valid_to == self.valid_from:
            message = f"versions begin and end by the same column {self.valid_to!r}"
            yield self.wrong("JOIN_TIME", message, "leave valid_to out if a version ends where the next one begins")
        if not isinstance(self.late, dt.timedelta) or not dt.timedelta(0) <= self.late <= LONGEST:
            message = f"late={self.late!r} does not say how late versions may come"
            yield self.wrong("JOIN_LATENESS", message, "seconds from 0 on, or a timedelta")
        if not isinstance(self.suffix, str) or not self.suffix:
            message = f"suffix={self.suffix!r} does not tell columns of one name apart"
            yield self.wrong("JOIN_SUFFIXES", message, 'give a text, such as suffix="_looked_up"')

    def _further_times(self) -> dict[str, str | None]:
        return {"valid_to": self.valid_to, "known_by": self.known_by}

    # --- a group ----------------------------------------------------------------------------------------------------

    def step(self, frames: OperatorContext) -> StepResult:
        port, table = self.inputs
        rows, versions = placed(frames, self, port), frames.input(table)
        payload = [name for name in payload_of(rows) if name != PLACE]
        shown = frames.once_a_run((self.name, "names"), lambda: self._names(frames, payload))
        newest = F.max(_micros(self.known_by or self.valid_from))
        known = frames.once(self, versions.agg((newest - micros(self._late)).alias(_KNOWN)))
        new = rows.select(F.col(SEQUENCE_ID).alias(FROM), PLACE, _micros(self.as_of).alias(_TIME), *quoted(payload))
        no_keys = new.selectExpr(*HELD).where("false")  # of the state, a group reads the rows that no longer wait
        # A table that was overwritten, or whose region was rewound, knows less than before.
        due = Due(_TIME, lambda: known.select((F.col(_KNOWN) - 1).alias(UPTO)), may_fall=True)
        held = frames.kept(self, _HELD, new.schema, no_keys, due)
        every = new.withColumn(IS_NEW, F.lit(True)).unionByName(held.withColumn(IS_NEW, F.lit(False)))
        left = self._left(frames, every, known)
        left = frames.once(self, left) if frames.is_local(self) else left
        out = self._met(frames, left.where(f"{LEAVES} is not null"), versions, payload, shown)
        return StepResult(out, {_HELD: held_changes(left, (), [_TIME, *payload])})

    @property
    def _late(self) -> dt.timedelta:
        return self.late or dt.timedelta(0)

    def _names(self, frames: OperatorContext, payload: Sequence[str]) -> dict[str, str]:
        """Return the output name of each column of the table, but for the keys.

        Raises:
            OperatorFailed: a column is missing, a key has another type, or two columns would have one name.
        """
        row, version = self.inputs
        require_columns(self, row, frames.input(row), [*self.keys, self.as_of])
        times = [name for name in (self.valid_from, *self._further_times().values()) if name]
        table = frames.input(version)
        require_columns(self, version, table, [*self.keys, *times])
        self._require_comparable(frames.input(row), table)
        both = {name.lower() for name in payload}
        named = {
            name: name + self.suffix if name.lower() in both else name
            for name in table.columns
            if name not in self.keys
        }
        lower = [name.lower() for name in (*payload, *named.values())]
        if twice := sorted({name for name in named.values() if lower.count(name.lower()) > 1}):
            message = f"the output would have several columns {', '.join(twice)}"
            raise self._failed(message, "rename one in a dm.functor before, or give another suffix=")
        return named

    def _require_comparable(self, rows: DataFrame, table: DataFrame) -> None:
        from pyspark.sql.types import NumericType

        for key in self.keys:
            kinds = rows.schema[key].dataType, table.schema[key].dataType
            if kinds[0] != kinds[1] and not all(isinstance(kind, NumericType) for kind in kinds):
                names = " and ".join(kind.simpleString() for kind in kinds)
                raise self._failed(f"the key `{key}` is {names}", "give it the table's type in a dm.functor before")

    def _failed(self, message: str, remedy: str) -> OperatorFailed:
        return OperatorFailed(f"{self.name!r}: {message}", operator=self.name, location=self.location, remedy=remedy)

    def _left(self, frames: OperatorContext, every: DataFrame, known: DataFrame) -> DataFrame:
        """Return the rows with `LEAVES`, the id at which a row meets its version, null as long as it waits.

        No version can ever be that of a row without time, or with a null key: it leaves at its own id. A row that
        waited leaves at the first id of the group, which all groupings would have read with this version of the table.
        """
        never = " or ".join(f"{name} is null" for name in (_TIME, *quoted(self.keys)))
        leaves = f"if({never}, {FROM}, if({_TIME} < {_KNOWN}, if({IS_NEW}, {FROM}, {frames.first_id}L), null))"
        return every.crossJoin(F.broadcast(known)).withColumn(LEAVES, F.expr(leaves)).drop(_KNOWN)

    def _met(
        self,
        frames: OperatorContext,
        out: DataFrame,
        versions: DataFrame,
        payload: Sequence[str],
        shown: dict[str, str],
    ) -> DataFrame:
        """Return the rows that leave, each with the newest version of its key that began at its time or before.

        Rows and versions of a key are put into one order, so a key with many versions costs no more than their number.
        Of versions that begin at one time, the greatest by its columns counts: so the order of arrival never does.
        """
        keys = quoted(self.keys)
        names = quoted(list(shown))
        version = f"struct({', '.join(names)})"
        asked = out.selectExpr(*(f"{key} as __key_{at}" for at, key in enumerate(keys))).distinct()
        same = " and ".join(f"{key} = __key_{at}" for at, key in enumerate(keys))
        begun = versions.where(f"{quoted_name(self.valid_from)} is not null")
        begun = begun.join(asked, on=F.expr(same), how="left_semi").select(
            *keys,
            _micros(self.valid_from).alias(_TIME),
            F.expr(version).alias(_VERSION),
        )
        rows = out.select(*keys, _TIME, F.struct(LEAVES, FROM, PLACE, *quoted(payload)).alias(_ROW))
        every = rows.unionByName(begun, allowMissingColumns=True)
        by_values = frames.once_a_run(
            (self.name, "order"), lambda: order_of_values(versions.schema, list(shown), inside=_VERSION)
        )
        order = ", ".join([_TIME, f"{_ROW} is not null", *by_values])
        until = f"over (partition by {', '.join(keys)} order by {order} rows unbounded preceding)"
        found = frames.gathered(self, every).selectExpr(_ROW, _TIME, f"last({_VERSION}, true) {until} as {_FOUND}")
        met = found.where(f"{_ROW} is not null").selectExpr(f"{_ROW}.*", _TIME, _FOUND)
        if self.valid_to is not None:
            ended = _micros(f"{_FOUND}.{quoted_name(self.valid_to)}", quote=False)
            met = met.withColumn(_FOUND, F.when(F.coalesce(F.col(_TIME) < ended, F.lit(True)), F.col(_FOUND)))
        if not _OUTER.get(self.how, True):
            met = met.where(f"{_FOUND} is not null")
        place = f"row_number() over (partition by {LEAVES} order by {FROM}, {PLACE})"
        columns = [f"{_FOUND}.{quoted_name(name)} as {quoted_name(said)}" for name, said in shown.items()]
        return met.selectExpr(
            f"{LEAVES} as {SEQUENCE_ID}",
            f"struct(0L as block, cast({place} as bigint) as row) as {POSITION}",
            *quoted(payload),
            *columns,
        )


def _micros(column: str, *, quote: bool = True) -> Column:
    return F.unix_micros(F.col(quoted_name(column) if quote else column).cast("timestamp"))


def join_as_of(
    stream: StreamLike,
    table: Stream,
    *,
    keys: str | Sequence[str],
    as_of: str,
    valid_from: str = "valid_from",
    valid_to: str | None = None,
    known_by: str | None = None,
    late: dt.timedelta | float = 0,
    how: Literal["left", "inner"] = "left",
    suffix: str = "_looked_up",
    name: str | None = None,
) -> Stream:
    """Declare that each row meets the version of a looked-up row that was valid at the row's own time.

    The table has the versions of each key: rows with the time from which they are valid. A row meets the newest version
    of its key that began at its time or before; with `valid_to`, only if that version had not ended by then.

    A row waits in the state until the table is complete up to its time: until the newest time in the table, minus
    `late`, is past it. So the result depends neither on the order of arrival nor on the grouping, as long as each
    version comes before the table has a time that is more than `late` after its beginning. A row leaves with the first
    trigger that finds the table complete, and carries that trigger's sequence id. A row without time, or with a null
    key, meets no version, and leaves at once.

    Args:
        table: `dm.lookup("prices")`.
        keys: key columns, of one name in the stream and in the table.
        as_of: the stream's column of event time.
        valid_from: the table's column with the time from which a version is valid (inclusive). Rows where it is null
            are no versions.
        valid_to: the table's column with the time at which a version ends (exclusive; null: it has not ended). Without
            it a version ends where the next one of its key begins.
        known_by: the table's column whose newest time says up to when the table is complete; `valid_from` by default.
            Name another one if versions are entered ahead of their time.
        late: the most by which a version comes later than its time; seconds, or a `datetime.timedelta`.
        how: `left`: a row without a version has nulls; `inner`: it is dropped.
        suffix: for columns of the table that the stream has, too.
        name: identity of the state; `<stream>_as_of` by default.

    Returns:
        The columns of the stream, then those of the table but for the keys.

    Raises:
        OperatorFailed: a column is missing, or its type does not fit; raised when a run starts, before its claim.

    Example:
        ratings = dm.lookup("customer_ratings")  # columns customer, rating, valid_from, valid_to, is_current

        rated = dm.join_as_of(orders, ratings, keys=["customer"], as_of="at", valid_to="valid_to", late=3600)
        dm.sink(rated, dm.DeltaAppend("rated_orders"))
    """
    operator = AsOfJoin(
        name=name or f"{default_name(stream)}_as_of",
        inputs=(port_to(stream, "stream"), port_to(table, "table")),
        keys=names_of(keys),
        as_of=as_of,
        valid_from=valid_from,
        valid_to=valid_to,
        known_by=known_by,
        late=duration_of(late),
        how=how,
        suffix=suffix,
        has_table=isinstance(table, Stream) and table.operator.is_reference,
    )
    return declare(operator)
