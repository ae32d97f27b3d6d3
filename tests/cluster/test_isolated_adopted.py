"""Adopted tables, on workers that see only the folder of the home and the inbox of the run.

Plain Python gives the expected rows of the tables.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from clusters import Project, why_not_isolated
from deltalake import DeltaTable, write_deltalake
from test_isolated import LINES, Isolated, isolated

__all__ = ["isolated"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),  # it shares the machine with other tests
    pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated()),
]

APP = """
import drainmark as dm


@dm.consistent(trigger="operator-driven")
@dm.source(dm.DirectoryScan(path="INBOX", pattern="*.csv", format="csv", schema="k string, n bigint", settle=0))
def events(scanned):
    return scanned


@dm.functor
def pairs(events):
    return dm.select(events, "k", "n")


dm.sink(pairs, dm.DeltaAppend("theirs", adopt=True))
dm.sink(pairs, dm.DeltaUpsert("newest", keys=["k"], adopt=True), name="newest")
"""
THEIRS = [("k0", -1), ("k9", -2)]
"""Rows of others; the key of the first row is in the files, too."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A project: the workers see only its home and its inbox."""

    project: Project
    root: Path

    def run(self, *arguments: str) -> Any:
        ran = self.project.drainmark(*arguments)
        assert ran.code == 0, ran.told
        return ran.printed

    def put(self, *numbers: int) -> None:
        for number in numbers:
            (self.root / "inbox" / f"{number}.csv").write_text("".join(f"{line}\n" for line in LINES[number]))

    def rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = DeltaTable(self.root / "home" / "lake" / table).to_pyarrow_table().to_pylist()
        return found

    def require(self, *numbers: int) -> None:
        """Check both tables against plain Python after the files of these numbers."""
        pairs = [(key, int(n)) for number in numbers for key, n in (line.split(",") for line in LINES[number])]
        newest = dict([*THEIRS, *pairs])
        assert sorted((row["k"], row["n"]) for row in self.rows("newest")) == sorted(newest.items())
        assert sorted((row["k"], row["n"]) for row in self.rows("theirs")) == sorted([*THEIRS, *pairs])
        own = [(row["k"], row["n"]) for row in self.rows("theirs") if row["_sequence_id"] is None]
        assert sorted(own) == THEIRS


@pytest.fixture
def shared(isolated: Isolated) -> Shared:
    name = uuid.uuid4().hex[:12]
    root = isolated.seen / name
    (root / "inbox").mkdir(parents=True)
    for table in ("theirs", "newest"):
        keys, values = zip(*THEIRS, strict=True)
        rows = pa.table({"k": keys, "n": pa.array(values, pa.int64())})
        write_deltalake(str(root / "home" / "lake" / table), rows)
        DeltaTable(root / "home" / "lake" / table).alter.add_constraint({"small": "n < 100000"})
    project = Project(isolated.away / name, isolated.master)
    project.write(APP.replace("INBOX", str(root / "inbox")), {}, home=str(root / "home"), small_group_bytes=0)
    return Shared(project, root)


@pytest.mark.seed("DX1", "DX3")
def test_tables_of_others_get_the_rows_of_the_region_and_keep_their_own(shared: Shared) -> None:
    """There are two groups; then a rewind to the first, which leaves the rows of others unchanged."""
    shared.put(0, 1, 2, 3)
    shared.run("run", "app.py", "--max-group", "2")
    shared.require(0, 1, 2, 3)
    (status,) = shared.run("status")
    shared.run("reset", "app/events", "--to", str(status["committed_sequence_id"] - 2), "--yes")
    shared.require(0, 1)
