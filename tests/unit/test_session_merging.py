"""The walk that finds the sessions that rows open, join and merge, against a literal form of the rule (V5, H20)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from drainmark.jobs.operators.windows.session_merging import BORN, DIED, LEFT, LINEAGE, Item, merged, walk

GAP = 5
Ids = list[tuple[int | None, list[int]]]
"""For each id: its watermark, and the moments of its rows that are not late."""


@st.composite
def courses(draw: st.DrawFn) -> Ids:
    ids: Ids = []
    newest: int | None = None
    lateness = draw(st.integers(0, 12))
    for moments in draw(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=5), min_size=1, max_size=6)):
        before = None if newest is None else newest - lateness
        ids.append((before, [moment for moment in moments if before is None or moment + GAP > before]))
        newest = max([*moments, *([] if newest is None else [newest])])
    return ids


def items_of(ids: Ids, old: int) -> list[Item]:
    """Return the islands of each id; the first `old` ids give earlier sessions, in their form at the end of these."""
    items = [Item(old, *bounds, None, False) for bounds in by_the_rule(ids[:old])]
    for number, (before, moments) in enumerate(ids[old:], start=old + 1):
        islands: list[list[int]] = []
        for moment in sorted(moments):
            if islands and moment < islands[-1][-1] + GAP:
                islands[-1].append(moment)
            else:
                islands.append([moment])
        items += [Item(number, island[0], island[-1] + GAP, before, True) for island in islands]
    return items


def by_the_rule(ids: Ids) -> list[tuple[int, int]]:
    """Apply the rule row by row; before each id, close the sessions whose end the watermark has reached."""
    sessions: list[tuple[int, int]] = []
    for before, moments in ids:
        sessions = [one for one in sessions if before is None or one[1] > before]
        for moment in moments:
            met = [one for one in sessions if one[0] < moment + GAP and moment < one[1]]
            whole = (min([moment, *(one[0] for one in met)]), max([moment + GAP, *(one[1] for one in met)]))
            sessions = [*(one for one in sessions if one not in met), whole]
    return sorted(sessions)


def at_the_end_of(number: int, items: list[Item], before: int | None) -> list[tuple[int, int]]:
    """Return the sessions that the walk leaves open at the end of an id, without those closed before the id."""
    found: dict[int, list[Item]] = {}
    for part in merged(items):
        is_alive = part.born <= number and (part.died is None or number < part.died)
        if part.lineage is not None and is_alive and items[part.item].id <= number:
            found.setdefault(part.lineage, []).append(items[part.item])
    bounds = [(min(item.start for item in one), max(item.end for item in one)) for one in found.values()]
    return sorted(one for one in bounds if before is None or one[1] > before)


@given(ids=courses(), old=st.integers(0, 3))
@settings(max_examples=examples(300), deadline=None)
def test_sessions_at_the_end_of_every_id_are_those_of_the_rule(ids: Ids, old: int) -> None:
    old = min(old, len(ids) - 1)
    items = items_of(ids, old)
    for number in range(old + 1, len(ids) + 1):
        assert at_the_end_of(number, items, ids[number - 1][0]) == by_the_rule(ids[:number])


@given(ids=courses())
@settings(max_examples=examples(200), deadline=None)
def test_a_start_that_is_told_is_taken_back_when_no_session_begins_there_any_more(ids: Ids) -> None:
    items = items_of(ids, 0)
    left = {(part.left, part.born) for part in merged(items) if part.lineage is None}
    for number in range(2, len(ids) + 1):
        before = ids[number - 1][0]
        had = {start for start, end in by_the_rule(ids[: number - 1]) if before is None or end > before}
        has = {start for start, _ in by_the_rule(ids[:number])}
        assert {start for start, at in left if at == number} == had - has


def test_a_session_of_its_own_begins_where_the_watermark_closed_the_one_before() -> None:
    """Rows that would be one session in a single id are two sessions, since the first was closed in between."""
    joined = [Item(1, 10, 15, None, True), Item(2, 12, 17, 14, True)]
    apart = [Item(1, 10, 15, None, True), Item(2, 12, 17, 15, True)]
    assert {part.lineage for part in merged(joined)} == {0}
    assert {part.lineage for part in merged(apart)} == {0, 1}


@given(courses=st.lists(courses(), min_size=1, max_size=4), cut=st.integers(1, 5))
@settings(max_examples=examples(50), deadline=None)
def test_keys_are_gone_through_as_wholes_whatever_the_batches(courses: list[Ids], cut: int) -> None:
    of_keys = [items for items in (items_of(ids, 0) for ids in courses) if items]
    rows = [
        {"key": key, "__id": item.id, "__start": item.start, "__end": item.end, "__watermark_before": item.before,
         "__is_new": item.is_new, "__is_first": place == 0}
        for key, items in enumerate(of_keys) for place, item in enumerate(items)
    ]  # fmt: skip
    schema = pa.schema([
        ("key", pa.int64()), *((f"__{name}", pa.int64()) for name in ("id", "start", "end", "watermark_before")),
        ("__is_new", pa.bool_()), ("__is_first", pa.bool_()),
    ])  # fmt: skip

    def found(size: int) -> list[Any]:
        batches: Iterator[pa.RecordBatch] = iter(pa.Table.from_pylist(rows, schema).to_batches(max_chunksize=size))
        return [row for batch in walk(batches) for row in batch.to_pylist()]

    wanted = [
        (key, items[part.item].id, part.lineage, part.born, part.died, part.left)
        for key, items in enumerate(of_keys) for part in merged(items)
    ]  # fmt: skip
    for size in (cut, 10_000):
        names = ("key", "__id", LINEAGE, BORN, DIED, LEFT)
        assert [tuple(row[name] for name in names) for row in found(size)] == wanted
