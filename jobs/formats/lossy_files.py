"""Files without a record a line: one with a value that Spark's parsers would change is refused whole."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from drainmark.jobs.formats.bad_records import Refused
from drainmark.jobs.formats.csv import records_of

if TYPE_CHECKING:
    from drainmark.jobs.formats.expected import Expected


def check_values(pieces: Iterable[bytes], expected: Expected) -> None:
    """Look through a file of CSV or JSON.

    Args:
        pieces: its bytes, decompressed.

    Raises:
        Refused: names the first record of which Spark's parser would change a value.
    """
    lossless, is_json = expected.lossless, expected.format == "json"
    if not is_json and not (expected.format == "csv" and lossless.matters_in_csv):
        return
    try:
        decoder = codecs.getincrementaldecoder(expected.encoding or "UTF-8")()
    except LookupError:
        return  # one that Java knows and Python does not: left to Spark
    records = _records_in((decoder.decode(piece) for piece in pieces), expected)
    for number, record in enumerate(records, 1):
        if number == 1 and expected.header is not None:
            continue
        fault = lossless.fault_of_json(record) if is_json else lossless.fault_of_csv(record, expected.dialect)
        if fault is not None:
            raise Refused(f"has a record that cannot be read as it is, number {number}: {fault}")


def _records_in(pieces: Iterator[str], expected: Expected) -> Iterator[str]:
    """Yield the records: a JSON document, CSV records that may hold line ends, or what ends as the options say."""
    if expected.has_multiline:
        text = "".join(pieces).removeprefix("\ufeff")
        yield from [text] if expected.format == "json" else records_of(text, expected.dialect)
        return
    rest, end = "", expected.options.get("linesep", "\n")
    for piece in pieces:
        *whole, rest = (rest + piece).split(end)
        yield from (record.strip("\r\ufeff") for record in whole if record.strip())
    if rest.strip():
        yield rest.strip("\r\ufeff")
