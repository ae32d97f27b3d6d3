"""A partitioned table that others changed is repaired, with its partitions: commits by hand, without Spark (AU8)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from by_hand import HandFed
from deltalake import DeltaTable, QueryBuilder

from drainmark.jobs.protocol.records.manifest import RegionTable
from drainmark.orchestration.verbs import table_repair
from drainmark.orchestration.workplace.workplace import Workplace
from drainmark.resources.settings import Settings

pytestmark = pytest.mark.seed("AU8")


class Cut(HandFed):
    """A region with a sink that is partitioned by the only column of its rows."""

    @property
    def tables(self) -> tuple[RegionTable, ...]:
        return tuple(replace(table, options={"partition_by": ["value"]}) for table in super().tables)


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Cut]:
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path))
    scene = Cut(place, tmp_path / "inbox")
    for name, values in {"a": ["k", "l"], "b": ["k"], "c": ["m"]}.items():
        scene.write(name, values)
    scene.add("a", "b", "c")
    scene.drain(2)
    yield scene
    place.registry.close()


def found(fed: Cut) -> list[tuple[str, int]]:
    """Return the rows that `deltalake` finds; it reads the column from the partition."""
    query = QueryBuilder().register("t", table_of(fed)).execute("select value, _sequence_id from t")
    return sorted((row["value"], row["_sequence_id"]) for row in pa.table(query).to_pylist())


def table_of(fed: Cut) -> Any:
    return DeltaTable(fed.workplace.home / "lake" / "kept")


def test_a_partition_that_others_deleted_comes_back_as_it_was(fed: Cut) -> None:
    before = found(fed)
    assert before == [("k", 1), ("k", 2), ("l", 1), ("m", 3)]
    table = table_of(fed)
    table.delete("value = 'k'")
    assert found(fed) == [("l", 1), ("m", 3)]
    table_repair.mend(fed.workplace, fed.region)
    assert found(fed) == before
    for line in (fed.workplace.home / "lake" / "kept" / "_delta_log").glob("*.json"):
        for action in map(json.loads, line.read_text().splitlines()):
            assert "add" not in action or set(action["add"]["partitionValues"]) == {"value"}
    fed.write("d", ["l"])
    fed.add("d")
    fed.drain()
    assert found(fed) == sorted([*before, ("l", 4)])
