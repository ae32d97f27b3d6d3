"""Vwap: mean prices by volume, and bargains. Reads trades and quotes of many symbols.

The classic of stream processing: each trade with the volume-weighted average price of its symbol's last four
trades, and each quote that asks less than the average of the last trade before it. Files are read in the order of their
names and records in the order of the file, also if their times are in another; the last trades of a symbol carry over
from file to file. A record that is neither, has no moment, or is a trade without price or volume, goes into quarantine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

WINDOW = 4
"""Number of trades of a symbol in an average."""

RECORD = """
    `#RIC` string, `Date[G]` string, `Time[G]` string, `GMT Offset` int, `Type` string, `Ex/Cntrb.ID` string,
    `Price` double, `Volume` bigint, `VWAP` string, `Buyer ID` string, `Bid Price` double, `Bid Size` bigint,
    `No. Buyers` string, `Seller ID` string, `Ask Price` double, `Ask Size` bigint, `No. Sellers` string,
    `Qualifiers` string, `Seq. No.` string, `Exch Time` string, `Block Trd` string, `Floor Trd` string,
    `PE Ratio` string, `Yield` string, `New Price` string, `New Vol` string, `New Seq.No` string,
    `Bid Imp.Vol` string, `Ask Imp.Vol` string, `Imp. Vol.` string
"""
"""The columns of the feed; its header must have these names. `Date[G]` and `Time[G]` are UTC, `27-DEC-2005` and
`14:30:02.123`."""

TICK = "symbol string, at timestamp, is_trade boolean, price double, volume bigint, ask_price double, ask_size bigint"


@dataclass
class LastTrades:
    """The last four trades of a symbol, oldest first: prices in dollars, volumes in shares."""

    prices: list[float]
    volumes: list[int]


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="inbox", pattern="*.csv*", format="csv", schema=RECORD, options={"header": "true"}))
def records(scanned: DataFrame) -> DataFrame:
    """One row per record, with the columns of the feed."""
    return scanned


def happened_at() -> Column:
    """Return a record's moment, UTC; null if it has none."""
    return F.try_to_timestamp(F.concat_ws(" ", "`Date[G]`", "`Time[G]`"), F.lit("dd-MMM-yyyy HH:mm:ss.SSS"))


def fault() -> Column:
    """Return the fault of a record; null for a good one."""
    is_unpriced = F.col("Price").isNull() | F.col("Volume").isNull()
    return (
        F.when(F.col("Type").isNull() | ~F.col("Type").isin("Trade", "Quote"), "neither a trade nor a quote")
        .when(F.col("`#RIC`").isNull(), "no symbol")
        .when(happened_at().isNull(), "no moment")
        .when((F.col("Type") == "Trade") & is_unpriced, "a trade without a price or a volume")
    )


@dm.functor
def faulty(records: DataFrame) -> DataFrame:
    """Keep the records that cannot be used, with the reason."""
    return records.withColumn("reason", fault()).where(F.col("reason").isNotNull())


@dm.functor
def ticks(records: DataFrame) -> DataFrame:
    """Return the good trades, and the quotes that ask a price; as `TICK`."""
    is_trade = F.col("Type") == "Trade"
    return dm.select(
        records.where(fault().isNull() & (is_trade | F.col("Ask Price").isNotNull())),
        F.col("`#RIC`").alias("symbol"),
        happened_at().alias("at"),
        is_trade.alias("is_trade"),
        F.col("Price").alias("price"),
        F.col("Volume").alias("volume"),
        F.col("Ask Price").alias("ask_price"),
        F.col("Ask Size").alias("ask_size"),
    )


# A stage of its own: the next files are parsed while the averages of the last ones are computed.
@dm.custom(keys=["symbol"], state=LastTrades, output=f"{TICK}, vwap double", batch="arrow", inputs=[dm.buffered(ticks)])
def valued(state: LastTrades | None, ticks: pa.Table) -> tuple[LastTrades | None, pa.Table]:
    """Add to each tick of a symbol the average at its last trade (a trade is its own last); null before the first."""
    import numpy as np
    import pyarrow as pa

    is_trade = ticks["is_trade"].to_numpy()
    old = state or LastTrades([], [])
    prices = np.concatenate([old.prices, ticks["price"].to_numpy()[is_trade]])
    volumes = np.concatenate([old.volumes, ticks["volume"].to_numpy()[is_trade]])
    last = len(old.prices) - 1 + np.cumsum(is_trade)  # index of the last trade at each tick, -1 for none
    averages = np.append(moving_averages(prices, volumes), np.nan)
    vwap = pa.array(averages[last], pa.float64(), from_pandas=True)
    state = LastTrades(prices[-WINDOW:].tolist(), [int(volume) for volume in volumes[-WINDOW:]])
    return state if len(prices) else None, ticks.append_column("vwap", vwap)


def moving_averages(prices: np.ndarray, volumes: np.ndarray) -> np.ndarray:
    """Return at each trade the volume-weighted mean of it and up to three before it; NaN if their volumes are zero.

    Summed from the oldest on, so that it does not matter how many trades came before.
    """
    import numpy as np

    before = np.zeros(WINDOW - 1)
    values, shares = np.append(before, prices * volumes), np.append(before, volumes)
    count = len(prices)
    value = sum(values[place : place + count] for place in range(WINDOW))
    total = sum(shares[place : place + count] for place in range(WINDOW))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(value / total)


@dm.functor
def trades(valued: DataFrame) -> DataFrame:
    """Return the trades, each with the average of the last trades including it."""
    made = valued.where("is_trade")
    return dm.select(made, "symbol", F.col("at").alias("traded_at"), "price", "volume", "vwap")


@dm.functor
def bargains(valued: DataFrame) -> DataFrame:
    """Return the quotes that ask less than the average; `bargain_index` is the size times e to the difference."""
    asked = valued.where("not is_trade and vwap > ask_price")
    return dm.select(
        asked,
        "symbol",
        F.col("at").alias("quoted_at"),
        "ask_price",
        "ask_size",
        "vwap",
        (F.col("ask_size") * F.exp(F.col("vwap") - F.col("ask_price"))).alias("bargain_index"),
    )


dm.quarantine(faulty)
dm.sink(trades, dm.DeltaAppend("vwap_trades"))
dm.sink(bargains, dm.DeltaAppend("vwap_bargains"))
