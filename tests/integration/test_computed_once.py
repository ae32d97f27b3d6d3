"""Rows that differ each time they are computed: jobs on several executors read them from files (H15)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from drainmark.jobs.errors import AccountingError
from drainmark.jobs.runtime.input import executors
from drainmark.jobs.runtime.input.executors import InTasks
from drainmark.jobs.tasks.places import LocalPlace
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.seed("DX2", "H15")]
ROWS = 1000
ROLLED = "reflect('java.util.UUID', 'randomUUID')"  # `uuid()` has its seed in the plan: it repeats its values


@pytest.mark.parametrize("untyped", [False, True], ids=["files", "blocks"])
def test_two_jobs_read_the_same_rows(engine: SparkEngine, tmp_path: Path, untyped: bool) -> None:
    """A column without a type fits in no file, so its rows are kept in blocks; column names may be of any kind."""
    rolled = engine.session.range(0, ROWS, 1, 2).selectExpr(
        "id", f"{ROLLED} as `a.b`", *(["null as nothing"] if untyped else [])
    )
    assert rolled.collect() != rolled.collect()
    once = InTasks(session=engine.session, place=LocalPlace(str(tmp_path)), keeps_rows=False).once(rolled)
    assert once.columns == rolled.columns
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda _: once.collect(), range(2))
    assert len(one) == ROWS
    assert sorted(one) == sorted(two)


def test_rows_that_went_to_another_disk_are_missed(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark wrote to a folder on another disk, so the folder here is empty."""
    write = executors.write_files
    elsewhere = LocalPlace(str(tmp_path / "elsewhere"))
    monkeypatch.setattr(executors, "write_files", lambda frame, *_: write(frame, elsewhere))
    with pytest.raises(AccountingError) as raised:
        executors.from_files(engine.session.range(7), LocalPlace(str(tmp_path)))
    assert (raised.value.facts["rows"], raised.value.facts["expected"]) == (0, 7)
