"""How a column of texts becomes values: all at once if a cheap look allows it, else most, and the rest singly.

The readers of booleans, bytes and texts as such are here; those of other types have modules of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


class Reader(ABC):
    """The texts of one type; `one` defines their values, the others are fast ways to the same values.

    Attributes:
        kind: the Arrow type of the values.
    """

    kind: pa.DataType

    def read(self, texts: pa.Array) -> pa.Array:
        """Return the value of each text; null for nulls and for texts that are no values."""
        try:
            values = self.all_at_once(texts)
        except pa.ArrowInvalid:
            values = None
        if values is not None:
            return values
        values = self.most(texts)
        is_open = pc.and_(texts.is_valid(), values.is_null())
        if not pc.any(is_open).as_py():
            return values
        distinct = texts.filter(is_open).dictionary_encode()  # of many "n/a", one is read
        read = pa.array([self.one(text) for text in distinct.dictionary.to_pylist()], self.kind)
        return pc.replace_with_mask(values, is_open, read.take(distinct.indices))

    @abstractmethod
    def all_at_once(self, texts: pa.Array) -> pa.Array | None:
        """Return the value of each text; None, or raise `ArrowInvalid`, if one of them may need a closer look."""

    @abstractmethod
    def most(self, texts: pa.Array) -> pa.Array:
        """Return the values of texts of usual forms, null for the others; the texts may be any, and null."""

    @abstractmethod
    def one(self, text: str) -> Any:
        """Return the value of a text, None if it is no value of the type."""

    @abstractmethod
    def why_not(self, text: str) -> str:
        """Return the reason why a text is no value; it completes "'TEXT' …"."""


def where(condition: pa.Array, values: pa.Array) -> pa.Array:
    """Return values, null where the condition does not hold."""
    return pc.if_else(condition, values, pa.scalar(None, values.type))


def matches(texts: pa.Array, pattern: str) -> pa.Array:
    """Say of each text whether all of it has the form; the pattern is one of RE2."""
    return pc.match_substring_regex(texts, rf"\A(?:{pattern})\z")


def bytes_of(texts: pa.Array) -> bytes:
    """Return the bytes of all texts, one behind the other; those of nulls may be among them."""
    _, ends, data = texts.buffers()
    if data is None or not len(texts):
        return b""
    kind = pa.int64() if pa.types.is_large_string(texts.type) else pa.int32()
    places = pa.Array.from_buffers(kind, texts.offset + len(texts) + 1, [None, ends])
    begin, end = places[texts.offset].as_py(), places[texts.offset + len(texts)].as_py()
    found: bytes = data.slice(begin, end - begin).to_pybytes()
    return found


_BOOLEANS = ("true", "false")


class Booleans(Reader):
    """Texts of `boolean`."""

    kind = pa.bool_()

    def all_at_once(self, texts: pa.Array) -> pa.Array | None:
        values = self.most(texts)
        return values if values.null_count == texts.null_count else None

    def most(self, texts: pa.Array) -> pa.Array:
        lower = pc.ascii_lower(texts)
        return pc.cast(where(pc.is_in(lower, value_set=pa.array(_BOOLEANS, texts.type)), lower), self.kind)

    def one(self, text: str) -> bool | None:
        return text.lower() == "true" if text.isascii() and text.lower() in _BOOLEANS else None

    def why_not(self, text: str) -> str:
        is_spaced = text.strip().lower() in _BOOLEANS
        return f"is no boolean: {'it has spaces around it' if is_spaced else 'write true or false'}"


class PlainTexts(Reader):
    """Texts of `string`, and their bytes in UTF-8 for `binary`: each text is a value."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind

    def all_at_once(self, texts: pa.Array) -> pa.Array | None:
        return texts if texts.type == self.kind else pc.cast(texts, self.kind)

    def most(self, texts: pa.Array) -> pa.Array:
        return pc.cast(texts, self.kind)

    def one(self, text: str) -> Any:
        return text if pa.types.is_string(self.kind) else text.encode()

    def why_not(self, text: str) -> str:
        raise AssertionError("each text is a value")
