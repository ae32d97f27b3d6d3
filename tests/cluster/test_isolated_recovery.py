"""A sample of the golden matrix on workers that share only a bucket with the run.

The process of the run is killed; the next run leaves the same tables as a run that never failed. The whole matrix, on
one machine, is in `tests/recovery/test_golden_matrix.py`.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import oracles
import pytest
from clusters import Project, Ran, why_not_isolated
from recovery.order_files import FILES, orders_oracle, orders_text
from test_isolated import Bucketed, Isolated, isolated

from drainmark.jobs.failpoints import ENVIRONMENT, FailPoint
from drainmark.resources.storage.object_store import ObjectStore

__all__ = ["isolated"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),  # it shares the machine with other tests
    pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated()),
]

APP = str(Path(__file__).parents[1] / "recovery" / "apps" / "two_regions.py")
REGION = "two_regions/orders"
GROUP = 2
REWIND_TO = 3  # inside a group
KILLED = -9


@dataclass(frozen=True, slots=True)
class Golden(Bucketed):
    """The graph of the golden runs; its files are in the bucket, and on this disk for the oracle."""

    files: tuple[Path, ...]

    def drain(self, failpoints: str = "") -> Ran:
        where = (part for name in ("orders", "payments") for part in ("--input", f"{name}=s3://{self.bucket}/{name}"))
        arguments = ["run", APP, "--region", REGION, *where, "--max-group", str(GROUP)]
        return self.project.drainmark(*arguments, **{ENVIRONMENT: failpoints})

    def states(self) -> list[int]:
        """Return the ids of the effective states, in order."""
        found: list[dict[str, Any]] = self.run("history", REGION)
        return [row["sequence_id"] for row in found]

    def require_after(self, files: int) -> None:
        """Check the sinks against plain Python after so many files; each row must have the id of a state."""
        ids = set(self.states()[:files])
        for sink, expected in orders_oracle(self.files[:files]).items():
            rows = self.rows(sink)
            found = oracles.differences(expected, rows)
            assert not found, "\n".join([sink, *found])
            assert {row["_sequence_id"] for row in rows} <= ids, sink


@pytest.fixture
def golden(isolated: Isolated, s3_server: str, s3_credentials: None, tmp_path: Path) -> Golden:
    name = uuid.uuid4().hex[:12]
    store = ObjectStore(s3_server)
    store.connection.client.create_bucket(Bucket=name)
    chance, files = random.Random(11), []
    for number in range(FILES):
        files.append(tmp_path / f"orders-{number:03d}.csv")
        files[-1].write_text(orders_text(chance))
        store.put(f"s3://{name}", f"orders/{files[-1].name}", files[-1].read_bytes())
    project = Project(isolated.away / name, isolated.master)
    project.write("", {}, s3_endpoint_url=s3_server, tables_url=f"s3://{name}/tables", small_group_bytes=0)
    return Golden(project, store, name, tuple(files))


@pytest.mark.seed("DX3", "H7")
@pytest.mark.parametrize(
    ("point", "passing", "durable"),
    [
        pytest.param(FailPoint.CHECKPOINT_BEFORE, 2, GROUP, id="all of a group is staged"),
        pytest.param(FailPoint.PUBLISH_BEFORE, 2, GROUP, id="one table of several is published"),
    ],
)
def test_a_run_that_was_killed_is_finished_by_the_next(
    golden: Golden, point: FailPoint, passing: int, durable: int
) -> None:
    killed = golden.drain(failpoints=f"{point.value}:kill:{passing}")
    assert killed.code == KILLED, f"{point.value} was not passed: {killed.told}"
    assert len(golden.states()) == durable
    if point is FailPoint.CHECKPOINT_BEFORE:
        golden.require_after(durable)
    again = golden.drain()
    assert again.code == 0, again.told
    assert len(golden.states()) == FILES
    golden.require_after(FILES)
    assert golden.made_by_tasks("two_customers")


@pytest.mark.seed("DX3", "H7")
def test_a_rewind_that_was_killed_between_two_tables_is_finished_by_the_next_run(golden: Golden) -> None:
    first = golden.drain()
    assert first.code == 0, first.told
    target = golden.states()[REWIND_TO - 1]
    at = f"{FailPoint.REWIND_TABLE_AFTER.value}:kill:2"
    killed = golden.project.drainmark("reset", REGION, "--to", str(target), "--yes", **{ENVIRONMENT: at})
    assert killed.code == KILLED, killed.told
    golden.run("publish", REGION)  # any owner finishes it first
    golden.require_after(REWIND_TO)
    again = golden.drain()
    assert again.code == 0, again.told
    assert len(golden.states()) == FILES
    golden.require_after(FILES)
