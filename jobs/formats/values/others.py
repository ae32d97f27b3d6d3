"""Texts of booleans, bytes, and texts as such."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from drainmark.jobs.formats.values.reader import Reader, where

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


class Same(Reader):
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
