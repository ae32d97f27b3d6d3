"""How verbs speak: results on standard output, everything else on standard error.

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


def emit(value: Any) -> None:
    """Write a value as JSON on standard output."""
    sys.stdout.write(printable_json(json.dumps(value, default=_plain, ensure_ascii=False, indent=2)) + "\n")


def say(text: str) -> None:
    """Write a line of a result for people on standard output."""
    sys.stdout.write(f"{printable(text)}\n")


def note(text: str) -> None:
    """Write a remark on standard error."""
    sys.stderr.write(f"{printable(text)}\n")


def complain(error: DrainmarkError, *, as_json: bool) -> None:
    """Write an error on standard error, as text or as the error object."""
    text = json.dumps({"error": error.to_json()}, ensure_ascii=False)
    note(printable_json(text) if as_json else f"drainmark: {error}")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a table on standard output; whole where it is no terminal, whatever the width."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    named = title if title is None else Text(printable_cell(title), style="table.title")
    drawn = Table(title=named, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        drawn.add_column(Text(printable_cell(column)))  # as Text: names in brackets are no markup
    for row in rows:
        drawn.add_row(*(Text("" if value is None else printable_cell(shown(value))) for value in row))
    console = Console(soft_wrap=False)
    if not console.is_terminal:
        console = Console(width=10_000)
    console.print(drawn)


def shown(value: Any) -> str:
    """Return a value of a table's cell as people read it."""
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    return str(value)


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
