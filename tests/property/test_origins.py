"""The rows of a table are read in the order of their region, whoever wrote its files, and however its ids were grouped.

The files are those that this process writes for a small group, and those that tasks write for a large one.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import drainmark as dm
from drainmark.jobs.frames.origins import ORIGIN, OriginsSeen, ranked_by_origin
from drainmark.jobs.frames.row_order import in_order
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.operators.sources.slices import SliceLimit
from drainmark.jobs.protocol.records.ids import txn_version
from drainmark.jobs.tasks.layout import Layout
from drainmark.jobs.tasks.slice_shares import TaggedRows
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.delta.managed_table import ManagedTable
from drainmark.resources.delta.staging import Staging
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

_PLACE = pa.struct([("block", pa.int64()), ("row", pa.int64())])
_ROWS = pa.schema([(SEQUENCE_ID, pa.int64()), ("k", pa.string()), (POSITION, _PLACE)])
_AS_READ = pa.schema([(SEQUENCE_ID, pa.int64()), (POSITION, _PLACE), ("k", pa.string()),
                      (ORIGIN, pa.struct([(name, pa.int64()) for name in ("id", "block", "row")]))])  # fmt: skip
_DELTA = json.dumps({"type": "struct", "fields": [
    {"name": name, "type": kind, "nullable": True, "metadata": {}}
    for name, kind in ((SEQUENCE_ID, "long"), ("k", "string"))
]})  # fmt: skip

GROUPS = st.lists(st.tuples(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.booleans()), max_size=5)
"""For each group, the number of rows of each id, and whether tasks write it."""


def published(table: ManagedTable, rows: Sequence[dict[str, Any]], chosen: random.Random, *, by_tasks: bool) -> None:
    staging = Staging(table.folder, 1, uuid.uuid4().hex, Layout())
    parts = [chosen.sample(rows, len(rows))[: len(rows)]] if by_tasks else [list(rows)]
    if by_tasks:
        cut = chosen.randrange(len(rows) + 1)
        parts = [parts[0][:cut], parts[0][cut:]]
    files = []
    for part in parts:
        found = pa.Table.from_pylist(part, schema=_ROWS)
        files += staging.write(found if by_tasks else found.drop_columns([POSITION]), "rows")
    table.publish(txn_version(1, rows[-1][SEQUENCE_ID]), files)


@pytest.mark.spark
@settings(max_examples=10, deadline=None)
@given(groups=GROUPS, seed=st.integers(0, 99))
def test_rows_come_by_id_and_place(engine: SparkEngine, tmp_path_factory: Any, groups: Any, seed: int) -> None:
    home: Path = tmp_path_factory.mktemp("home")
    chosen, wanted, number = random.Random(seed), [], 0
    table = ManagedTable(home / "lake" / "rows", "app/first")
    table.create(_DELTA)
    for counts, by_tasks in groups:
        rows = []
        for count in counts:
            number += 1
            rows += [{SEQUENCE_ID: number, "k": f"{number}/{n}", POSITION: {"block": n // 3, "row": n % 3}}
                     for n in range(count)]  # fmt: skip
        if rows:
            published(table, rows, chosen, by_tasks=by_tasks)
            wanted += [row["k"] for row in rows]
    place = Workplace(Settings(home=home, project_root=home))
    try:
        access, source = place.access("app/second"), dm.TableSource("rows")
        piece = source.next_slice(None, access, SliceLimit(source="s", is_periodic=True))
        assert (piece is None) == (not wanted)
        if piece is not None:
            tagged = TaggedRows(source.read(piece, access), 1, _AS_READ)
            frame = engine.session.createDataFrame(pa.Table.from_batches(iter(tagged), _AS_READ))
            mixed = [] if tagged.origins is not None or not tagged.count else [1]
            read = in_order(ranked_by_origin(frame, mixed).toArrow())
            assert read["k"].to_pylist() == wanted
            places = [(at["block"], at["row"]) for at in read[POSITION].to_pylist()]
            assert places == sorted(set(places)), "each row has a place of its own, and they rise"
            assert read.column_names == [SEQUENCE_ID, POSITION, "k"]
    finally:
        place.registry.close()


@given(rows=st.lists(st.tuples(*[st.integers(0, 2)] * 3), max_size=8), cut=st.integers(0, 8))
def test_origins_are_in_order_if_none_is_below_the_one_before(rows: list[tuple[int, int, int]], cut: int) -> None:
    seen = OriginsSeen()
    for part in (rows[:cut], rows[cut:]):
        values = [dict(zip(("id", "block", "row"), row, strict=True)) for row in part]
        seen.add(pa.array(values, _AS_READ.field(ORIGIN).type))
    assert seen.are_in_order == (rows == sorted(rows))
    if rows and seen.are_in_order:
        assert (seen.first, seen.last) == (list(rows[0]), list(rows[-1]))
