"""Enron by folder: five file sources in one region with a period, and how often each word was written so far.

Words are defined as in `enron_ds`. Every source reads the messages of its folder, one per file; a state has all that
the sources found in a period.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import drainmark as dm
from drainmark import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORD = "[A-Za-z]+"
PERIOD = 2.0
FOLDERS = {"first": "1/*.txt", "fourth": "4/*.txt", "fifth": "5/*.txt", "sixth": "6/*.txt", "last": "[78]/*.txt"}


def folder(pattern: str) -> dm.DirectoryScan:
    """Return the scan of one source."""
    return dm.DirectoryScan(path="inbox", pattern=pattern, format="text", options={"wholetext": "true"}, recursive=True)


@dm.consistent(trigger="periodic", period=PERIOD)
@dm.source(folder(FOLDERS["first"]))
def first(scanned: DataFrame) -> DataFrame:
    """Messages of folder 1."""
    return scanned


@dm.consistent(trigger="periodic", period=PERIOD)
@dm.source(folder(FOLDERS["fourth"]))
def fourth(scanned: DataFrame) -> DataFrame:
    """Messages of folder 4."""
    return scanned


@dm.consistent(trigger="periodic", period=PERIOD)
@dm.source(folder(FOLDERS["fifth"]))
def fifth(scanned: DataFrame) -> DataFrame:
    """Messages of folder 5."""
    return scanned


@dm.consistent(trigger="periodic", period=PERIOD)
@dm.source(folder(FOLDERS["sixth"]))
def sixth(scanned: DataFrame) -> DataFrame:
    """Messages of folder 6."""
    return scanned


@dm.consistent(trigger="periodic", period=PERIOD)
@dm.source(folder(FOLDERS["last"]))
def last(scanned: DataFrame) -> DataFrame:
    """Messages of folders 7 and 8."""
    return scanned


@dm.functor
def words(first: DataFrame, fourth: DataFrame, fifth: DataFrame, sixth: DataFrame, last: DataFrame) -> DataFrame:
    """One row for each occurrence of a word, in all folders."""
    found = F.regexp_extract_all("value", F.lit(WORD), 0)
    lowered = F.explode(F.transform(found, F.lower)).alias("word")
    rows = dm.select(first, lowered)
    for messages in (fourth, fifth, sixth, last):
        rows = rows.unionByName(dm.select(messages, lowered))
    return rows


counts = dm.aggregate(words, keys=["word"], values={"count": dm.count()}, name="counts")

dm.sink(counts, dm.DeltaUpsert("enron_fs_words", keys=["word"]))
