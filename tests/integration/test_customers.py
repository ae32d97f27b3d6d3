"""The application `customers` over changes in any order, in any grouping, rewound: the tables of an oracle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from oracle_customers import customers, drawn

import drainmark as dm
from drainmark.jobs.apps import customers as module
from drainmark.orchestration.testing.running import Result

pytestmark = pytest.mark.spark


def tables(result: Result) -> dict[str, list[dict[str, Any]]]:
    names = ("customers", "customer_history", "customers_by_country")
    return {name: result.sink(name) for name in names}


@pytest.mark.parametrize(("seed", "group"), [(1, 1), pytest.param(2, 3, marks=pytest.mark.slow)])
def test_the_tables_are_those_of_an_oracle_on_each_state(run_app: Callable[..., Result], seed: int, group: int) -> None:
    messages = drawn(seed, 60)
    size = -(-len(messages) // (5 if group > 1 else 3))
    files = {f"{at:03}.jsonl": b"\n".join(messages[at : at + size]) + b"\n" for at in range(0, len(messages), size)}
    result = run_app(module.__file__, files, max_group=group)
    assert tables(result) == customers(messages)
    result.rewind(1)
    assert tables(result) == customers(messages[:size])
    result.run()
    assert tables(result) == customers(messages)
    assert not result.quarantine()


def following() -> None:
    @dm.consistent(trigger="operator-driven")
    @dm.source(dm.TableSource("customers", changes=True))
    def changed(scanned: Any) -> Any:
        return scanned.where("_change_type <> 'update_preimage'")

    copied = dm.apply_changes(
        changed,
        keys=["id"],
        sequence_by="_commit_version",
        apply_as_deletes="_change_type = 'delete'",
        except_columns=["_change_type", "_commit_version", "_commit_timestamp"],
        name="copied",
    )
    dm.sink(copied, dm.DeltaUpsert("customers_copy", keys=["id"]))
    dm.sink(changed, dm.DeltaAppend("seen"))


@pytest.mark.seed("CD5")
def test_a_region_that_follows_the_table_has_the_same_rows(run_app: Callable[..., Result], tmp_path: Path) -> None:
    """Deletes upstream are deletes in the copy."""
    messages = drawn(5, 40)
    first, second = (b"\n".join(part) + b"\n" for part in (messages[:20], messages[20:]))
    up = run_app(module.__file__, {"1.jsonl": first}, home=tmp_path / "home")
    down = run_app(following, home=tmp_path / "home").run()
    assert down.sink("customers_copy") == up.sink("customers")
    up.add({"2.jsonl": second}).run()
    down.run()
    assert down.sink("customers_copy") == up.sink("customers") == customers(messages)["customers"]
    assert "delete" in {row["_change_type"] for row in down.sink("seen")}
