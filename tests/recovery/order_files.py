"""Files of orders, the input of most graphs; and the expected rows of sinks, in plain Python."""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import postgres

if TYPE_CHECKING:
    from scene import Scene

FILES = 5

Row = dict[str, Any]


def add_orders(scene: Scene, seed: int = 11) -> None:
    """Write the files of orders of a scene; all of them are triggers."""
    chance = random.Random(seed)
    for number in range(FILES):
        scene.add(scene.folder / "orders" / f"orders-{number:03d}.csv", orders_text(chance))


def orders_text(chance: random.Random, count: int = 12) -> str:
    """Return the text of a file of orders; some have no positive amount, and items have upper or lower case."""
    names = ("ann", "bob", "cy", "dee", "eve")
    items = ("tea", "Tea", "salt", "RICE", "rice", "oil")
    rows = [f"{chance.choice(names)},{chance.choice(items)},{chance.randrange(-5, 50)}\n" for _ in range(count)]
    return "".join(rows)


def payments_text(chance: random.Random) -> str:
    """Return the text of a file of payments."""
    return "".join(f"acc{chance.randrange(3)},{chance.randrange(100)}\n" for _ in range(4))


def orders_of(path: Path) -> list[Row]:
    """Return the rows of a file, in its order."""
    with path.open(newline="") as file:
        return [{"customer": name, "item": item, "amount": int(amount)} for name, item, amount in csv.reader(file)]


def numbered(files: Sequence[Sequence[Row]]) -> Iterator[list[Row]]:
    """Yield the rows of each file, sorted and numbered through all files, as `gates.slow_at` does."""
    place = 0
    for rows in files:
        ordered = sorted(rows, key=lambda row: tuple(row.values()))
        yield [{"place": place + number, **row} for number, row in enumerate(ordered)]
        place += len(rows)


def orders_oracle(files: Sequence[Path]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return the rows of both sinks after these files, in plain Python; each change of an item's total is a row."""
    customers: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    changes: list[Row] = []
    for path in files:
        changed = set()
        for row in orders_of(path):
            customer, amount, name = row["customer"], row["amount"], row["item"].upper()
            if amount > 0:
                customers[customer] = [customers[customer][0] + 1, customers[customer][1] + amount]
            totals[name] = [totals[name][0] + 1, totals[name][1] + amount]
            changed.add(name)
        changes += [{"item": item, "orders": totals[item][0], "amount": totals[item][1]} for item in sorted(changed)]
    rows = [{"customer": name, "orders": count, "amount": amount} for name, (count, amount) in customers.items()]
    return {"two_customers": rows, "two_item_changes": changes}


def shop() -> dict[str, Any]:
    """Return settings with a database `shop` for sinks outside Delta: in PostgreSQL if the run has chosen it."""
    server = postgres.chosen_server()
    url = server.new_database() if server is not None else "sqlite:///{home}/shop.db"
    return {"databases": {"shop": url}}
