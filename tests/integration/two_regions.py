"""The application `two_regions` over files of orders, without Spark (`hand_runs`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hand_runs import gives
from harness import LONG_AGO

from drainmark.orchestration.workplace.workplace import Opened, open_application

APP = Path(__file__).parents[1] / "recovery" / "apps" / "two_regions.py"
REGION = "two_regions/orders"
SINKS = ("two_customers", "two_item_changes")


def paid(orders: Any) -> Any:
    return [row for row in orders if row["amount"] > 0]


@gives("item string, amount bigint")
def items(orders: Any) -> Any:
    return [{"item": row["item"].upper(), "amount": row["amount"]} for row in orders]


BY_HAND = {"paid": paid, "items": items}


def write_orders(folder: Path, number: int) -> Path:
    """Write a file of orders, with one customer that no other file has."""
    path = folder / "orders" / f"{number}.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"ann,tea,{number}\nbob,salt,{number + 1}\nc{number},tea,2\n")
    os.utime(path, (LONG_AGO, LONG_AGO))
    return path


def reading(folder: Path) -> Opened:
    """Return the application that reads the orders of a folder."""
    return open_application(str(APP), inputs=[f"orders={folder / 'orders'}", f"payments={folder / 'orders'}"])
