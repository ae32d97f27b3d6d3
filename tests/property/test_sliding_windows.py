"""`dm.sliding(rows=N)` against plain Python: any grouping, restore from images and files, rewinding (N27, V5)."""

from __future__ import annotations

import uuid
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import rows, run_once
from triggers import add_file, content, home, opened

import drainmark as dm
from drainmark import F
from drainmark.jobs.operators.windows import sliding
from drainmark.jobs.state import keyed_state
from drainmark.orchestration.testing.processing import rewind
from drainmark.resources.spark.session import SparkEngine

pytestmark = pytest.mark.spark

FILES = 6
REGION = "sliding/events"
Row = dict[str, Any]


def declare(rows_kept: int) -> Any:
    def declared(events: Any) -> None:
        doubled = dm.functor(lambda events: events.withColumn("twice", F.col("n") * 2), name="doubled", inputs=[events])
        last = dm.aggregate(
            doubled,
            name="last_rows",
            keys=["user"],
            values={
                "rows": dm.count(), "total": dm.sum("twice"), "mean": dm.mean("x"), "oldest": dm.first("n"),
                "newest": dm.last("n"), "known": dm.collect_set("n"), "top": dm.max("x"),
            },
            window=dm.sliding(rows=rows_kept),
        )  # fmt: skip
        dm.sink(last, dm.DeltaAppend("window_changes"))
        dm.sink(last, dm.DeltaUpsert("window_now", keys=["user"]))

    return declared


def value(window: list[Row]) -> Row:
    numbers = [row["n"] for row in window if row["n"] is not None]
    return {
        "user": window[-1]["user"],
        "rows": len(window),
        "total": sum(2 * n for n in numbers) if numbers else None,
        "mean": sum(row["x"] for row in window) / len(window),
        "oldest": window[0]["n"],
        "newest": window[-1]["n"],
        "known": sorted(set(numbers)),
        "top": max(row["x"] for row in window),
    }


def oracle(files: list[int], rows_kept: int) -> tuple[list[Row], list[Row]]:
    """Return the rows of both sinks after these files."""
    seen: dict[Any, list[Row]] = defaultdict(list)
    changes, now = [], {}
    for number in files:
        changed = dict.fromkeys(row["user"] for row in content(number))
        for row in content(number):
            seen[row["user"]] = [*seen[row["user"]], row][-rows_kept:]
        for user in changed:
            now[user] = value(seen[user])
            changes.append(now[user])
    return changes, list(now.values())


def plain(found: list[Row]) -> list[str]:
    def text(row: Row) -> str:
        rounded = {name: float(f"{cell:.9g}") if isinstance(cell, float) else cell for name, cell in row.items()}
        return repr(sorted(rounded.items()))

    return sorted(text(row) for row in found)


def assert_golden(place: Any, files: list[int], rows_kept: int) -> None:
    changes, now = oracle(files, rows_kept)
    assert plain(rows(place, REGION, "window_changes", ids=False)) == plain(changes)
    assert plain(rows(place, REGION, "window_now", ids=False)) == plain(now)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    for number in range(FILES):
        add_file(tmp_path / "inbox", number)
    return tmp_path / "inbox"


