"""`Beacon`: rows made from their number, for tests, demonstrations and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from drainmark.jobs.graph.annotations import TriggerKind, is_count
from drainmark.jobs.operators.sources.contract import RowSlices, SourceAccess
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Beacon"]

_AT_ONCE = 65_536
_ROW_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Beacon(RowSlices):
    """Generated rows for tests and demos: `n` counts up from 0, `batch` is the number of the batch.

    In an operator-driven region every batch is a trigger, and `batches` must be given. In a periodic region each state
    takes one batch, without end; so `run` without `--for` takes only one.

    Args:
        rows: rows in each batch.
        batches: number of batches; required in operator-driven regions, not allowed in periodic ones.

    Example:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.Beacon(rows=1000, batches=10))
        def numbers(scanned):  # n, batch
            return scanned
    """

    kind: ClassVar[str] = "beacon"

    rows: int = 1
    batches: int | None = None

    @property
    def is_endless(self) -> bool:
        return self.batches is None

    def problems(self, trigger: str | None) -> Iterator[tuple[str, str, str]]:
        if not is_count(self.rows):
            yield "BEACON_ROWS", f"rows={self.rows!r} is no number of rows", "give a whole number from 1 up"
        if trigger == TriggerKind.OPERATOR_DRIVEN and not is_count(self.batches):
            message = f"batches={self.batches!r}: an operator-driven Beacon has to know how many triggers it gives"
            yield "BEACON_COUNT", message, "dm.Beacon(rows=…, batches=N)"
        if trigger == TriggerKind.PERIODIC and self.batches is not None:
            message = f"batches={self.batches!r}: in a periodic region the period says when, and a Beacon has no count"
            yield "BEACON_COUNT", message, "drop batches="

    def fingerprint(self) -> Any:
        return {"rows": self.rows}

    def columns(self, access: SourceAccess) -> str:
        return "n bigint, batch bigint"

    def next_slice(self, after: Position | None, access: SourceAccess, cut: SliceLimit) -> Slice | None:
        done = int(after["batch"]) if after is not None else 0
        if self.batches is not None and done >= self.batches:
            return None
        first = int(after["n"]) if after is not None else 0  # earlier batches may have had another number of rows
        end = {"batch": done + 1, "n": first + self.rows}
        return Slice(start=after, end=end, size_bytes=self.rows * _ROW_BYTES)

    def label(self, piece: Slice, source: str, access: SourceAccess) -> str:
        return f"beacon:{source}#{piece.end['batch']}"

    def read(self, piece: Slice, access: SourceAccess) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        first, last = (int(piece.start["n"]) if piece.start is not None else 0), int(piece.end["n"])
        batch = int(piece.end["batch"])
        for start in range(first, last, _AT_ONCE):
            numbers = pa.array(range(start, min(start + _AT_ONCE, last)), pa.int64())
            column = pa.array([batch] * len(numbers), pa.int64())
            yield pa.record_batch([numbers, column], names=["n", "batch"])
