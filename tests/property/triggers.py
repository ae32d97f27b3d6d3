"""The scene of the property tests: an application made by hand, its files, its tables in a form to compare runs."""

from __future__ import annotations

import datetime as dt
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import LONG_AGO

import drainmark as dm
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.settings import Settings

SCHEMA = "user string, n bigint, x double, at timestamp"
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
Row = dict[str, Any]
Declare = Callable[[Any], None]


def opened(name: str, inbox: Path, declare: Declare, **region: Any) -> Opened:
    """Open an application whose source `events` reads CSV files; `declare` gets its stream and declares the rest."""
    with dm.application(name) as declared:

        @dm.consistent(trigger="operator-driven", **region)
        @dm.source(dm.DirectoryScan(path=str(inbox), pattern="*.csv", format="csv", schema=SCHEMA, settle=0))
        def events(scanned: Any) -> Any:
            return scanned

        declare(events)
    return open_application(dm.build_application(declared))


@contextmanager
def home(folder: Path, engine: Any, **settings: Any) -> Iterator[Workplace]:
    """Yield a home of its own, on the run's Spark session."""
    workplace = Workplace(Settings(home=folder, project_root=folder.parent, **settings))
    workplace.use_engine(engine)
    try:
        yield workplace
    finally:
        workplace.registry.close()


def content(number: int) -> list[Row]:
    """Return the rows of file `number`: always the same; few users, so that files share keys; some files are empty."""
    chance = random.Random(number)
    return [
        {
            "user": chance.choice(["ann", "bob", "cy", None]),
            "n": chance.choice([*range(6), None]),
            "x": chance.randrange(1000) / 7,
            "at": NOON + dt.timedelta(minutes=chance.randrange(30)),
        }
        for _ in range(chance.choice([0, 2, 4, 7]))
    ]


def add_file(inbox: Path, number: int) -> None:
    lines = [
        f"{row['user'] or ''},{'' if row['n'] is None else row['n']},{row['x']!r},{row['at']:%Y-%m-%dT%H:%M:%SZ}\n"
        for row in content(number)
    ]
    inbox.mkdir(parents=True, exist_ok=True)
    hidden = inbox / f".{number}.part"
    hidden.write_text("".join(lines))
    os.utime(hidden, (LONG_AGO, LONG_AGO))
    hidden.rename(inbox / f"{number:04d}.csv")


def tables(workplace: Workplace, region: str, names: list[str], *, ids: bool = True) -> dict[str, list[str]]:
    """Return every named table's rows as sorted texts; floats have nine digits, paths have no folder."""
    found: dict[str, list[str]] = {}
    for name in names:
        rows = workplace.store(region).table(name).read().to_pylist()
        found[name] = sorted(as_text(row, ids=ids) for row in rows)
    return found


def as_text(row: Mapping[str, Any], *, ids: bool = True) -> str:
    return repr({name: _plain(row[name]) for name in sorted(row) if ids or name != "_sequence_id"})


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return value.rpartition("/")[2] if isinstance(value, str) and value.startswith("/") else value
