"""Large files are read by ranges, from a folder and from a bucket; the tables are those of a look at the whole (H2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness import multiset, run_once
from integration.bad_inputs import QUARANTINE, REGION, copying, write
from integration.test_object_ways import CASES
from integration.test_s3_input import Bucket, bucket, place

from drainmark.orchestration.workplace.workplace import Workplace

__all__ = ["bucket", "place"]

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("s3_credentials")]

IN_RANGES = {"small_group_bytes": 0, "range_bytes": 5}


def left_by(home: Workplace, inbox: Path | str, scan: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run the files of an inbox through a region that copies them, and return what it left."""
    run_once(home, copying(inbox, **scan))
    table, history = home.store(REGION).table(f"lake/{QUARANTINE}"), home.history(REGION)
    outputs = [home.store(REGION).table(f"lake/{output}").read() for output in scan.get("outputs") or ("copied",)]
    return {
        "rows": [named_by_files(rows.to_pylist()) for rows in outputs],
        "bad": named_by_files(table.read().to_pylist() if table.exists() else []),
        "rows in": {number: state.rows_in for number, state in history.states.items()},
    }


def named_by_files(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    return multiset([{**row, "source_file": row["source_file"].rpartition("/")[2]} for row in rows])


def require_same(
    place: Callable[..., Workplace], bucket: Bucket, folder: Path, files: Mapping[str, bytes], scan: Mapping[str, Any]
) -> None:
    write(folder, files)
    for name, content in files.items():
        bucket.store.put(bucket.name, f"in/{name}", content)
    wanted = left_by(place("whole"), folder, scan)
    for inbox in (folder, bucket.uri):
        found = left_by(place(f"ranges of {str(inbox)[:3]}".replace("/", "_"), **IN_RANGES), inbox, scan)
        for what, value in wanted.items():
            assert found[what] == value, (what, inbox)


@pytest.mark.seed("DX6", "I9", "I11")
@pytest.mark.parametrize("case", [case for case in CASES if case not in ("binary", "whole texts")])
def test_ranges_leave_the_rows_places_and_quarantine_of_whole_files(
    place: Callable[..., Workplace], bucket: Bucket, tmp_path: Path, case: str
) -> None:
    require_same(place, bucket, tmp_path / "inbox", *CASES[case])
