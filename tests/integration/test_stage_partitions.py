"""A stage processes a large group in as many tasks as Spark has, and keys bring rows together (F6, AU9)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import drainmark as dm
from drainmark import F
from drainmark.jobs.errors import DeclarationError
from drainmark.jobs.graph.application import Application
from drainmark.orchestration.testing.running import Result

pytestmark = [pytest.mark.spark, pytest.mark.seed("F6", "AU9")]

RunApp = Callable[..., Result]
LARGE = {"small_group_bytes": 0}
KEYS = 40
ROWS = 40_000
SCHEMA = "k string, n int, text string"


def file_of(rows: int) -> dict[str, str]:
    """Return a file of numbered rows, of 650 bytes each; no compression makes it smaller than half."""
    chance = random.Random(3)
    lines = (f"{key_of(n) or ''},{n},{chance.randbytes(320).hex()}\n" for n in range(rows))
    return {"1.csv": "".join(lines)}


def key_of(n: int) -> str | None:
    """Return the key of a row; one key is null."""
    return f"k{n % KEYS}" if n % KEYS else None


def application(**bounds: Any) -> Application:
    """Return an application of rows, and the same rows behind a channel, with their task's number and their place."""
    with dm.application("parts") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="in", pattern="*.csv", format="csv", schema=SCHEMA, settle=0))
        def events(scanned: Any) -> Any:
            return scanned

        @dm.functor(inputs=[dm.buffered(events, **bounds)])
        def placed(events: Any) -> Any:
            task, place = F.spark_partition_id().alias("task"), F.monotonically_increasing_id().alias("place")
            return dm.select(events, "k", "n", F.length("text").alias("size"), task, place)

        dm.sink(placed, dm.DeltaAppend("placed"))
    return dm.build_application(declared)


def placed(result: Result, count: int) -> list[dict[str, Any]]:
    rows = result.sink("placed")
    assert sorted((row["n"], row["k"]) for row in rows) == [(n, key_of(n)) for n in range(count)]
    return rows


def by_key(rows: Sequence[dict[str, Any]]) -> dict[str | None, list[dict[str, Any]]]:
    found = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["place"]):
        found[row["k"]].append(row)
    return found


@pytest.mark.slow
def test_a_stage_has_a_task_for_each_part_of_a_large_batch(run_app: RunApp) -> None:
    result = run_app(application(), file_of(ROWS), settings=LARGE)
    assert len({row["task"] for row in placed(result, ROWS)}) > 1


@pytest.mark.parametrize(("count", "settings"), [(ROWS, LARGE), (400, {})], ids=["large", "small"])
def test_rows_of_one_key_are_on_one_partition_in_the_order_of_the_stream(
    run_app: RunApp, count: int, settings: dict[str, Any]
) -> None:
    result = run_app(application(keys=["k"]), file_of(count), settings=settings)
    rows = placed(result, count)
    assert (len({row["task"] for row in rows}) > 1) == bool(settings)
    for key, ones in by_key(rows).items():
        assert len({row["task"] for row in ones}) == 1, key
        assert [row["n"] for row in ones] == sorted(row["n"] for row in ones), key


@pytest.mark.parametrize("wrong", [["k", "m"], "whole"])
def test_keys_that_the_stream_has_not_are_refused_before_anything_is_claimed(run_app: RunApp, wrong: Any) -> None:
    with dm.application("parts") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path="in", pattern="*.csv", format="csv", schema="k string, n int", settle=0))
        def events(scanned: Any) -> Any:
            return scanned

        @dm.functor
        def whole(events: Any) -> Any:
            return dm.select(events, "k", F.struct("k", "n").alias("whole"))

        dm.sink(dm.buffered(whole, keys=wrong), dm.DeltaAppend("kept"), name="kept")
    result = run_app(dm.build_application(declared)).add({"1.csv": "a,1\n"})
    with pytest.raises(DeclarationError) as caught:
        result.run()
    (violation,) = caught.value.violations
    assert (violation.rule, violation.operator) == ("CHANNEL_KEYS", "kept")
    assert violation.location is not None
    assert not result.workplace.store("parts/events").checkpoint.exists()
