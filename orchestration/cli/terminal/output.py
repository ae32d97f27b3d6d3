"""Output of the verbs: results on standard output, everything else on standard error.

Names and values are foreign text: control characters in them are always written out as escapes.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TextIO

from drainmark.jobs.errors import DrainmarkError, Interrupted
from drainmark.jobs.printable import printable, printable_cell, printable_json, without_nan
from drainmark.orchestration.cli.terminal.tables import printed_table, sentence

CLOSED_PIPE = 128 + signal.SIGPIPE
"""Exit code of a process whose reader has closed the pipe, as `head` does after its last line."""


def emit(value: Any) -> None:
    """Write a value as JSON on standard output; NaN and infinities, which JSON does not have, as texts."""
    written = partial(json.dumps, default=_plain, ensure_ascii=False, indent=2, allow_nan=False)
    try:
        text = written(value)
    except ValueError:
        text = written(without_nan(value))
    sys.stdout.write(f"{printable_json(text)}\n")


def say(text: str) -> None:
    """Write a line of a result for people on standard output."""
    sys.stdout.write(f"{sentence(printable(text), sys.stdout)}\n")


def note(text: str) -> None:
    """Write a remark on standard error; a verb goes on if nobody reads it any more."""
    with suppress(BrokenPipeError):  # `main` finds out, at its last flush
        sys.stderr.write(f"{sentence(printable(text), sys.stderr)}\n")


def waiting(text: str) -> None:
    """Announce a step that takes seconds, only on a terminal; a log has its outcome anyway."""
    if sys.stderr.isatty():
        note(text)


class _PrintableLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def printable_logs() -> None:
    """Write control characters out in log lines, too, which have no other handler than standard error."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PrintableLines())


def complain(error: DrainmarkError, *, as_json: bool) -> None:
    """Write an error on standard error, as text or as a JSON object."""
    text = json.dumps({"error": error.to_json()}, ensure_ascii=False)
    note(printable_json(text) if as_json else f"drainmark: {error}")


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table on standard output."""
    cells = [["" if value is None else printable_cell(shown(value)) for value in row] for row in rows]
    printed_table([printable_cell(column) for column in columns], cells)


def shown(value: Any) -> str:
    """Return the text of a value for a table's cell; times are UTC."""
    if isinstance(value, dt.datetime):
        told = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
        return f"{told.isoformat(sep=' ')}{'Z' if value.tzinfo else ''}"
    if isinstance(value, list | dict):
        return json.dumps(value, default=_plain, ensure_ascii=False)
    return str(value)


def short_time(moment: str | None) -> str | None:
    """Return a time of a verb's JSON in the form of tables: UTC, to the second."""
    return None if moment is None else moment[:19].replace("T", " ")


def short_file(uri: str | None, folder: str | None) -> str | None:
    """Return a file in the form of tables: its path below the source's folder; the whole uri if it is elsewhere.

    Args:
        folder: of the source; None if it is unknown.
    """
    if uri is None or not folder:
        return uri
    return uri.removeprefix(f"{folder.rstrip('/')}/")


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo:
        return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, dt.date | dt.time):  # also a datetime without a zone, which is no UTC time
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


class _Heard(io.FileIO):
    """A standard stream that, when its reader has closed it, calls a function and swallows all that is written."""

    def __init__(self, stream: TextIO, on_closed: Callable[[], object]) -> None:
        super().__init__(stream.fileno(), "w", closefd=False)
        self._stream = stream  # it would close its descriptor if nobody kept it
        self._on_closed = on_closed

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            self._on_closed()
            return len(data)


def _heard(stream: TextIO, on_closed: Callable[[], object]) -> TextIO:
    stream.flush()
    try:
        raw = _Heard(stream, on_closed)
    except OSError:  # it is in memory, in a notebook or a test
        return stream
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors, line_buffering=True)


def hear_out() -> list[bool]:
    """Swallow from now on what is written on standard output and error after their reader has closed them.

    So a verb that changes something is carried out to its end, whoever reads of it.

    Returns:
        a list that is empty as long as both have a reader.
    """
    closed: list[bool] = []
    sys.stdout, sys.stderr = (_heard(stream, partial(closed.append, True)) for stream in (sys.stdout, sys.stderr))
    return closed


@contextmanager
def while_heard(stop: Callable[[], object]) -> Iterator[None]:
    """While the block runs, call `stop` when the reader of standard output or error has closed it, as `head` does.

    Nothing in the block gets an error for it, since that would look like a failure of what writes: a run, or a function
    of the author that prints.

    Raises:
        BrokenPipeError: instead of the `Interrupted` with which the block ends because of `stop`.
    """
    closed: list[bool] = []

    def gone() -> None:
        closed.append(True)
        stop()

    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_heard(stream, gone) for stream in before)
    try:
        yield
    except Interrupted:
        if closed:
            raise BrokenPipeError from None
        raise
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before


@contextmanager
def result_only(is_wanted: bool) -> Iterator[None]:
    """While the block runs, send all output on standard output, also of the JVM, to standard error."""
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
