"""`decompress`: decompresses a column of bytes, each value one whole compressed stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from drainmark.jobs.errors import Violation
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.row_order import payload_of, tags_in
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.graph.declarations import Stream, StreamLike, declare, reading
from drainmark.jobs.graph.operator import Operator, Positions, StepResult
from drainmark.jobs.lazy import F
from drainmark.jobs.state.placed_rows import PLACE, placed, require_columns

if TYPE_CHECKING:
    from drainmark.jobs.graph.context import OperatorContext

__all__ = ["decompress"]

MAX_BYTES = 256 * 1024 * 1024
_PIECE = 1024 * 1024
_CODECS = ("gzip", "bz2", "zstd")
_MADE = "__made"


@dataclass(frozen=True, kw_only=True)
class Decompress(Operator):
    """A decompression of each value by itself, so that no state is ever inside the decompression library."""

    kind: ClassVar[str] = "decompress"
    summary: ClassVar[str] = "a column of gzip, bz2 or zstd, each value a whole stream"
    keeps_tags: ClassVar[bool] = True
    positions: ClassVar[Positions] = Positions.KEPT
    configurations: ClassVar[tuple[str, ...]] = ("gzip", "bz2", "zstd", "null")

    column: str
    codec: str
    max_bytes: int = MAX_BYTES
    on_bad: str = "quarantine"

    def fingerprint(self) -> Any:
        return {**super().fingerprint(), "of": [self.column, self.codec, self.max_bytes, self.on_bad]}

    def violations(self, in_region: bool) -> Iterator[Violation]:
        if self.codec not in _CODECS:
            yield self.wrong("DECOMPRESS_CODEC", f"codec={self.codec!r} is not known", " or ".join(_CODECS))
        if self.on_bad not in ("quarantine", "null", "halt"):
            yield self.wrong("DECOMPRESS_ON_BAD", f"on_bad={self.on_bad!r} is not known", "quarantine, null or halt")

    def step(self, frames: OperatorContext) -> StepResult:
        port = self.inputs[0]
        rows = frames.input(port)
        require_columns(self, port, rows, [self.column])
        made = frames.once_a_run((self.name, _MADE), self._made)
        every = frames.once(self, placed(frames, self, port).withColumn(_MADE, made))
        tags = tags_in(rows.columns)
        columns = [
            f"{_MADE}.data as {quoted_name(name)}" if name == self.column else quoted_name(name)
            for name in payload_of(rows)
        ]
        if self.on_bad == "null":
            return StepResult(every.selectExpr(*tags, *columns))
        bad = every.where(f"{_MADE}.error is not null").selectExpr(
            SEQUENCE_ID, f"{PLACE} as position", "cast(null as string) as raw", f"{_MADE}.error as reason"
        )
        good = every.where(f"{_MADE}.error is null").selectExpr(*tags, *columns)
        return StepResult(good, bad=bad, bad_halts=self.on_bad == "halt")

    def _made(self) -> Any:
        codec, limit = self.codec, self.max_bytes
        # a lambda: from type hints Spark would try to infer how to call the function, and warn that it cannot
        return F.udf(lambda data: _unpacked(data, codec, limit), "data binary, error string")(quoted_name(self.column))


def _unpacked(data: bytes | None, codec: str, limit: int) -> tuple[bytes | None, str | None]:
    """Return the bytes and None, or None and the reason of the failure; null stays null."""
    import pyarrow as pa

    if data is None:
        return None, None
    pieces, size = [], 0
    try:
        with pa.input_stream(pa.py_buffer(bytes(data)), compression=codec) as stream:
            while piece := stream.read(_PIECE):
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    return None, f"more than {limit} bytes come out of it"
    except (OSError, pa.ArrowException) as error:
        return None, f"is no whole {codec} stream: {str(error)[:200]}"
    return b"".join(pieces), None


def decompress(
    stream: StreamLike,
    column: str,
    *,
    codec: Literal["gzip", "bz2", "zstd"] = "gzip",
    max_bytes: int = MAX_BYTES,
    on_bad: Literal["quarantine", "null", "halt"] = "quarantine",
    name: str | None = None,
) -> Stream:
    """Declare that a column is decompressed: `dm.decompress(mails, "body", codec="zstd")`.

    Each value must be one whole compressed stream: a state in the middle of a stream is impossible. Files that are
    compressed as a whole need no operator: the source reads them.

    Args:
        column: a binary column, which stays binary. Null stays null.
        codec: `gzip`, `bz2` or `zstd`.
        max_bytes: a value that decompresses to more bytes is bad.
        on_bad: bad rows go to the region's quarantine, have null in the column, or halt the region.
        name: the operator's name; `<stream>_decompressed` by default.

    Example:
        opened = dm.decompress(orders, "attachment", max_bytes=1024 * 1024)
    """
    operator = Decompress(
        **reading(stream, "decompressed", name), column=column, codec=codec, max_bytes=max_bytes, on_bad=on_bad
    )
    return declare(operator)
