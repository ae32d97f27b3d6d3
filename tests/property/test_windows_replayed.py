"""Windows live and in recovery, through sinks: late rows in an output of their own, windows that a punctor ends, early
emission by number of rows; slow arrival, a rewind into open windows, and a replay faster than life (T11, K16, E8)."""

from __future__ import annotations

import datetime as dt
import itertools
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from harness import LONG_AGO, rows, run_once
from triggers import home
from window_cases import SCHEMA, cell, content, values
from window_oracles import Told, by_mark, by_session, by_time

import drainmark as dm
from drainmark.jobs.frames.tags import POSITION, SEQUENCE_ID
from drainmark.jobs.state import keyed_state
from drainmark.orchestration.testing.processing import rewind
from drainmark.orchestration.workplace.workplace import Opened, open_application
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

FILES, BACK_TO = 7, 4
REGION = "replayed/events"
FIVE, TEN = dt.timedelta(minutes=5), dt.timedelta(minutes=10)
CONDITION = "n > 2"
Row = dict[str, Any]


def punctuated(files: Sequence[Sequence[Row]], keys: Sequence[str]) -> list[list[Row]]:
    """Return the rows with `_punctuation`: the condition holds, and did not hold for the previous row of the key."""
    held: dict[Any, bool] = defaultdict(bool)
    told = []
    for file in files:
        marked = []
        for row in file:
            key, holds = tuple(row[name] for name in keys), (row["n"] or 0) > 2
            marked.append({**row, "_punctuation": holds and not held[key]})
            held[key] = holds
        told.append(marked)
    return told


def until(stream: Any, keys: Sequence[str], name: str) -> Any:
    marked = dm.punctor(stream, CONDITION, keys=list(keys), name=f"{name}_marked")
    window = dm.tumbling(until="_punctuation")
    return dm.aggregate(marked, keys=list(keys), values=values(), window=window, emit="closed", name=name)


ORACLES = {
    "tens": lambda files: by_time(files, ["user"], "closed", size=TEN, every=TEN, lateness=FIVE, trigger=2),
    "visits": lambda files: by_session(files, ["user"], gap=FIVE, lateness=FIVE),
    "risen": lambda files: by_mark(punctuated(files, ["user"]), ["user"], "closed", "_punctuation"),
    "risen_anywhere": lambda files: by_mark(punctuated(files, []), [], "closed", "_punctuation"),
}


def opened(inbox: Path) -> Opened:
    with dm.application("replayed") as declared:

        @dm.consistent(trigger="operator-driven")
        @dm.source(dm.DirectoryScan(path=str(inbox), pattern="*.csv", format="csv", schema=SCHEMA, settle=0))
        def events(scanned: Any) -> Any:
            return scanned

        closed = {"keys": ["user"], "values": values(), "emit": "closed", "lateness": 300}
        tens = dm.aggregate(events, window=dm.tumbling("at", minutes=10, count_trigger=2), name="tens", **closed)
        visits = dm.aggregate(events, window=dm.session("at", gap=300), name="visits", **closed)
        for found in (tens, visits, until(events, ["user"], "risen"), until(events, [], "risen_anywhere")):
            dm.sink(found, dm.DeltaAppend(found.operator.name))
        for found in (tens, visits):
            dm.sink(found["late"], dm.DeltaAppend(f"{found.operator.name}_late"))
    return open_application(dm.build_application(declared))


def as_text(row: Row) -> str:
    shown = {
        name: f"{value:.9g}" if isinstance(value, float) else str(value)
        for name, value in row.items()
        if name not in (SEQUENCE_ID, POSITION, "source_file")
    }
    return repr(sorted(shown.items()))


def plain(found: Sequence[Row]) -> list[str]:
    return sorted(map(as_text, found))


def assert_golden(place: Any, files: int) -> None:
    data = [content(number) for number in range(files)]
    for name, oracle in ORACLES.items():
        told: Told = oracle(data)
        assert plain(rows(place, REGION, name)) == plain([*itertools.chain(*told.emitted)]), name
        if not told.late:
            continue
        late = [*itertools.chain(*told.late)]
        assert plain(rows(place, REGION, f"{name}_late")) == plain(late), name
        counts = place.store(REGION).table(f"state/replayed/{name}-watermark").read().to_pylist()
        newest = max(counts, key=lambda row: row[SEQUENCE_ID])
        assert newest["late_rows"] == len(late)
        assert newest["watermark"] == newest["newest"] - FIVE


@pytest.mark.slow
@pytest.mark.seed("K16", "K17", "K18", "K12", "K14")
def test_a_replay_faster_than_life_makes_the_same_windows(
    tmp_path: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K16: a timer window grows if replayed rows come faster. Here nothing uses a clock. The rows were emitted one file
    at a time, with early windows of `count_trigger` and late rows. After a rewind into the middle of windows, or to the
    beginning, a replay in one group emits them again, row by row."""
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 3)
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    application = opened(inbox)
    with home(tmp_path / "home", engine) as place:
        for number in range(FILES):
            path = inbox / f"{number:04d}.csv"
            path.write_text("".join(",".join(map(cell, row.values())) + "\n" for row in content(number)))
            os.utime(path, (LONG_AGO, LONG_AGO))
            if number in (BACK_TO - 1, FILES - 1):
                run_once(place, application, max_group=1)
                assert_golden(place, number + 1)
        for to in (BACK_TO, 0):
            rewind(place, REGION, to, 10_000)
            if to:
                assert_golden(place, to)
            reports = run_once(place, application)
            assert [report.triggers for report in reports] == [FILES - to]
            assert_golden(place, FILES)


def test_the_files_have_something_of_everything() -> None:
    """There are late rows before and after the rewind's id, early windows, and windows that are open at that id."""
    data = [content(number) for number in range(FILES)]
    for name, oracle in ORACLES.items():
        told = oracle(data)
        assert any(told.emitted[:BACK_TO]), name
        assert any(told.emitted[BACK_TO:]), name
        if told.late:
            assert any(told.late[:BACK_TO]), name
            assert any(told.late[BACK_TO:]), name
    early = by_time(data, ["user"], "closed", size=TEN, every=TEN, lateness=FIVE)
    assert sum(map(len, ORACLES["tens"](data).emitted)) > sum(map(len, early.emitted))
