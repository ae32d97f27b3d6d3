"""The cost of a state: one commit for each table and group, and no row in the registry; no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from by_hand import Counting

from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.delta import commits, delta_tables
from drainmark.resources.delta.log.commit_log import SoleWriter
from drainmark.resources.settings import Settings
from drainmark.resources.storage.folder import Folder

FILES = 6


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Counting]:
    """Yield a region with six files, and three tables beside the checkpoint table."""
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    scene = Counting(place, tmp_path / "inbox")
    for number in range(FILES):
        scene.write(f"file-{number}", ["canary", f"canary-{number}"])
    scene.add(*(f"file-{number}" for number in range(FILES)))
    yield scene
    place.registry.close()


def versions(fed: Counting) -> dict[str, int]:
    """Return the number of commits of each table of the region, including the checkpoint table."""
    store = fed.workplace.store(fed.region)
    found = {table.name: store.open(table).delta_version() for table in fed.tables}
    return {**found, "checkpoints": delta_tables.open_table(store.checkpoint.folder).version()}


@pytest.mark.seed("V7", "V69")
@pytest.mark.parametrize("size", [1, 2, FILES])
def test_a_group_costs_one_commit_a_table_however_many_states_it_has(fed: Counting, size: int) -> None:
    """All commits are once for each group, of any size: there is none for each state, row or operator."""
    with fed.owning():
        before = versions(fed)
        for _ in range(FILES // size):
            fed.process(size)
        after = versions(fed)
    assert list(fed.history().states) == list(range(1, FILES + 1))
    assert {name: after[name] - before[name] for name in before} == dict.fromkeys(before, FILES // size)
    assert len(before) == 4


@pytest.mark.seed("V7")
def test_a_further_group_opens_no_table_anew(fed: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a table replays its log, and sets up a client of the bucket."""
    opened, really = [], delta_tables.open_table

    def counted(folder: Folder) -> Any:
        opened.append(folder.uri)
        return really(folder)

    with fed.owning():
        fed.process(1)
        monkeypatch.setattr(delta_tables, "open_table", counted)
        fed.process(1)
    assert opened == []


@pytest.mark.seed("V7")
def test_a_further_group_replays_no_log(fed: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table object replays its log to tell a transaction; after its own commit, the region knows it."""
    replayed: list[str] = []
    really = SoleWriter.transaction

    def counted(writer: SoleWriter, table: Any) -> int | None:
        known = writer.known
        found = really(writer, table)
        replayed.extend([writer.folder.uri] if writer.known is not known else [])
        assert found == commits.txn_version(table, writer.region)
        return found

    with fed.owning():
        fed.process(1)
        monkeypatch.setattr(SoleWriter, "transaction", counted)
        fed.process(1)
    assert replayed == []


@pytest.mark.seed("V63")
def test_no_row_goes_through_the_registry(fed: Counting) -> None:
    fed.drain(2)
    assert (1, "canary") in fed.values()
    kept = b"".join(path.read_bytes() for path in fed.workplace.home.glob("registry.db*"))
    assert b"file-0" in kept, "the registry knows the files"
    assert b"canary" not in kept
