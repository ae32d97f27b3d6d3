"""The number of keys of many rows, and their last rows, computed with a bounded number of rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs.state.keyed_rows import encoded_keys, key_codes, last_per_key

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_AT_ONCE = 250_000
"""The most rows that are compared at once. More rows are split into parts by key; each part takes one reading."""

HASHES_AT_ONCE = 16_000_000
"""The same limit for keys that are only counted: 128 MB of hashes."""

_ODD = 0x9E3779B97F4A7C15


def count_keys(read: Callable[[], Iterable[pa.Table]], rows: int, keys: Sequence[str]) -> int:
    """Return the number of keys; nulls, NaNs and zeros are equal.

    Many keys are compared by hashes of 64 bits: two of ten million keys share a hash in one of 300 000 counts.

    Args:
        read: returns the rows, with the key columns at least; it may be called several times.
        rows: approximate number of rows.
    """
    import numpy as np

    if rows <= ROWS_AT_ONCE:
        parts = key_parts(lambda: (each.select(list(keys)) for each in read()), rows, keys)
        return sum(len(np.unique(key_codes([part], keys)[0])) for part in parts)
    count = -(-rows // HASHES_AT_ONCE)
    return sum(_count_hashes(read, rows // count, keys, number, count) for number in range(count))


def _count_hashes(
    read: Callable[[], Iterable[pa.Table]], rows: int, keys: Sequence[str], number: int, count: int
) -> int:
    """Return the number of different hashes in part `number` of `count`; all of them are in memory, once."""
    import numpy as np

    held, size = np.empty(rows, dtype=np.uint64), 0
    for each in read():
        found = _hashes(each, keys)
        found = np.unique(found if count == 1 else found[found % np.uint64(count) == number])
        if size + len(found) > len(held):
            held = np.append(held, np.empty(len(held) // 8 + len(found), dtype=np.uint64))
        held[size : size + len(found)] = found
        size += len(found)
    held[:size].sort()
    if not size:
        return 0
    edges = range(1, size, ROWS_AT_ONCE)  # few at a time: to compare all at once needs as much memory as the hashes
    spans = ((held[at - 1 : end - 1], held[at:end]) for at in edges for end in (min(size, at + ROWS_AT_ONCE),))
    return 1 + sum(int(np.count_nonzero(before != after)) for before, after in spans)


def last_of_keys(read: Callable[[], Iterable[pa.Table]], rows: int, keys: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the last row of each key by id, in tables that share no key; arguments as of `count_keys`."""
    for part in key_parts(read, rows, keys):
        yield last_per_key(part, keys)


def key_parts(read: Callable[[], Iterable[pa.Table]], rows: int, keys: Sequence[str]) -> Iterator[pa.Table]:
    """Yield rows in tables that share no key, each of about `ROWS_AT_ONCE` rows."""
    import pyarrow as pa

    count = parts_of(rows)
    for number in range(count):
        found = [in_part(each, keys, number, count) for each in read()]
        if any(each.num_rows for each in found):
            yield pa.concat_tables(found, promote_options="permissive")


def parts_of(rows: int) -> int:
    """Return the number of parts into which rows are split, at least one."""
    return max(1, -(-rows // ROWS_AT_ONCE))


def in_part(rows: pa.Table, keys: Sequence[str], number: int, count: int) -> pa.Table:
    """Return the rows with keys in part `number` of `count`."""
    import pyarrow as pa

    return rows if count == 1 else rows.filter(pa.array(part_numbers(rows, keys, count) == number))


def part_numbers(rows: pa.Table, keys: Sequence[str], count: Any) -> Any:
    """Return for each row the number of its part, from 0; equal keys are in one part in all tables and processes.

    Args:
        count: of the parts; or an array of them, one for each row.
    """
    import numpy as np

    return (_hashes(rows, keys) % np.uint64(count)).astype(np.int64)


def _hashes(rows: pa.Table, keys: Sequence[str]) -> Any:
    """Return a hash for each row; equal keys have the same hash in all tables and processes.

    Structs, arrays and maps leave it to the other keys: what is equal among them is not a matter of bytes.
    """
    import numpy as np
    import pyarrow as pa
    from pandas.util import hash_array  # Python's own hash differs between processes, and so would the parts

    hashed = np.zeros(rows.num_rows, dtype=np.uint64)
    plain = [key for key in keys if not pa.types.is_nested(rows.schema.field(key).type)]
    for key in plain if rows.num_rows else ():
        encoded = encoded_keys(rows.column(key))
        found = hash_array(_values(encoded.dictionary), categorize=False)
        found[encoded.dictionary.is_null().to_numpy(zero_copy_only=False)] = _ODD
        hashed = hashed * np.uint64(_ODD) ^ found[encoded.indices.to_numpy()]
    return hashed


def _values(found: pa.Array) -> Any:
    """Return values as numpy hashes them fast: numbers and times by their bits, texts by their bytes, and others as
    Python shows them. Python cannot represent all times and texts."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.types as kinds

    if kinds.is_string(found.type):
        return np.array(found.cast(pa.binary()).to_pylist(), dtype=object)
    if (
        kinds.is_integer(found.type)
        or kinds.is_floating(found.type)
        or kinds.is_date(found.type)
        or kinds.is_timestamp(found.type)
    ):
        bits = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[found.type.bit_width]
        return found.view(bits).fill_null(0).to_numpy().astype(np.int64)
    return np.array([repr(value) for value in found.to_pylist()], dtype=object)
