"""The application `customers` over changes in any order, in any grouping, rewound: the tables of an oracle."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from oracle_customers import customers

from drainmark.jobs.apps import customers as module
from drainmark.orchestration.testing.running import Result

pytestmark = pytest.mark.spark


def drawn(seed: int, count: int) -> list[bytes]:
    """Return changes of few customers; some come late, some twice, and each delete has a tombstone behind it."""
    chosen = random.Random(seed)
    messages: list[bytes] = []
    for place in range(count):
        number, op = chosen.randrange(6), chosen.choice("ccuud")
        row = {"id": number, "name": chosen.choice("ab"), "country": chosen.choice(["DE", "FR"]),
               "credit": f"{chosen.randrange(100)}.50"}  # fmt: skip
        sides = {"before": {"id": number}, "after": None} if op == "d" else {"before": None, "after": row}
        told = {**sides, "op": op, "source": {"lsn": place, "ts_ms": 1767261600000 + place}}
        messages.append(json.dumps(told).encode())
        messages += [b"null"] if op == "d" else []
    late = [chosen.randrange(len(messages)) for _ in range(count // 8)]
    for place in late:
        messages.insert(chosen.randrange(len(messages)), messages[place])
        messages.append(messages.pop(chosen.randrange(len(messages))))
    return messages


def tables(result: Result) -> dict[str, list[dict[str, Any]]]:
    names = ("customers", "customer_history", "customers_by_country")
    return {name: result.sink(name) for name in names}


@pytest.mark.parametrize(("seed", "group"), [(1, 1), pytest.param(2, 3, marks=pytest.mark.slow)])
def test_the_tables_are_those_of_an_oracle_on_each_state(run_app: Callable[..., Result], seed: int, group: int) -> None:
    messages = drawn(seed, 60)
    size = -(-len(messages) // 5)
    files = {f"{at:03}.jsonl": b"\n".join(messages[at : at + size]) + b"\n" for at in range(0, len(messages), size)}
    result = run_app(module.__file__, files, max_group=group)
    assert tables(result) == customers(messages)
    result.rewind(2)
    assert tables(result) == customers(messages[: 2 * size])
    result.run()
    assert tables(result) == customers(messages)
    assert not result.quarantine()
