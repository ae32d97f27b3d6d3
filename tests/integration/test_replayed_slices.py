"""A slice that is read again after a rewind gives the bytes that its state was made of (V144).

What does not is refused: `tests/unit/runtime/test_slice_digests.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from drainmark.jobs.protocol.records.triggers import DIGESTS
from drainmark.orchestration.testing.running import Result

pytestmark = [pytest.mark.spark, pytest.mark.seed("RT9")]

LINES = 2000


APP = """\
import drainmark as dm


@dm.consistent({consistent})
@dm.source(dm.FileSource(path={log!r}, format="csv", schema="k string, v bigint", slice_bytes=24000))
def rows(scanned):
    return scanned


dm.sink(rows, dm.DeltaAppend("rows"))
"""
CONSISTENT = {"operator-driven": 'trigger="operator-driven"', "periodic": 'trigger="periodic", period=0'}


@pytest.fixture(params=["operator-driven", "periodic"])
def result(request: pytest.FixtureRequest, run_app: Callable[..., Result], tmp_path: Path) -> Result:
    """Two slices of a file are committed."""
    log = tmp_path / "log.csv"
    log.write_text("".join(f"a,{1:09d}\n" for _ in range(LINES)))
    (tmp_path / "app.py").write_text(APP.format(consistent=CONSISTENT[request.param], log=str(log)))
    made = run_app(tmp_path / "app.py")
    made.run()
    with log.open("a") as file:
        file.write("".join(f"b,{2:09d}\n" for _ in range(LINES)))
    return made.run()


def test_the_same_bytes_are_read_again_and_again(result: Result) -> None:
    before = result.sink("rows")
    for last in (4, 6):
        result.rewind(1).run()
        assert result.sink("rows") == before
        assert [row["sequence_id"] for row in result.history] == [1, last]
    rows = [row for _, row in result.workplace.history(result.region.name).states.items()]
    assert all(list((row.trigger_identity or {})[DIGESTS]) == ["rows"] for row in rows)
