"""The job of part `counting`, for us and for streamz: batches of rows through a chain of nodes, counted or not.

It imports only pandas and pyarrow, since `counting_peer.py` runs it in a process that has streamz.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

ROWS = 10_000
_KEYS = 50
_PLAIN_DATA = 20_000
_PARTITION = 4
_TOGETHER = 2 * _PARTITION

Emit = Callable[[Any], None]
"""Puts a datum into a stream; returns when it is through, or when the partition keeps it."""


class Totals:
    """The end of the stream: the number and the sum of its rows, for comparison."""

    def __init__(self) -> None:
        self.rows = 0
        self.total = 0.0

    def add(self, frames: Sequence[pd.DataFrame]) -> None:
        for frame in frames:
            self.rows += int(frame["rows"].sum())
            self.total += float(frame["total"].sum())


def batches(count: int) -> list[pa.Table]:
    """Return batches of `ROWS` rows: `key` int64, `x` double."""
    chance = random.Random(7)
    return [
        pa.table({"key": [chance.randrange(_KEYS) for _ in range(ROWS)], "x": [chance.random() for _ in range(ROWS)]})
        for _ in range(count)
    ]


def narrowed(batch: pa.Table) -> pa.Table:
    return batch.filter(pc.greater(batch["x"], 0.25))


def has_rows(batch: pa.Table) -> bool:
    return batch.num_rows > 0


def summed(batch: pa.Table) -> pd.DataFrame:
    frame = batch.to_pandas()
    return frame.groupby("key").agg(rows=("x", "size"), total=("x", "sum"))


def build(source: Any, totals: Totals) -> None:
    """Connect the nodes of the job to a source, ours or that of streamz."""
    source.map(narrowed).filter(has_rows).map(summed).partition(_PARTITION).sink(totals.add)


def build_plain(source: Any) -> None:
    """Connect the same nodes to a source, with trivial functions."""
    source.map(abs).filter(lambda x: True).map(abs).partition(_PARTITION).sink(len)


def shares(counted: Emit, plain: Emit, data: Sequence[Any], rounds: int) -> list[float]:
    """Return, for each round, the cost of counting as a share of the time without; batch by batch in turns.

    The share of a round is the median of the shares of its sets of `_TOGETHER` batches. A set fills the partition
    twice; each way has the first turn in one of the two. Other load of the machine affects only a few sets.
    """
    found = []
    for number in range(rounds + 1):
        several = []
        for begin in range(0, len(data), _TOGETHER):
            spent = [0.0, 0.0]
            for place, datum in enumerate(data[begin : begin + _TOGETHER]):
                for way in (0, 1) if (place // _PARTITION + number) % 2 else (1, 0):
                    started = time.perf_counter()
                    (plain, counted)[way](datum)
                    spent[way] += time.perf_counter() - started
            several.append(spent[1] / spent[0] - 1)
        found.append(statistics.median(several))
    return found[1:]  # the first one warms up


def seconds_a_datum(counted: Emit, plain: Emit) -> float:
    """Return the seconds that counting adds to a datum, with the same nodes and trivial functions."""
    spent = []
    for emit in (plain, counted, plain, counted):
        started = time.perf_counter()
        for datum in range(_PLAIN_DATA):
            emit(datum)
        spent.append(time.perf_counter() - started)
    return (spent[3] - spent[2]) / _PLAIN_DATA
