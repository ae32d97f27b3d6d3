"""`ReplayableStart`: makes replayable what is pushed and could not be asked for again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from drainmark.jobs.errors import InputMissing
from drainmark.jobs.operators.sources.contract import FileSlices, Reach, SlicePart
from drainmark.jobs.operators.sources.directory_scan import DirectoryScan
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit

if TYPE_CHECKING:
    from drainmark.jobs.operators.sources.bucket_buffer import BucketBuffer
    from drainmark.jobs.operators.sources.push_buffer import PushBuffer

__all__ = ["ReplayableStart"]


@dataclass(frozen=True, kw_only=True)
class ReplayableStart(FileSlices):
    """Take what is pushed by `dm.push` or `drainmark push`, and keep it until no replay can ask for it again.

    A push is durable when it returns (fsync). Rows gather in a segment, which is sealed when it is full or old enough;
    a sealed segment never changes, and is a trigger. A push that failed may have arrived or not: who repeats it gives
    its rows a key of their own, and de-duplicates. Everything is lost with the disk of DRAINMARK_HOME; what is in a
    bucket outlives it, and machines that share nothing else may push there.

    Args:
        schema: DDL of the rows.
        buffer: `s3://BUCKET/PREFIX`; by default the rows are kept in DRAINMARK_HOME. In a bucket each push is a
            segment, whatever `rows` and `seconds` say: push many rows at once. A segment that is purged is deleted
            once it is a day old.
        rows: rows after which a segment is sealed.
        seconds: age at which a segment is sealed; looked at by pushes and scans.
        purge: when the segments of a committed id are deleted: `"horizon"`, as soon as no rewind comes back to it, or
            `"checkpointed"`, at once; a rewind behind it then needs `--accept-loss`.
        on_bad: as of `DirectoryScan`, for rows that do not fit the schema.
    """

    kind: ClassVar[str] = "segment"
    hears_checkpoints: ClassVar[bool] = True

    schema: str
    buffer: str | None = None
    rows: int = 1000
    seconds: float = 1.0
    purge: Literal["horizon", "checkpointed"] = "horizon"
    on_bad: Literal["quarantine", "halt"] = "quarantine"

    @property
    def scan(self) -> DirectoryScan:
        return DirectoryScan(path="", format="json", schema=self.schema, on_bad=self.on_bad, max_bad_ratio=1.0)

    def problems(self, trigger: str | None) -> Iterator[tuple[str, str, str]]:
        if not self.schema:
            yield "SCHEMA_MISSING", "what is pushed needs a schema", 'add schema="id bigint, …"'
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 1:
            yield "SEGMENT_ROWS", f"rows={self.rows!r} is no number of rows", "give a whole number from 1 up"
        if self.seconds < 0:
            yield "SEGMENT_SECONDS", f"seconds={self.seconds} is below zero", "give seconds, 0 for a segment a push"
        if self.buffer is not None and not self.buffer.removeprefix("s3://").strip("/").partition("/")[0]:
            yield "BUFFER", f"buffer={self.buffer!r} names no bucket", "write s3://BUCKET/PREFIX"
        elif self.buffer is not None and not self.buffer.startswith("s3://"):
            yield "BUFFER", f"rows cannot be kept at {self.buffer}", "write s3://BUCKET/PREFIX, or leave buffer= out"
        if self.purge not in ("horizon", "checkpointed"):
            yield "UNKNOWN_POLICY", f"purge={self.purge!r} is not known", "one of horizon, checkpointed"

    def fingerprint(self) -> Any:
        return {"schema": self.schema}

    def next_slice(self, after: Position | None, reach: Reach, cut: SliceLimit) -> Slice | None:
        buffer = self.kept(reach, cut.source)
        buffer.seal_if_due()
        done = int(after["segment"]) if after is not None else 0
        size, last = 0, done
        for number, its_bytes in buffer.sealed(done):
            if size and (not cut.is_periodic or (cut.max_bytes is not None and size + its_bytes > cut.max_bytes)):
                break
            size, last = size + its_bytes, number
        return Slice(start=after, end={"segment": last}, size_bytes=size) if last > done else None

    def label(self, piece: Slice, source: str, reach: Reach) -> str:
        return f"segment:{source}#{piece.end['segment']}"

    def parts(self, piece: Slice, reach: Reach, source: str) -> Iterator[SlicePart]:
        buffer = self.kept(reach, source)
        first = int(piece.start["segment"]) + 1 if piece.start is not None else 1
        for number in range(first, int(piece.end["segment"]) + 1):
            size = buffer.size(number)
            if size is None:
                msg = f"segment {number} of {source} was purged: its state was committed"
                raise InputMissing(msg, remedy='purge="horizon" keeps what a rewind replays', triggers=())
            yield SlicePart(uri=f"segment:{source}#{number}", size_bytes=size, place=partial(buffer.place, number))

    def check(self, piece: Slice, reach: Reach, source: str) -> None:
        for _ in self.parts(piece, reach, source):
            pass

    def on_checkpointed(self, read: Iterator[Slice], reach: Reach, source: str, *, beyond_horizon: bool) -> None:
        if beyond_horizon == (self.purge == "horizon"):
            self.kept(reach, source).purge(max((int(piece.end["segment"]) for piece in read), default=0))

    def kept(self, reach: Reach, source: str) -> PushBuffer | BucketBuffer:
        """Return the buffer of a start."""
        from drainmark.jobs.operators.sources.bucket_buffer import BucketBuffer
        from drainmark.jobs.operators.sources.push_buffer import PushBuffer

        if self.buffer is not None:
            return BucketBuffer(reach.table(f"{self.buffer.rstrip('/')}/{reach.region}/{source}"))
        return PushBuffer(reach.buffer(source), rows=self.rows, seconds=self.seconds)
