"""What is read, bytes by position, and what comes of it: rows of the declared columns, faults of the bad ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


class Readable(Protocol):
    """Bytes that are read by position."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` (inclusive) to `end` (exclusive); fewer at the end of the data."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """Records as rows of the declared columns, and the faults of the bad ones.

    Attributes:
        rows: a row for each record, in order. If `on_schema` is "rescue" and records name their fields, `_rescued` is
            last.
        faults: place of a bad record in `rows` -> reason; its row is to be dropped.
    """

    rows: pa.Table
    faults: Mapping[int, str]

    @property
    def good(self) -> pa.Table:
        """Return the rows of the good records."""
        import numpy as np
        import pyarrow as pa

        if not self.faults:
            return self.rows
        is_good = np.ones(self.rows.num_rows, dtype=bool)
        is_good[list(self.faults)] = False
        return self.rows.filter(pa.array(is_good))
