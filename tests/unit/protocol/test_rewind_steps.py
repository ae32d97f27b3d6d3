"""The steps of a rewind: one for each table, its kind from the table's role, in the order that histories need."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from checkpoint_rows import row

from drainmark.jobs.protocol.records.checkpoint_row import RowKind
from drainmark.jobs.protocol.records.manifest import Image, RegionTable, Replaced, StagedFile, TableRole
from drainmark.jobs.protocol.repairs import CopiedRows
from drainmark.jobs.protocol.rewind_steps import (
    CopiesLeave,
    KeysReturn,
    NewestReturns,
    Rewind,
    RowsLeave,
    TriggersReturn,
    cut_at,
)


def table(name: str, role: TableRole, history: str | None = None, **more: Any) -> RegionTable:
    return RegionTable(name=name, role=role, operator=name, schema_json="{}", history=history, **more)


def file(path: str) -> StagedFile:
    return StagedFile(path=path, size=1, rows=1, first_id=1, last_id=1)


ROWS = table("lake/rows", TableRole.APPEND)
STATE = table("state/keys", TableRole.CHANGES, keys=("k",))
KEYS = table("lake/keys", TableRole.UPSERT, "state/keys", keys=("k",))
NEWEST = table("lake/newest", TableRole.OVERWRITE, "state/newest")
COPY = table("database/copy", TableRole.COPY, "state/copy", external="database", options={"database": "shop"})
REWIND = Rewind(
    to=7,
    tables=(ROWS, STATE, KEYS, NEWEST, COPY),
    former=("database/copy",),
    restored=(Replaced(ids={10: 12, 9: 11}, files={"lake/rows": (file("r"),), "state/copy": (file("c"),), "x": ()}),),
    images=(Image(table="state/keys", at=3, files=(file("i"),)), Image(table="state/other", at=3, files=(file("o"),))),
)


def test_visible_tables_go_back_while_their_histories_hold_what_leaves() -> None:
    back = CopiedRows(ids=(9, 10), files=(file("r"),))
    assert REWIND.steps == (
        KeysReturn(table=KEYS, to=7, images=("i",)),
        NewestReturns(table=NEWEST, to=7),
        CopiesLeave(table=COPY, to=7, is_former=True, restored=(replace(back, files=(file("c"),)),)),
        RowsLeave(table=ROWS, to=7, restored=(back,)),
        RowsLeave(table=STATE, to=7),
        TriggersReturn(to=7),
    )


@pytest.mark.parametrize("rewind", [REWIND, Rewind(to=0, tables=(ROWS,))])
def test_who_has_the_row_has_the_steps(rewind: Rewind) -> None:
    detail = {name: value for name, value in rewind.to_detail().items() if value is not None}
    stored = row(RowKind.REWIND, 13, **json.loads(json.dumps(detail, sort_keys=True)))
    assert Rewind.from_row(stored) == rewind
    assert Rewind.from_row(stored).steps == rewind.steps


def test_files_leave_whole_but_for_those_that_straddle_the_id() -> None:
    spans = {"below": (1, 7), "empty": (None, None), "astride": (7, 8), "above": (8, 8), "late": (9, 12)}
    files = [
        StagedFile(path=path, size=1, rows=1, first_id=first, last_id=last) for path, (first, last) in spans.items()
    ]
    cut = cut_at(files, 7)
    assert [file.path for file in cut.leaving] == ["astride", "above", "late"]
    assert [file.path for file in cut.straddling] == ["astride"]
    assert [file.path for file in cut.whole] == ["above", "late"]
    assert cut_at(files, 0).whole == cut_at(files, 0).leaving == tuple(f for f in files if f.path != "empty")


def test_what_was_counted_makes_no_other_step() -> None:
    step = REWIND.table_steps[0]
    assert step.counted(3) == step
    assert step.counted(3).rows == 3
