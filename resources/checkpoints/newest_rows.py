"""Reads the newest rows of a checkpoint table; what it costs does not grow with the table.

The files of single commits are read, which compaction keeps few, and then row groups of compacted ones, newest first.
Members of large groups are told apart and added up as columns: only what is shown becomes a row in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.protocol.records.newest_rows import GroupSums, NewestRows
from drainmark.resources.checkpoints.checkpoint_archive import LiveFile
from drainmark.resources.checkpoints.checkpoint_rows import POSITION_COLUMN, arrow_schema, placed_rows
from drainmark.resources.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_ROW_GROUPS = 24
"""Of compacted files: a hundred thousand rows, fifty groups of the largest size."""


def newest_rows(folder: Folder, parts: Sequence[LiveFile], *, rows: int, states: int) -> NewestRows:
    """Return the newest rows of a table.

    Args:
        folder: of the table.
        parts: its live files.
        rows: so many that tell something by themselves; see `NewestRows`.
        states: so many states, whatever they tell.
    """
    import pyarrow as pa

    found = folder.read([part.path for part in parts if not part.tier], arrow_schema())
    telling, members = _count(_tells(found)), _count(_is_state(found))
    compacted = sorted((part for part in parts if part.tier), reverse=True)
    for older in _compacted(folder, compacted) if telling < rows or members < states else ():
        found = pa.concat_tables([older, found])
        telling, members = telling + _count(_tells(older)), members + _count(_is_state(older))
        if telling >= rows and members >= states:
            break
    found = found.sort_by(POSITION_COLUMN)
    is_state = _is_state(found)
    places = {*_last_places(_tells(found), rows), *_last_places(is_state, states)}
    shown = found.take(pa.array(sorted(places), pa.int64()))
    told = tuple(row for _, row in placed_rows(shown, str(folder)))
    return NewestRows(rows=told, sums=_sums(found.filter(is_state)))


def _tells(rows: pa.Table) -> Any:
    """Return which rows are no mere members of a group."""
    import pyarrow.compute as pc

    other = pc.not_equal(rows.column("kind"), RowKind.STATE.value)
    ends = pc.fill_null(pc.equal(rows.column("sequence_id"), rows.column("group_last")), fill_value=True)
    quarantined = pc.fill_null(pc.match_substring(rows.column("detail"), '"rows_quarantined"'), fill_value=False)
    return pc.or_(pc.or_(other, ends), quarantined)


def _is_state(rows: pa.Table) -> Any:
    import pyarrow.compute as pc

    return pc.equal(rows.column("kind"), RowKind.STATE.value)


def _count(mask: Any) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(mask).as_py() or 0)


def _last_places(mask: Any, count: int) -> list[int]:
    """Return the places of the last so many that hold."""
    import pyarrow.compute as pc

    places = pc.indices_nonzero(mask)
    found: list[int] = places.slice(max(0, len(places) - count)).to_pylist()
    return found


def _compacted(folder: Folder, parts: Sequence[LiveFile]) -> Iterator[pa.Table]:
    """Yield row groups of compacted files, newest first, up to a bound."""
    import pyarrow.parquet as pq

    left = _MOST_ROW_GROUPS
    for part in parts:
        with pq.ParquetFile(folder.source(part.path)) as file:
            for number in reversed(range(file.num_row_groups)):
                if not left:
                    return
                left -= 1
                yield file.read_row_group(number).select(arrow_schema().names).cast(arrow_schema())


def _sums(states: pa.Table) -> dict[str, GroupSums]:
    by_attempt = states.group_by("attempt").aggregate(
        [("sequence_id", "min"), ("sequence_id", "count"), ("rows_in", "sum"), ("bytes_in", "sum")]
    )
    return {
        value["attempt"]: GroupSums(
            first_id=value["sequence_id_min"],
            states=value["sequence_id_count"],
            rows_in=value["rows_in_sum"] or 0,
            bytes_in=value["bytes_in_sum"] or 0,
        )
        for value in by_attempt.to_pylist()
    }
