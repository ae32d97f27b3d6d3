"""A checkpoint as one string of bytes, to be kept beside the rows that it belongs to, not in a store of chunks."""

from __future__ import annotations

from drainmark.jobs.errors.operator_code import CheckpointUnreadable
from drainmark.jobs.state.handlers.checkpoint import CheckpointReader, CheckpointWriter, Header

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
