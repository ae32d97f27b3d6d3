"""Rows that were pushed, in the segments of a home: those of a person leave, and the segments keep their numbers.

Segments in a bucket, and states of threaded starts beside them, stay as they are.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path

from drainmark.jobs import world
from drainmark.jobs.operators.sources.pushed.push_buffer import locked
from drainmark.jobs.protocol.persons import Person
from drainmark.jobs.tasks.places import sync_folder, write_durably

BUFFERS = "buffers"


def held(home: Path, region: str, person: Person) -> dict[str, int]:
    """Return the number of pushed rows of a person by source of a region; only sources that have such rows."""
    found = {}
    for folder in _sources(home, region):
        rows = sum(not kept for path in folder.glob("*.jsonl") for _, kept in _lines(path, person))
        if rows:
            found[folder.name] = rows
    return found


def columns(home: Path, region: str) -> dict[str, frozenset[str]]:
    """Return the columns of the pushed rows of a region, by source; only of sources that have rows."""
    found = {
        folder.name: frozenset(name for path in folder.glob("*.jsonl") for _, row in _rows(path) for name in row)
        for folder in _sources(home, region)
    }
    return {name: columns for name, columns in found.items() if columns}


def regions(home: Path) -> set[str]:
    """Return the regions to which rows were pushed in this home."""
    folder = home / BUFFERS
    return {str(path.relative_to(folder)) for path in folder.glob("*/*") if path.is_dir()}


def sources(home: Path, region: str) -> frozenset[str]:
    """Return the names of the sources of a region to which rows were pushed in this home."""
    return frozenset(folder.name for folder in _sources(home, region))


def erase(home: Path, region: str, person: Person) -> None:
    """Write the segments with rows of a person again, each in one step, while nobody pushes."""
    for folder in _sources(home, region):
        with locked(folder):
            for path in sorted(folder.glob("*.jsonl")):
                lines = [*_lines(path, person)]
                if not all(kept for _, kept in lines):
                    _replace(path, b"".join(line for line, kept in lines if kept))


def _sources(home: Path, region: str) -> list[Path]:
    folder = home / BUFFERS / region
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _lines(path: Path, person: Person) -> Iterator[tuple[bytes, bool]]:
    """Yield each line, with whether it stays."""
    for line, row in _rows(path):
        yield line, not (row and _is_of(row, person))


def _rows(path: Path) -> Iterator[tuple[bytes, dict[str, object]]]:
    """Yield each line with its row; a line that a crash cut off is none, {}."""
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line, parse_float=Decimal)
            except ValueError:
                row = None
            yield line, row if isinstance(row, dict) else {}


def _is_of(row: dict[str, object], person: Person) -> bool:
    return all(any(_is_one(row[name], each.values) for name in each.among(row)) for each in person.conditions)


def _is_one(value: object, asked: Sequence[str]) -> bool:
    """Say whether a value of JSON is one of some values, which may be written in another way: 5 as 5.0."""
    if isinstance(value, bool):
        return str(value).lower() in map(str.lower, asked)
    if isinstance(value, int | Decimal):
        return any(value == number for number in map(_number, asked))
    if isinstance(value, str):
        return value in asked or any(
            value_at == at for at in map(_instant, asked) if (value_at := _instant(value)) and at
        )
    return False


def _number(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def _instant(text: str) -> dt.datetime | None:
    """Return a time; one without a zone is of UTC; None for a text that is no time of day."""
    try:
        moment = dt.datetime.fromisoformat(text) if len(text) > len("2026-01-01") else None
    except ValueError:
        return None
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def _replace(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.{world.token()}")
    write_durably(part, content)
    part.replace(path)
    sync_folder(path.parent)
