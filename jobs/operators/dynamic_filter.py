"""`dynamic_filter`: passes the rows with a key that a control stream has named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import Violation
from drainmark.jobs.frames.names import quoted
from drainmark.jobs.frames.row_order import same
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.graph.annotations import Control
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, default_name, port_to
from drainmark.jobs.graph.operator import KeptState, Operator, Positions, StepResult, names_of
from drainmark.jobs.lazy import F
from drainmark.jobs.state.placed_rows import are_of_one_type, require_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["dynamic_filter"]

_PART = "let-through"
_ADD, _REMOVE = "add", "remove"


@dataclass(frozen=True, kw_only=True)
class DynamicFilter(Operator):
    """State: the keys that pass. A row that comes on a control port at an id acts from the next id on."""

    kind: ClassVar[str] = "dynamic-filter"
    summary: ClassVar[str] = "rows whose key a control stream has named"
    keeps_tags: ClassVar[bool] = True
    positions: ClassVar[Positions] = Positions.KEPT
    sees_control_by_id: ClassVar[bool] = True
    configurations: ClassVar[tuple[str, ...]] = ("add", "add and remove")

    keys: tuple[str, ...]

    @property
    def kept(self) -> tuple[KeptState, ...]:
        return (KeptState(part=_PART, keys=self.keys, looked_up_by=self.keys),)

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "on": list(self.keys)}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if not self.keys:
            yield self.wrong("DYNAMIC_FILTER_KEYS", "it has no columns to go by", 'give on=["user"]')

    def step(self, frames: OperatorContext) -> StepResult:
        port = self.inputs[0]
        rows = frames.input(port)
        require_columns(self, port, rows, self.keys)
        asks = frames.looks_up(self, _PART) and self._is_one_type(frames)
        if asks:  # its keys select the state to read, and a second computation may give other rows
            rows = frames.once(self, rows)
        own = rows.selectExpr(*quoted(self.keys))
        known = frames.kept(self, _PART, own.schema, own if asks else None)
        if self._closes_loop(frames):  # the group has one id
            passes = F.expr(same(self.keys, "rows", "known"))
            return StepResult(rows.alias("rows").join(known.alias("known"), on=passes, how="left_semi"))
        events = frames.once(self, self._events(frames))  # the filter and the state must have the same rows
        return StepResult(self._by_id(frames, rows, known, events), {_PART: events})

    def _closes_loop(self, frames: OperatorContext) -> bool:
        """Say whether a control stream comes from the operator's own output: then only `absorb` can read it."""
        streams = [port.stream for port in self.inputs[1:]]
        return frames.once_a_run((self.name, "loop"), lambda: any(name not in frames.streams for name in streams))

    def _is_one_type(self, frames: OperatorContext) -> bool:
        """Say whether keys have one type in all streams; False for a loop, since its types are not known yet."""
        if self._closes_loop(frames):
            return False
        sides = [frames.input(port) for port in self.inputs]
        for port, rows in zip(self.inputs, sides, strict=True):
            require_columns(self, port, rows, self.keys)
        return are_of_one_type(frames, self, sides, self.keys)

    def _by_id(self, frames: OperatorContext, rows: DataFrame, known: DataFrame, events: DataFrame) -> DataFrame:
        """Return the rows with a key that passes at their id, from the spans of ids in which each key passes."""
        keys = quoted(self.keys)
        events = events.selectExpr(*keys, SEQUENCE_ID, f"{GONE} as __gone_now").unionByName(
            known.selectExpr(*keys, f"0L as {SEQUENCE_ID}", "false as __gone_now")
        )
        until = f"lead({SEQUENCE_ID}) over (partition by {', '.join(keys)} order by {SEQUENCE_ID}) as __until"
        spans = frames.gathered(self, events).selectExpr(*keys, f"{SEQUENCE_ID} as __since", "__gone_now", until)
        spans = spans.where("not __gone_now")
        is_set = f"rows.{SEQUENCE_ID} > spans.__since"
        within = f"{is_set} and (spans.__until is null or rows.{SEQUENCE_ID} <= spans.__until)"
        on = F.expr(f"{same(self.keys, 'rows', 'spans')} and {within}")
        return rows.alias("rows").join(spans.alias("spans"), on=on, how="left_semi")

    def absorb(self, frames: OperatorContext) -> Mapping[str, DataFrame]:
        """Return the changes if a loop is closed; otherwise `step` has returned them."""
        return {_PART: self._events(frames)} if self._closes_loop(frames) else {}

    def _events(self, frames: OperatorContext) -> DataFrame:
        """Return one row for each key and id of the control ports; a key added and removed at one id is removed."""
        brought = []
        for port in self.inputs[1:]:
            rows = frames.input(port)
            require_columns(self, port, rows, self.keys)
            is_gone = str(port.parameter == _REMOVE).lower()
            brought.append(rows.selectExpr(*quoted(self.keys), SEQUENCE_ID, f"{is_gone} as {GONE}"))
        events = frames.gathered(self, reduce(lambda some, more: some.unionByName(more), brought))
        marked = events.groupBy(*quoted(self.keys), SEQUENCE_ID).agg(F.expr(f"bool_or({GONE}) as {GONE}"))
        return marked.selectExpr(*quoted(self.keys), GONE, SEQUENCE_ID)


def dynamic_filter(
    stream: StreamLike,
    control: StreamLike,
    *,
    on: Sequence[str],
    remove: StreamLike | None = None,
    name: str | None = None,
) -> Stream:
    """Declare a filter that a control stream sets: `dm.dynamic_filter(events, watched, on=["user"])`.

    A row passes if its key came on the control stream at an earlier sequence id and was not removed since. A row that
    comes on a control port at an id acts from the next id on. Null is a key.

    Args:
        control: rows with its keys pass from the next id on. It may close a loop; triggers are then processed one at
            a time.
        on: key columns, which all streams have.
        remove: rows with its keys no longer pass. A key that is added and removed at one id is removed.
        name: identity of the state; `<stream>_on_<control>` by default.

    Example:
        watched = dm.dynamic_filter(orders, payments, on=["id"])  # orders that were paid by an earlier file
    """
    keyed = Control(keys=names_of(on))
    controls = [port_to(control, _ADD, control=keyed)]
    if remove is not None:
        controls.append(port_to(remove, _REMOVE, control=keyed))
    operator = DynamicFilter(
        name=name or f"{default_name(stream)}_on_{default_name(control)}",
        inputs=(port_to(stream), *controls),
        keys=names_of(on),
    )
    return declare(operator)
