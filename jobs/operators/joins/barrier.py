"""`barrier` and `pair`: the k-th rows of several streams, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import OperatorFailed, Violation
from drainmark.jobs.frames.names import quoted, quoted_name
from drainmark.jobs.frames.row_order import payload_of
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.graph.context import Fit
from drainmark.jobs.graph.declarations import (
    Stream,
    StreamLike,
    declare,
    default_name,
    port_to,
    stream_name,
)
from drainmark.jobs.graph.operator import KeptState, Operator, StepResult, names_of
from drainmark.jobs.graph.ports import Input
from drainmark.jobs.lazy import F
from drainmark.jobs.state.placed_rows import FROM, HELD, IS_NEW, LEAVES, PLACE, held_changes, keys_of_all, placed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["barrier", "pair"]

_AT = "_at"
_KTH = "__kth"


@dataclass(frozen=True, kw_only=True)
class Barrier(Operator):
    """State: for each stream, the rows that still wait for other streams; all earlier rows were combined."""

    kind: ClassVar[str] = "barrier"
    summary: ClassVar[str] = "the k-th rows of several streams, side by side"
    keeps_tags: ClassVar[bool] = True
    configurations: ClassVar[tuple[str, ...]] = ("keyed", "three streams")

    keys: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[KeptState, ...]:
        return tuple(
            KeptState(part=_part(port), keys=(*self.keys, *HELD), looked_up_by=self.keys) for port in self.inputs
        )

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "keys": list(self.keys)}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if len(self.inputs) < 2:
            yield self.wrong("BARRIER_INPUTS", "one stream has nothing to wait for", "name two streams or more")
        if len({port.stream for port in self.inputs}) < len(self.inputs):
            yield self.wrong("BARRIER_INPUTS", "a stream is named twice", "give it a name of its own by dm.functor")

    def step(self, frames: OperatorContext) -> StepResult:
        """Number the rows of each stream and key from the first waiting row, and combine rows of equal number."""
        new = [self._new(frames, port) for port in self.inputs]
        asked = keys_of_all(frames, self, new, self.keys) if self.keys else None
        waiting = [self._waiting(frames, *each, asked) for each in zip(self.inputs, new, strict=True)]
        self._require_apart(waiting)
        sides = []
        for index, rows in enumerate(waiting):
            row = ", ".join(quoted([name for name in rows.columns if name not in self.keys]))
            of = f"partition by {', '.join(quoted(self.keys)) or '1'} order by {FROM}, {PLACE}"
            sides.append(
                frames.gathered(self, rows).selectExpr(
                    *quoted(self.keys), f"row_number() over ({of}) as {_KTH}", f"struct({row}) as __row_{index}"
                )
            )
        every = frames.gathered(
            self, reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), sides)
        )
        indices = range(len(sides))
        met = every.groupBy(*quoted(self.keys), _KTH).agg(
            *(F.expr(f"any_value(__row_{index}, true) as __row_{index}") for index in indices)
        )
        last = ", ".join(f"struct(__row_{index}.{FROM}, __row_{index}.{_AT} as {_AT})" for index in indices)
        is_whole = " and ".join(f"__row_{index} is not null" for index in indices)
        met = met.selectExpr("*", f"if({is_whole}, greatest({last}), null) as __last")
        columns = [
            f"__row_{index}.{quoted_name(name)} as {quoted_name(name)}"
            for index, rows in enumerate(waiting)
            for name in self._payload(rows)
        ]
        tags = (f"__last.{FROM} as {SEQUENCE_ID}", f"__last.{_AT} as {POSITION}")
        output = met.where("__last is not null").selectExpr(*tags, *quoted(self.keys), *columns)
        changes = {
            _part(port): self._changes(met, index, rows)
            for index, (port, rows) in enumerate(zip(self.inputs, waiting, strict=True))
        }
        return StepResult(output, changes)

    def _new(self, frames: OperatorContext, port: Input) -> DataFrame:
        """Return the rows of a port in the group: keys, `HELD`, `_at` (the position), payload."""
        rows = placed(frames, self, port, self.keys)
        free = quoted([name for name in payload_of(rows) if name not in (*self.keys, PLACE)])
        return rows.selectExpr(*quoted(self.keys), f"{SEQUENCE_ID} as {FROM}", PLACE, f"{POSITION} as {_AT}", *free)

    def _waiting(self, frames: OperatorContext, port: Input, new: DataFrame, asked: DataFrame | None) -> DataFrame:
        """Return the waiting rows of a port, with `IS_NEW`: its new rows, and rows of the state for the keys `asked`.
        No other row of the state has a new row of its key, so none of them is completed.

        Args:
            asked: the keys of all ports' new rows.
        """
        held = frames.kept(self, _part(port), new.schema, asked, fit=Fit.OTHERS)
        return new.selectExpr("*", f"true as {IS_NEW}").unionByName(held.selectExpr("*", f"false as {IS_NEW}"))

    def _payload(self, rows: DataFrame) -> list[str]:
        return [name for name in rows.columns if name not in (*self.keys, *HELD, _AT, IS_NEW)]

    def _require_apart(self, waiting: Sequence[DataFrame]) -> None:
        counted = Counter(name for rows in waiting for name in self._payload(rows))
        if twice := [name for name, count in counted.items() if count > 1]:
            raise OperatorFailed(
                f"{self.name!r}: several of its streams have a column {', '.join(twice)}",
                operator=self.name,
                location=self.location,
                remedy="rename it in a dm.functor before, or make it a key",
            )

    def _changes(self, met: DataFrame, index: int, rows: DataFrame) -> DataFrame:
        row = f"__row_{index}"
        own = met.where(f"{row} is not null").selectExpr(*quoted(self.keys), f"{row}.*", f"__last.{FROM} as {LEAVES}")
        return held_changes(own, self.keys, [_AT, *self._payload(rows)])


def _part(port: Input) -> str:
    return f"of-{port.parameter}"


def barrier(*streams: StreamLike, keys: Sequence[str] = (), name: str | None = None) -> Stream:
    """Declare a barrier: `dm.barrier(orders, payments, shipments)`.

    The k-th rows of all streams, by (sequence id, position), make one row: keys, then the columns of each stream. It
    carries the id and position of the row that came last. A row waits in the state until the other rows have come.

    Args:
        keys: key columns: the k-th rows of each key are combined. Null is a key. Without keys one worker does all work.
        name: identity of the state; `barrier_of_<first>_<second>…` by default.

    Raises:
        OperatorFailed: two streams share the name of a column that is no key.

    Example:
        side_by_side = dm.barrier(orders, payments, keys=["id"])
    """
    return _declared(streams, keys, name or "_".join(["barrier_of", *map(default_name, streams)]))


def pair(left: StreamLike, right: StreamLike, *, key: str | Sequence[str] = (), name: str | None = None) -> Stream:
    """Declare a barrier of two streams: `dm.pair(requests, answers, key="client")`; see `barrier`.

    Example:
        order_and_payment = dm.pair(orders, payments, key="id")
    """
    own = name or f"pair_of_{default_name(left)}_{default_name(right)}"
    return _declared((left, right), key, own)


def _declared(streams: Sequence[StreamLike], keys: Sequence[str], name: str) -> Stream:
    operator = Barrier(
        name=name,
        inputs=tuple(port_to(stream, stream_name(stream)) for stream in streams),
        keys=names_of(keys),
    )
    return declare(operator)
