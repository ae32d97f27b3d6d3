"""The changes of a small group, and what is known of their keys, in the memory of this process.

Spark computes what the author says in SQL. The rest is a matter of some sorted columns of numbers, for which Spark
would plan, compile and start a job. `newest_in_memory.py` and `versions_in_memory.py` give what `scd1.py` and `scd2.py`
give: `test_applied_changes.py::test_in_memory_and_by_spark_the_state_is_the_same`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from drainmark.jobs.frames.arrow import typed
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import GONE, POSITION, SEQUENCE_ID
from drainmark.jobs.operators.changes.change_shape import BY, DELETES, KEPT_TEXT, WHY, ChangeShape
from drainmark.jobs.state.keyed_rows import encoded_keys, key_codes
from drainmark.jobs.state.run_files import KEY_HASH, key_hash

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import DataFrame

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

_PLAIN = re.compile(
    r"(boolean|tinyint|smallint|int|bigint|float|double|string|binary|date|timestamp|timestamp_ntz|decimal\(.*\))"
)
_COLUMN = "c"


def are_plain(shape: ChangeShape) -> bool:
    """Say whether Arrow compares and orders values of these types as Spark does: no parts, no collations."""
    kinds = [field.dataType for field in shape.columns.fields] + [shape.by_type]
    return all(_PLAIN.fullmatch(kind.simpleString()) for kind in kinds)  # a collation is in its text


def to_collect(judged: DataFrame, shape: ChangeShape, *, has_hash: bool, has_text: bool) -> DataFrame:
    """Return the columns of judged changes that are needed in memory; the columns of the output have plain names.

    Args:
        has_hash: the state is looked up, by `KEY_HASH`.
        has_text: the state has the sequences as texts.
    """
    columns = [f"{quoted_name(name)} as {_COLUMN}{place}" for place, name in enumerate(shape.columns.names)]
    places = [f"{POSITION}.block as __block", f"{POSITION}.row as __in_block"]
    own = [SEQUENCE_ID, *places, BY, DELETES, f"{WHY} is not null as {WHY}"]
    own += [f"{shape.text} as {KEPT_TEXT}"] if has_text else []
    if has_hash:
        judged, own = judged.select("*", key_hash(shape.keys)), [*own, KEY_HASH]
    return judged.selectExpr(*own, *columns)


def is_refused(rows: pa.Table) -> Flags:
    """Say of collected rows whether they go to the quarantine."""
    return flags_of(rows[WHY])


def keys_of(rows: pa.Table, shape: ChangeShape) -> pa.Table:
    """Return the keys of collected rows, with their `KEY_HASH` if it was collected."""
    places = {name: place for place, name in enumerate(shape.columns.names)}
    hashes = {KEY_HASH: rows[KEY_HASH]} if KEY_HASH in rows.column_names else {}
    return table_of({key: rows[f"{_COLUMN}{places[key]}"] for key in shape.keys} | hashes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes by row number: first those of the group in the order of their stream, then those of the state.

    Attributes:
        columns: of the output, with their own names.
        keys: a number for each key, below the number of rows.
        ids: sequence ids of the group's changes; 0 of the others.
        places: of a change among those of its key, id and sequence: the later one counts.
        ranks: of the sequences, from 0 in their order.
        deletes: whether a change is a delete.
        begins, ends: whether a known version begins with a change of the state, and the rank of its end; -1 for none.
        new: the number of the group's changes.
    """

    shape: ChangeShape
    columns: pa.Table
    keys: Numbers
    ids: Numbers
    places: tuple[Numbers, Numbers]
    ranks: Numbers
    deletes: Flags
    begins: Flags
    ends: Numbers
    new: int
    _sequences: pa.ChunkedArray
    _codes: dict[str, Numbers] = field(default_factory=dict)

    @classmethod
    def of(
        cls, shape: ChangeShape, rows: pa.Table, known: pa.Table | None, *, by: str, deletes: str, end: str = ""
    ) -> Changes:
        """Return changes that were collected, and those of a state.

        Args:
            rows: columns of `to_collect`.
            known: rows of the state; None for none.
            by, deletes, end: columns of the state; "" if it has no ends.
        """
        import numpy as np
        import pyarrow as pa

        known = pa.table({SEQUENCE_ID: pa.array([], pa.int64())}) if known is None else known
        new = rows.select([f"{_COLUMN}{place}" for place in range(len(shape.columns.names))])
        new = new.rename_columns(shape.columns.names)
        columns = pa.concat_tables([new, typed(known, new.schema)]).combine_chunks()
        kind, none = rows[BY].type, np.zeros(known.num_rows, np.int64)
        ends = column_of(known, end, kind) if end else pa.chunked_array([pa.nulls(known.num_rows, kind)])
        sequences = pa.chunked_array(
            [chunk for column in (rows[BY], column_of(known, by, kind), ends) for chunk in column.chunks], kind
        )
        ranks = ranks_of(sequences)
        return cls(
            shape=shape,
            columns=columns,
            keys=_keys_of(columns, shape.keys),
            ids=np.append(numbers_of(rows[SEQUENCE_ID]), none),
            places=(
                np.append(numbers_of(rows["__block"]), none),
                np.append(numbers_of(rows["__in_block"]), numbers_of(known[SEQUENCE_ID])),
            ),
            ranks=ranks[: columns.num_rows],
            deletes=np.append(flags_of(rows[DELETES]), flags_of(column_of(known, deletes, pa.bool_()))),
            begins=np.append(np.zeros(new.num_rows, dtype=bool), ~flags_of(column_of(known, GONE, pa.bool_()))),
            ends=np.append(np.full(new.num_rows, -1), ranks[columns.num_rows :]),
            new=new.num_rows,
            _sequences=_by_rank(sequences, ranks),
        )

    def in_order(self, *first: Numbers) -> Numbers:
        """Return the row numbers by key, then by `first`, then by place."""
        import numpy as np

        return np.lexsort((self.places[1], self.places[0], *reversed(first), self.keys))

    def alike(self, one: Numbers, other: Numbers) -> Flags:
        """Say of pairs of rows of one key whether they have the same values; null equals null."""
        import numpy as np

        same = np.ones(len(one), dtype=bool)
        for name in self.columns.column_names:
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


def ranks_of(values: pa.ChunkedArray) -> Numbers:
    """Return the places of values in their order, the same for equal values; -1 for null."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_integer(values.type):
        found = np.unique(numbers_of(values.fill_null(0)), return_inverse=True)[1].astype(np.int64)
        return np.where(np.asarray(values.is_valid()), found, -1)
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
    codes: Numbers = encoded_keys(values).indices.to_numpy().astype("int64")
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
