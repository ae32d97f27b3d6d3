"""The row groups that the search for keys passes over have none of them, and each key is in one part, whatever the keys
are."""

from __future__ import annotations

import decimal
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drainmark.jobs.protocol.records.deletion_vectors import decoded
from drainmark.jobs.state.keyed_rows import has_keys, key_codes
from drainmark.jobs.tasks import key_bounds, parquet_shares
from drainmark.jobs.tasks.key_bounds import KeyParts, KeySample, comparable, groups_with
from drainmark.jobs.tasks.keyed_files import FindTask, FoundRows
from drainmark.jobs.tasks.parquet_shares import RowFile
from drainmark.jobs.tasks.places import LocalPlace

KINDS = {
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9)),
    "short": (pa.int16(), st.integers(-9, 9)),
    "text": (pa.string(), st.text(st.characters(codec="utf-8"), max_size=3) | st.sampled_from(["", "ä", "\U0001f600"])),
    "day": (pa.date32(), st.integers(-3_000_000, 3_000_000) | st.integers(-9, 9)),
    "double": (pa.float64(), st.floats() | st.sampled_from([0.0, -0.0])),
    "decimal": (pa.decimal128(9, 2), st.decimals(-99, 99, places=2)),
    "flag": (pa.bool_(), st.booleans()),
    "moment": (pa.timestamp("us"), st.datetimes()),
    "k.x": (pa.int64(), st.integers(-9, 9)),
}  # fmt: skip


def column_of(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    return pa.array(values, kind)


@st.composite
def searches(draw: st.DrawFn) -> tuple[pa.Table, pa.Table, int, bool]:
    """Return rows, keys to find among them, the rows of a row group, and whether the rows are sorted."""
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=2, unique=True))
    count = draw(st.integers(1, 40))
    rows = {}
    for name in names:
        kind, values = KINDS[name]
        rows[name] = column_of(kind, draw(st.lists(values | st.none(), min_size=count, max_size=count)))
    table = pa.table(rows)
    wanted = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=5))
    others = {name: column_of(KINDS[name][0], [draw(KINDS[name][1] | st.none())]) for name in names}
    keys = pa.concat_tables([table.take(wanted), pa.table(others)])
    return table, keys, draw(st.integers(1, 7)), draw(st.booleans())


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(search=searches(), most=st.sampled_from([0, 8, 1000]), at_once=st.sampled_from([1, 9, 1000]))
def test_a_search_finds_the_rows_that_a_comparison_with_all_finds(
    tmp_path_factory: pytest.TempPathFactory, search: Any, most: int, at_once: int
) -> None:
    rows, keys, size, is_sorted = search
    if is_sorted:
        rows = rows.sort_by([(name, "ascending") for name in rows.column_names])
    folder = tmp_path_factory.mktemp("f")
    pq.write_table(rows, folder / "rows.parquet", row_group_size=size, store_schema=False)
    expected = [number for number, is_one in enumerate(has_keys(rows, keys, rows.column_names)) if is_one]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_bounds, "_MOST_KEYS", most)
        patch.setattr(parquet_shares, "_ROWS_AT_ONCE", at_once)
        task = FindTask(place=LocalPlace(str(folder)), changed=keys, marks=True)
        found = [FoundRows(**facts) for facts in task.work(RowFile(path="rows.parquet"))]
        chosen = groups_with(keys, pq.read_metadata(folder / "rows.parquet"))
    assert [list(decoded(each.data)) for each in found] == ([expected] if expected else [])
    assert {number // size for number in expected} <= set(chosen)


def test_few_of_many_groups_are_read(tmp_path: Path) -> None:
    """Keys that are sorted are found in the groups that have them, whatever the type has for bounds."""
    for values, kind in (
        (range(1000), pa.int64()),
        ([f"k{n:04}" for n in range(1000)], pa.string()),
        (range(1000), pa.date32()),
    ):
        rows = pa.table({"key": column_of(kind, list(values)), "value": [decimal.Decimal(1)] * 1000})
        pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=10)
        keys = rows.select(["key"]).take([5, 17, 995])
        assert groups_with(keys, pq.read_metadata(tmp_path / "rows.parquet")) == [0, 1, 99]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    search=searches(), counts=st.tuples(st.integers(1, 9), st.integers(1, 9)), chance=st.randoms(use_true_random=False)
)
def test_a_key_has_one_part_in_each_table_and_parts_are_ranges(
    search: Any, counts: tuple[int, int], chance: random.Random
) -> None:
    rows, others, _, _ = search
    keys = tuple(rows.column_names)
    samples = [
        ([KeySample.of(some.take([chance.randrange(some.num_rows) for _ in range(3)]), 100)], count)
        for some, count in zip((rows, others), counts, strict=True)
    ]
    parts = KeyParts.of(keys, samples)
    both_tables = pa.concat_tables([rows, others])
    shuffled = both_tables.take(chance.sample(range(both_tables.num_rows), rows.num_rows))
    both = [parts.numbers(rows), parts.numbers(shuffled)]
    part_of: dict[int, int] = {}
    for codes, numbers in zip(key_codes([rows, shuffled], keys), both, strict=True):
        for code, number in zip(codes.tolist(), numbers.tolist(), strict=True):
            assert part_of.setdefault(code, number) == number
            assert 0 <= number < parts.count
    column = comparable(rows.column(parts.column)) if parts.cuts else None
    if column is not None:
        values = zip(column.to_pylist(), both[0].tolist(), strict=True)
        known = sorted((value, number) for value, number in values if value is not None)
        for (value, number), (later, its_number) in itertools.pairwise(known):
            assert value == later or number <= its_number


@pytest.mark.parametrize("kind", ["long", "text", "day"])
def test_parts_are_about_equal_even_if_one_value_has_most_of_the_keys(kind: str) -> None:
    chance = random.Random(5)
    values = [chance.randrange(10**6) if chance.random() < 0.4 else 77 for _ in range(20_000)]
    column = [f"customer-{value:07}" for value in values] if kind == "text" else values
    rows = pa.table({"k": column_of(KINDS[kind][0], column), "n": range(20_000)})
    sample = [KeySample.of(rows.select(["k"]).take(list(range(0, 20_000, 20))), 10_000)]
    parts = KeyParts.of(("k", "n"), [(sample, 10), ([], 1)])
    found = Counter(parts.numbers(rows).tolist())
    assert len(found) == parts.count == 10
    assert max(found.values()) < 2 * 20_000 / 10


def test_the_column_with_most_values_has_the_ranges() -> None:
    rows = pa.table({"shop": ["a", "b"] * 500, "order": range(1000), "price": [0.5] * 1000})
    parts = KeyParts.of(("shop", "order", "price"), [([KeySample.of(rows, 1000)], 4)])
    assert (parts.column, parts.count) == ("order", 4)
    assert Counter(parts.numbers(rows).tolist()).keys() == {0, 1, 2, 3}
    without = KeyParts.of(("price",), [([KeySample.of(rows.select(["price"]), 1000)], 4), ([], 2)])
    assert (without.cuts, without.count) == ((), 4), "hashes only"
