"""Card payments and public warnings, for `bank_alerts` and its tests: made up, one seed.

A file depends only on (seed, number), so that a call for more files changes none of the others.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

START = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
PLACES = ("harbour", "market", "old town", "station", "stadium", "airport")
_MERCHANTS = ("bakery", "books", "fuel", "hotel", "phone shop", "tickets")
_TEXTS = {0: "all clear", 1: "crowded", 2: "card readers tampered with", 3: "cards are being cloned"}
_FILE_SPAN = dt.timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A card payment; `at` is UTC, whole seconds."""

    transaction_id: int
    account: str
    merchant: str
    place: str
    amount: Decimal
    at: dt.datetime

    def to_csv(self) -> str:
        """Return the line of a file, in the columns of `bank_alerts`."""
        at = self.at.strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"{self.transaction_id},{self.account},{self.merchant},{self.place},{self.amount},{at}\n"


def transaction_file(number: int, *, seed: int = 1, rows: int = 40, accounts: int = 12) -> tuple[Transaction, ...]:
    """Return the payments of the file of that number (from 0), in the order of time.

    >>> [payment.transaction_id for payment in transaction_file(2, rows=3)]
    [6, 7, 8]
    """
    chance = random.Random(f"{seed}/transactions/{number}")
    begin = START + number * _FILE_SPAN
    moments = sorted(chance.randrange(int(_FILE_SPAN.total_seconds())) for _ in range(rows))
    return tuple(
        Transaction(
            transaction_id=number * rows + place,
            account=f"acc{chance.randrange(accounts):03d}",
            merchant=chance.choice(_MERCHANTS),
            place=chance.choice(PLACES),
            amount=Decimal(chance.randrange(100, 50_000)) / 100,
            at=begin + dt.timedelta(seconds=moment),
        )
        for place, moment in enumerate(moments)
    )


def warning_file(number: int, *, seed: int = 1, rows: int = 4) -> tuple[dict[str, Any], ...]:
    """Return the warnings of the file of that number, the later ones overriding the earlier: place, level, text."""
    chance = random.Random(f"{seed}/warnings/{number}")
    levels = (chance.choice((0, 1, 2, 3)) for _ in range(rows))
    return tuple({"place": chance.choice(PLACES), "level": level, "text": _TEXTS[level]} for level in levels)


def bank_files(count: int, *, seed: int = 1, rows: int = 40) -> Iterator[tuple[str, str, str]]:
    """Yield (number, transactions as CSV, warnings as JSON lines), turn by turn."""
    for number in range(count):
        payments = "".join(payment.to_csv() for payment in transaction_file(number, seed=seed, rows=rows))
        posts = "".join(json.dumps(post) + "\n" for post in warning_file(number, seed=seed))
        yield f"{number:04d}", payments, posts
