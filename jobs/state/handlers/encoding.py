"""Values as bytes in a checkpoint: self-describing, typed, without pickle; equal values in equal order are equal bytes.

A value is a tag and its content. Numbers up to 64 bits have one length, so a counter that grows does not move the bytes
behind it from one chunk into the next.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any

from drainmark.jobs.errors.operator_code import CheckpointUnreadable
from drainmark.jobs.state.handlers.cow_dict import DEEPEST, CowDict, CowList, CowSet, FrozenDict
from drainmark.jobs.state.handlers.datetimes import PLAIN, ZONED, spelled_datetime, zoned_datetime

RESTORE = "restore the lost files from a backup"
"""Remedy for a checkpoint that cannot be read as it is."""

Put = Callable[[bytes], None]
Take = Callable[[int], bytes]

_LENGTH = struct.Struct(">Q")
_INT = struct.Struct(">q")
_FLOAT = struct.Struct(">d")


def encode(value: Any, put: Put) -> None:
    """Give the bytes of a value, piece by piece, to a function.

    Takes None, bool, int, float, str, bytes, date, datetime, timedelta, Decimal, Arrow tables, and lists, tuples, sets
    and dicts of them, and a `CowDict` and its frozen version; keys of dicts may be of any of these kinds. A value comes
    back equal and of the same type; the content of a `CowDict` comes back as dicts, lists and sets. Subclasses are
    refused, since they would come back as their base class.

    Raises:
        TypeError: a value of another type, of a subclass, with a time zone that cannot be named, that holds itself, or
            more than 150 containers within one another; a NaN as a key or in a set.
    """
    _encode(value, put, 0, is_key=False)


def _encode(value: Any, put: Put, depth: int, *, is_key: bool) -> None:
    """Encode a value.

    Args:
        depth: number of containers around it.
        is_key: whether it is found by its hash: a key, or in a set.
    """
    kind = type(value)
    if depth > DEEPEST:
        raise TypeError(
            f"a checkpoint cannot hold a value that holds itself, or more than {DEEPEST} containers within one another"
        )
    if kind in _MAPPINGS:
        put(b"m" + _LENGTH.pack(len(value)))
        for key, item in value.items():
            _encode(key, put, depth + 1, is_key=True)
            _encode(item, put, depth + 1, is_key=False)
    elif kind in _SEQUENCES:
        put(_SEQUENCES[kind] + _LENGTH.pack(len(value)))
        for item in value:
            _encode(item, put, depth + 1, is_key=is_key)
    elif kind in _SETS:
        put(_SETS[kind] + _LENGTH.pack(len(value)))
        for content in sorted(_member(item, depth + 1) for item in value):
            put(content)
    else:
        if is_key and kind in (float, Decimal) and math.isnan(value):
            raise TypeError("a checkpoint cannot hold a NaN as a key or in a set: read back, it is another one")
        put(_scalar(value))


def _member(value: Any, depth: int) -> bytes:
    pieces: list[bytes] = []
    _encode(value, pieces.append, depth, is_key=True)
    return b"".join(pieces)


def _scalar(value: Any) -> bytes:
    kind = type(value)
    if value is None or kind is bool:
        return {None: b"N", True: b"T", False: b"F"}[value]
    if kind is int and -(1 << 63) <= value < 1 << 63:
        return b"i" + _INT.pack(value)
    if kind is float:
        return b"f" + _FLOAT.pack(value)
    if kind is dt.datetime:
        return _sized(*spelled_datetime(value))
    spelled = _SPELLED.get(kind)
    if spelled is not None:
        tag, to_bytes = spelled
        return _sized(tag, to_bytes(value))
    return _sized(b"a", _arrow(value))


def _arrow(value: Any) -> bytes:
    import pyarrow as pa

    if not isinstance(value, pa.Table):
        kind = type(value)
        raise TypeError(
            f"a checkpoint cannot hold a {kind.__module__}.{kind.__qualname__}: write numbers, texts, bytes, times, "
            "lists, dicts, sets or Arrow tables, of these very types and no subclass"
        )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write_table(value)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _sized(tag: bytes, content: bytes) -> bytes:
    return tag + _LENGTH.pack(len(content)) + content


def decode(take: Take) -> Any:
    """Return the next value; `take` returns its bytes, as many as it is asked for.

    Raises:
        CheckpointUnreadable: the bytes are not those of a value.
    """
    tag = take(1)
    if tag in _CONSTANTS:
        return _CONSTANTS[tag]
    if tag == b"i":
        return _INT.unpack(take(8))[0]
    if tag == b"f":
        return _FLOAT.unpack(take(8))[0]
    (length,) = _LENGTH.unpack(take(8))
    if tag in _SCALARS:
        return _SCALARS[tag](take(length))
    if tag in _CONTAINERS:
        return _CONTAINERS[tag](_each(take, length))
    if tag == b"m":
        return dict(_pairs(take, length))
    raise CheckpointUnreadable(f"a checkpoint holds the tag {tag!r}", remedy=RESTORE)


def _each(take: Take, count: int) -> Iterator[Any]:
    return (decode(take) for _ in range(count))


def _pairs(take: Take, count: int) -> Iterator[tuple[Any, Any]]:
    for _ in range(count):
        key = decode(take)
        yield key, decode(take)


def _arrow_back(content: bytes) -> Any:
    import pyarrow as pa

    return pa.ipc.open_stream(content).read_all()


def _duration(content: bytes) -> dt.timedelta:
    days, seconds, microseconds = map(int, content.split())
    return dt.timedelta(days, seconds, microseconds)


_MAPPINGS = frozenset({dict, CowDict, FrozenDict})
_SEQUENCES: Mapping[type, bytes] = {list: b"l", CowList: b"l", tuple: b"t"}
_SETS: Mapping[type, bytes] = {set: b"e", CowSet: b"e", frozenset: b"z"}
_SPELLED: Mapping[type, tuple[bytes, Callable[[Any], bytes]]] = {
    int: (b"I", lambda value: value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)),
    bytes: (b"b", lambda value: value),
    str: (b"s", lambda value: value.encode("utf-8", "surrogatepass")),
    dt.date: (b"d", lambda value: value.isoformat().encode()),
    dt.timedelta: (b"p", lambda value: b"%d %d %d" % (value.days, value.seconds, value.microseconds)),
    Decimal: (b"D", lambda value: str(value).encode()),
}
_CONSTANTS = {b"N": None, b"T": True, b"F": False}
_CONTAINERS: Mapping[bytes, Callable[[Iterator[Any]], Sequence[Any] | Set[Any]]] = {
    b"l": list, b"t": tuple, b"e": set, b"z": frozenset,
}  # fmt: skip
_SCALARS: Mapping[bytes, Callable[[bytes], Any]] = {
    b"I": lambda content: int.from_bytes(content, "big", signed=True),
    b"b": lambda content: content,
    b"s": lambda content: content.decode("utf-8", "surrogatepass"),
    PLAIN: lambda content: dt.datetime.fromisoformat(content.decode()),
    ZONED: zoned_datetime,
    b"d": lambda content: dt.date.fromisoformat(content.decode()),
    b"p": _duration,
    b"D": lambda content: Decimal(content.decode()),
    b"a": _arrow_back,
}
