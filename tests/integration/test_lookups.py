"""Lookups with a schema: the table may be made later, and must then have the columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from harness import rows, run_once, settle

import drainmark as dm
from drainmark.jobs.errors import OperatorFailed, UnknownName
from drainmark.jobs.protocol.history import manifest_of
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application

pytestmark = pytest.mark.spark

PRICES = "item string, cents bigint"


def priced(inbox: Path, schema: str | None = PRICES, table: str = "prices") -> Opened:
    """Open an application that looks up the prices of items."""
    with dm.application("priced") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), format="csv", schema="item string", settle=0))
        def sold(scanned: Any) -> Any:
            return scanned

        prices = dm.lookup(table, schema=schema, name="prices")
        named = dm.functor(
            lambda sold, prices: dm.select(sold.join(prices, "item", "left"), "item", *prices.columns[1:]),
            name="named", inputs=[sold, prices], vectorised=True,
        )  # fmt: skip
        dm.sink(named, dm.DeltaAppend("sold"))
    return open_application(dm.build_application(declared))


@pytest.fixture
def sell(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a file of one item, and returns the inbox."""

    def write(item: str) -> Path:
        inbox = tmp_path / "inbox"
        inbox.mkdir(exist_ok=True)
        (inbox / f"{item}.csv").write_text(f"{item}\n")
        settle(inbox)
        return inbox

    return write


def write_prices(workplace: Workplace, **columns: pa.Array) -> None:
    path = str(workplace.home / "lake" / "prices")
    write_deltalake(path, pa.table(columns), mode="overwrite", schema_mode="overwrite")


@pytest.mark.seed("V53")
def test_a_table_that_is_made_later_is_looked_up_from_then_on(
    workplace: Workplace, sell: Callable[[str], Path]
) -> None:
    """Columns beside the schema, here one with the name of a tag, are not part of the rows, whatever their order."""
    application = priced(sell("cup"))
    run_once(workplace, application)
    tea, cents = pa.array(["tea", "cup"]), pa.array([450, 700])
    write_prices(workplace, cents=cents, _sequence_id=cents, item=tea, stock=pa.array([1, 2]))
    sell("tea")
    run_once(workplace, application)
    found = sorted((row["item"], row["cents"]) for row in rows(workplace, "priced/sold", "sold", ids=False))
    assert found == [("cup", None), ("tea", 450)]
    states = workplace.history("priced/sold").states
    manifests = [manifest_of(states[number]) for number in sorted(states)]
    assert [manifest.lookups or {} for manifest in manifests if manifest] == [{}, {"prices": 0}]


def test_a_table_that_is_not_there_is_told_with_the_nearest(workplace: Workplace, sell: Callable[[str], Path]) -> None:
    write_prices(workplace, item=pa.array(["tea"]), cents=pa.array([450]))
    with pytest.raises(UnknownName) as refused:
        run_once(workplace, priced(sell("cup"), None, "prces"))
    assert (refused.value.remedy or "").startswith("did you mean 'prices'?; or make it first")


@pytest.mark.parametrize("schema", [PRICES, None])
def test_a_table_is_looked_up_by_its_address(
    workplace: Workplace, sell: Callable[[str], Path], schema: str | None
) -> None:
    write_prices(workplace, item=pa.array(["tea"]), cents=pa.array([450]))
    opened = priced(sell("tea"), schema, f"file://{workplace.home}/lake/prices")
    run_once(workplace, opened)
    assert [row["cents"] for row in rows(workplace, "priced/sold", "sold", ids=False)] == [450]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"item": pa.array(["tea"]), "cents": pa.array(["450"])}, "cents is string instead of bigint"),
        ({"item": pa.array(["tea"])}, "cents is missing instead of bigint"),
    ],
)
def test_a_table_with_other_columns_than_the_schema_is_refused(
    workplace: Workplace, sell: Callable[[str], Path], columns: dict[str, pa.Array], said: str
) -> None:
    application = priced(sell("cup"))
    run_once(workplace, application)
    write_prices(workplace, **columns)
    sell("tea")
    with pytest.raises(OperatorFailed) as refused:
        run_once(workplace, application)
    assert refused.value.operator == "prices"
    assert said in str(refused.value)
    assert "struct<item:string" in str(refused.value.remedy)
    assert len(workplace.history("priced/sold").states) == 1
    write_prices(workplace, item=pa.array(["tea"]), cents=pa.array([450]))
    run_once(workplace, application)
    assert {(row["item"], row["cents"]) for row in rows(workplace, "priced/sold", "sold")} == {
        ("cup", None),
        ("tea", 450),
    }


@pytest.mark.parametrize(
    "schema",
    [
        "item",
        "string",
        "item string, item2 strin",
        "item string, Item string",
        "item varchar(9)",
        "item string, _sequence_id bigint",
    ],
)
def test_a_schema_that_no_rows_can_have_is_refused(
    workplace: Workplace, sell: Callable[[str], Path], schema: str
) -> None:
    with pytest.raises(OperatorFailed) as refused:
        run_once(workplace, priced(sell("cup"), schema))
    assert refused.value.operator == "prices"
    assert repr(schema) in str(refused.value)
