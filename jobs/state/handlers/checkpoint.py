"""`Checkpoint`: the object to which a state handler writes its state, and from which it reads it, value by value.

The bytes are cut into chunks of one size; the last may be shorter. Chunks count from 1. Chunk 0 is the header: it holds
the number of chunks, and the id under which each was written last, since an unchanged chunk is not written again.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from drainmark.jobs.errors.operator_code import CheckpointUnreadable
from drainmark.jobs.state.handlers.encoding import RESTORE, decode, encode

T = TypeVar("T")

CHUNK_BYTES = 64 * 1024
"""Bytes of a chunk: well below the value limit of any store, and the cost of a small change in a large state."""

HEADER = 0
_FORMAT = 1
_ORDER = "read in reset() what checkpoint() wrote, in the same order"


class Checkpoint(ABC):
    """The state of one operator at one sequence id, to be written in `checkpoint` or read in `reset`.

    A value is read back equal and of the same type: a time with its zone and fold, a tuple as a tuple. A value that
    would come back changed is refused when it is written: `write` lists the allowed types.

    Attributes:
        sequence_id: of the consistent state.

    Example:
        @dm.operator(output="item string")
        class Items(dm.StateHandler):
            def __init__(self):
                self.seen = []

            def process(self, orders, context):
                fresh = [item for item in orders["item"].unique().to_pylist() if item not in self.seen]
                self.seen += fresh
                return pa.table({"item": pa.array(fresh, pa.string())})

            def checkpoint(self, checkpoint):  # values are read back in the order of writing
                checkpoint.write(self.seen)

            def reset(self, checkpoint):
                self.seen = checkpoint.read()

            def reset_to_initial_state(self):
                self.seen = []
    """

    sequence_id: int

    @abstractmethod
    def write(self, value: Any) -> None:
        """Write the next value.

        Args:
            value: None, bool, int, float, str, bytes, date, datetime (its zone a `zoneinfo.ZoneInfo`, a
                `datetime.timezone` or one of pytz), timedelta, Decimal, an Arrow table, or lists, tuples, sets and
                dicts of these, nested up to 150 deep. It is read back equal and of the same type; a `CowDict` and its
                frozen version as dicts, lists and sets. A list that is in two places is read back as two lists.

        Raises:
            TypeError: the value has another type, is of a subclass (`dict(value)` makes a dict of a defaultdict), has
                another zone, or holds itself, or a NaN is a key or in a set.
        """

    @overload
    def read(self) -> Any: ...
    @overload
    def read(self, kind: type[T]) -> T: ...
    @abstractmethod
    def read(self, kind: type[T] | None = None) -> Any:
        """Return the next value, in the order of writing.

        Args:
            kind: the expected type; None for no check.

        Raises:
            CheckpointUnreadable: the value has another type, there is no further value, or the bytes are damaged.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Chunk 0 of a checkpoint.

    Attributes:
        sequence_id: of the state.
        length: bytes in all.
        chunk_bytes: bytes of a chunk.
        digests: of the chunks, in order, in hex.
        written_at: the id under which each chunk was written last.
    """

    sequence_id: int
    length: int
    chunk_bytes: int
    digests: tuple[str, ...] = ()
    written_at: tuple[int, ...] = ()

    @property
    def chunks(self) -> int:
        return len(self.digests)

    def to_bytes(self) -> bytes:
        value = {
            "format": _FORMAT,
            "id": self.sequence_id,
            "length": self.length,
            "chunk_bytes": self.chunk_bytes,
            "digests": self.digests,
            "written_at": self.written_at,
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Header:
        """Return the header from its bytes.

        Raises:
            CheckpointUnreadable: the bytes are no header, or a newer version wrote them.
        """
        try:
            value = json.loads(content)
            if value["format"] > _FORMAT:
                msg = f"a checkpoint has format {value['format']}, this version knows {_FORMAT}"
                raise CheckpointUnreadable(msg, remedy="install the version that wrote it")
            return cls(
                sequence_id=value["id"],
                length=value["length"],
                chunk_bytes=value["chunk_bytes"],
                digests=tuple(value["digests"]),
                written_at=tuple(value["written_at"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointUnreadable("the header of a checkpoint is damaged", remedy=RESTORE) from error


@dataclass(slots=True, kw_only=True)
class CheckpointWriter(Checkpoint):
    """A checkpoint that is being written; it keeps only the chunks that differ from those of the previous checkpoint.

    Attributes:
        previous: header of the checkpoint before, None for the first.
        changed: the chunks to be stored, by index; complete after `finish`.
    """

    sequence_id: int
    previous: Header | None = None
    chunk_bytes: int = CHUNK_BYTES
    changed: dict[int, bytes] = field(default_factory=dict)
    _pending: bytearray = field(default_factory=bytearray)
    _digests: list[str] = field(default_factory=list)
    _written_at: list[int] = field(default_factory=list)
    _length: int = 0
    _header: Header | None = None

    def write(self, value: Any) -> None:
        if self._header is not None:
            msg = f"the checkpoint of id {self.sequence_id} has ended"
            raise CheckpointUnreadable(msg, remedy="write in checkpoint(), and keep no handle of it")
        encode(value, self._put)

    def read(self, kind: type[T] | None = None) -> Any:
        raise CheckpointUnreadable("this checkpoint is being written", remedy="read in reset()")

    def finish(self) -> Header:
        """End the writing; return chunk 0."""
        if self._header is None:
            if self._pending:
                self._cut(bytes(self._pending))
                self._pending.clear()
            self._header = Header(
                sequence_id=self.sequence_id,
                length=self._length,
                chunk_bytes=self.chunk_bytes,
                digests=tuple(self._digests),
                written_at=tuple(self._written_at),
            )
        return self._header

    def _put(self, piece: bytes) -> None:
        self._pending += piece
        while len(self._pending) >= self.chunk_bytes:
            self._cut(bytes(self._pending[: self.chunk_bytes]))
            del self._pending[: self.chunk_bytes]

    def _cut(self, chunk: bytes) -> None:
        self._length += len(chunk)
        digest, place, before = digest_of(chunk), len(self._digests), self.previous
        is_kept = (
            before is not None
            and before.chunk_bytes == self.chunk_bytes
            and place < before.chunks
            and before.digests[place] == digest
        )
        self._digests.append(digest)
        self._written_at.append(before.written_at[place] if is_kept and before is not None else self.sequence_id)
        if not is_kept:
            self.changed[place + 1] = chunk


@dataclass(slots=True, kw_only=True)
class CheckpointReader(Checkpoint):
    """A checkpoint that is being read, a chunk at a time.

    Attributes:
        header: chunk 0.
        fetch: returns a chunk by its index and the id under which it was written; raises KeyError if it is gone.
    """

    header: Header
    fetch: Callable[[int, int], bytes]
    sequence_id: int = field(init=False)
    _pending: bytearray = field(default_factory=bytearray)
    _next: int = 1
    _values: int = 0

    def __post_init__(self) -> None:
        self.sequence_id = self.header.sequence_id

    def write(self, value: Any) -> None:
        raise CheckpointUnreadable("this checkpoint is being read", remedy="write in checkpoint()")

    def read(self, kind: type[T] | None = None) -> Any:
        self._values += 1
        if self.is_at_end:
            msg = f"value {self._values} is read of a checkpoint of {self._values - 1}"
            raise CheckpointUnreadable(msg, remedy=_ORDER)
        value = decode(self._take)
        if kind is not None and not _is_a(value, kind):
            msg = f"value {self._values} of the checkpoint is a {type(value).__name__}, read as {kind.__name__}"
            raise CheckpointUnreadable(msg, remedy=_ORDER)
        return value

    @property
    def is_at_end(self) -> bool:
        """Say whether every value is read."""
        return not self._pending and self._next > self.header.chunks

    def _take(self, count: int) -> bytes:
        while len(self._pending) < count:
            self._pending += self._chunk()
        taken = bytes(self._pending[:count])
        del self._pending[:count]
        return taken

    def _chunk(self) -> bytes:
        index = self._next
        if index > self.header.chunks:
            raise CheckpointUnreadable("a checkpoint ends inside a value", remedy=RESTORE)
        where = f"chunk {index} of {self.header.chunks} of the checkpoint of id {self.sequence_id}"
        try:
            chunk = self.fetch(index, self.header.written_at[index - 1])
        except KeyError as error:
            raise CheckpointUnreadable(f"{where} is gone", remedy=RESTORE) from error
        if digest_of(chunk) != self.header.digests[index - 1]:
            raise CheckpointUnreadable(f"{where} is damaged", remedy=RESTORE)
        self._next += 1
        return chunk


def digest_of(chunk: bytes) -> str:
    """Return the digest of a chunk, by which chunks are compared."""
    return hashlib.blake2b(chunk, digest_size=16).hexdigest()


def _is_a(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


_LENGTH_BYTES = 8


def packed(writer: CheckpointWriter) -> bytes:
    """Return the bytes, header first, of a checkpoint that was written without a previous one."""
    header = writer.finish().to_bytes()
    chunks = (chunk for _, chunk in sorted(writer.changed.items()))
    return b"".join([len(header).to_bytes(_LENGTH_BYTES), header, *chunks])


def unpacked(content: bytes) -> CheckpointReader:
    """Return a reader of the bytes that `packed` returned.

    Raises:
        CheckpointUnreadable: the bytes are cut off, or damaged; damaged chunks raise it when they are read.
    """
    begin = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES])
    if len(content) < begin:
        raise CheckpointUnreadable("a checkpoint is cut off", remedy="restore the buffer's folder from a backup")
    header = Header.from_bytes(content[_LENGTH_BYTES:begin])

    def fetch(index: int, at: int) -> bytes:
        start = begin + (index - 1) * header.chunk_bytes
        return content[start : start + header.chunk_bytes]

    return CheckpointReader(header=header, fetch=fetch)
