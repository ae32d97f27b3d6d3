"""Figure 7 compares equal computations: windows with states and without states leave equal tables (V173, V57)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import oracles
import pytest

from drainmark.resources.spark.session import SparkEngine

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from bench_flows import APPLICATIONS, Flow, chains_of_functors
from bench_input import WrongResult
from bench_lanes import Lane, Without, WithStates

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SIZES = {"log_watch": 150, "lois": 3000}
FLOWS = {**APPLICATIONS, "stateless": chains_of_functors(4, 2)}
MANY = 8 * 1024 * 1024


def lane(kind: type[Lane], flow: Flow, engine: SparkEngine, folder: Path, small_bytes: int = MANY) -> Lane:
    small = replace(flow, size=SIZES.get(flow.name, 100))
    content = small.content(folder / f"content-{kind.__name__}")
    opened: Callable[[Path], Any] = small.at_period(2.0)
    return kind(
        engine=engine, folder=folder / kind.__name__, content=content, opened=opened, warming=2 * flow.starts,
        small_bytes=small_bytes,
    )  # fmt: skip


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}")
    return tuple(map(rounded, value)) if isinstance(value, list) else value


def rows_of(table: Any) -> list[dict[str, Any]]:
    found = table.read().to_pylist() if table.exists() else []
    # The name of a file has the inbox of its lane, and the id of a row depends on the region.
    return [
        {name: rounded(value) for name, value in row.items() if name not in ("source_file", "_sequence_id")}
        for row in found
    ]


@pytest.mark.parametrize("small_bytes", [MANY, pytest.param(1, id="large")])
@pytest.mark.parametrize("name", FLOWS)
def test_windows_with_states_and_without_leave_equal_tables(
    name: str, small_bytes: int, engine: SparkEngine, tmp_path: Path
) -> None:
    lanes = [lane(kind, FLOWS[name], engine, tmp_path, small_bytes) for kind in (WithStates, Without)]
    for each in lanes:
        seconds = each.seconds(2, 2 * FLOWS[name].starts)
        assert len(seconds) == 2
        assert min(seconds) > 0
        each.close()
    ours, theirs = lanes
    region = ours.region
    states = ours.place.history(region.name).states
    assert len(states) == (6 if name == "enron_ds" else 3)
    assert not theirs.place.history(region.name).states, "there is a region where none is to be"
    written = list((theirs.folder / "home" / "state").rglob("*.parquet"))
    assert not written, "the lane without states wrote some"
    tables = [table.name for table in region.tables]
    assert tables
    for table in tables:
        expected = rows_of(ours.place.store(region.name).table(f"lake/{table}"))
        found = rows_of(theirs.place.store(region.name).autonomous(f"lake/{table}"))
        assert not oracles.differences(expected, found), table
        assert expected or table in ("nothing", "vwap_bargains", "log_watch_alerts", "bank_alerts"), table


def test_a_row_that_was_not_read_is_no_figure(engine: SparkEngine, tmp_path: Path) -> None:
    found = lane(Without, FLOWS["vwap"], engine, tmp_path)
    found.seconds(1, 1)
    found.put(1)
    with pytest.raises(WrongResult):
        found.close()
