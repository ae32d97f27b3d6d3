"""`punctor`: marks the rows at which a condition becomes true, so that windows can end there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from drainmark.jobs.errors import OperatorFailed, Violation
from drainmark.jobs.frames.names import quoted
from drainmark.jobs.frames.row_order import payload_of, tags_in
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, default_name, port_to
from drainmark.jobs.graph.operator import KeptState, Operator, Positions, Retention, StepResult, names_of
from drainmark.jobs.state.placed_rows import IS_NEW, PLACE, placed

if TYPE_CHECKING:
    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["punctor"]

PUNCTUATION = "_punctuation"
_HOLDS = "_holds"


@dataclass(frozen=True, kw_only=True)
class Punctor(Operator):
    """A boolean column for punctuations, since a stream has nothing but rows.

    State if `at="rise"`: whether the condition held at the last row of each key.
    """

    kind: ClassVar[str] = "punctor"
    summary: ClassVar[str] = "marks the rows at which a condition becomes true"
    keeps_tags: ClassVar[bool] = True
    positions: ClassVar[Positions] = Positions.KEPT
    configurations: ClassVar[tuple[str, ...]] = ("rise", "rise by key", "every")

    condition_sql: str
    keys: tuple[str, ...] = ()
    at: str = "rise"

    @property
    def kept(self) -> tuple[KeptState, ...]:
        kept_for = Retention(of=f"the condition {' '.join(self.condition_sql.split())}")
        return (KeptState(keys=self.keys, looked_up_by=self.keys, retention=kept_for),) if self.at == "rise" else ()

    @property
    def takes_changes(self) -> bool:
        return self.at == "every"

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "when": self.condition_sql, "keys": list(self.keys), "at": self.at}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if self.at not in ("rise", "every"):
            yield self.wrong("PUNCTOR_AT", f"at={self.at!r} is not known", 'write at="rise" or at="every"')
        if self.keys and self.at == "every":
            yield self.wrong("PUNCTOR_KEYS", 'at="every" looks at no other row, keys are for at="rise"', "drop keys=")

    def step(self, frames: OperatorContext) -> StepResult:
        self._require_first(frames)
        holds = f"coalesce(({self.condition_sql}), false)"
        if self.at == "every":
            return StepResult(frames.input(self.inputs[0]).selectExpr("*", f"{holds} as {PUNCTUATION}"))
        rows = placed(frames, self, self.inputs[0], self.keys, extra=[f"{holds} as {_HOLDS}"])
        payload = [name for name in payload_of(rows) if name not in (_HOLDS, PLACE)]
        keys = quoted(self.keys)
        of_key = f"over (partition by {', '.join(keys) or '1'} order by {SEQUENCE_ID}, {PLACE})"
        before = frames.kept(self, "", rows.selectExpr(*keys, _HOLDS).schema, changed=rows)
        before = before.selectExpr(*keys, f"0L as {SEQUENCE_ID}", f"0L as {PLACE}", _HOLDS, f"false as {IS_NEW}")
        every = frames.gathered(
            self, rows.selectExpr("*", f"true as {IS_NEW}").unionByName(before, allowMissingColumns=True)
        ).selectExpr(
            "*",
            f"coalesce(lag({_HOLDS}) {of_key}, false) as __held",
            f"coalesce(lead({SEQUENCE_ID}) {of_key} != {SEQUENCE_ID}, true) as __is_last",
        )
        new = every.where(IS_NEW)
        output = new.selectExpr(*tags_in(rows.columns), *quoted(payload), f"{_HOLDS} and not __held as {PUNCTUATION}")
        return StepResult(output, {"": new.where("__is_last").selectExpr(*keys, _HOLDS, SEQUENCE_ID)})

    def _require_first(self, frames: OperatorContext) -> None:
        port = self.inputs[0]
        if PUNCTUATION in frames.input(port).columns:
            raise OperatorFailed(
                f"{self.name!r}: {port.stream!r} has a column {PUNCTUATION} already",
                operator=self.name,
                location=self.location,
                remedy="give that another name in a dm.functor between",
            )


def punctor(
    stream: StreamLike,
    when: str,
    *,
    keys: Sequence[str] = (),
    at: Literal["rise", "every"] = "rise",
    name: str | None = None,
) -> Stream:
    """Mark the rows at which a condition becomes true: `dm.punctor(readings, "temperature > 90", keys=["sensor"])`.

    The stream gets the boolean column `_punctuation`, true on a row at which the condition becomes true: it holds
    there, and did not hold at the row before (of the same keys), which may have come with an earlier trigger.

    Args:
        when: the condition, in SQL; null is false.
        keys: key columns: the condition rises for each key separately. Without keys the order is that of the whole
            stream, and one worker goes through all rows.
        at: `"rise"`, or `"every"` to mark each row for which the condition holds, which needs no state.
        name: the operator's name; `<stream>_punctuated` by default.

    Example:
        marked = dm.punctor(orders, "amount > 90", keys=["customer"])
    """
    operator = Punctor(
        name=name or f"{default_name(stream)}_punctuated",
        inputs=(port_to(stream),),
        condition_sql=when,
        keys=names_of(keys),
        at=at,
    )
    return declare(operator)
