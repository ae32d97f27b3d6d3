"""The benchmarks of stages measure what they claim. Their runs check their own tables, and these tests check the
conditions: states overtake, batches are in flight, and the stage restarts, not the region (F1, V202, K10)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from drainmark.resources.spark.session import SparkEngine

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import bench_persisting
import bench_stage_recovery
import bench_stages_job
from bench_stages_job import MODES, Load

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LOAD = Load(files=5, rows=200, batches=1, sleepers=1)


@pytest.mark.seed("F8")
@pytest.mark.parametrize("mode", MODES)
def test_every_file_is_a_state_and_no_row_is_before_its_beginning(
    mode: str, engine: SparkEngine, tmp_path: Path
) -> None:
    inbox = tmp_path / "input" / "in"
    bench_stages_job.write_numbers(inbox, LOAD)
    found = bench_stages_job.passage(engine, inbox, tmp_path / "home", LOAD, sleep_us=100, mode=MODES[mode])
    assert len(found.measured) == LOAD.files * LOAD.rows
    assert (found.measured > found.created).all()
    assert len(found.states) == (LOAD.files if MODES[mode].has_states else 0)
    assert all(triggered < durable for triggered, durable in found.states)


@pytest.mark.parametrize("way", list(bench_persisting.WAYS))
def test_a_state_is_asked_for_once_the_channel_is_full(way: str, engine: SparkEngine, tmp_path: Path) -> None:
    inbox = tmp_path / "input" / "in"
    bench_persisting.write_batches(inbox, 2)
    assert bench_persisting.once(engine, inbox, tmp_path / "home", 2, way) > 0


@pytest.mark.seed("K10", "K22")
@pytest.mark.parametrize("files", [1, 2])
@pytest.mark.parametrize("kind", bench_stage_recovery.KINDS)
def test_new_rows_come_after_the_failure(kind: str, files: int, engine: SparkEngine, tmp_path: Path) -> None:
    inbox = tmp_path / "input" / "in"
    bench_stage_recovery.write_rows(inbox, 4, 100)
    assert bench_stage_recovery.once(engine, inbox, tmp_path / "home", kind=kind, files=files, rows=400) > 0
