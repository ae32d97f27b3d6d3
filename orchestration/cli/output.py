"""How verbs speak: results on standard output, everything else on standard error (design.md §6)."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jobs.errors import DrainmarkError


def emit(value: Any) -> None:
    """Write a value as JSON on standard output."""
    sys.stdout.write(json.dumps(value, default=_plain, ensure_ascii=False, indent=2) + "\n")


def say(text: str) -> None:
    """Write a line of a result for people on standard output."""
    sys.stdout.write(f"{text}\n")


def note(text: str) -> None:
    """Write a remark on standard error."""
    sys.stderr.write(f"{text}\n")


def complain(error: DrainmarkError, *, as_json: bool) -> None:
    """Write an error on standard error, as text or as the error object."""
    note(json.dumps({"error": error.to_json()}, ensure_ascii=False) if as_json else f"drainmark: {error}")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a table on standard output; whole where it is no terminal, whatever the width."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(*columns, title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for row in rows:
        drawn.add_row(*(Text("" if value is None else shown(value)) for value in row))
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
