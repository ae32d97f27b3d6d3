"""Files of runs: rows sorted by the hash of their key, in row groups so small that few keys cost few rows.

The hash is Spark's `xxhash64` of the columns by which a state is looked up. It is a column of the file. The footer has
its bounds in each row group, as statistics, and the names of these columns, since other code may look up by others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.lazy import F

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import Column

KEY_HASH = "__key_hash"

_PRIMES = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
"""Of the 64-bit xxHash."""

ROWS_A_GROUP = 2048
"""The look-up of a key decodes so many rows; a file of two million rows has a thousand groups."""

_GROUPS_AT_ONCE = 64
_HASHED = "drainmark.hashed"
"""In a file's footer: the names of the columns of the hash, as JSON."""


def key_hash(columns: Sequence[str]) -> Column:
    """Return the hash of key columns, a bigint; 0 for no columns. Nulls, NaNs and zeros of one key have one hash."""
    if not columns:
        return F.lit(0).cast("bigint").alias(KEY_HASH)
    return F.xxhash64(*(F.col(quoted_name(name)) for name in columns)).alias(KEY_HASH)


def hashes_here(rows: pa.Table, columns: Sequence[str]) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Return the same hash of rows in memory; None if a column is of a type whose values have no fixed size."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.types as kinds

    hashes = np.full(rows.num_rows, 42, np.uint64)  # Spark's seed
    for name in columns:
        column, kind = rows[name].combine_chunks(), rows.schema.field(name).type
        if kinds.is_int64(kind) or (kinds.is_timestamp(kind) and kind.unit == "us"):
            made = _hashes_of_8(column.cast(pa.int64()), hashes)
        elif kinds.is_date32(kind) or kinds.is_int32(kind) or kinds.is_int16(kind) or kinds.is_int8(kind):
            made = _hashes_of_4(column.cast(pa.int32()), hashes)
        else:
            return None
        hashes = np.where(column.is_valid().to_numpy(zero_copy_only=False), made, hashes)
    return hashes.view(np.int64)


def _hashes_of_8(column: pa.Array, seeds: Any) -> Any:
    import numpy as np

    values = column.fill_null(0).to_numpy().view(np.uint64)
    hashes = (seeds + _PRIMES[4] + np.uint64(8)) ^ (_rotated(values * _PRIMES[1], 31) * _PRIMES[0])
    return _mixed(_rotated(hashes, 27) * _PRIMES[0] + _PRIMES[3])


def _hashes_of_4(column: pa.Array, seeds: Any) -> Any:
    import numpy as np

    values = column.fill_null(0).to_numpy().view(np.uint32).astype(np.uint64)
    hashes = (seeds + _PRIMES[4] + np.uint64(4)) ^ (values * _PRIMES[0])
    return _mixed(_rotated(hashes, 23) * _PRIMES[1] + _PRIMES[2])


def _rotated(values: Any, bits: int) -> Any:
    import numpy as np

    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _mixed(hashes: Any) -> Any:
    import numpy as np

    hashes = (hashes ^ (hashes >> np.uint64(33))) * _PRIMES[1]
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _PRIMES[2]
    return hashes ^ (hashes >> np.uint64(32))


def notes_of(hashed: Sequence[str]) -> dict[str, str]:
    """Return the footer entries of a file that is sorted by the hash of some columns."""
    return {_HASHED: json.dumps([*hashed])}


def _hashed_of(metadata: pq.FileMetaData) -> list[str] | None:
    found = (metadata.metadata or {}).get(_HASHED.encode())
    return json.loads(found) if found is not None else None


def index_of(column: str, metadata: pq.FileMetaData) -> int | None:
    """Return the index of a column among the leaves of a file; None if the file has no such column."""
    return next((at for at in range(metadata.num_columns) if metadata.schema.column(at).path == column), None)


