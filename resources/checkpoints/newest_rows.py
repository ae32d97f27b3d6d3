"""The newest rows of a checkpoint table, read at a cost that does not grow with the table.

A read of the history has given the rows of small commits. Larger commits, and then compacted files from the newest on,
are read as columns. Members of groups are only added up; a row that is shown becomes an object in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drainmark.jobs.protocol.records.checkpoint_row import CheckpointRow, RowKind
from drainmark.resources.checkpoints.checkpoint_archive import LiveFile
from drainmark.resources.checkpoints.checkpoint_rows import POSITION_COLUMN, arrow_schema, placed_rows
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSums:
    """The sums over the states of one commit, as far as they were read.

    Attributes:
        first_id: smallest sequence id.
        states: number of states.
        rows_in, bytes_in: of their files.
    """

    first_id: int
    states: int
    rows_in: int
    bytes_in: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestRows:
    """The newest rows in commit order; their number does not grow with the table.

    Attributes:
        rows: rows that are no states, states that end a group, and states with quarantined rows, up to a number of
            them; and the newest states, up to another number.
        sums: by attempt, of every group that has a row here.
    """

    rows: tuple[CheckpointRow, ...] = ()
    sums: Mapping[str, GroupSums] = field(default_factory=dict)


_MOST_ROW_GROUPS = 24
"""The most row groups of compacted files to read: a hundred thousand rows, fifty groups of the largest size."""

_Placed = tuple[int, CheckpointRow]


def newest_rows(
    folder: Folder, known: Iterable[_Placed], parts: Sequence[LiveFile], *, rows: int, states: int
) -> NewestRows:
    """Return the newest rows of a table.

    Args:
        folder: of the table.
        known: rows of commits that were read before, with their positions.
        parts: the live files with all other rows.
        rows: the number of rows that are not mere members of a group; see `NewestRows`.
        states: the number of states, mere members of a group included.
    """
    found = list(known)
    sums: dict[str, GroupSums] = {}
    for _, row in found:
        if row.kind is RowKind.STATE:
            _add(sums, row.attempt, (row.sequence_id, 1, row.rows_in or 0, row.bytes_in or 0))
    for table in _others(folder, parts):
        found += placed_rows(_shown(table, states), str(folder))
        for attempt, values in _sums(table):
            _add(sums, attempt, values)
        if sum(_tells(row) for _, row in found) >= rows and sum(_is_state(row) for _, row in found) >= states:
            break
    told = [row for _, row in sorted(found, key=lambda entry: entry[0])]
    telling = [place for place, row in enumerate(told) if _tells(row)]
    numbered = [place for place, row in enumerate(told) if _is_state(row)]
    places = sorted({*telling[-rows:], *numbered[len(numbered) - min(states, len(numbered)) :]})
    return NewestRows(rows=tuple(told[place] for place in places), sums=sums)


def _others(folder: Folder, parts: Sequence[LiveFile]) -> Iterator[pa.Table]:
    """Yield the rows of commits, then row groups of compacted files, newest first, up to a bound."""
    import pyarrow.parquet as pq

    yield folder.read([part.path for part in parts if not part.tier], arrow_schema())
    left = _MOST_ROW_GROUPS
    for part in sorted((part for part in parts if part.tier), reverse=True):
        with pq.ParquetFile(folder.source(part.path)) as file:
            for number in reversed(range(file.num_row_groups)):
                if not left:
                    return
                left -= 1
                yield file.read_row_group(number).select(arrow_schema().names).cast(arrow_schema())


def _is_state(row: CheckpointRow) -> bool:
    return row.kind is RowKind.STATE


def _tells(row: CheckpointRow) -> bool:
    """Say whether a row is not a mere member of a group."""
    return not _is_state(row) or row.group_last in (None, row.sequence_id) or "rows_quarantined" in row.detail


def _shown(table: pa.Table, states: int) -> pa.Table:
    """Return the rows that are not mere members of a group, and the newest states."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = table.sort_by(POSITION_COLUMN)
    is_state = pc.equal(table.column("kind"), RowKind.STATE.value)
    ends = pc.fill_null(pc.equal(table.column("sequence_id"), table.column("group_last")), fill_value=True)
    quarantined = pc.fill_null(pc.match_substring(table.column("detail"), '"rows_quarantined"'), fill_value=False)
    telling = pc.indices_nonzero(pc.or_(pc.invert(is_state), pc.or_(ends, quarantined))).to_pylist()
    numbered = pc.indices_nonzero(is_state)
    newest = numbered.slice(max(0, len(numbered) - states)).to_pylist()
    return table.take(pa.array(sorted({*telling, *newest}), pa.int64()))


def _sums(table: pa.Table) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    import pyarrow.compute as pc

    states = table.filter(pc.equal(table.column("kind"), RowKind.STATE.value))
    columns = [("sequence_id", "min"), ("sequence_id", "count"), ("rows_in", "sum"), ("bytes_in", "sum")]
    for value in states.group_by("attempt").aggregate(columns).to_pylist():
        first, count, rows, size = (value[f"{column}_{function}"] for column, function in columns)
        yield value["attempt"], (first, count, rows or 0, size or 0)


def _add(sums: dict[str, GroupSums], attempt: str, values: tuple[int, int, int, int]) -> None:
    """Add (first id, states, rows, bytes) to the sums of an attempt; a compaction may have divided its rows."""
    first, count, rows, size = values
    known = sums.get(attempt)
    if known is not None:
        first, count = min(first, known.first_id), count + known.states
        rows, size = rows + known.rows_in, size + known.bytes_in
    sums[attempt] = GroupSums(first_id=first, states=count, rows_in=rows, bytes_in=size)
