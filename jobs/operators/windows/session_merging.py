"""Sessions that rows open, join and merge: a walk through the rows of each key in the order of their ids.

No SQL window can express it: two rows are in one session only if the watermark has not closed the session of the first
row before the id of the second, and that depends on the rows that had joined the session by then. The walk uses plain
lists and Arrow; Spark or this process runs it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from drainmark.jobs.operators.windows.watermarks import BEFORE

if TYPE_CHECKING:
    import pyarrow as pa

ID, START, END, IS_NEW, IS_FIRST = "__id", "__start", "__end", "__is_new", "__is_first"
"""Columns of the input rows, sorted by (key, id, start): the id, bounds in microseconds, whether the row is new in the
group or is an older session, and whether it is the first row of a key. `BEFORE` is the watermark before the id."""

LINEAGE, BORN, DIED, LEFT = "__lineage", "__born", "__died", "__left"
"""Columns of the output rows; all are bigint.

A lineage is a session until it merges with another one; then a new lineage begins, with the rows of both. So a row
comes out once for each of its lineages. The values of a lineage at an id, from `BORN` (inclusive) to `DIED` (exclusive;
null: it did not die), are the values of its rows up to and including that id. A row without a lineage says that from
the id `BORN` on no session begins at `LEFT` any more.
"""


class Item(NamedTuple):
    """Close rows of one key and id, or a session from before the group."""

    id: int
    start: int
    end: int
    before: int | None
    is_new: bool


class SessionRow(NamedTuple):
    """An output row: number of the item, and the columns `LINEAGE`, `BORN`, `DIED`, `LEFT`."""

    item: int
    lineage: int | None
    born: int
    died: int | None = None
    left: int | None = None


@dataclass(slots=True, eq=False)
class _OpenSession:
    start: int
    end: int
    born: int
    items: list[int]
    kept_as: int | None = None  # its start, as the state has it
    died: int | None = None


def merged(items: Sequence[Item]) -> Iterator[SessionRow]:
    """Yield the output rows for the items of one key, which are sorted by id and start."""
    every: list[_OpenSession] = []
    alive: list[_OpenSession] = []
    for number, found in itertools.groupby(enumerate(items), key=lambda item: item[1].id):
        touched: list[_OpenSession] = []
        left: set[int] = set()
        for place, item in found:
            if not item.is_new:
                session = _OpenSession(item.start, item.end, number, [place], item.start)
            else:
                alive = [one for one in alive if item.before is None or one.end > item.before]
                met = [one for one in alive if one.start < item.end and item.start < one.end]
                left.update(one.kept_as for one in met if one.kept_as is not None)
                session = _joined(met, item, place)
                alive = [one for one in alive if one.died is None]
                touched.append(session)
            if session not in alive:
                every.append(session)
                alive.append(session)
        for session in touched:
            session.kept_as = session.start if session.died is None else None
        for start in sorted(left - {session.kept_as for session in touched}):
            yield SessionRow(place, None, number, left=start)
    for lineage, session in enumerate(every):
        yield from (SessionRow(place, lineage, session.born, session.died) for place in session.items)


def _joined(met: Sequence[_OpenSession], item: Item, place: int) -> _OpenSession:
    """Return the session that has an item from now on; it is a new session unless the item met exactly one."""
    if len(met) == 1:
        (session,) = met
    else:
        session = _OpenSession(item.start, item.end, item.id, [row for one in met for row in one.items])
        for one in met:
            one.died = item.id
    session.start = min([item.start, *(one.start for one in met)])
    session.end = max([item.end, *(one.end for one in met)])
    session.items.append(place)
    return session


def walk(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the output rows for rows of many keys; the rows of a key are adjacent, perhaps in several batches."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    for batch in batches:
        begins = [place for place, is_first in enumerate(batch.column(IS_FIRST).to_pylist()) if is_first]
        if not begins:
            held.append(batch)
            continue
        yield from _walked(pa.Table.from_batches([*held, batch.slice(0, begins[-1])], batch.schema))
        held = [batch.slice(begins[-1])]
    if held:
        yield from _walked(pa.Table.from_batches(held))


def _walked(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield the output rows for rows of whole keys."""
    import pyarrow as pa

    columns = (rows[name].to_pylist() for name in (ID, START, END, BEFORE, IS_NEW))
    items = [Item(*row) for row in zip(*columns, strict=True)]
    firsts = [place for place, is_first in enumerate(rows[IS_FIRST].to_pylist()) if is_first]
    parts = [
        part._replace(item=begin + part.item)
        for begin, end in itertools.pairwise([*firsts, len(items)])
        for part in merged(items[begin:end])
    ]
    found = rows.take(pa.array([part.item for part in parts], pa.int64()))
    for place, name in enumerate((LINEAGE, BORN, DIED, LEFT), start=1):
        found = found.append_column(name, pa.array([part[place] for part in parts], pa.int64()))
    yield from found.combine_chunks().to_batches()
