"""Every kind of source under faults: the golden run in any grouping, after every failure (V144, V168, V169, E24–E28).

Rewinds are among the failures: a rewind passes their points, and the replay must give the same rows as the first run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.failpoints import OF_AUTONOMOUS, OF_STAGES, FailPoint
from drainmark.orchestration.testing.crash import matrix
from drainmark.orchestration.testing.crash.trial import Proof
from drainmark.orchestration.testing.running import Result
from drainmark.orchestration.verbs.inputs.push import push_to

APP = Path(__file__).parent / "apps" / "every_source.py"
ROWS = [{"k": "abc"[number % 3], "n": number} for number in range(12)]
REGIONS = ("beacon", "lines", "versions", "changed", "query", "pushed", "clock")
SAMPLE = ("slice.noted", "rewind_table.after_commit")
"""The points at which slices differ from files; `test_golden_matrix.py` has the other commits."""
OF_SEGMENTS = tuple(point for point in FailPoint if point.value.startswith("segment."))

pytestmark = pytest.mark.spark


def write_lines(scene: Result) -> None:
    for name, rows in {"events.csv.2": ROWS[:5], "events.csv.1": ROWS[5:6], "events.csv": ROWS[6:]}.items():
        text = "k,n\n" + "".join(f"{row['k']},{row['n']}\n" for row in rows)
        text += "a,half of a li" if name == "events.csv" else ""
        (scene.workplace.settings.project_root / name).write_text(text)


def write_versions(scene: Result) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    table = scene.home / "lake" / "events"
    table.mkdir(parents=True)
    for first in (0, 4, 8):
        write_deltalake(str(table), pa.Table.from_pylist(ROWS[first : first + 4]), mode="append")
    DeltaTable(str(table)).optimize.compact()


def write_changes(scene: Result) -> None:
    import pyarrow as pa
    from deltalake import DeltaTable, write_deltalake

    table = scene.home / "lake" / "changed"
    table.mkdir(parents=True)
    feed = {"delta.enableChangeDataFeed": "true"}
    for first in (0, 4, 8):
        write_deltalake(str(table), pa.Table.from_pylist(ROWS[first : first + 4]), mode="append", configuration=feed)
    DeltaTable(str(table)).update(predicate="n < 3", updates={"n": "n + 100"})
    DeltaTable(str(table)).optimize.compact()
    DeltaTable(str(table)).delete("k = 'b'")


def push_rows(scene: Result) -> None:
    for first in range(0, len(ROWS), 2):
        push_to(scene.workplace, scene.region, ROWS[first : first + 2])


FILES = {
    "left": {"1.csv": "a,1\nb,2\n", "2.csv": "a,3\n", "3.csv": "c,4\nb,5\n"},
    "right": {"1.json": [{"k": "a", "n": 10}], "2.json": [{"k": "b", "n": 20}, {"k": "z", "n": 30}]},
}


def database(folder: Path) -> dict[str, str]:
    file = folder / "events.db"
    if not file.exists():
        with sqlite3.connect(file) as connection:
            connection.execute("create table events (id integer primary key, k text, n integer)")
            connection.executemany("insert into events (k, n) values (:k, :n)", ROWS)
    return {"events": f"sqlite:///{file}"}


PREPARED: dict[str, Callable[[Result], None]] = {
    "lines": write_lines, "versions": write_versions, "changed": write_changes, "pushed": push_rows
}  # fmt: skip


def check(region: str, tmp_path: Path, settings: dict[str, Any] | None = None, **options: Any) -> Proof:
    (proof,) = dm.testing.assert_exactly_once(
        APP, FILES if region == "clock" else None, region=f"every_source/{region}", prepare=PREPARED.get(region),
        settings={"slice_bytes": 30, "databases": database(tmp_path), **(settings or {})}, **options,
    )  # fmt: skip
    return proof


@pytest.mark.seed("V150", "V166", "CD6")
@pytest.mark.parametrize(
    "region", [each if each == "lines" else pytest.param(each, marks=pytest.mark.slow) for each in REGIONS]
)
def test_a_source_survives_failures_around_its_slices_and_commits(region: str, tmp_path: Path) -> None:
    proof = check(region, tmp_path, fail_points=SAMPLE, groupings=(2,), actions=["raise"])
    assert proof.unreached == ()
    assert proof.states >= 3


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_slices_that_tasks_read_survive_a_kill(tmp_path: Path) -> None:
    large = {"small_group_bytes": 0, "range_bytes": 2 * 256}
    proof = check(
        "query", tmp_path, large, fail_points=(*SAMPLE, "publish.before_commit"), groupings=(2,), actions=["kill"]
    )
    assert proof.unreached == ()
    assert proof.states >= 3


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("region", REGIONS)
def test_a_source_survives_every_failure_in_every_grouping(region: str, tmp_path: Path) -> None:
    proof = check(region, tmp_path)
    expected = {point for point in matrix.points("all") if point not in (*OF_SEGMENTS, *OF_STAGES, *OF_AUTONOMOUS)}
    expected -= set() if region == "clock" else {FailPoint.SLICE_LISTED}
    assert expected <= {cell.point for cell in proof.failures}


@pytest.mark.recovery
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("region", REGIONS)
def test_a_source_survives_sigkill(region: str, tmp_path: Path) -> None:
    proof = check(region, tmp_path, actions=["kill"], groupings=(2,))
    expected = {point for point in FailPoint if matrix.is_of_group(point)} - {*OF_AUTONOMOUS}
    assert expected <= {cell.point for cell in proof.failures}
