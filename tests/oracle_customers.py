"""Messages for `customers`, and its tables in plain Python, from the messages alone."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

Row = dict[str, Any]


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


def customers(messages: Iterable[bytes]) -> Mapping[str, list[Row]]:
    """Return the tables `customers`, `customer_history` and `customers_by_country`, sorted by their keys.

    Args:
        messages: without a schema; credits are texts. Of two changes of a customer at one place, the later one counts.
    """
    changes: dict[int, dict[int, Row | None]] = {}
    for text in messages:
        told = json.loads(text)
        if told is None:
            continue
        row = told["before"] if told["op"] == "d" else told["after"]
        value = None if told["op"] == "d" else {**row, "credit": Decimal(row["credit"])}
        changes.setdefault(row["id"], {})[told["source"]["lsn"]] = value
    now, history = [], []
    for _, found in sorted(changes.items()):
        states = sorted(found.items())
        if (last := states[-1][1]) is not None:
            now.append(last)
        history += _versions(states)
    countries: dict[str, Row] = {}
    for row in now:
        entry = countries.setdefault(row["country"], {"country": row["country"], "customers": 0, "credit": Decimal(0)})
        entry["customers"] += 1
        entry["credit"] += row["credit"]
    return {
        "customers": now,
        "customer_history": history,
        "customers_by_country": [countries[name] for name in sorted(countries)],
    }


def _versions(states: list[tuple[int, Row | None]]) -> list[Row]:
    """Return the versions of a customer: changes that change nothing begin none."""
    found: list[Row] = []
    for place, row in states:
        current = found[-1] if found and found[-1]["is_current"] else None
        if current is not None and row is not None and all(current[name] == row[name] for name in row):
            continue
        if current is not None:
            current |= {"valid_to": place, "is_current": False}
        if row is not None:
            found.append({**row, "valid_from": place, "valid_to": None, "is_current": True})
    return found
