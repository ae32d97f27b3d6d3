"""Enron: one e-mail per file, how many words it has, and how often each word was written so far.

A word is a maximal run of ASCII letters, lower-cased, anywhere in the file: headers count, MIME is not decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORD = "[A-Za-z]+"


@dm.consistent(trigger="operator-driven")
@dm.source(
    dm.DirectoryScan(path="inbox", pattern="*.txt", format="text", options={"wholetext": "true"}, recursive=True)
)
def messages(scanned: DataFrame) -> DataFrame:
    """One row per file: `value` is its whole text. An empty file has no row, since Spark skips it."""
    return scanned


@dm.functor
def tokens(messages: DataFrame) -> DataFrame:
    """Row-wise: `source_file` and the array of the message's words in the order of the text."""
    # The letters are found before they are lower-cased: lower-casing first turns the Kelvin sign into an ASCII k.
    found = F.regexp_extract_all("value", F.lit(WORD), 0)
    return dm.select(messages, "source_file", F.transform(found, F.lower).alias("tokens"))


@dm.functor
def words(tokens: DataFrame) -> DataFrame:
    """One row for each occurrence of a word."""
    return dm.select(tokens, F.explode("tokens").alias("word"))


@dm.functor
def sizes(tokens: DataFrame) -> DataFrame:
    """One row per message: `source_file` and its number of words."""
    return dm.select(tokens, "source_file", F.size("tokens").cast("bigint").alias("words"))


counts = dm.aggregate(words, keys=["word"], values={"count": dm.count()}, name="counts")

dm.sink(counts, dm.DeltaUpsert("enron_words", keys=["word"]))
dm.sink(sizes, dm.DeltaAppend("enron_messages"))
