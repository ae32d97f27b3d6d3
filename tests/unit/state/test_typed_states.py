"""A state of `@dm.custom` is read back from its columns, for the next id of a group as for the next group (V58)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import drainmark as dm
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.operators.custom import _WHAT, Custom, _Call, _Shape
from drainmark.jobs.state.dataclass_state import reader_of

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
NAIVE = NOON.replace(tzinfo=None)
EAST = dt.timezone(dt.timedelta(hours=3))


@dataclasses.dataclass
class Total:
    n: int = 0


@dataclasses.dataclass(frozen=True)
class Place:
    at: dt.datetime | None = None
    x: float | None = None


@dataclasses.dataclass(frozen=True)
class Kept:
    """A state with a field of every kind."""

    n: int | None = None
    x: float | None = None
    day: dt.date | None = None
    at: dt.datetime | None = None
    price: decimal.Decimal | None = None
    last: tuple[int, ...] | None = None
    seen: dict[tuple[int, ...], float] | None = None
    places: list[Place] | None = None


def call_of(function: Any, state: type) -> _Call:
    """Return the call that a worker runs."""
    from pyspark.sql.types import LongType, StructType

    with dm.application("typed"):
        made = dm.custom(function, keys=["k"], state=state, output="k bigint", inputs=["rows"], batch="arrow").operator
    assert isinstance(made, Custom)
    with pytest.MonkeyPatch.context() as patch:  # only Spark can read DDL
        patch.setattr(StructType, "fromDDL", lambda ddl: StructType().add("k", LongType()))
        shape = _Shape.of(made, {"k": LongType()})
    return _Call(operator=made.name, function=made.function, arguments={}, keys=made.keys, batch=made.batch,
                 columns=("k", SEQUENCE_ID, POSITION), restore=reader_of(state), shape=shape)  # fmt: skip


def rows_of(*ids: int) -> pa.Table:
    places = pa.array([{"block": 0, "row": 0}] * len(ids), pa.struct([("block", pa.int64()), ("row", pa.int64())]))
    return pa.table({"k": pa.array([1] * len(ids)), SEQUENCE_ID: pa.array(ids, pa.int64()), POSITION: places})


def states(made: pa.Table) -> list[dict[str, Any]]:
    kept = made.filter(pc.equal(made[_WHAT], 1))
    names = [name for name in kept.column_names if name.startswith("kept.")]
    return [{name.removeprefix("kept."): row[name] for name in names} for row in kept.select(names).to_pylist()]


def before_of(call: _Call, made: pa.Table | None) -> pa.Table:
    """Return the stored state that the next group finds after a call's output; None: the initial state."""
    names = [name for name in call(rows_of(), pa.table({})).column_names if name.startswith("kept.")]
    if made is None:
        made = call(rows_of(), pa.table({})).slice(0, 0)
    last = made.filter(pc.equal(made[_WHAT], 1)).select(names)
    last = last.slice(max(0, last.num_rows - 1))
    return last.rename_columns([name.removeprefix("kept.") for name in names])


def in_groups(function: Any, state: type, *groups: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return the states of every id, processed in the given groups."""
    call, made, found = call_of(function, state), None, []
    for ids in groups:
        made = call(rows_of(*ids), before_of(call, made))
        found += states(made)
    return found


@pytest.mark.parametrize(
    "first",
    [
        Kept(n=2, x=3.0),
        Kept(n=np.int64(2), x=np.float32(0.5), at=pd.Timestamp(NOON)),  # type: ignore[arg-type]
        Kept(x=float("nan"), at=pd.NaT),  # type: ignore[arg-type]
        Kept(x=7, n=4.0, last=[1, 2], seen={(1, 2): 3}),  # type: ignore[arg-type]
        Kept(day=dt.date(2026, 1, 1), price=decimal.Decimal("1.5"), at=NOON.astimezone(EAST)),
        Kept(places=[Place(at=NOON), Place(x=0.1)], seen={}, last=()),
    ],
    ids=str,
)
def test_the_next_id_finds_what_the_next_group_would(first: Kept) -> None:
    """The state has the same types and values; a mapping may have tuples as keys."""
    found: list[Any] = []

    def keep(state: Any, rows: pa.Table) -> Any:
        found.append(state)
        return state if state is not None else first, None

    together = in_groups(keep, Kept, (1, 2))
    (_, in_group), found[:] = found, []
    apart = in_groups(keep, Kept, (1,), (2,))
    assert repr(together) == repr(apart)
    assert repr(in_group) == repr(found[1])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 1.5), ("n", 2**63), ("n", "2"), ("day", NOON), ("at", NAIVE), ("at", 5),
        ("at", np.datetime64("2026-01-01T12:00", "ns")), ("at", pd.Timestamp(NOON) + pd.Timedelta(1, "ns")),
        ("price", decimal.Decimal("1e-19")), ("last", {1, 2}), ("last", (1, 2.5)), ("seen", {(1,): "x"}),
        ("seen", {(0.5,): 1.0}), ("places", [Place(at=NAIVE)]),
    ],
    ids=str,
)  # fmt: skip
def test_a_value_that_its_column_would_change_is_refused_by_operator_and_field(field: str, value: Any) -> None:
    def keep(state: Any, rows: pa.Table) -> Any:
        return Kept(**{field: value}), None

    with pytest.raises(ValueError, match="operator 'keep'") as refused:
        in_groups(keep, Kept, (1,))
    assert f"field {field!r}" in str(refused.value)


def test_nothing_where_the_default_would_come_back_is_refused() -> None:
    with pytest.raises(ValueError, match="field 'n'"):
        in_groups(lambda state, rows: (Total(n=None), None), Total, (1,))  # type: ignore[arg-type]


def test_a_total_that_cannot_be_kept_is_not_added_up_within_a_group() -> None:
    """Otherwise 1.5 and 1.5 would be 3 in one group, and 2 in two groups."""

    def total(state: Any, rows: pa.Table) -> Any:
        state = state or Total()
        state.n += 1.5
        return state, None

    for groups in (((1, 2),), ((1,), (2,))):
        with pytest.raises(ValueError, match=r"1\.5 would become 1"):
            in_groups(total, Total, *groups)
