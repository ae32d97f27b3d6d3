"""Keyed changes on workers that share only a bucket with the run, while an executor, or the driver, is killed.

The tables are those of plain Python: the newest row of each customer, the history of each, and sums over them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oracle_customers
import pytest
from clusters import Project, why_not_isolated
from test_isolated import Bucketed, Isolated, isolated
from test_isolated_faults import MISHAP

from drainmark.jobs.failpoints import ENVIRONMENT, FailPoint
from drainmark.resources.storage.object_store import ObjectStore

__all__ = ["isolated"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),  # it shares the machine with other tests
    pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated()),
]

KILLED = -9
TRIED = 80
"""More rows than those with which a function is tried before its first group."""

APP = f"""{MISHAP}

@dm.consistent(trigger="operator-driven")
@dm.source(
    dm.DirectoryScan(
        path="s3://{{bucket}}/in",
        pattern="*.jsonl",
        format="debezium",
        schema="id bigint, name string, country string, credit decimal(12,2)",
        settle=0,
    )
)
def scanned_changes(scanned):
    return scanned


@dm.functor
def changes(scanned_changes):
    def seen(place):
        if place == {{place}}:
            mishap("map")
        return place

    return scanned_changes.withColumn("_sequence", udf(seen, "bigint")("_sequence"))


given = dict(keys=["id"], sequence_by="_sequence", apply_as_deletes="_op = 'd'",
             except_columns=["_op", "_sequence", "_changed_at"])
now = dm.apply_changes(changes, **given, name="now")
past = dm.apply_changes(changes, **given, stored_as_scd_type=2, name="past")
countries = dm.aggregate(now, keys=["country"], values={{{{"customers": dm.count(), "credit": dm.sum("credit")}}}})
dm.sink(now, dm.DeltaUpsert("customers", keys=["id"]))
dm.sink(past, dm.DeltaUpsert("customer_history", keys=["id", "valid_from"]))
dm.sink(countries, dm.DeltaUpsert("customers_by_country", keys=["country"]))
"""

MESSAGES = oracle_customers.drawn(seed=8, count=420)
FILES = tuple(MESSAGES[at : at + 160] for at in range(0, len(MESSAGES), 160))
PLACE = next(
    place
    for place in range(420)
    if all(f'"lsn": {place},'.encode() not in line for file in FILES for line in file[:TRIED])
    and any(f'"lsn": {place},'.encode() in line for line in FILES[1])
)
"""A change of the second file that no function is tried with."""


@dataclass(frozen=True, slots=True)
class Changing(Bucketed):
    """A project with customers; a flag says what happens in its tasks."""

    flag: Path

    def put(self, *numbers: int, bad: bool = False) -> None:
        for number in numbers:
            self.store.put(
                f"s3://{self.bucket}", f"in/{number}.jsonl", b"".join(b"%b\n" % line for line in FILES[number])
            )

    def require(self, *numbers: int) -> None:
        wanted = oracle_customers.customers(line for number in numbers for line in FILES[number])
        for table, rows in wanted.items():
            assert rows, f"nothing is to be found in {table}"
            assert plain(self.rows(table)) == plain(rows), table

    def kill_at(self, point: FailPoint, passing: int, *arguments: str) -> None:
        killed = self.project.drainmark(*arguments, **{ENVIRONMENT: f"{point}:kill:{passing}"})
        assert killed.code == KILLED, killed.told

    def committed(self) -> int:
        (status,) = self.run("status")
        return int(status["committed_sequence_id"])


def plain(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted(
        repr(sorted((name, str(value)) for name, value in row.items() if name != "_sequence_id")) for row in rows
    )


@pytest.fixture
def found(isolated: Isolated, s3_server: str, s3_credentials: None) -> Changing:
    name = uuid.uuid4().hex[:12]
    store = ObjectStore(s3_server)
    store.connection.client.create_bucket(Bucket=name)
    project, flag = Project(isolated.away / name, isolated.master), isolated.seen / f"{name}.flag"
    where = {"s3_endpoint_url": s3_server, "tables_url": f"s3://{name}/tables"}
    project.write(APP.format(bucket=name, flag=flag, place=PLACE), {}, **where, small_group_bytes=0)
    return Changing(project, store, name, flag)


@pytest.mark.seed("AC1", "AC2", "DX3")
def test_an_executor_killed_while_changes_are_applied_takes_none_along(found: Changing) -> None:
    found.put(0)
    found.run("run", "app.py")
    found.require(0)
    found.flag.write_text("map kill-executor")
    found.put(1, 2)
    found.run("run", "app.py")
    assert Path(f"{found.flag}.done").exists(), "no executor was killed"
    found.require(0, 1, 2)


@pytest.mark.seed("AC1", "AC2", "DX3", "H7")
def test_a_driver_killed_between_states_and_tables_leaves_what_the_next_run_makes_whole(found: Changing) -> None:
    found.put(0)
    found.run("run", "app.py")
    first = found.committed()
    found.put(1, 2)
    found.kill_at(FailPoint.CHECKPOINT_BEFORE, 1, "run", "app.py")
    found.require(0)
    found.kill_at(FailPoint.PUBLISH_AFTER, 2, "run", "app.py")
    found.run("run", "app.py")
    found.require(0, 1, 2)
    found.kill_at(FailPoint.REWIND_TABLE_AFTER, 2, "reset", "app/scanned_changes", "--to", str(first), "--yes")
    found.run("publish", "app/scanned_changes")
    found.require(0)
    found.run("run", "app.py")
    found.require(0, 1, 2)
