"""A log that is rotated between runs: before a slice was read, and behind a rewind (V144, E25); with Spark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drainmark as dm
from drainmark.jobs.errors import Halted
from drainmark.orchestration.discovery.region_scan import scan_region
from drainmark.orchestration.testing.running import Result

pytestmark = pytest.mark.spark


def followed(trigger: dict[str, Any]) -> Callable[[], None]:
    def declare() -> None:
        @dm.consistent(**trigger)
        @dm.source(dm.FileSource(path="app.log", rotated="app.log.*", rotate_wait=0))
        def lines(scanned: Any) -> Any:
            return scanned

        dm.sink(lines, dm.DeltaAppend("kept"))
        times = dm.aggregate(lines, keys=["value"], values={"times": dm.count()})
        dm.sink(times, dm.DeltaUpsert("counted", keys=["value"]))

    return declare


def append(folder: Path, *lines: str) -> None:
    with (folder / "app.log").open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def rename(folder: Path) -> None:
    for number in (2, 1):
        if (folder / f"app.log.{number}").exists():
            (folder / f"app.log.{number}").rename(folder / f"app.log.{number + 1}")
    (folder / "app.log").rename(folder / "app.log.1")


def values(result: Result) -> list[str]:
    return sorted(row["value"] for row in result.sink("kept"))


@pytest.mark.seed("V144", "E25")
@pytest.mark.parametrize(
    "trigger",
    [
        pytest.param({"trigger": "operator-driven"}, id="driven"),
        pytest.param({"trigger": "periodic", "period": 0}, id="periodic", marks=pytest.mark.slow),
    ],
)
def test_a_log_is_followed_through_rotations_and_rewinds(
    run_app: Callable[..., Result], trigger: dict[str, Any]
) -> None:
    result = run_app(followed(trigger))
    folder = result.workplace.settings.project_root
    append(folder, "a", "b")
    result.run()
    append(folder, "c")
    scan_region(result.workplace, result.region)
    rename(folder)
    append(folder, "d")
    result.run()
    while len(values(result)) < 4:
        result.run()
    shutil.copyfile(folder / "app.log", folder / "app.log.0")
    os.truncate(folder / "app.log", 0)
    append(folder, "a")
    result.run()
    everything, counted = values(result), {row["value"]: row["times"] for row in result.sink("counted")}
    assert everything == ["a", "a", "b", "c", "d"]
    assert counted == {"a": 2, "b": 1, "c": 1, "d": 1}
    result.rewind(1)
    assert values(result) == ["a", "b"]
    result.run()
    assert values(result) == everything
    (folder / "app.log.0").unlink()
    result.rewind(1)
    with pytest.raises(Halted) as caught:
        result.run()
    assert "app.log@1#0..2" in str(caught.value.facts["trigger"]) or "period" in str(caught.value.facts["trigger"])
    assert "app.log" in caught.value.message
