"""Sessions that rows open, join and merge: a walk through the rows of each key in the order of their ids.

No SQL window can take it: whether two rows are of one session depends on whether the watermark closed that of the first
before the id of the second, and so on what had joined it by then. Plain lists and Arrow; Spark or this process runs it.
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
"""Of the rows that go in, sorted by (key, id, start): the id, bounds in microseconds, whether it is of the group or a
session from before it, and whether a key begins here. `BEFORE` is the watermark that judges the id."""

LINEAGE, BORN, DIED, LEFT = "__lineage", "__born", "__died", "__left"
"""Of the rows that come out; all are bigint.

A lineage is a session as long as no other becomes one with it; where two do, a new one begins that has the rows of
both. So a row comes out once a lineage that it is of, and the values of a lineage at an id from `BORN` on and before
`DIED` (null: it did not die) are those of its rows up to that id. A row without a lineage says that no session begins
at `LEFT` any more from the id `BORN` on.
"""


class Item(NamedTuple):
    """Rows of a key and id that are close, or a session from before the group."""

    id: int
    start: int
    end: int
    before: int | None
    is_new: bool


class SessionRow(NamedTuple):
    """A row that comes out: number of the item, and the columns `LINEAGE`, `BORN`, `DIED`, `LEFT`."""

    item: int
    lineage: int | None
    born: int
    died: int | None = None
    left: int | None = None


@dataclass(slots=True, eq=False)
class _Session:
    start: int
    end: int
    born: int
    items: list[int]
    kept_as: int | None = None  # its start, as the state has it
    died: int | None = None


def merged(items: Sequence[Item]) -> Iterator[SessionRow]:
    """Walk through the items of one key, which are sorted by id and start."""
    every: list[_Session] = []
    alive: list[_Session] = []
    for number, found in itertools.groupby(enumerate(items), key=lambda item: item[1].id):
        touched: list[_Session] = []
        left: set[int] = set()
        for place, item in found:
            if not item.is_new:
                session = _Session(item.start, item.end, number, [place], item.start)
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


def _joined(met: Sequence[_Session], item: Item, place: int) -> _Session:
    """Return the session that an item is of from now on; it is a new one unless the item met exactly one."""
    if len(met) == 1:
        (session,) = met
    else:
        session = _Session(item.start, item.end, item.id, [row for one in met for row in one.items])
        for one in met:
            one.died = item.id
    session.start = min([item.start, *(one.start for one in met)])
    session.end = max([item.end, *(one.end for one in met)])
    session.items.append(place)
    return session


def walk(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Go through rows of many keys, each key's together, whatever batches they come in."""
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
    """Return the rows of whole keys with what became of them."""
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
