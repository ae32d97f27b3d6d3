"""Retractions from tables of one row a key: what a state brought to its keys is taken out of their newest rows.

All that is needed is in the histories: no input is read again. The contribution of an id to an aggregate is the
difference of two rows of a key, and it is subtracted from the newest row, if all values are sums. A sink's key whose
last row is of the id gets its last row of the other ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drainmark.jobs.errors import RetractRefused
from drainmark.jobs.frames.arrow import arrow_of, filled, frame_of
from drainmark.jobs.frames.names import quoted_name
from drainmark.jobs.frames.tags import GONE, SEQUENCE_ID
from drainmark.jobs.lazy import F
from drainmark.jobs.operators.windows.running_aggregate import Aggregate
from drainmark.jobs.operators.windows.windowed_aggregate import types_of
from drainmark.jobs.protocol.history import RegionHistory
from drainmark.jobs.protocol.records.ids import INITIAL_ID
from drainmark.jobs.protocol.records.manifest import Image, RegionTable, StagedFile
from drainmark.jobs.protocol.records.schema_compatibility import is_state
from drainmark.jobs.state.aggregations.aggregation import Aggregation, state_columns, subtracted
from drainmark.jobs.state.keyed_rows import has_keys, key_codes, last_per_key

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from drainmark.resources.checkpoints.region_store import RegionTables
    from drainmark.resources.delta.table_files import TableFiles

_NOW, _AT, _BEFORE, _PART = "__now_", "__at_", "__before_", "__part_"
_LEFT = "__left_"


@dataclass(frozen=True, slots=True)
class KeyedHistory:
    """A table of changes from which a retraction takes something out.

    Attributes:
        changes: the table: the history of an upsert sink, or the state of an aggregate.
        operator: the aggregate; None for the history of a sink of rows.
    """

    changes: RegionTable
    operator: Aggregate | None = None


@dataclass(frozen=True, slots=True)
class Retracted:
    """The ids that count no more, and those that took them back, for one history of changes.

    Attributes:
        edge: changes up to this id (inclusive) may be gone; an image has the rows.
        without: ids whose rows are not those of a file that counts.
        hidden: ids up to the edge that were taken back after it: the image has their rows, and lacks those before.
        by: the ids that took those back.
    """

    edge: int
    without: frozenset[int]
    hidden: frozenset[int]
    by: frozenset[int]

    @classmethod
    def of(cls, history: RegionHistory, table: str) -> Retracted:
        edge = history.dropped.get(table, INITIAL_ID)
        pairs = [(old, found.by) for old, found in history.replaced.items() if found.kept.by_nothing]
        hidden = [(old, by) for old, by in pairs if old <= edge < by]
        return cls(
            edge,
            without=frozenset(number for pair in pairs if pair[0] > edge for number in pair),
            hidden=frozenset(old for old, _ in hidden),
            by=frozenset(by for _, by in hidden),
        )

    def refused(self, operator: str) -> RetractRefused:
        """Return the error for a key of which only an image has what it was before."""
        msg = (
            f"{operator!r} has one image up to {self.edge}, and files of before were retracted later:"
            " what some key was without them is not known"
        )
        return RetractRefused(msg, operator=operator)


def new_rows(
    store: RegionTables,
    history: RegionHistory,
    table: KeyedHistory,
    by: Mapping[int, int],
    session: Callable[[], SparkSession],
) -> pa.Table | None:
    """Return the rows that a retraction adds to a table of changes; None if no key changes.

    Args:
        by: retracted id -> the id that takes it back, both ascending; none is so old that its changes were dropped.
        session: gives Spark's session; called only for aggregates.

    Raises:
        RetractRefused: a value cannot be subtracted.
    """
    import pyarrow as pa

    changes, known = table.changes, Retracted.of(history, table.changes.name)
    rows = _rows_of_keys(store, history, changes, sorted(by), known.edge)
    if rows is None:
        return None
    without, added = set(known.without), list[Any]()
    for old, number in by.items():
        if table.operator is None:
            found = _last_of_others(rows, changes.keys, old, without)
            if found is not None and known.hidden & set(found[SEQUENCE_ID].to_pylist()):
                raise known.refused(changes.operator)
        else:
            found = _Less(table.operator, rows, old, without, known).rows(session)
        if found is not None and found.num_rows:
            found = _stamped(found, number)
            rows = pa.concat_tables([rows, found.select(rows.column_names)])
            added.append(found)
        without |= {old, number}
    return pa.concat_tables(added) if added else None


def _rows_of_keys(
    store: RegionTables, history: RegionHistory, table: RegionTable, ids: Sequence[int], edge: int
) -> pa.Table | None:
    """Return all rows that are kept of the keys that some ids changed, with the column `GONE`; None if there are none.

    Of what an image has, there is one row a key.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    files = store.table(table.name).files
    _, live = _image_and_later(files, history, table, edge)
    chosen = pa.array(ids, pa.int64())
    near = files.pieces([file for file in live if file.may_hold(ids)], [*table.keys, SEQUENCE_ID])
    touched = [rows.filter(pc.is_in(rows[SEQUENCE_ID], chosen)).select(list(table.keys)) for rows in near]
    keys = pa.concat_tables(touched, promote_options="permissive") if touched else None
    if keys is None or not keys.num_rows:
        return None
    return _all_rows(store, history, table, keys, edge)


