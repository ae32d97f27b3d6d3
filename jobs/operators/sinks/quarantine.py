"""`quarantine(stream, reason=…)`: rows that the author refuses, kept in the table of the rows that cannot be read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.errors import Violation
from drainmark.jobs.frames.exact_texts import exact_json
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID, SOURCE_FILE, TAGS
from drainmark.jobs.graph.blame import failed
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, reading
from drainmark.jobs.graph.operator import Guarantee, Operator
from drainmark.jobs.lazy import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["quarantine"]

REASON = "reason"
RAW = "raw"
RAW_CHARACTERS = 4096


@dataclass(frozen=True, kw_only=True)
class QuarantineSink(Operator):
    """A sink into the region's quarantine table; its rows are committed, published and rewound with the other sinks.

    Operators that read texts (`parse`, `decompress`) use `StepResult.bad` instead, for rows that they cannot read. Both
    kinds end in the same table with the same columns, and differ on purpose. Bad rows are counted before the group goes
    on, since they may halt the region or be too many (`quarantine_rows.put_aside`); so a bounded number of them comes
    to the driver. Rows that an author refuses are a stream like any other, of any size: Spark writes them to
    unpublished files (`GroupQuarantine.refuse`), and they halt nothing.
    """

    kind: ClassVar[str] = "quarantine"
    summary: ClassVar[str] = "refused rows, kept beside those that cannot be read"
    is_sink: ClassVar[bool] = True
    keeps_tags: ClassVar[bool] = True
    guarantee: ClassVar[Guarantee | None] = Guarantee.EXACTLY_ONCE
    because: ClassVar[str] = "its files are named by the checkpoint row, and shown by one commit under its version"

    reason: str | None = None

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "reason": self.reason}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if not in_region:
            remedy = "feed it from a consistent region, or write the rows to a table by dm.sink"
            yield self.wrong("QUARANTINE_AUTONOMOUS", "no region commits its rows", remedy)

    def apply(self, frames: OperatorContext) -> DataFrame:
        """Return `_sequence_id`, `_position` if the stream has it, `raw`, `reason`."""
        rows = frames.input(self.inputs[0])
        if self.reason is None and REASON not in rows.columns:
            remedy = "say why: dm.quarantine(stream, reason='…')"
            raise failed(self, f"{self.inputs[0].stream!r} has no column {REASON!r}", remedy)
        if self.reason is None:
            return refused_rows(rows, F.col(REASON).cast("string"), hidden=(REASON,))
        return refused_rows(rows, F.lit(self.reason))


def refused_rows(rows: DataFrame, why: Column, *, hidden: Collection[str] = ()) -> DataFrame:
    """Return rows as the quarantine keeps them: `_sequence_id`, `_position` if they have it, `raw`, `reason`.

    Args:
        hidden: columns that `raw` leaves out.
    """
    hidden = {*TAGS, SOURCE_FILE, *hidden}
    shown = [quoted_name(name) for name, kind in rows.dtypes if name not in hidden and kind != "binary"]
    raw = F.expr(exact_json(f"struct({', '.join(shown)})", nulls=False) if shown else "cast(null as string)")
    position = [POSITION] if POSITION in rows.columns else []
    return rows.select(SEQUENCE_ID, *position, F.substring(raw, 1, RAW_CHARACTERS).alias(RAW), why.alias(REASON))


def quarantine(stream: StreamLike, *, reason: str | None = None, name: str | None = None) -> Stream:
    """Put every row of a stream into the table `lake/<app>_quarantine`, with file, place and reason.

    A row becomes `_sequence_id`, `source_file` (the trigger), `position` (the number of its record among the records
    read from the file, from 1; null after operators that combine several rows), `raw` (its columns as JSON, without
    nulls and binary columns, at most 4096 characters) and `reason`. It counts as quarantined in `history`, `quarantine
    list` and the asset check. You have to keep these rows out of the other outputs.

    Args:
        stream: the refused rows, and no others.
        reason: one sentence; by default the column `reason` of the stream.
        name: the operator's name; `<stream>_quarantine` by default.

    Example:
        @dm.filter
        def unpriced(orders):
            return F.col("amount").isNull()

        @dm.filter
        def priced(orders):
            return F.col("amount").isNotNull()

        dm.quarantine(unpriced, reason="the order has no amount")
        dm.sink(priced, dm.DeltaAppend("priced_orders"))
    """
    operator = QuarantineSink(**reading(stream, "quarantine", name), reason=reason)
    return declare(operator)
