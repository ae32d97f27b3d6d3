"""Output of the verbs: results on standard output, everything else on standard error.

Names and values are others' text: control characters in them are written out, whichever way they take.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from drainmark.jobs.errors import DrainmarkError
from drainmark.jobs.printable import printable, printable_cell, printable_json
from drainmark.orchestration.cli.terminal.tables import printed_table


def emit(value: Any) -> None:
    """Write a value as JSON on standard output."""
    sys.stdout.write(printable_json(json.dumps(value, default=_plain, ensure_ascii=False, indent=2)) + "\n")


def say(text: str) -> None:
    """Write a line of a result for people on standard output."""
    sys.stdout.write(f"{printable(text)}\n")


def note(text: str) -> None:
    """Write a remark on standard error."""
    sys.stderr.write(f"{printable(text)}\n")


def waiting(text: str) -> None:
    """Say what takes seconds, to whoever sits at a terminal; logs have what comes of it."""
    if sys.stderr.isatty():
        note(text)


def complain(error: DrainmarkError, *, as_json: bool) -> None:
    """Write an error on standard error, as text or as the error object."""
    text = json.dumps({"error": error.to_json()}, ensure_ascii=False)
    note(printable_json(text) if as_json else f"drainmark: {error}")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table on standard output."""
    cells = [["" if value is None else printable_cell(shown(value)) for value in row] for row in rows]
    printed_table([printable_cell(column) for column in columns], cells)


def shown(value: Any) -> str:
    """Return a value of a table's cell as people read it; times are UTC."""
    if isinstance(value, dt.datetime):
        told = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
        return f"{told.isoformat(sep=' ')}{'Z' if value.tzinfo else ''}"
    if isinstance(value, list | dict):
        return json.dumps(value, default=_plain, ensure_ascii=False)
    return str(value)


def short_time(moment: str | None) -> str | None:
    """Return a time of a verb's JSON as tables show it: UTC, to the second."""
    return None if moment is None else moment[:19].replace("T", " ")


def short_file(uri: str | None, folder: str | None) -> str | None:
    """Return a file as tables show it: from the folder of its source on, whole where it is elsewhere.

    Args:
        folder: None where nobody knows it.
    """
    if uri is None or not folder:
        return uri
    return uri.removeprefix(f"{folder.rstrip('/')}/")


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo:
        return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, dt.date | dt.time):  # also a time without a zone, which is of no place
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


@contextmanager
def result_only(is_wanted: bool) -> Iterator[None]:
    """Send what others print on standard output, the JVM too, to standard error while the block runs."""
    if not is_wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
