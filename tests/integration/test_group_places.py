"""The `_position` that an author reads does not depend on the group in which a file is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import rows, run_once, settle

import drainmark as dm
from drainmark.orchestration.workplace.workplace import Opened, Workplace, open_application
from drainmark.resources.settings import Settings
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

FILES = 4


def declared(inbox: Path) -> Opened:
    with dm.application("places") as application:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), format="json", schema="n bigint", settle=0))
        def events(scanned: Any) -> Any:
            return scanned

        shown = dm.functor(
            lambda events: events.selectExpr("_sequence_id", "n", "_position.block", "_position.row as place"),
            name="shown", inputs=[events],
        )  # fmt: skip
        dm.sink(shown, dm.DeltaAppend("shown"))
    return open_application(dm.build_application(application))


def test_the_place_of_a_row_is_that_in_its_file(tmp_path: Path, engine: SparkEngine) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for number in range(FILES):
        lines = [json.dumps({"n": 10 * number + row}) for row in range(3 + number)]
        (inbox / f"{number}.json").write_text("\n".join(lines) + "\n")
    settle(inbox)
    place = Workplace(Settings(home=tmp_path / "home", project_root=tmp_path, small_group_bytes=0))
    place.use_engine(engine)
    try:
        reports = run_once(place, declared(inbox), max_group=FILES)
        assert [report.triggers for report in reports] == [FILES], "one group, so that a task may read several files"
        found = [(row["block"], row["place"], row["n"]) for row in rows(place, "places/events", "shown")]
    finally:
        place.registry.close()
    assert sorted(found, key=lambda row: row[2]) == [
        (0, row, 10 * number + row) for number in range(FILES) for row in range(3 + number)
    ]
