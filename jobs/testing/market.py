"""Trades and quotes of made-up symbols in the form of a real feed, for the demo, tests and benchmarks: one seed.

A file depends only on (seed, number) and its sizes. Prices walk at random; some quotes ask less than was paid, and
some records are as broken as those of the real feed.
"""

from __future__ import annotations

import datetime as dt
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HEADER = (
    "#RIC,Date[G],Time[G],GMT Offset,Type,Ex/Cntrb.ID,Price,Volume,VWAP,Buyer ID,Bid Price,Bid Size,No. Buyers,"
    "Seller ID,Ask Price,Ask Size,No. Sellers,Qualifiers,Seq. No.,Exch Time,Block Trd,Floor Trd,PE Ratio,Yield,"
    "New Price,New Vol,New Seq.No,Bid Imp.Vol,Ask Imp.Vol,Imp. Vol."
)
"""The first line of every file."""

START = dt.datetime(2005, 12, 27, 14, 30, tzinfo=dt.UTC)
FILE_SPAN = dt.timedelta(minutes=5)

_COLUMNS = HEADER.split(",")
_TRADES = 0.25
_UNPRICED = 0.04
_WITHOUT_ASK = 0.02
_LAST_DIGITS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketFile:
    """One generated file.

    Attributes:
        name: `market-<number:04d>.csv`.
        lines: the records in their order, without header and line ends.
        unpriced: trades among them without price and volume.
    """

    name: str
    lines: tuple[str, ...]
    unpriced: int

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in (HEADER, *self.lines))

    def write(self, folder: Path) -> Path:
        """Write the file under another name, then rename it: a scan sees all of it or nothing."""
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f".{self.name}.unfinished"
        unfinished.write_text(self.text)
        os.replace(unfinished, folder / self.name)
        return folder / self.name


def generate_market(
    *, seed: int = 1, files: int = 6, records_per_file: int = 500, symbols: int = 40, start: dt.datetime = START
) -> Iterator[MarketFile]:
    """Yield files of trades and quotes, five minutes each.

    Args:
        seed: of all random values.
        records_per_file: trades and quotes together, about one to three.
        symbols: their number; a few of them have most of the records.
        start: UTC, of the first file.
    """
    for number in range(files):
        yield _file(seed, number, records_per_file, symbols_of(seed, symbols), start + number * FILE_SPAN)


def symbols_of(seed: int, count: int) -> tuple[str, ...]:
    """Return the names of this seed's symbols, the busiest first: four letters with Z first, rare among real ones."""
    chance = random.Random(f"{seed}/symbols")
    names: dict[str, None] = {}
    while len(names) < count:
        names["Z" + "".join(chance.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=3))] = None
    return tuple(names)


def _file(seed: int, number: int, count: int, symbols: Sequence[str], start: dt.datetime) -> MarketFile:
    chance = random.Random(f"{seed}/{number}/{count}/{len(symbols)}")
    weights = [1 / (rank + 1) for rank in range(len(symbols))]
    levels = {symbol: random.Random(f"{seed}/{symbol}").uniform(5, 120) for symbol in symbols}
    lines, unpriced = [], 0
    for place, symbol in enumerate(chance.choices(symbols, weights, k=count)):
        moment = start + place * FILE_SPAN / count
        levels[symbol] = max(1.0, levels[symbol] + chance.gauss(0, 0.02))
        record = {"#RIC": symbol, "Date[G]": moment.strftime("%d-%b-%Y").upper(), "GMT Offset": "-5"}
        record["Time[G]"] = f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"
        if chance.random() >= _TRADES:
            record.update(_quote(chance, levels[symbol]))
        elif chance.random() < _UNPRICED:
            record.update(Type="Trade", Yield=str(round(chance.uniform(0, 8), _LAST_DIGITS)))
            unpriced += 1
        else:
            shares = str(100 * chance.randint(1, 40))
            record.update(Type="Trade", Price=str(round(levels[symbol], _LAST_DIGITS)), Volume=shares)
        lines.append(",".join(record.get(column, "") for column in _COLUMNS))
    return MarketFile(name=f"market-{number:04d}.csv", lines=tuple(lines), unpriced=unpriced)


def _quote(chance: random.Random, level: float) -> dict[str, str]:
    """Return a quote around the level; one in six or so asks less."""
    ask = str(round(level + chance.gauss(0.05, 0.05), _LAST_DIGITS))
    asked = {} if chance.random() < _WITHOUT_ASK else {"Ask Price": ask, "Ask Size": str(chance.randint(1, 90))}
    bid = str(round(level - abs(chance.gauss(0.05, 0.05)), _LAST_DIGITS))
    return {"Type": "Quote", "Bid Price": bid, "Bid Size": str(chance.randint(1, 90)), **asked}


def write_market(
    folder: Path, *, seed: int = 1, files: int = 6, records_per_file: int = 500, symbols: int = 40
) -> tuple[MarketFile, ...]:
    """Write the files of `generate_market` into a folder and return them, in their order."""
    made = tuple(generate_market(seed=seed, files=files, records_per_file=records_per_file, symbols=symbols))
    for file in made:
        file.write(folder)
    return made
