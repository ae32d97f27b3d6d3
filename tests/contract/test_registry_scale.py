"""The queries of a run, a tick and `status`: they cost the same for any number of inputs, because each has an index."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from postgres import empty_database
from sqlalchemy import Connection, TextClause, text

from drainmark.jobs.protocol.records.triggers import NewTrigger, TriggerStatus
from drainmark.jobs.scan.index import ScanNote
from drainmark.resources.registry.queries import statement, text_of
from drainmark.resources.registry.registry import Registry
from drainmark.resources.registry.scan_queries import RegistryScans

REGION = "app/start"
VALUES: dict[str, Any] = {
    "region": REGION, "uri": "file:///in/7", "uris": ["file:///in/7"], "order_index": 7, "id": 7,
    "sequence_id": 2990, "status": "superseded", "reason": "why", "limit": 5, "last": 2990, "epoch": 1, "count": 1,
    "after": 0, "ids": [7], "orders": [7],
}  # fmt: skip
QUERIES = (
    "triggers/last_place", "triggers/count_above", "triggers/by_uri", "triggers/by_order", "triggers/pending",
    "triggers/pending_count", "triggers/settle", "triggers/skip", "triggers/mark",
    "triggers/requeue", "triggers/take_pending", "triggers/passed", "regions/take_ids", "regions/one",
)  # fmt: skip
LISTS = {"triggers/by_order": ("orders",), "triggers/take_pending": ("ids",)}


@pytest.fixture
def registry(url: str) -> Iterator[Registry]:
    made = filled(url)
    yield made
    made.close()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def only_asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """Yield one registry for all tests that change nothing."""
    folder = tmp_path_factory.mktemp("scale")
    made = filled(f"sqlite:///{folder}/registry.db" if request.param == "sqlite" else empty_database(request))
    yield made
    made.close()


def filled(url: str) -> Registry:
    """Make a registry with three thousand inputs: two are pending, two superseded, the rest committed."""
    made = Registry(url)
    found = [
        NewTrigger(uri=f"file:///in/{number}", identity={}, identity_key="{}", size_bytes=1) for number in range(3000)
    ]
    made.triggers.add(REGION, found)
    with made.database.writing() as connection:
        connection.execute(text("UPDATE drainmark_trigger SET status = 'committed', sequence_id = order_index"))
        for status, orders in (("pending", "10, 2999"), ("superseded", "11, 12")):
            connection.execute(
                text(
                    f"UPDATE drainmark_trigger SET status = '{status}', sequence_id = NULL"  # noqa: S608
                    f" WHERE order_index IN ({orders})"
                )
            )
    if made.database.dialect == "postgresql":
        with made.database.writing() as connection:
            connection.execute(text("ANALYZE"))
    return made


def plan(connection: Connection, statement: TextClause) -> str:
    explain = "EXPLAIN QUERY PLAN" if connection.dialect.name == "sqlite" else "EXPLAIN"
    binds = [bind for bind in statement._bindparams.values() if bind.expanding]
    explained = text(f"{explain} {statement.text}").bindparams(*binds)
    values = {name: VALUES[name] for name in statement._bindparams}
    return "\n".join(str(tuple(row)) for row in connection.execute(explained, values))


@pytest.mark.parametrize("name", QUERIES)
def test_no_query_reads_all_that_is_known(only_asked: Registry, name: str) -> None:
    with only_asked.database.writing() as connection:
        found = plan(connection, statement(name, *LISTS.get(name, ())))
    reads_all = re.search(r"\bSCAN (drainmark_trigger|passed|later)\b|Seq Scan on drainmark_trigger", found)
    assert not reads_all, found
    if name in {"triggers/pending", "triggers/pending_count"}:
        assert "drainmark_trigger_pending" in found
    if name == "triggers/requeue":
        assert "drainmark_trigger_sequence" in found


def test_a_scan_asks_by_uri_however_many_it_asks_for(only_asked: Registry) -> None:
    """SQLite estimates a long list as more expensive than the whole region; the plan must not depend on that."""
    with only_asked.database.writing() as connection:
        name = connection.dialect.name
        uris = [f"file:///in/{number}" for number in range(500)]
        explain = "EXPLAIN QUERY PLAN" if name == "sqlite" else "EXPLAIN"
        values = {"region": REGION, "uris": json.dumps(uris) if name == "sqlite" else uris[:5]}
        rows = connection.execute(text(f"{explain} {text_of('triggers/asked.' + name)}"), values)
        found = "\n".join(str(tuple(row)) for row in rows)
    assert ("region=? AND uri=?" if name == "sqlite" else "drainmark_trigger_identity") in found


def test_a_scan_that_found_nothing_writes_nothing(registry: Registry) -> None:
    """The scan begins no transaction with the write lock, so the log does not grow."""
    begun: list[str] = []
    writing = registry.database.writing
    registry.database.writing = lambda: begun.append("write") or writing()  # type: ignore[method-assign,func-returns-value]
    assert registry.triggers.add(REGION, []) == 0
    assert begun == []
    assert registry.triggers.add("new/region", []) == 0
    assert "new/region" in registry.regions()


def test_a_scan_asks_for_single_uris_and_gets_the_newest(registry: Registry) -> None:
    newer = NewTrigger(uri="file:///in/7", identity={}, identity_key='{"size":2}', size_bytes=2)
    registry.triggers.add(REGION, [newer])
    memory = RegistryScans(registry, REGION)
    asked = [f"file:///in/{number}" for number in range(5, 1200)]
    found = memory.known([*asked, "file:///in/unknown"])
    assert sorted(found) == sorted(asked)
    others = {uri: key for uri, key in found.items() if key != "{}"}
    assert others == {"file:///in/7": newer.identity_key, "file:///in/10": "", "file:///in/11": ""}, "which gave way"
    assert found["file:///in/7"] == '{"size":2}'
    everything = [*(f"file:///in/{number}" for number in range(3000)), newer.uri]
    assert sorted(memory.hashes()) == sorted(map(hash, everything))
    assert memory.passed([TriggerStatus.SUPERSEDED], 1) == ["file:///in/11"]


def test_a_scan_keeps_what_it_remembers_only_under_the_token_that_is_kept(registry: Registry) -> None:
    """The note and the stamps are kept together, or neither is; a rebuilt region forgets both."""
    memory = RegistryScans(registry, REGION)
    mine, other = ScanNote(source="a"), ScanNote(source="b")
    memory.keep(mine.token, mine.to_text(), {"/in": "[1]"})
    assert (memory.load_note(), memory.directories()) == (None, {})
    memory.begin(mine.to_text())
    memory.keep(mine.token, None, {"/in": "[1]", "/in/a": "[2]"})
    memory.keep(mine.token, replace(mine, at="/in").to_text(), {"/in/a": None})
    assert (memory.load_note(), memory.directories()) == (replace(mine, at="/in").to_text(), {"/in": "[1]"})
    memory.begin(other.to_text())
    memory.keep(mine.token, mine.to_text(), {"/in": "[1]"})
    assert (memory.load_note(), memory.directories()) == (other.to_text(), {})
    registry.rebuild(REGION, epoch=1, next_id=1, triggers=[])
    memory.keep(other.token, other.to_text(), {"/in": "[1]"})
    assert (memory.load_note(), memory.directories()) == (None, {})
