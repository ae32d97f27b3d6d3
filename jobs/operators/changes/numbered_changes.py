"""Changes of some keys, and what is known of these keys, as sorted columns of numbers.

Keys, sequences and values become numbers, equal ones for what Spark takes for equal. `newest.py` and `versions.py`
compute with these numbers what becomes of the changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from drainmark.jobs.frames.arrow import typed
from drainmark.jobs.frames.tags import SEQUENCE_ID
from drainmark.jobs.operators.changes.change_shape import BLOCK, IN_BLOCK, ChangeShape
from drainmark.jobs.state.keyed_rows import encoded_keys, key_codes, value_codes

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


NET = "__net"
"""Column of the output: false in a row that is gone if its key has a new row with the same id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedChanges:
    """Changes by row number: first the new ones, then those of the state.

    Attributes:
        columns: of the output.
        keys: a number for each key, below the number of rows.
        ids: sequence ids of the new changes; 0 of the others.
        places: of a change among those of its key, id and sequence: the later one counts.
        ranks: of the sequences, from 0 in their order.
        deletes: whether a change is a delete.
        new: the number of new changes.
    """

    shape: ChangeShape
    columns: pa.Table
    keys: Numbers
    ids: Numbers
    places: tuple[Numbers, Numbers]
    ranks: Numbers
    deletes: Flags
    new: int
    _rows: tuple[pa.Table, pa.Table]
    _sequences: pa.ChunkedArray
    _ranks: Numbers
    _codes: dict[str, Numbers] = field(default_factory=dict)

    @classmethod
    def of(cls, shape: ChangeShape, rows: pa.Table, known: pa.Table, *, end: str = "") -> NumberedChanges:
        """Return new changes, and those of a state.

        Args:
            rows: the new ones, as rows of the state with `BLOCK` and `IN_BLOCK`.
            known: rows of the state.
            end: the column of the state with other sequences, whose ranks are `ends`; "" for none.
        """
        import numpy as np
        import pyarrow as pa

        new = rows.select(shape.columns.names)
        columns = pa.concat_tables([new, typed(known, new.schema)]).combine_chunks()
        kind, none = rows[shape.by].type, np.zeros(known.num_rows, np.int64)
        parts = [rows[shape.by], column_of(known, shape.by, kind)] + ([column_of(known, end, kind)] if end else [])
        sequences = pa.chunked_array([chunk for part in parts for chunk in part.chunks], kind)
        ranks = _ranks_of(sequences)
        return cls(
            shape=shape,
            columns=columns,
            keys=_keys_of(columns, shape.keys),
            ids=np.append(numbers_of(rows[SEQUENCE_ID]), none),
            places=(
                np.append(numbers_of(rows[BLOCK]), none),
                np.append(numbers_of(rows[IN_BLOCK]), numbers_of(known[SEQUENCE_ID])),
            ),
            ranks=ranks[: columns.num_rows],
            deletes=np.append(flags_of(rows[shape.deletes]), flags_of(column_of(known, shape.deletes, pa.bool_()))),
            new=new.num_rows,
            _rows=(rows, known),
            _sequences=_by_rank(sequences, ranks),
            _ranks=ranks,
        )

    @property
    def ends(self) -> Numbers:
        """Return the ranks of the other sequences; -1 for none."""
        import numpy as np

        return np.append(np.full(self.new, -1), self._ranks[self.columns.num_rows :])

    def column(self, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        """Return a column of all rows; null where it is missing."""
        import pyarrow as pa

        parts = (column_of(rows, name, kind) for rows in self._rows)
        return pa.chunked_array([chunk for part in parts for chunk in part.chunks], kind)

    def in_order(self, *first: Numbers) -> Numbers:
        """Return the row numbers by key, then by `first`, then by place."""
        import numpy as np

        return np.lexsort((self.places[1], self.places[0], *reversed(first), self.keys))

    def alike(self, one: Numbers, other: Numbers, names: Sequence[str] | None = None) -> Flags:
        """Say of pairs of rows of one key whether they have the same values in some columns; null equals null."""
        import numpy as np

        same = np.ones(len(one), dtype=bool)
        for name in self.columns.column_names if names is None else names:
            if name in self.shape.keys:
                continue
            if name not in self._codes:
                self._codes[name] = _codes_of(self.columns[name])
            same &= self._codes[name][one] == self._codes[name][other]
        return same

    def rows(self, numbers: Numbers, nulls: Flags | None = None) -> dict[str, pa.Array]:
        """Return the columns of some rows.

        Args:
            nulls: which of these rows have nulls in all columns but the keys.
        """
        import pyarrow as pa

        every, some = pa.array(numbers), pa.array(numbers, mask=nulls)
        names = self.columns.column_names
        return {name: self.columns[name].take(every if name in self.shape.keys else some) for name in names}

    def sequences(self, ranks: Numbers) -> pa.ChunkedArray:
        """Return the sequences of some ranks; null for -1."""
        import pyarrow as pa

        return self._sequences.take(pa.array(ranks, mask=ranks < 0))


def last_of(*sorted_by: Numbers) -> Flags:
    """Say of rows that are sorted by some numbers whether they are the last with their numbers."""
    return _differ(sorted_by, is_next=True)


def first_of(*sorted_by: Numbers) -> Flags:
    """Say of rows that are sorted by some numbers whether they are the first with their numbers."""
    return _differ(sorted_by, is_next=False)


def _differ(sorted_by: Sequence[Numbers], *, is_next: bool) -> Flags:
    import numpy as np

    changes = np.zeros(max(len(sorted_by[0]) - 1, 0), dtype=bool)
    for numbers in sorted_by:
        changes |= numbers[1:] != numbers[:-1]
    ends = np.ones(min(len(sorted_by[0]), 1), dtype=bool)
    return np.append(changes, ends) if is_next else np.append(ends, changes)


def _ranks_of(values: pa.ChunkedArray) -> Numbers:
    """Return the places of values in their order, the same for equal values; -1 for null. Structs are ordered by their
    first field, then by the others."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    is_valid = np.asarray(values.is_valid())
    if pa.types.is_struct(values.type):
        found = np.zeros(len(values), np.int64)
        for part in values.flatten():
            ranks = _ranks_of(part)
            found = found * (int(ranks.max(initial=0)) + 2) + ranks + 1
            found = np.unique(found, return_inverse=True)[1].astype(np.int64)
        return np.where(is_valid, found, -1)
    if pa.types.is_integer(values.type):
        found = np.unique(numbers_of(values.fill_null(0)), return_inverse=True)[1].astype(np.int64)
        return np.where(is_valid, found, -1)
    encoded = encoded_keys(values)
    ranks = np.empty(len(encoded.dictionary), np.int64)
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(ranks))  # nulls are the last
    ranks[encoded.dictionary.is_null().to_numpy(zero_copy_only=False)] = -1
    of_values: Numbers = ranks[encoded.indices.to_numpy()]
    return of_values


def _keys_of(rows: pa.Table, keys: Sequence[str]) -> Numbers:
    import numpy as np

    codes = key_codes([rows], keys)[0]  # of several columns they are products
    found: Numbers = np.unique(codes, return_inverse=True)[1] if len(keys) > 1 else codes
    return found


def _codes_of(values: pa.ChunkedArray) -> Numbers:
    """Return a number for each value; equal values have one number, and null is a value."""
    import pyarrow as pa

    if pa.types.is_integer(values.type) and not values.null_count:
        return numbers_of(values)
    codes: Numbers = value_codes(values)
    return codes


def _by_rank(values: pa.ChunkedArray, ranks: Numbers) -> pa.ChunkedArray:
    """Return a value of each rank."""
    import numpy as np
    import pyarrow as pa

    has_rank = np.flatnonzero(ranks >= 0)
    row_of = np.zeros(int(ranks.max(initial=-1)) + 1, np.int64)
    row_of[ranks[has_rank]] = has_rank
    return values.take(pa.array(row_of))


def flags_of(values: pa.ChunkedArray) -> Flags:
    """Return flags, false for null."""
    import numpy as np

    return np.asarray(values.fill_null(False), dtype=bool)


def numbers_of(values: pa.ChunkedArray) -> Numbers:
    import numpy as np

    return np.asarray(values, dtype=np.int64)


def column_of(known: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column of a state; nulls if it does not have the column yet."""
    import pyarrow as pa

    return typed(known, pa.schema([(name, kind)]))[name]


def table_of(columns: Mapping[str, Any]) -> pa.Table:
    import pyarrow as pa

    return pa.table(dict(columns))


def stacked(*tables: pa.Table) -> pa.Table:
    """Return the rows of tables by id."""
    import pyarrow as pa

    return pa.concat_tables(tables).sort_by(SEQUENCE_ID)