def _image_and_later(
    files: TableFiles, history: RegionHistory, table: RegionTable, edge: int
) -> tuple[Image | None, list[StagedFile]]:
    """Return the image of what may be gone, and the visible files with later rows."""
    image = history.image_held(table.name, edge, files.holds) if edge else None
    return image, [file for file in files.live() if image is None or (file.last_id or 0) > image.at]


def _all_rows(store: RegionTables, history: RegionHistory, table: RegionTable, keys: pa.Table, edge: int) -> pa.Table:
    """Return all rows that are kept of some keys, ascending by id; of what an image has, there is one row a key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    files = store.table(table.name).files
    image, live = _image_and_later(files, history, table, edge)
    keys = keys.group_by(list(table.keys)).aggregate([])

    def read(some: Sequence[Any], above: int) -> Iterator[pa.Table]:
        for rows in files.pieces(some):
            later = rows.filter(pc.field(SEQUENCE_ID) > above) if above else rows
            yield _with_gone(later.filter(pa.array(has_keys(later, keys, table.keys))))

    before = [*read(image.files, 0)] if image is not None else []
    old = [last_per_key(pa.concat_tables(before, promote_options="permissive"), table.keys)] if before else []
    found = pa.concat_tables([*old, *read(live, image.at if image else 0)], promote_options="permissive")
    return found.sort_by(SEQUENCE_ID)


def _with_gone(rows: pa.Table) -> pa.Table:
    import pyarrow as pa

    if GONE not in rows.column_names:
        return rows.append_column(GONE, pa.repeat(False, rows.num_rows))
    return rows.set_column(rows.column_names.index(GONE), GONE, rows[GONE].fill_null(False))


def _stamped(rows: pa.Table, number: int) -> pa.Table:
    import pyarrow as pa

    place = rows.column_names.index(SEQUENCE_ID)
    return rows.set_column(place, rows.schema.field(place), pa.array([number] * rows.num_rows, pa.int64()))


def _as_gone(rows: pa.Table, keys: Collection[str]) -> pa.Table:
    """Return rows that say that their keys are gone."""
    import pyarrow as pa

    for place, field in enumerate(rows.schema):
        if field.name == GONE:
            rows = rows.set_column(place, field, pa.repeat(True, rows.num_rows))
        elif field.name not in keys and field.name != SEQUENCE_ID:
            rows = rows.set_column(place, field, pa.nulls(rows.num_rows, field.type))
    return rows


# --- the last row of a key -----------------------------------------------------------------------------------------


def _last_of_others(rows: pa.Table, keys: Sequence[str], old: int, without: Collection[int]) -> pa.Table | None:
    """Return the last row of the other ids for each key whose last row is of an id; one that is gone if there is none.

    Rows that earlier retractions added are copies of others: they do not count.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def except_(numbers: Collection[int]) -> pa.Table:
        return rows.filter(pc.invert(pc.is_in(rows[SEQUENCE_ID], pa.array(sorted(numbers), pa.int64()))))

    last = last_per_key(except_(without), keys)
    last = last.filter(pc.equal(last[SEQUENCE_ID], old))
    others = last_per_key(except_({*without, old}), keys)
    others = others.filter(pa.array(has_keys(others, last.select(list(keys)), keys), pa.bool_()))
    is_left = pa.array(has_keys(last, others.select(list(keys)), keys), pa.bool_())
    return pa.concat_tables([others, _as_gone(last.filter(pc.invert(is_left)), keys)])


# --- keys whose rows were erased -----------------------------------------------------------------------------------


