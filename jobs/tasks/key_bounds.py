"""The bounds of keys in rows: what has no key within them has none of the keys; and parts of keys by such bounds.

Bounds are kept of integers, texts and days, which are ordered in the same way everywhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.state.keyed_parts import part_numbers
from drainmark.jobs.state.run_files import index_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Bounds = Mapping[str, Sequence[Any]]
"""The least and the greatest value of key columns, as numbers or texts. Columns with nulls, or of a type that is not
ordered in the same way everywhere, have none."""

_MOST_KEYS = 8
"""The most keys a row group for which groups are chosen: with so many, one of three thousand has none by chance."""


def bounds_of(rows: pa.Table, keys: Sequence[str]) -> Bounds:
    """Return the bounds of the keys in some rows, at least one; texts that nobody can read have none."""
    import pyarrow.compute as pc

    return _shown_of(rows, keys, lambda column: pc.min_max(column).as_py().values())


def _shown_of(
    rows: pa.Table, keys: Sequence[str], values: Callable[[pa.ChunkedArray], Iterable[Any]]
) -> dict[str, list[Any]]:
    """Return some values of each key column that has bounds, as JSON has them."""
    found = {}
    for key in keys:
        column = comparable(rows.column(key))
        if column is not None and not column.null_count:
            with suppress(UnicodeDecodeError):
                found[key] = list(map(shown, values(column)))
    return found


def joined(bounds: Sequence[Bounds]) -> Bounds:
    """Return the bounds of the keys in rows of which each of some parts has bounds."""
    shared = set.intersection(*(set(each) for each in bounds)) if bounds else set()
    return {key: [min(each[key][0] for each in bounds), max(each[key][1] for each in bounds)] for key in shared}


def groups_with(keys: pa.Table, metadata: pq.FileMetaData) -> list[int]:
    """Return the row groups of a file that may have rows of some keys, by the bounds in its footer.

    All are returned if the keys are so many that there would be some in nearly each group.
    """
    groups = list(range(metadata.num_row_groups))
    if keys.num_rows > _MOST_KEYS * len(groups):
        return groups
    for name in keys.column_names:
        leaf = index_of(name, metadata) if "." not in name else None  # the field of a struct may have that path
        column = comparable(keys.column(name))
        if leaf is not None and column is not None and not column.null_count:
            values = sorted(set(column.to_pylist()))
            groups = [group for group in groups if _may_have(metadata.row_group(group).column(leaf).statistics, values)]
    return groups


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return a key column as footers have its bounds: texts as bytes, days as numbers; None if there are no bounds."""
    import pyarrow as pa
    import pyarrow.types as kinds

    if kinds.is_string(column.type):
        return column.cast(pa.binary())
    if kinds.is_date32(column.type):
        return column.cast(pa.int32())
    return column if kinds.is_integer(column.type) else None


def shown(value: Any) -> Any:
    """Return a value of a comparable column as JSON has it.

    Raises:
        UnicodeDecodeError: nobody can read the text.
    """
    return value.decode() if isinstance(value, bytes) else value


def stored(value: Any) -> Any:
    """Return a value that JSON has as comparable columns have it."""
    return value.encode() if isinstance(value, str) else value


def _may_have(bounds: pq.Statistics | None, values: Sequence[Any]) -> bool:
    if bounds is None or not bounds.has_min_max:
        return True
    return bisect_left(values, bounds.min_raw) < bisect_right(values, bounds.max_raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySample:
    """Some values of the keys in a file.

    Attributes:
        size: bytes of the file, about.
        values: by key column, as JSON has them; only of columns that have bounds.
    """

    size: int
    values: Mapping[str, Sequence[Any]]

    @classmethod
    def of(cls, rows: pa.Table, size: int) -> KeySample:
        """Return the sample of a file with all values of some of its rows, which are its key columns."""
        return cls(size=size, values=_shown_of(rows, rows.column_names, lambda column: column.to_pylist()))

    @property
    def bounds(self) -> Bounds:
        return {name: [min(values), max(values)] for name, values in self.values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyParts:
    """Parts of keys: ranges of one key column. So each file of such parts has its own range, which data skipping uses.

    A cut is the last value of one range and the first of the next one; keys with this value are in one of both, by
    their hash. So the keys of a value that is several cuts are spread over several parts, and without any cut, all are.

    Attributes:
        keys: key columns.
        count: of the parts.
        column: the one with the ranges.
        cuts: comparable values in their order, one fewer than parts; () if the parts are hashes only.
    """

    keys: tuple[str, ...]
    count: int
    column: str = ""
    cuts: tuple[Any, ...] = ()

    @classmethod
    def of(cls, keys: tuple[str, ...], samples: Sequence[tuple[Sequence[KeySample], int]]) -> KeyParts:
        """Return parts, so that each has about one of `count` of the bytes of each sample, or less."""
        files = [file for some, _ in samples for file in some]
        shared = [key for key in keys if all(key in file.values for file in files)]
        if not shared:
            return cls(keys=keys, count=max(count for _, count in samples))
        column = max(shared, key=lambda key: len({value for file in files for value in file.values[key]}))
        cuts = sorted(cut for some, count in samples for cut in _cuts(some, column, count))
        return cls(keys=keys, count=len(cuts) + 1, column=column, cuts=tuple(cuts))

    def numbers(self, rows: pa.Table) -> Any:
        """Return for each row the number of its part, from 0; equal keys have one part in all tables and processes."""
        import numpy as np
        import pyarrow as pa

        first, last = np.zeros(rows.num_rows, np.int64), np.full(rows.num_rows, self.count - 1)
        column = comparable(rows.column(self.column)) if self.cuts else None
        if column is not None:
            values = column.fill_null(self.cuts[0]).to_numpy()  # texts are objects
            cuts = np.array(self.cuts, dtype=values.dtype)
            first, last = (np.searchsorted(cuts, values, side) for side in ("left", "right"))
        shared = np.flatnonzero(first < last)
        if shared.size:
            widths = (last - first)[shared] + 1
            first[shared] += part_numbers(rows.take(pa.array(shared)), self.keys, widths)
        return first


def _cuts(files: Sequence[KeySample], column: str, count: int) -> Iterator[Any]:
    """Yield the values that cut files into `count` parts of about equal bytes."""
    weighted = [(value, file.size / len(file.values[column])) for file in files for value in file.values[column]]
    total, passed, cuts = sum(file.size for file in files), 0.0, 1
    for value, weight in sorted((stored(value), weight) for value, weight in weighted):
        passed += weight
        while cuts < count and passed * count >= total * cuts:
            yield value
            cuts += 1
