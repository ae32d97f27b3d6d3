"""What others do to a scene: programs that write to its tables, and a registry that comes back from a backup."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from drainmark.jobs import world
from drainmark.jobs.world import Seam
from simulation.regions import ROWS

if TYPE_CHECKING:
    from simulation.verbs import Act

_DATED = re.compile(r'("(?:timestamp|modificationTime|deletionTimestamp)":)\d+')

# --- other programs -------------------------------------------------------------------------------------------------


def append(act: Act) -> None:
    """Append a row to a table of the region."""
    rows = pa.Table.from_pylist([{"value": "strange", "_sequence_id": 1}], schema=ROWS)
    _commit(act, lambda table: write_deltalake(table, rows, mode="append"))


def erase(act: Act) -> None:
    """Delete the rows of a value, or all, from a table of the region."""
    value = act.draw.choice((None, f"k{act.draw.randrange(3)}"))
    _commit(act, lambda table: table.delete(value and f"value = '{value}'"))


def optimize(act: Act) -> None:
    """Join the files of a table of the region."""
    _commit(act, lambda table: table.optimize.compact())


def drop(act: Act) -> None:
    """Delete the folder of a table of the region."""
    if folder := _chosen(act):
        act.scene.damaged.add(act.fed.region)
        act.scene.dropped.add(folder)
        world.across(Seam.STORE_REMOVE, lambda: shutil.rmtree(folder, ignore_errors=True), folder)


def _commit(act: Act, change: object) -> None:
    folder = _chosen(act)
    if folder is None:
        return
    act.scene.damaged.add(act.fed.region)

    def commit() -> None:
        before = set(_log(folder))
        with suppress(DeltaError):  # an owner was faster, or the table is gone
            change(DeltaTable(str(folder)))  # type: ignore[operator]
        for entry in set(_log(folder)) - before:
            _date(entry, int(world.now() * 1000))

    world.across(Seam.DELTA_COMMIT, commit, folder)


def _log(folder: Path) -> Iterator[Path]:
    return (folder / "_delta_log").glob("*.json")


def _date(entry: Path, now: int) -> None:
    """Give a log entry, which the library has dated by the real clock, the time of the history, in milliseconds."""
    entry.write_text(_DATED.sub(lambda found: f"{found[1]}{now}", entry.read_text()))


def _chosen(act: Act) -> Path | None:
    """Return the folder of a table of the region that is there, most often a visible one."""
    tables = [table for table in act.fed.tables if table.is_managed and not table.name.endswith("_quarantine")]
    folders = [act.scene.home / table.name for table in tables]
    there = [folder for folder in folders if (folder / "_delta_log").is_dir()]
    return act.draw.choice(there) if there else None


# --- the disk -------------------------------------------------------------------------------------------------------


def copy(act: Act) -> None:
    """Back up the registry."""
    _copied(act.scene.home / "registry.db", _backup(act))


def restore(act: Act) -> None:
    """Bring back the registry as it was backed up."""
    _copied(_backup(act), act.scene.home / "registry.db")


def lose(act: Act) -> None:
    """Delete the registry; a process that has it open writes to a file that nobody else sees."""
    for end in ("", "-wal", "-shm"):
        (act.scene.home / f"registry.db{end}").unlink(missing_ok=True)


def copy_home(act: Act) -> None:
    """Back up the home, at a moment while nobody commits: no process is within a call."""
    home, kept = act.scene.home, _home_backup(act)
    if home.is_dir():
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(home, kept, symlinks=True, ignore=shutil.ignore_patterns("*-shm"))
        act.scene.damaged_then = set(act.scene.damaged)


def restore_home(act: Act) -> None:
    """Bring back the home as it was backed up, with what lies in it outside Delta; all processes die."""
    _let_work(act)
    if _home_backup(act).is_dir():
        act.scene.kill_others()
        act.scene.returned, act.scene.damaged = "home", set(act.scene.damaged_then)
        _brought_back(_home_backup(act), act.scene.home)


def restore_tables(act: Act) -> None:
    """Bring back only the Delta tables of the home, without the registry, databases and files; all processes die.

    A copy from before a region's first claim has no table of it; the region is another one to its sinks then.
    """
    _let_work(act)
    logs = [_home_backup(act) / "checkpoints" / region / "_delta_log" for region in act.scene.regions]
    if all(log.is_dir() for log in logs):
        act.scene.kill_others()
        act.scene.returned = "tables"
        for folder in ("lake", "state", "checkpoints"):
            _brought_back(_home_backup(act) / folder, act.scene.home / folder)


def _let_work(act: Act) -> None:
    """Let others go on, so that the copy gets old: a seam takes a thousandth of a second."""
    world.sleep(act.draw.choice((0.2, 1.0, 3.0)))


def _home_backup(act: Act) -> Path:
    return act.scene.base / "home-backup"


def _brought_back(kept: Path, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    if kept.is_dir():
        shutil.copytree(kept, to, symlinks=True)


def _backup(act: Act) -> Path:
    return act.scene.base / "backup.db"


def _copied(source: Path, to: Path) -> None:
    if source.is_file():
        with closing(sqlite3.connect(source)) as there, closing(sqlite3.connect(to)) as here:
            there.backup(here)


OUTSIDERS = {
    deed.__name__: deed
    for deed in (append, erase, optimize, drop, copy, restore, lose, copy_home, restore_home, restore_tables)
}
"""What they do, by name."""
