"""Tables that several runs write without a fence: each run makes progress, even beside quicker ones."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from harness import passing

from drainmark.jobs.errors import CommitOutcomeUnknown
from drainmark.jobs.runtime.autonomous import output
from drainmark.resources.delta import commits, delta_tables, turns
from drainmark.resources.delta.autonomous_tables import AutonomousTable
from drainmark.resources.delta.turns import TURNS, Turn
from drainmark.resources.storage.folder import Folder, LocalFolder

SCHEMA_JSON = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in {"_sequence_id": "long", "k": "string", "n": "long"}.items()
        ],
    }
)
MANY = 100_000
WRITER = """
import sys
from pathlib import Path

import pyarrow as pa

from drainmark.resources.delta.autonomous_tables import AutonomousTable
from drainmark.resources.storage.folder import LocalFolder

folder, schema, way, name = Path(sys.argv[1]), *sys.argv[2:]
table, number = AutonomousTable(LocalFolder(folder / "t"), "app"), 0
while not (folder / "stop").exists():
    number += 1
    rows = pa.table({"_sequence_id": [number], "k": [f"{name} {number}"], "n": [number]})
    if way == "append":
        table.append(rows, schema)
    else:
        table.upsert(rows, ["k"], schema)
    print(number, flush=True)
"""


def rows(n: int, count: int = MANY) -> pa.Table:
    return pa.table({"_sequence_id": [1] * count, "k": [str(number) for number in range(count)], "n": [n] * count})


@contextmanager
def writing(folder: Path, way: str, name: str) -> Iterator[list[int]]:
    """Let a process write row after row: it is at work when the block begins, and has ended after the block."""
    command, written = [sys.executable, "-c", WRITER, str(folder), SCHEMA_JSON, way, name], list[int]()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        written.append(int(process.stdout.readline()))
        try:
            yield written
        finally:
            (folder / "stop").touch()
            written += map(int, process.stdout.read().split())
    assert process.returncode == 0


@pytest.mark.parametrize("way", [pytest.param("append", marks=pytest.mark.slow), "upsert"])
def test_a_slow_run_gets_on_beside_a_quick_one(tmp_path: Path, way: str) -> None:
    """The quick run commits again while the slow one computes; no run loses rows."""
    table = AutonomousTable(LocalFolder(tmp_path / "t"), "app")
    table.append(rows(0), SCHEMA_JSON)
    with writing(tmp_path, way, "quick") as quick:
        for n in (1, 2, 3):
            table.upsert(rows(n), ["k"], SCHEMA_JSON)
    found = table.read().to_pylist()
    assert sorted(row["n"] for row in found if row["k"].startswith("quick")) == quick
    assert len(quick) > 3
    assert sorted((row["k"], row["n"]) for row in found if row["k"].isdecimal()) == sorted(
        (str(number), 3) for number in range(MANY)
    )
    assert list(table.folder.names(TURNS)) == []


def test_a_turn_of_a_run_that_died_is_taken_away_when_it_is_old(place: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.3)
    table = AutonomousTable(place / "t", "app")
    table.append(rows(0, 1), SCHEMA_JSON)
    began = time.monotonic()
    dead = Turn(table.folder)
    dead.take(1)
    table.append(rows(1, 1), SCHEMA_JSON)
    assert time.monotonic() - began >= 0.3
    assert list(table.folder.names(TURNS)) == []
    assert table.row_count() == 2


def test_a_commit_goes_on_before_a_run_of_one_group_ends(place: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of the commit ends with the run: rows that still wait would never be written."""
    assert turns.WAIT_SECONDS < output.PATIENCE_SECONDS / 2
    monkeypatch.setattr(turns, "WAIT_SECONDS", 0.2)
    table = AutonomousTable(place / "t", "app")
    table.append(rows(0, 1), SCHEMA_JSON)
    dead = [Turn(table.folder) for _ in range(3)]
    for turn in dead:
        turn._ask()
    table.append(rows(1, 1), SCHEMA_JSON)
    assert table.row_count() == 2
    assert len(list(table.folder.names(TURNS))) == 3


def test_who_asked_first_is_first(place: Folder) -> None:
    folder = place / "t"
    with Turn(folder) as first, Turn(folder) as second:
        second.take(0)
        first.take(1)
        second._ask()
        assert (first._first(), second._first()) == (None, first._name)
    assert list(folder.names(TURNS)) == []


def test_tries_that_others_do_not_disturb_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that takes no commit fails soon; a run that is always late fails after a while."""
    monkeypatch.setattr(commits, "CONTENDED_SECONDS", 0.0)
    table, other = (AutonomousTable(LocalFolder(tmp_path / "t"), "app") for _ in range(2))
    table.append(rows(0, 1), SCHEMA_JSON)
    tries: list[int] = []

    def overtaken(point: str) -> None:
        if point == "send.before_commit":
            tries.append(commits.transact(other.folder, delta_tables.open_table(other.folder), "app", None) or 1)

    with passing(overtaken), pytest.raises(CommitOutcomeUnknown):
        table.append(rows(1, 1), SCHEMA_JSON)
    assert len(tries) == commits.COMMIT_TRIES
    monkeypatch.setattr(commits, "CONTENDED_SECONDS", 600.0)
    with passing(lambda point: overtaken(point) if len(tries) < 3 * commits.COMMIT_TRIES else None):
        table.append(rows(1, 1), SCHEMA_JSON)
    assert table.row_count() == 2
