"""`ReplayableStart`: makes pushed rows replayable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from drainmark.jobs.errors import InputMissing
from drainmark.jobs.graph.annotations import is_count
from drainmark.jobs.operators.sources.contract import SourceAccess
from drainmark.jobs.operators.sources.files.directory_scan import DirectoryScan
from drainmark.jobs.operators.sources.files.file_source import FileSlices, SlicePart
from drainmark.jobs.operators.sources.slices import Position, Slice, SliceLimit
from drainmark.jobs.protocol.records.addresses import is_object

if TYPE_CHECKING:
    from drainmark.jobs.operators.sources.pushed.bucket_buffer import BucketBuffer
    from drainmark.jobs.operators.sources.pushed.push_buffer import PushBuffer

__all__ = ["ReplayableStart"]


@dataclass(frozen=True, kw_only=True)
class ReplayableStart(FileSlices):
    """A start with the rows of `dm.push` or `drainmark push`, which are kept until no replay can need them.

    A push is durable when it returns (fsync). Rows gather in a segment, which is sealed when it is full or old enough;
    a sealed segment never changes, and is a trigger. A push that failed may have arrived or not: to repeat it safely,
    give each row a unique key, and de-duplicate. All rows are lost with the disk of DRAINMARK_HOME; a buffer in a
    bucket outlives it, and machines that share nothing else may push there.

    Args:
        schema: DDL of the rows.
        buffer: `s3://BUCKET/PREFIX`; by default the rows are kept in DRAINMARK_HOME. In a bucket each push is a
            segment, and `rows` and `seconds` have no effect: push many rows at once. A segment that is purged is
            deleted once it is a day old.
        rows: number of rows after which a segment is sealed.
        seconds: age at which a segment is sealed; pushes and scans check it.
        purge: when to delete the segments of a committed id: `"horizon"`, as soon as no rewind can go back to it, or
            `"checkpointed"`, at once; a rewind to an earlier id then needs `--accept-loss`.
        on_bad: as for `DirectoryScan`, for rows that do not fit the schema.

    Example:
        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.ReplayableStart(schema="item string, stars int", rows=100))
        def reviews(scanned):  # dm.push("shop/reviews", [{"item": "tea", "stars": 5}])
            return scanned
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
        if not is_count(self.rows):
            yield "SEGMENT_ROWS", f"rows={self.rows!r} is no number of rows", "give a whole number from 1 up"
        if self.seconds < 0:
            yield "SEGMENT_SECONDS", f"seconds={self.seconds} is below zero", "give seconds, 0 for a segment a push"
        if self.buffer is not None and not self.buffer.partition("://")[2].strip("/"):
            yield "BUFFER", f"buffer={self.buffer!r} names no bucket", "write s3://BUCKET/PREFIX"
        elif self.buffer is not None and not is_object(self.buffer):
            yield "BUFFER", f"rows cannot be kept at {self.buffer}", "write s3://BUCKET/PREFIX, or leave buffer= out"
        if self.purge not in ("horizon", "checkpointed"):
            yield "UNKNOWN_POLICY", f"purge={self.purge!r} is not known", "one of horizon, checkpointed"

    def fingerprint(self) -> Any:
        return {"schema": self.schema}

    def next_slice(self, after: Position | None, access: SourceAccess, cut: SliceLimit) -> Slice | None:
        buffer = self.kept(access, cut.source, self.buffer)
        buffer.seal_if_due()
        if after is not None and after.get("buffer") != self.buffer:
            self._require_read(access, cut.source, after)
        done, others = self._read_here(after)
        size, last = 0, done
        for number, its_bytes in buffer.sealed(done):
            if size and (not cut.is_periodic or (cut.max_bytes is not None and size + its_bytes > cut.max_bytes)):
                break
            size, last = size + its_bytes, number
        end = {"segment": last, "buffer": self.buffer, "others": others}
        known = {name: value for name, value in end.items() if value}  # positions of 0.3.0 have only a segment
        return Slice(start=after, end=known, size_bytes=size) if last > done else None

    def label(self, piece: Slice, source: str, access: SourceAccess) -> str:
        return _label(source, piece.end)

    def parts(self, piece: Slice, access: SourceAccess, source: str) -> Iterator[SlicePart]:
        from drainmark.jobs.operators.sources.pushed.bucket_buffer import BucketBuffer

        address = piece.end.get("buffer")
        buffer = self.kept(access, source, address)
        done, _ = replace(self, buffer=address)._read_here(piece.start)
        for number in range(done + 1, int(piece.end["segment"]) + 1):
            stored = buffer.stored(number) if isinstance(buffer, BucketBuffer) else None
            size = buffer.size(number) if stored is None else stored.size
            if size is None:
                msg = f"segment {number} of {source} was purged: its state was committed"
                raise InputMissing(msg, remedy='purge="horizon" keeps the rows that a rewind replays', triggers=())
            uri = _label(source, {**piece.end, "segment": number})
            yield SlicePart(uri=uri, size_bytes=size, place=partial(buffer.place, number), stored=stored)

    def check(self, piece: Slice, access: SourceAccess, source: str) -> None:
        for _ in self.parts(piece, access, source):
            pass

    def on_checkpointed(
        self, read: Iterator[Slice], access: SourceAccess, source: str, *, beyond_horizon: bool
    ) -> None:
        if beyond_horizon != (self.purge == "horizon"):
            return
        last: dict[str | None, int] = {}
        for piece in read:
            address = piece.end.get("buffer")
            last[address] = max(last.get(address, 0), int(piece.end["segment"]))
        for address, number in last.items():
            self.kept(access, source, address).purge(number)

    def kept(self, access: SourceAccess, source: str, address: str | None) -> PushBuffer | BucketBuffer:
        """Return the buffer of a start at an address, or in DRAINMARK_HOME."""
        from drainmark.jobs.operators.sources.pushed.bucket_buffer import BucketBuffer
        from drainmark.jobs.operators.sources.pushed.push_buffer import PushBuffer

        if address is not None:
            return BucketBuffer(access.table(f"{address.rstrip('/')}/{access.region}/{source}"))
        return PushBuffer(access.buffer(source), rows=self.rows, seconds=self.seconds)

    def _read_here(self, after: Position | None) -> tuple[int, dict[str, int]]:
        """Return the last segment that was read of this start's buffer, and, by address, of its earlier buffers."""
        read = dict(after.get("others", {})) if after is not None else {}
        if after is not None:
            read[after.get("buffer") or ""] = int(after["segment"])
        return read.pop(self.buffer or "", 0), read

    def _require_read(self, access: SourceAccess, source: str, after: Position) -> None:
        """Check that no rows are left in the buffer that the start had before.

        Raises:
            InputMissing: rows are left, which would never be read.
        """
        before = self.kept(access, source, after.get("buffer"))
        before.seal_all()
        if next(before.sealed(int(after["segment"])), None) is not None:
            where = after.get("buffer") or "DRAINMARK_HOME"
            msg = f"{source} keeps pushed rows elsewhere now, and rows at {where} are not read yet"
            raise InputMissing(msg, remedy="put buffer= back as it was until they are, and change it then", triggers=())


def _label(source: str, position: Position) -> str:
    at = f"@{position['buffer']}" if position.get("buffer") else ""
    return f"segment:{source}{at}#{position['segment']}"
