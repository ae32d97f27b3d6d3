"""The expected sinks of `vwap`, in plain Python: no Spark, no numpy, nothing of `jobs`."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
Row = dict[str, Any]


def records(path: Path) -> Iterator[dict[str, str]]:
    """Yield the records of a file, gzipped or not, in their order."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    yield from csv.DictReader(io.StringIO(text, newline=""))


def moment(record: dict[str, str]) -> dt.datetime:
    day, month, year = record["Date[G]"].split("-")
    clock = dt.time.fromisoformat(record["Time[G]"])
    return dt.datetime.combine(dt.date(int(year), MONTHS.index(month) + 1, int(day)), clock, tzinfo=dt.UTC)


def vwap(files: Sequence[Path]) -> dict[str, list[Row]]:
    """Return the rows of both sinks and the quarantine after these files, in record order; file n has id n."""
    last: defaultdict[str, deque[tuple[float, int]]] = defaultdict(lambda: deque(maxlen=4))
    trades: list[Row] = []
    bargains: list[Row] = []
    refused: list[Row] = []
    for number, path in enumerate(files, 1):
        for place, record in enumerate(records(path), 1):
            symbol, asked = record["#RIC"], record["Ask Price"]
            seen = {"_sequence_id": number, "symbol": symbol}
            if record["Type"] == "Trade" and not (record["Price"] and record["Volume"]):
                why = "a trade without a price or a volume"
                refused.append({"_sequence_id": number, "source_file": str(path), "position": place, "reason": why})
            elif record["Type"] == "Trade":
                last[symbol].append((float(record["Price"]), int(record["Volume"])))
                price, volume = last[symbol][-1]
                trades.append({**seen, "traded_at": moment(record), "price": price, "volume": volume,
                               "vwap": average(last[symbol])})  # fmt: skip
            elif record["Type"] == "Quote" and asked and last[symbol] and average(last[symbol]) > float(asked):
                mean, size = average(last[symbol]), int(record["Ask Size"]) if record["Ask Size"] else None
                index = size * math.exp(mean - float(asked)) if size is not None else None
                bargains.append({**seen, "quoted_at": moment(record), "ask_price": float(asked), "ask_size": size,
                                 "vwap": mean, "bargain_index": index})  # fmt: skip
    return {"vwap_trades": trades, "vwap_bargains": bargains, "vwap_quarantine": refused}


def average(trades: deque[tuple[float, int]]) -> float:
    return sum(price * volume for price, volume in trades) / sum(volume for _, volume in trades)