@dataclass(frozen=True)
class Shape:
    """The way to compute a window, and the sizes of the window and of the groups."""

    rows_kept: int
    size: int
    many: int = sliding.MANY_ROWS
    files: int = FILES


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(Shape(rows_kept=3, size=4), marks=pytest.mark.slow),
        Shape(rows_kept=3, size=1, many=0, files=4),
        pytest.param(Shape(rows_kept=1, size=6), marks=pytest.mark.slow),
        pytest.param(Shape(rows_kept=100, size=6), marks=pytest.mark.slow),
        pytest.param(Shape(rows_kept=100, size=1, many=0), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_last_rows_of_each_key_whatever_the_grouping(
    tmp_path: Path, inbox: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, shape: Shape
) -> None:
    monkeypatch.setattr(sliding, "MANY_ROWS", shape.many)
    rows_kept, size = shape.rows_kept, shape.size
    application = opened("sliding", inbox, declare(rows_kept))
    with home(tmp_path / "home", engine) as place:
        reports = run_once(place, application, max_group=size, max_triggers=shape.files)
        assert max(report.triggers for report in reports) == size
        assert_golden(place, list(range(shape.files)), rows_kept)


@dataclass(frozen=True)
class Way:
    """Limits in bytes up to which state and groups are in memory; larger ones are in files and with Spark."""

    state_bytes: int
    group_bytes: int
    checkpoints: str


@pytest.mark.parametrize(
    "way",
    [
        Way(2**25, 2**23, "non-blocking"),
        pytest.param(Way(0, 2**23, "non-blocking"), marks=pytest.mark.slow),
        pytest.param(Way(0, 0, "non-blocking"), marks=pytest.mark.slow),
        pytest.param(Way(2**25, 2**23, "blocking"), marks=pytest.mark.slow),
        pytest.param(Way(0, 0, "blocking"), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_images_restore_and_rewind(
    tmp_path: Path, inbox: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    """A window is loaded from its image and the later changes, both in a new run and after a rewind."""
    monkeypatch.setattr(keyed_state, "MEMORY_STATE_BYTES", way.state_bytes)
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 3)
    application = opened("sliding", inbox, declare(3), checkpoints=way.checkpoints)
    with home(tmp_path / "home", engine, small_group_bytes=way.group_bytes) as place:
        run_once(place, application, max_group=1, max_triggers=3)
        image = place.history(REGION).image_of("state/sliding/last_rows")
        assert image is not None
        kept = place.store(REGION).table("state/sliding/last_rows")
        for file in image.files:
            users = kept.files.read([file]).column("user").to_pylist()
            assert max(users.count(user) for user in set(users)) <= 3, "the image is the window, and no more"
        run_once(place, application, max_group=1)
        assert_golden(place, list(range(FILES)), 3)
        rewind(place, REGION, 2, 10_000)
        assert_golden(place, [0, 1], 3)
        run_once(place, application, max_group=2)
        assert_golden(place, list(range(FILES)), 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "state_bytes", [pytest.param(2**25, id="in memory"), pytest.param(0, marks=pytest.mark.slow, id="in files")]
)
def test_a_compacted_file_reaches_back_behind_the_image(
    tmp_path: Path, inbox: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch, state_bytes: int
) -> None:
    """A row that is in the image and in a file of changes is one row (H29)."""
    monkeypatch.setattr(keyed_state, "MEMORY_STATE_BYTES", state_bytes)
    monkeypatch.setattr(keyed_state, "_IMAGE_MINIMUM_ROWS", 8)  # an image every few files
    application = opened("sliding", inbox, declare(8))
    crossed = False
    with home(tmp_path / "home", engine) as place:
        for _ in range(FILES - 2):
            run_once(place, application, max_group=1, max_triggers=1)
            crossed |= compact_changes(place)
        assert crossed, "no file had rows from both sides of an image"
        run_once(place, application, max_group=1)
        assert_golden(place, list(range(FILES)), 8)


def test_rows_of_a_large_state_are_looked_up(
    tmp_path: Path, inbox: Path, engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are more groups than a run may have files of changes."""
    monkeypatch.setattr(keyed_state, "MEMORY_STATE_BYTES", 0)
    monkeypatch.setattr(keyed_state, "_IMAGE_CHANGE_FILES", 1)
    files = 4
    with home(tmp_path / "home", engine) as place:
        run_once(place, opened("sliding", inbox, declare(3)), max_group=1, max_triggers=files)
        assert_golden(place, list(range(files)), 3)


def compact_changes(place: Any) -> bool:
    """Compact the window's changes; say whether a file then has rows from both sides of the newest image."""
    name, store = "state/sliding/last_rows", place.store(REGION)
    table = store.table(name)
    table.upkeep.compact(table.txn_version(), store.staging(name, 1, uuid.uuid4().hex), files_at_least=2)
    image = place.history(REGION).image_of(name)
    return image is not None and any(file.first_id <= image.at < file.last_id for file in table.files.live())


def test_times_without_a_zone_keep_their_type_in_memory(tmp_path: Path, inbox: Path, engine: SparkEngine) -> None:
    def declared(events: Any) -> None:
        timed = dm.functor(
            lambda events: events.withColumn("at", F.expr("timestamp_ntz'2024-02-29 10:11:12'")),
            name="timed", inputs=[events],
        )  # fmt: skip
        values = {"newest": dm.last("at"), "n": dm.count()}
        dm.sink(dm.aggregate(timed, name="by_time", keys=["at"], values=values), dm.DeltaAppend("by_time_out"))
        window = dm.aggregate(timed, name="last_at", keys=["user"], values=values, window=dm.sliding(rows=2))
        dm.sink(window, dm.DeltaAppend("last_at_out"))

    with home(tmp_path / "home", engine) as place:
        run_once(place, opened("times", inbox, declared), max_group=3)
        found = rows(place, "times/events", "by_time_out")
        assert [row["n"] for row in found][-1] == sum(len(content(number)) for number in range(FILES))
        assert {row["newest"].tzinfo for row in found} == {None}


def test_only_what_the_values_read_is_kept(tmp_path: Path, inbox: Path, engine: SparkEngine) -> None:
    def declared(events: Any) -> None:
        last = dm.aggregate(events, name="kept", keys=["user"], values={"n": dm.sum("n")}, window=dm.sliding(rows=2))
        dm.sink(last, dm.DeltaAppend("kept_out"))

    with home(tmp_path / "home", engine) as place:
        run_once(place, opened("kept", inbox, declared))
        columns = place.store("kept/events").table("state/kept/kept").read().column_names
        assert set(columns) == {"user", "n", "_of_n", "_position", "_has_values", "_sequence_id"}