@dataclass(frozen=True, slots=True)
class RunIndex:
    """The places of the hashes in one file: the bounds of each row group, from the footer.

    Attributes:
        first, last: least and largest hash of each row group, int64; both ascend.
    """

    metadata: pq.FileMetaData
    first: np.ndarray[Any, np.dtype[np.int64]]
    last: np.ndarray[Any, np.dtype[np.int64]]
    _bounds: dict[str, tuple[tuple[int, int] | None, ...]] = field(default_factory=dict, compare=False)

    @classmethod
    def read(cls, source: Any, hashed: Sequence[str]) -> RunIndex | None:
        """Return the index of a file; None if its rows are not sorted by the hash of the given columns.

        Args:
            source: the path or file object that pyarrow opens.
            hashed: the columns.
        """
        import numpy as np
        import pyarrow.parquet as pq

        with pq.ParquetFile(source) as file:
            metadata = file.metadata
        column = index_of(KEY_HASH, metadata)
        if column is None or _hashed_of(metadata) != [*hashed]:
            return None
        bounds = [metadata.row_group(group).column(column).statistics for group in range(metadata.num_row_groups)]
        first, last = (np.array([getattr(each, end) for each in bounds], np.int64) for end in ("min", "max"))
        return cls(metadata, first, last)

    def bounds_of(self, column: str) -> tuple[tuple[int, int] | None, ...]:
        """Return the least and the largest value of a column of 64-bit numbers in each row group; None for a group if
        the footer has no bounds for it; () if the file has no such column."""
        if column not in self._bounds:
            self._bounds[column] = tuple(self._read_bounds(column))
        return self._bounds[column]

    def _read_bounds(self, column: str) -> Iterator[tuple[int, int] | None]:
        place = index_of(column, self.metadata)
        for group in range(self.metadata.num_row_groups) if place is not None else ():
            found = self.metadata.row_group(group).column(place).statistics
            yield (found.min_raw, found.max_raw) if found is not None and found.has_min_max else None

    def groups_of(self, hashes: np.ndarray[Any, np.dtype[np.int64]]) -> list[int]:
        """Return the row groups that may have one of some hashes."""
        import numpy as np

        begin = np.searchsorted(self.last, hashes, side="left")
        end = np.searchsorted(self.first, hashes, side="right")
        has = begin < end
        spans = np.unique(np.stack([begin[has], end[has]]), axis=1)
        return sorted({group for start, stop in spans.T.tolist() for group in range(start, stop)})

    def groups_within(self, first: int | None, below: int | None) -> range:
        """Return the row groups that may have hashes from `first` to `below` (exclusive); None for no bound."""
        import numpy as np

        begin = 0 if first is None else int(np.searchsorted(self.last, first, side="left"))
        end = len(self.first) if below is None else int(np.searchsorted(self.first, below, side="left"))
        return range(begin, max(begin, end))


def rows_of_hashes(
    source: Callable[[], Any], index: RunIndex, hashes: np.ndarray[Any, np.dtype[np.int64]]
) -> Iterator[pa.Table]:
    """Yield the rows of a file that have one of some hashes, without the hash; a bounded number is in memory.

    Args:
        source: returns the path or file object that pyarrow opens; not called if no row group may have such rows.
        hashes: ascending.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = pa.array(hashes)
    for rows in rows_of_groups(source, index, index.groups_of(hashes)):
        yield rows.filter(pc.is_in(rows[KEY_HASH], wanted)).drop_columns([KEY_HASH])


def rows_of_groups(
    source: Callable[[], Any], index: RunIndex, groups: Sequence[int], columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of some row groups of a file, a bounded number at a time.

    Args:
        source: returns the path or file object that pyarrow opens; not called for no groups.
        columns: None for all.
    """
    import pyarrow.parquet as pq

    if not groups:
        return
    with pq.ParquetFile(source(), metadata=index.metadata, pre_buffer=True) as file:
        for start in range(0, len(groups), _GROUPS_AT_ONCE):
            yield file.read_row_groups(groups[start : start + _GROUPS_AT_ONCE], columns=columns)