def in_their_place(
    store: RegionTables,
    history: RegionHistory,
    table: RegionTable,
    found: Sequence[StagedFile],
    where: pa.compute.Expression,
    *,
    schema: pa.Schema,
) -> pa.Table | None:
    """Return the rows that a table of changes needs once some rows have left it; None if it needs none.

    A row may hide others of its key that do not count: those of a retracted file, or those before the key was deleted.
    They would come back with it gone, so rows in its place say what the key is from that id on.

    Args:
        found: the files with the rows that leave.
        where: the condition for them.
        schema: the columns of the table; old files may lack some.
    """
    import pyarrow as pa

    files = store.table(table.name).files
    pieces = [_with_gone(filled(rows, schema).filter(where)) for rows in files.pieces(found)]
    lost = pa.concat_tables(pieces, promote_options="permissive")
    added = _of_erased_keys(store, history, table, lost, where) if table.keys else []
    rows = pa.concat_tables(added, promote_options="permissive").filter(~where) if added else None
    return rows if rows is not None and rows.num_rows else None


def _of_erased_keys(
    store: RegionTables, history: RegionHistory, table: RegionTable, lost: pa.Table, where: pa.compute.Expression
) -> list[pa.Table]:
    import pyarrow as pa
    import pyarrow.compute as pc

    edge, keys = history.dropped.get(table.name, INITIAL_ID), list(table.keys)
    rows = filled(_all_rows(store, history, table, lost.select(keys), edge), lost.schema)
    # a state may be the history of a table with other keys, which have to say there that the row is gone
    of_readers = {key for other in history.tables if other.history == table.name for key in other.keys}
    deleted = _as_gone(lost.filter(lost[GONE]), {*keys, *of_readers}).select(rows.column_names)
    left = pa.concat_tables([rows.filter(~where), deleted], promote_options="permissive")
    added, without = [deleted], set[int]()
    pairs = [] if is_state(table, history.tables) else sorted(
        (found.by, old) for old, found in history.replaced.items() if found.kept.by_nothing and found.by > edge
    )  # fmt: skip
    for by, old in pairs:
        new = _last_of_others(left.filter(pc.field(SEQUENCE_ID) < by), keys, old, without)
        if new is not None and new.num_rows:
            there = left.filter(pc.field(SEQUENCE_ID) == by).select(keys)
            new = _stamped(new.filter(pa.array([not each for each in has_keys(new, there, keys)], pa.bool_())), by)
            left = pa.concat_tables([left, new.select(left.column_names)])
            added.append(new)
        without |= {old, by} if old > edge else set()
    return added


# --- aggregates ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Places:
    """The places of the rows of one key, since it was last gone.

    Attributes:
        at: of the row of the id that is taken back.
        all: all of them, ascending by id.
        others: those of ids that count.
    """

    at: int
    all: tuple[int, ...]
    others: frozenset[int]

    @property
    def before(self) -> int | None:
        place = self.all.index(self.at)
        return self.all[place - 1] if place else None


class _Less:
    """The state of an aggregate for the keys of one id, less what that id brought.

    Args:
        rows: of the keys, ascending by id.
        without: ids whose rows are no sign that a key has rows of a file that counts.
    """

    def __init__(
        self, operator: Aggregate, rows: pa.Table, old: int, without: Collection[int], known: Retracted
    ) -> None:
        self._operator, self._all, self._old, self._known = operator, rows, old, known
        self._keys, self._columns = operator.all_keys, state_columns(operator.values)
        self._without = {*without, old, *known.hidden, *known.by}

    def rows(self, session: Callable[[], SparkSession]) -> pa.Table | None:
        """Return the new rows, of no id yet; None if no key changes."""
        import pyarrow as pa

        places = list(self._places())
        if not places:
            return None
        left, gone = [each for each in places if each.others], [each for each in places if not each.others]
        ids = self._all[SEQUENCE_ID].to_pylist()
        if any(ids[place] in self._known.hidden for each in gone for place in each.all):
            raise self._known.refused(self._operator.name)
        newest = pa.array([each.all[-1] for each in gone], pa.int64())
        rows = _as_gone(self._all.take(newest), self._keys)
        if not left:
            return rows
        less = self._subtracted(left, session())
        less = less.append_column(GONE, pa.repeat(False, less.num_rows))
        less = less.append_column(SEQUENCE_ID, pa.repeat(pa.scalar(self._old, pa.int64()), less.num_rows))
        return pa.concat_tables([less.select(rows.column_names).cast(rows.schema), rows])

    def _places(self) -> Iterator[_Places]:
        """Yield the places of each key that has a row of the id, and is not gone since."""
        import numpy as np

        ids, is_gone = self._all[SEQUENCE_ID].to_numpy(), self._all[GONE].to_numpy()
        codes = key_codes([self._all], self._keys)[0] if self._keys else np.zeros(len(ids), np.int64)
        by_key = np.argsort(codes, kind="stable")
        ends_of_keys = np.flatnonzero(np.diff(codes[by_key])) + 1
        for mine in np.split(by_key, ends_of_keys):
            ends = np.flatnonzero(is_gone[mine])
            since = mine[ends[-1] + 1 :] if len(ends) else mine
            at = since[ids[since] == self._old]
            if len(at):
                others = frozenset(int(place) for place in since if int(ids[place]) not in self._without)
                yield _Places(int(at[0]), tuple(map(int, since)), others)

    def _subtracted(self, places: Sequence[_Places], session: SparkSession) -> pa.Table:
        """Return keys, values and their parts.

        Raises:
            RetractRefused: a value cannot be known without reading the other files.
        """
        import pyarrow as pa

        chosen = {_NOW: [each.all[-1] for each in places], _AT: [each.at for each in places],
                  _BEFORE: [each.before for each in places]}  # fmt: skip
        table = self._all.select(list(self._keys)).take(chosen[_NOW])
        for prefix, rows in chosen.items():
            for name in self._columns:
                table = table.append_column(f"{prefix}{name}", self._all[name].take(pa.array(rows, pa.int64())))
        for name in self._columns:
            self._require_numbers(name, table[f"{_NOW}{name}"])
            if self._nulls(name) is _UNKNOWN:
                known = pa.array(self._have_numbers(name, places), pa.bool_())
                table = table.append_column(f"{_LEFT}{name}", known)
        operator, frame = self._operator, self._without_part(frame_of(session, table))
        keys = [F.col(quoted_name(key)) for key in self._keys]
        hidden = [F.col(quoted_name(name)) for name in self._columns if name not in operator.values]
        return arrow_of(frame.select(*keys, *operator.finished_values(), *hidden))

    def _without_part(self, frame: DataFrame) -> DataFrame:
        values, types = self._operator.values, types_of(frame.schema)

        def of(prefix: str) -> Callable[[str], Column]:
            return lambda name: F.col(quoted_name(f"{prefix}{name}"))

        parts = zip(subtracted(values, of(_AT), of(_BEFORE)), self._columns, strict=True)
        frame = frame.select("*", *(part.alias(f"{_PART}{name}") for part, name in parts))
        less = dict(zip(self._columns, subtracted(values, of(_NOW), of(_PART)), strict=True))
        keys = [F.col(quoted_name(key)) for key in self._keys]

        def kept(name: str) -> Column:
            nulls = self._nulls(name)
            if nulls is None:
                return less[name]
            return F.when(of(_LEFT)(name) if nulls is _UNKNOWN else less[nulls] > 0, less[name])

        return frame.select(*keys, *(kept(name).cast(types[f"{_NOW}{name}"]).alias(name) for name in self._columns))

    def _nulls(self, name: str) -> str | None:
        """Return the state column that counts the numbers in a sum, which is null without any; None for a count."""
        value, part = self._columns[name]
        if _is_count(self._operator.values[value], part):
            return None
        column = self._operator.values[value].columns
        for other, (of, counting) in self._columns.items():
            aggregation = self._operator.values[of]
            if _is_count(aggregation, counting) and aggregation.columns and aggregation.columns == column:
                return other
        return _UNKNOWN

    def _require_numbers(self, name: str, values: pa.ChunkedArray) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values).fill_null(True)).as_py():
            raise self._refused(f"{name!r} is no finite number for some key, so nothing can be subtracted from it")

    def _have_numbers(self, name: str, places: Sequence[_Places]) -> list[bool]:
        """Say for each key whether others have brought numbers to a sum, as a change of it tells.

        Raises:
            RetractRefused: the sum never changed by others, which may have brought nulls or zeros.
        """
        values, ids, found = self._all[name].to_pylist(), self._all[SEQUENCE_ID].to_pylist(), []
        sure = self._known.edge if self._known.hidden else INITIAL_ID  # a row of an image may have sums of hidden ids
        for each in places:
            before = (None, *(values[place] for place in each.all[:-1]))
            changed = [place for place, old in zip(each.all, before, strict=True) if values[place] != old]
            is_left = any(place in each.others and ids[place] > sure for place in changed)
            if not is_left and values[each.all[-1]] is not None:
                column = (self._operator.values[self._columns[name][0]].columns or ("…",))[0]
                why = f"whether others have brought numbers to {name!r}, or nulls, is not known for some key"
                raise self._refused(f"{why}: dm.count({column!r}) beside it would tell")
            found.append(is_left)
        return found

    def _refused(self, why: str) -> RetractRefused:
        operator = self._operator
        return RetractRefused(f"{operator.name!r}: {why}", operator=operator.name, location=operator.location)


_UNKNOWN = "?"


def _is_count(aggregation: Aggregation, part: str) -> bool:
    return part == "count" or (aggregation.is_simple and aggregation.label.startswith("count("))
